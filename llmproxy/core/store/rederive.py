"""Keys derived once more from what is stored, under the rules of today.

A key that comes out otherwise under the very rules it was stored with is damage. Under other rules it says what the
change did: recordings whose keys *merge* answer each other's requests now, those of one key that *split* no longer do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from llmproxy.core.keys.key import key_of
from llmproxy.core.keys.normalize import Canonical, Rules, canonicalize
from llmproxy.core.providers.routing import PROVIDERS, Route, route
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction, Key
from llmproxy.errors import CassetteError, RefusedError


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """One live interaction and its key then and now."""

    id: int
    place: tuple[str, int, str]
    """Cassette, sample, party: only within one do keys meet."""
    old: Key
    new: Key
    other_rules: bool
    """It was stored under other rules than today's."""

    @property
    def damaged(self) -> bool:
        """Whether neither a change of rules nor anything else we know explains the difference."""
        return self.old != self.new and not self.other_rules


def route_of(interaction: Interaction, upstreams: Mapping[str, str]) -> Route:
    """Return the route that the recorded request had. Raises RefusedError for what no route can say."""
    name, request = interaction.provider, interaction.request
    if name not in PROVIDERS:
        upstreams = {name: interaction.upstream or "http://localhost", **upstreams}
    return route(request.method, f"/{quote(name, safe='.-_:')}{request.target}", request.headers, upstreams)


def canonical_of(store: Store, interaction: Interaction, rules: Rules, upstreams: Mapping[str, str]) -> Canonical:
    """Return the canonical request of a recording under `rules`. Raises RefusedError."""
    cassette, sample = interaction.cassette, interaction.sample
    where = route_of(interaction, upstreams)
    return canonicalize(interaction.request, where, rules, lambda made: store.made_by(cassette, sample, made))


def rekeyed(store: Store, rules: Rules, upstreams: Mapping[str, str]) -> Iterator[Rekeyed]:
    """Derive the key of each live interaction anew; what cannot be read is left to `upkeep.damages`."""
    for summary in store.summaries():
        try:
            each = store.load(summary.id)
        except CassetteError:
            continue
        try:
            new = key_of(canonical_of(store, each, rules, upstreams))
        except RefusedError:
            new = each.key  # no route today: nothing can be said
        yield Rekeyed(
            summary.id, (each.cassette, each.sample, each.party), each.key, new, each.rules not in ("", rules.digest)
        )


def rekey(store: Store, rules: Rules, upstreams: Mapping[str, str]) -> int:
    """Give every live interaction its key under `rules`, and return how many keys changed.

    Recordings whose keys merge keep their order as occurrences of the one key. A key may stand inside another one (a conversation
    names the interaction that made its id), so it is done again until nothing changes any more.
    """
    changed: set[int] = set()
    while True:
        found = list(rekeyed(store, rules, upstreams))
        moved = {each.id for each in found if each.old != each.new and not each.damaged}
        if not moved and all(not each.other_rules for each in found):
            return len(changed)
        changed |= moved
        _write(store, [each for each in found if not each.damaged], rules)


def _write(store: Store, found: Iterable[Rekeyed], rules: Rules) -> None:
    counts: dict[tuple[object, ...], int] = defaultdict(int)
    rows = []
    for each in found:
        counts[*each.place, each.new] += 1
        rows.append((each.new, counts[*each.place, each.new], rules.digest, each.id))
    with store.transaction() as conn:
        # Two live rows may never stand in one slot, not even for a moment.
        conn.executemany("UPDATE interactions SET occurrence = -id WHERE id = ?", [(row[-1],) for row in rows])
        conn.executemany("UPDATE interactions SET key = ?, occurrence = ?, rules = ? WHERE id = ?", rows)


def merges(found: Iterable[Rekeyed]) -> list[list[Rekeyed]]:
    """Return the groups whose keys differed and are one now."""
    return [group for group in _by(found, new=True) if len({each.old for each in group}) > 1]


def splits(found: Iterable[Rekeyed]) -> list[list[Rekeyed]]:
    """Return the groups whose key was one and is several now."""
    return [group for group in _by(found, new=False) if len({each.new for each in group}) > 1]


def _by(found: Iterable[Rekeyed], *, new: bool) -> list[list[Rekeyed]]:
    groups: dict[tuple[object, ...], list[Rekeyed]] = defaultdict(list)
    for each in found:
        groups[*each.place, each.new if new else each.old].append(each)
    return list(groups.values())
