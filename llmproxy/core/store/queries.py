"""Rare queries, one statement each (those of every request are in `reader`), and keys under today's rules.

A different key under the same rules is damage. Under other rules the difference is the effect of their change:
recordings whose keys *merge* answer each other's requests now, those of one key that *split* no longer do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from llmproxy.core.bindings import BadVolatileField, VolatileField, deserialize_run_variables, parse_volatile_field
from llmproxy.core.changes.accepted_change_model import GONE, AcceptedChange, digest_key_of_call_not_made
from llmproxy.core.keys.normalize import Canonical, build_key, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.core.providers.routing import RoutedRequest, route
from llmproxy.core.providers.stubs import OPTIONAL
from llmproxy.core.store.reader import RecomputedRequestKeys, StoredRequestWithUpstream, StoreReader
from llmproxy.core.store.row_conversion import (
    OF_CHANNEL,
    SELECT_SUMMARY,
    Row,
    StoredCallSummary,
    build_call_summary_from_row,
    decode_sql_text,
    to_sql,
)
from llmproxy.core.store.store import GOOD, Store
from llmproxy.core.traffic.interaction import Interaction, Key
from llmproxy.errors import CassetteCorrupt, CassetteError, CassetteNotFound, RefusedError, remove_program_prefix
from llmproxy.parsers import parse_age_seconds
from llmproxy.protocol import API_KEYS, Channel


def count_recordings_unsuperseded_at(store: Store, cassette: str, sample: int, since: float) -> int:
    """Count the good recordings that were live at a time, in Unix seconds."""
    sql = f"""SELECT count(*) FROM interactions AS i WHERE cassette = ? AND sample = ? AND started_at < ?
        AND (superseded_at IS NULL OR superseded_at >= ?) AND {GOOD.format("i")}"""
    return int(store.query(sql, (to_sql(cassette), sample, since, since))[0][0])


def find_cassettes_with_key(store: Store, key: Key, limit: int) -> list[tuple[str, int, str]]:
    sql = "SELECT DISTINCT cassette, sample, party FROM interactions WHERE key = ? AND superseded_at IS NULL LIMIT ?"
    found = store.query(sql, [key, limit])
    return [(decode_sql_text(name), sample, decode_sql_text(party)) for name, sample, party in found]


def read_interaction_summary(store: Store, interaction: int) -> StoredCallSummary:
    """Return one row as `ls` shows it. Raises CassetteNotFound."""
    if not (found := store.query(f"{SELECT_SUMMARY} WHERE id = ?", [interaction])):
        raise CassetteNotFound(f"There is no interaction {interaction} in {store.path}.")
    return build_call_summary_from_row(found[0])


def count_unused(
    store: Store, cassette: str, sample: int, served: Collection[int], without: Collection[Channel] = ()
) -> int:
    """Count live recordings of a cassette and sample with ids not in `served`, except for channels `without`."""
    sql = "SELECT id, key FROM interactions WHERE cassette = ? AND sample = ? AND superseded_at IS NULL"
    sql += "".join(f" AND NOT ({OF_CHANNEL[each]})" for each in sorted(without))
    sql += f" AND operation NOT IN ({', '.join('?' * len(OPTIONAL))})"
    left = [key for id_, key in store.query(sql, [to_sql(cassette), sample, *OPTIONAL]) if id_ not in served]
    gone = list_key_digests_allowed_unused(store, cassette) if left else ()
    return sum(digest_key_of_call_not_made(key) not in gone for key in left)


_CANDIDATES = """
SELECT id, key FROM interactions
WHERE cassette = ? AND sample = ? AND party = ? AND provider = ? AND operation = ? AND stream = ?
    AND superseded_at IS NULL
ORDER BY started_at, id
"""
_IN_ORDER = """
SELECT id, key, occurrence FROM interactions WHERE cassette = ? AND sample = ? AND party = ? AND superseded_at IS NULL
ORDER BY started_at, id
"""
_RUNS = """
SELECT c.said FROM interactions AS i JOIN declared AS d ON d.interaction_id = i.id
    JOIN run_variables AS c ON c.id = d.run_variables
