"""Keys derived once more from what is stored, under the rules of today.

A key that comes out otherwise under the very rules it was stored with is damage. Under other rules it says what the
change did: recordings whose keys *merge* answer each other's requests now, those of one key that *split* no longer do.

What version 1 recorded has keys of its tag. `derive` gives them today's, in memory, when a session opens its cassette; `rekey` writes them.
Some cannot be derived: of a recording without headers nobody knows which were sent, and of a query member that version 1 took for a
credential nothing is left. Those match as before, by the key that version 1 gave.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from llmproxy.core.keys import v1
from llmproxy.core.keys.key import TAG, key_of
from llmproxy.core.keys.normalize import Canonical, canonicalize
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.providers.routing import Route, route
from llmproxy.core.providers.table import PROVIDERS
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.derived import Derived
from llmproxy.core.store.reading import Older
from llmproxy.core.store.store import Rekeying, Store
from llmproxy.core.traffic.interaction import Interaction, Key
from llmproxy.errors import CassetteError, RefusedError

log = logging.getLogger(__name__)


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
    expected: Key
    """Its key under the rules, and the version of the key, that it was stored with; `new` where those are today's."""

    @property
    def damaged(self) -> bool:
        """Whether neither a change of rules nor anything else we know explains the difference."""
        return self.old != self.expected and not self.other_rules

    @property
    def older(self) -> bool:
        """Whether an older version keyed it, and today's key is known: replay derives it when a session opens the cassette."""
        return self.old != self.new and not self.old.startswith(TAG)


def route_of(interaction: Interaction | Older, upstreams: Mapping[str, str]) -> Route:
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


def derive(store: Store, cassette: str, sample: int, rules: Rules, upstreams: Mapping[str, str]) -> Derived | None:
    """Give what an older version recorded in a cassette its keys of today, once for each opened store; None if there is nothing such."""
    place = (cassette, sample)
    if place in store.derived:
        return store.derived[place]
    store.derived[place] = derived = Derived(rules.digest)
    untold = 0
    for each in store.older(cassette, sample, TAG):  # in order: a key may stand inside a later one
        if each.rules not in ("", rules.digest_of(v1.RULES)):
            derived.keep(
                each.id, each.party, each.key
            )  # the user's rules have changed since: `verify` says that, and mends it
        elif (key := _today(store, each, place, rules, upstreams)) is None:
            derived.keep(each.id, each.party, each.key)
            untold += 1
        else:
            derived.add(each.id, each.party, key)
    if not derived.names and not derived.before:
        store.derived[place] = None
    if untold:
        log.warning(
            "cassette %s: of %d recordings an older version did not store all that counts today (headers, members of the"
            " query), so any value of it matches, as before; record anew to be strict",
            cassette,
            untold,
        )
    return store.derived[place]


def _today(store: Store, each: Older, place: tuple[str, int], rules: Rules, upstreams: Mapping[str, str]) -> Key | None:
    """Return today's key of an older recording; None if it cannot be derived."""
    try:
        where = route_of(each, upstreams)
    except RefusedError:
        return None
    if not v1.says_all(each.request, where):
        return None
    request = Redactor().request(each.request)  # kinds of secrets that its version did not know
    return key_of(canonicalize(request, where, rules, lambda made: store.made_by(*place, made)))


def rekey_store(
    store: Store, rules: Rules, upstreams: Mapping[str, str], cassette: str | None = None
) -> Iterator[Rekeyed]:
    """Derive the key of each live interaction anew, of one cassette or of all; what cannot be read is left to `upkeep.damages`."""
    for info in store.cassettes(cassette):
        derive(store, info.name, info.sample, rules, upstreams)
    for summary in store.summaries(cassette):
        try:
            each = store.load(summary.id)
        except CassetteError:
            continue
        other_rules = each.rules not in ("", rules.digest, rules.digest_of(v1.RULES))
        new, expected = _now_and_then(store, each, rules, upstreams, other_rules=other_rules)
        yield Rekeyed(summary.id, (each.cassette, each.sample, each.party), each.key, new, other_rules, expected)


def _now_and_then(
    store: Store, each: Interaction, rules: Rules, upstreams: Mapping[str, str], *, other_rules: bool
) -> tuple[Key, Key]:
    """Return a recording's key under the rules of today, and the one that it should have in the store."""
    try:
        canonical = canonical_of(store, each, rules, upstreams)
        new, where = key_of(canonical), route_of(each, upstreams)
        older = not each.key.startswith(TAG)
        if older and not v1.says_all(each.request, where):
            return each.key, each.key
        if not older or other_rules:
            return new, new
        # What names server state holds another key, which may have been derived anew already.
        return new, each.key if canonical.refs else v1.key_of(each.request, where, rules, lambda _: None)
    except RefusedError:
        return each.key, each.key  # no route today: nothing can be said


def rekey(store: Store, rules: Rules, upstreams: Mapping[str, str]) -> int:
    """Give every live interaction its key under `rules`, and return how many keys changed.

    Recordings whose keys merge keep their order as occurrences of the one key. A key may stand inside another one (a conversation
    names the interaction that made its id), so it is done again until nothing changes any more.
    """
    changed: set[int] = set()
    while True:
        found = list(rekey_store(store, rules, upstreams))
        moved = {each.id for each in found if each.old != each.new and not each.damaged}
        if not moved and all(not each.other_rules for each in found):
            return len(changed)
        store.derived.clear()
        changed |= moved
        _write(store, [each for each in found if not each.damaged], rules)


def _write(store: Store, found: Iterable[Rekeyed], rules: Rules) -> None:
    counts: dict[tuple[object, ...], int] = defaultdict(int)
    made = []
    for each in found:
        counts[*each.place, each.new] += 1
        made.append(Rekeying(each.id, each.new, counts[*each.place, each.new], rules.digest))
    store.rekey(made)


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
