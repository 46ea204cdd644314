"""Keys derived once more from what is stored, under the rules of today.

A key that comes out otherwise under the very rules it was stored with is damage. Under other rules it says what the
change did: recordings whose keys *merge* answer each other's requests now, those of one key that *split* no longer do.

`derive_current_keys` gives what was recorded under other rules today's keys, in memory, when a session opens its
cassette: so a change of the rules holds at once, for every command, and a store that is only replayed stays as it is.
`update_keys` writes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from llmproxy.core.keys.normalize import build_key
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.queries import canonical_of, read_canonical
from llmproxy.core.store.reader import RecomputedKeys
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Key
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
    def has_unexplained_key(self) -> bool:
        """Whether no change of rules explains the difference."""
        return self.old != self.new and not self.other_rules


def derive_current_keys(
    store: Store, cassette: str, sample: int, rules: Rules, upstreams: Mapping[str, str]
) -> RecomputedKeys | None:
    """Derive a cassette's keys under today's rules, once for each opened store; or None. Raises CassetteError."""
    place = (cassette, sample)
    if place not in store.derived:
        store.derived[place] = None
        if store.has_other_rules(cassette, sample, rules.rules_digest):
            store.derived[place] = derived = RecomputedKeys()
            try:
                for each in store.list_keys(cassette, sample):  # in order: a key may stand inside a later one
                    key, digest = each.key, each.rules
                    if digest not in ("", rules.rules_digest):
                        with suppress(RefusedError):
                            key = build_key(read_canonical(store, store.read_request(each.id), place, rules, upstreams))
                            digest = rules.rules_digest
                    derived.add(each, key, digest)
            except BaseException:
                del store.derived[place]  # half of it would let the other half be found by what counted then
                raise
    return store.derived[place]


def rederive_keys(
    store: Store, rules: Rules, upstreams: Mapping[str, str], cassette: str | None = None
) -> Iterator[Rekeyed]:
    """Derive the key of each live interaction, of one cassette or all, anew; `find_damages` names bad rows."""
    for info in store.cassettes(cassette):
        with suppress(CassetteError):
            derive_current_keys(store, info.name, info.sample, rules, upstreams)
    for summary in store.list_summaries(cassette):
        try:
            each = store.load(summary.id)
        except CassetteError:
            continue
        try:
            new = build_key(canonical_of(store, each, rules, upstreams))
        except RefusedError:
            new = each.key  # no route today: nothing can be said
        other_rules = each.rules not in ("", rules.rules_digest)
        yield Rekeyed(summary.id, (each.cassette, each.sample, each.party), each.key, new, other_rules)


def update_keys(store: Store, rules: Rules, upstreams: Mapping[str, str]) -> int:
    """Update the keys of live interactions to `rules`; returns how many changed. Merged ones stay in order."""
    changed = 0
    for info in store.cassettes():
        if (derived := derive_current_keys(store, info.name, info.sample, rules, upstreams)) is not None:
            changed += sum(each.key != each.old for each in derived.changes)
            store.write_current_keys([(info.name, info.sample)])
    return changed


def find_merged_keys(found: Iterable[Rekeyed]) -> list[list[Rekeyed]]:
    """Return the groups whose keys differed and are one now."""
    return [group for group in _group_by_key(found, new=True) if len({each.old for each in group}) > 1]


def find_split_keys(found: Iterable[Rekeyed]) -> list[list[Rekeyed]]:
    """Return the groups whose key was one and is several now."""
    return [group for group in _group_by_key(found, new=False) if len({each.new for each in group}) > 1]


def _group_by_key(found: Iterable[Rekeyed], *, new: bool) -> list[list[Rekeyed]]:
    groups: dict[tuple[object, ...], list[Rekeyed]] = defaultdict(list)
    for each in found:
        groups[*each.place, each.new if new else each.old].append(each)
    return list(groups.values())