WHERE i.cassette = ? AND i.sample = ? AND i.superseded_at IS NULL GROUP BY c.id ORDER BY max(i.id) DESC
"""
_NEWEST = "SELECT id FROM interactions WHERE cassette = ? AND superseded_at IS NULL ORDER BY id DESC LIMIT 1"
_TIMES = f"""
SELECT id, started_at, started_at + duration_ms / 1000, party, key, response_body FROM interactions
WHERE cassette = ? AND sample = ? AND superseded_at IS NULL AND duration_ms > 0 AND started_at <> round(started_at)
    AND ending IN ('complete', 'failed', 'unterminated') AND NOT ({OF_CHANNEL[Channel.MCP]} AND method = 'GET')
"""
"""Excludes times in whole seconds (imported), which cannot order concurrent calls, and open MCP streams."""


_LEFT = (
    "SELECT 1 FROM interactions WHERE cassette = ? AND sample = ? AND superseded_at IS NULL AND ending = 'left' LIMIT 1"
)


class RecordingMaxAge(NamedTuple):
    age: str  # ``30d``, in the form of `--max-age`

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse an age. Raises ValueError."""
        parse_age_seconds(str(value))
        return cls(str(value))


Note = VolatileField | AcceptedChange | RecordingMaxAge
"""A cassette's own setting: a volatile field, an accepted change or a maximum age."""
_KINDS = (RecordingMaxAge, VolatileField, AcceptedChange)
"""In the order of a file's head, so that a store and its file agree."""
_CHANGE, _AGE = "change", "max_age"
"""Members that mark an accepted change and a maximum age; rows without them are volatile fields."""


def read_cassette_replay_rules(store: StoreReader, cassette: str) -> tuple[Note, ...]:
    """Return the notes of a cassette, in the order of its file. Raises CassetteCorrupt."""
    sql = "SELECT field FROM volatile_fields WHERE cassette = ? ORDER BY position"
    try:
        return tuple(_parse_note(json.loads(text)) for (text,) in store.query(sql, (to_sql(cassette),)))
    except (ValueError, TypeError, BadVolatileField) as error:
        raise CassetteCorrupt(
            f"The volatile fields of cassette {cassette} in {store.path} are damaged: {remove_program_prefix(error)}"
        ) from error


def _parse_note(value: Mapping[str, Any]) -> Note:
    if _AGE in value:
        return RecordingMaxAge.parse(value[_AGE])
    return AcceptedChange.from_member(value[_CHANGE]) if _CHANGE in value else parse_volatile_field(value)


def write_cassette_replay_rules(store: Store, cassette: str, notes: Iterable[Note]) -> None:
    said = [
        {_CHANGE: note.to_member()} if isinstance(note, AcceptedChange)
        else {_AGE: note.age} if isinstance(note, RecordingMaxAge) else note.to_dict()
        for note in sorted(notes, key=lambda note: _KINDS.index(type(note)))
    ]  # fmt: skip
    store.write_volatile_fields(cassette, [json.dumps(each) for each in said])


def read_volatile_fields(store: StoreReader, cassette: str) -> tuple[VolatileField, ...]:
    """Return the volatile fields of a cassette, in their order. Raises CassetteCorrupt."""
    return tuple(note for note in read_cassette_replay_rules(store, cassette) if isinstance(note, VolatileField))


def save_cassette_volatile_fields(store: Store, cassette: str, fields: Sequence[VolatileField]) -> None:
    others = [note for note in read_cassette_replay_rules(store, cassette) if not isinstance(note, VolatileField)]
    write_cassette_replay_rules(store, cassette, [*fields, *others])


def read_cassette_accepted_changes(store: StoreReader, cassette: str) -> tuple[AcceptedChange, ...]:
    """Return the accepted changes of a cassette, in their order. Raises CassetteCorrupt."""
    return tuple(note for note in read_cassette_replay_rules(store, cassette) if isinstance(note, AcceptedChange))


