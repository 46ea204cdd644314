"""Derivation of keys from stored requests, under today's rules: in memory when a session opens a cassette, so that a
change of the rules takes effect at once and a replayed store stays unchanged, or written.

A different key under the same rules is damage. Under other rules the difference is the effect of their change:
recordings whose keys *merge* answer each other's requests now, those of one key that *split* no longer do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from llmproxy.core.keys.normalize import build_key
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.queries import canonical_of
from llmproxy.core.store.reader import RecomputedKeys
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Key
from llmproxy.errors import CassetteError, RefusedError


@dataclass(frozen=True, slots=True)
class RekeyedRecording:
    id: int
    place: tuple[str, int, str]
    """Cassette, sample, party: keys are compared only within one."""
    old: Key
    new: Key
    other_rules: bool
    """Whether it was stored under other rules than today's."""

    @property
    def has_unexplained_key(self) -> bool:
        """Whether the keys differ without a change of rules."""
        return self.old != self.new and not self.other_rules


def derive_current_keys(
    store: Store, cassette: str, sample: int, rules: Rules, upstreams: Mapping[str, str]
) -> RecomputedKeys | None:
    """Derive a cassette's keys under today's rules, once per opened store; None if not needed. Raises CassetteError."""
    place = (cassette, sample)
    if place not in store.derived:
        store.derived[place] = None
        if store.has_other_rules(cassette, sample, rules.rules_digest):
            store.derived[place] = derived = RecomputedKeys()
            try:
                for each in store.list_keys(cassette, sample):  # in order: a key may be part of a later one
                    key, digest = each.key, each.rules
                    if digest not in ("", rules.rules_digest):
                        with suppress(RefusedError):
                            key = build_key(canonical_of(store, store.read_request(each.id), rules, upstreams))
                            digest = rules.rules_digest
                    derived.add(each, key, digest)
            except BaseException:
                del store.derived[place]  # a partial result would mix keys of old and new rules
                raise
    return store.derived[place]


def iter_recordings_with_new_keys(
    store: Store, rules: Rules, upstreams: Mapping[str, str], cassette: str | None = None
) -> Iterator[RekeyedRecording]:
    """Yield each live interaction, of one cassette or all, with its key derived anew; skips damaged rows."""
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
            new = each.key  # no route today: the new key is unknown
        other_rules = each.rules not in ("", rules.rules_digest)
        yield RekeyedRecording(summary.id, (each.cassette, each.sample, each.party), each.key, new, other_rules)


def derive_and_write_keys(store: Store, rules: Rules, upstreams: Mapping[str, str]) -> int:
    """Update the keys of live interactions to `rules`; return the number of changed ones. Merged ones stay in order."""
    changed = 0
    for info in store.cassettes():
        if (derived := derive_current_keys(store, info.name, info.sample, rules, upstreams)) is not None:
            changed += sum(each.key != each.old for each in derived.changes)
            store.write_current_keys([(info.name, info.sample)])
    return changed


def find_merged_keys(found: Iterable[RekeyedRecording]) -> list[list[RekeyedRecording]]:
    return [group for group in _group_by_key(found, new=True) if len({each.old for each in group}) > 1]


def find_split_keys(found: Iterable[RekeyedRecording]) -> list[list[RekeyedRecording]]:
    return [group for group in _group_by_key(found, new=False) if len({each.new for each in group}) > 1]


def _group_by_key(found: Iterable[RekeyedRecording], *, new: bool) -> list[list[RekeyedRecording]]:
    groups: dict[tuple[object, ...], list[RekeyedRecording]] = defaultdict(list)
    for each in found:
        groups[*each.place, each.new if new else each.old].append(each)
    return list(groups.values())