def list_key_digests_allowed_unused(store: StoreReader, cassette: str) -> frozenset[str]:
    """Return `accepted_changes.digest_key_of_call_not_made` of recordings that an accepted change lets stay unused."""
    found = (each for each in read_cassette_accepted_changes(store, cassette) if each.name.startswith(f"{GONE}-"))
    return frozenset(before for each in found for before, after in each.exactly if not after)


def store_accepted_changes(store: Store, cassette: str, changes: Sequence[AcceptedChange]) -> None:
    others = [note for note in read_cassette_replay_rules(store, cassette) if not isinstance(note, AcceptedChange)]
    write_cassette_replay_rules(store, cassette, [*others, *changes])


def get_strictest_recording_max_age(store: StoreReader, cassette: str, given: float | None) -> float | None:
    """Return the seconds above which a recording is stale, by file or `given`; or None. Raises CassetteCorrupt."""
    notes = read_cassette_replay_rules(store, cassette)
    own = [parse_age_seconds(note.age) for note in notes if isinstance(note, RecordingMaxAge)]
    return min(filter(None, [*own, given]), default=None)


def list_recordings_of_operation(
    store: StoreReader, place: tuple[str, int], party: str, provider: str, operation: str, *, stream: bool
) -> list[tuple[int, Key]]:
    values = (to_sql(place[0]), place[1], to_sql(party), to_sql(provider), to_sql(operation), stream)
    return [(id_, store.find_current_key(*place, id_, key, 0)[0]) for id_, key in store.query(_CANDIDATES, values)]


def list_request_keys_of_party(store: StoreReader, place: tuple[str, int], party: str) -> list[tuple[int, Key, int]]:
    found = store.query(_IN_ORDER, (to_sql(place[0]), place[1], to_sql(party)))
    return [(id_, *store.find_current_key(*place, id_, key, occurrence)) for id_, key, occurrence in found]


def list_recorded_call_times(store: StoreReader, cassette: str, sample: int) -> list[Row]:
    """Return live recordings of a sample with times: id, begin and end (Unix seconds), party, key, id of the body."""
    return store.query(_TIMES, (to_sql(cassette), sample))


def has_answers_abandoned_by_client(store: StoreReader, cassette: str, sample: int) -> bool:
    return bool(store.query(_LEFT, (to_sql(cassette), sample)))


def list_run_variables(store: StoreReader, cassette: str, sample: int) -> list[str]:
    """Return the run variables of the live recordings in a cassette and sample, those of the newest first."""
    return [decode_sql_text(said) for (said,) in store.query(_RUNS, (to_sql(cassette), sample))]


def read_newest_run_variables(store: StoreReader, cassette: str) -> str:
    """Return the run variables of a cassette's newest live recording, in stored form; empty if there are none."""
    found = store.query(_NEWEST, (to_sql(cassette),))
    return store.read_run_variables(found[0][0]) if found else ""


def list_cassette_api_key_vars(store: StoreReader, cassette: str) -> tuple[str, ...] | None:
    """Return API key variables set when a cassette was recorded, and its providers'; None if the former are unknown."""
    declared = deserialize_run_variables(read_newest_run_variables(store, cassette))
    if (said := next((each.value.split() for each in declared if each.name == API_KEYS), None)) is None:
        return None
    sql = "SELECT DISTINCT provider FROM interactions WHERE cassette = ? AND superseded_at IS NULL"
    providers = {str(name) for (name,) in store.query(sql, (to_sql(cassette),))}
    keys = [key for name in providers & PROVIDERS.keys() for key in PROVIDERS[name].keys]
    missing = {key.name for key in keys if not {key.name, *key.instead} & {*said}}
    return tuple(sorted({*said, *missing, *(["AWS_ACCESS_KEY_ID"] if "bedrock" in providers else [])} - {"none"}))


def derive_route_of_recording(
    interaction: Interaction | StoredRequestWithUpstream, upstreams: Mapping[str, str]
) -> RoutedRequest:
    """Return the route that the recorded request had. Raises RefusedError if no route matches."""
    name, request = interaction.provider, interaction.request
    if name not in PROVIDERS:
        upstreams = {name: interaction.upstream or "http://localhost", **upstreams}
    return route(f"/{quote(name, safe='.-_:')}{request.target}", request.headers, upstreams)


def canonicalize_stored(
    store: Store, asked: Interaction | StoredRequestWithUpstream, rules: Rules, upstreams: Mapping[str, str]
) -> Canonical:
    """Return the canonical request of a recording, or of its stored request, under `rules`. Raises RefusedError."""
    place, where = (asked.cassette, asked.sample), derive_route_of_recording(asked, upstreams)
    return canonicalize_request(asked.request, where, rules, lambda made: store.find_id_origin(*place, made))


@dataclass(frozen=True, slots=True)
class RekeyedRecording:
    id: int
    place: tuple[str, int, str]  # cassette, sample, party: keys are compared only within one
    old: Key
    new: Key
    other_rules: bool  # whether it was stored under other rules than today's

    @property
    def has_unexplained_key(self) -> bool:
        """Whether the keys differ without a change of rules."""
        return self.old != self.new and not self.other_rules


def derive_keys_under_current_rules(
    store: Store, cassette: str, sample: int, rules: Rules, upstreams: Mapping[str, str]
) -> RecomputedRequestKeys | None:
    """Derive a cassette's keys under today's rules, once per opened store; None if not needed. Raises CassetteError."""
    place = (cassette, sample)
    if place not in store.derived:
        store.derived[place] = None
        if store.has_other_rules(cassette, sample, rules.rules_digest):
            store.derived[place] = derived = RecomputedRequestKeys()
            try:
                for each in store.list_keys(cassette, sample):  # in order: a key may be part of a later one
                    key, digest = each.key, each.rules
                    if digest not in ("", rules.rules_digest):
                        with suppress(RefusedError):
                            key = build_key(canonicalize_stored(store, store.read_request(each.id), rules, upstreams))
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
            derive_keys_under_current_rules(store, info.name, info.sample, rules, upstreams)
    for summary in store.list_summaries(cassette):
        try:
            each = store.load(summary.id)
        except CassetteError:
            continue
        try:
            new = build_key(canonicalize_stored(store, each, rules, upstreams))
        except RefusedError:
            new = each.key  # no route today: the new key is unknown
        other_rules = each.rules not in ("", rules.rules_digest)
        yield RekeyedRecording(summary.id, (each.cassette, each.sample, each.party), each.key, new, other_rules)


def rewrite_keys_under_current_rules(store: Store, rules: Rules, upstreams: Mapping[str, str]) -> int:
    """Update the keys of live interactions to `rules`; return the number of changed ones. Merged ones stay in order."""
    changed = 0
    for info in store.cassettes():
        if (derived := derive_keys_under_current_rules(store, info.name, info.sample, rules, upstreams)) is not None:
            changed += sum(each.key != each.old for each in derived.changes)
            store.write_current_keys([(info.name, info.sample)])
    return changed


def find_recordings_now_sharing_key(found: Iterable[RekeyedRecording]) -> list[list[RekeyedRecording]]:
    return [group for group in _group_by_key(found, new=True) if len({each.old for each in group}) > 1]


def find_recordings_losing_shared_key(found: Iterable[RekeyedRecording]) -> list[list[RekeyedRecording]]:
    return [group for group in _group_by_key(found, new=False) if len({each.new for each in group}) > 1]


def _group_by_key(found: Iterable[RekeyedRecording], *, new: bool) -> Iterable[list[RekeyedRecording]]:
    groups: dict[tuple[object, ...], list[RekeyedRecording]] = defaultdict(list)
    for each in found:
        groups[*each.place, each.new if new else each.old].append(each)
    return groups.values()
