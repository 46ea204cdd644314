"""Learning of volatile fields from a cassette, and the recordings that a volatile field would merge.

Store queries for `llmproxy learn` and `run`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    IdPairs,
    MatchedMessageCache,
    Mismatch,
    VolatileField,
    build_value_independent_key,
    deserialize_run_variables,
    match_requests_with_bindings,
    rewrite_answer,
)
from llmproxy.core.bindings.volatile_learning import LearnedField, infer_volatile_fields_from_pair
from llmproxy.core.bindings.volatile_result_fields import load_builtin_volatile_fields
from llmproxy.core.cassettes.anonymized_export import put_bound_values_in_interaction
from llmproxy.core.dialects.conversation import parse_model_response_message
from llmproxy.core.keys.normalize import Canonical, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.queries import canonicalize_stored, derive_route_of_recording, read_volatile_fields
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction, Response
from llmproxy.errors import CassetteError, RefusedError

MOST_LOOKED_AT = 400
"""Maximum recordings of a cassette that are compared, newest: two long requests take some hundredths of a second."""


MOST_COMPARED = 200
"""Maximum comparisons for learning: a long cassette is not compared completely at the end of a run."""


class PairEqualUpToVolatileFields(NamedTuple):
    volatile: tuple[str, ...]
    first: int
    second: int
    alike: bool
    """Whether their answers are equal with this run's values."""


class _RecordingWithCanonical(NamedTuple):
    row: Interaction
    canonical: Canonical


def learn_fields_from_cassette(
    store: Store, cassette: str, rules: Rules, upstreams: Mapping[str, str]
) -> tuple[LearnedField, ...]:
    """Return values outside the known fields that vary between runs, where exactly one older recording fits."""
    lessons: list[LearnedField] = []
    known = (*read_volatile_fields(store, cassette), *load_builtin_volatile_fields())
    left = MOST_COMPARED
    for group in _group_comparable_recordings(store, cassette, rules, upstreams).values():
        used: set[int | None] = set()
        for n, present in enumerate(group):
            found = []
            for recorded in group[:n]:
                if recorded.row.id in used or recorded.row.run_variables == present.row.run_variables == "" or not left:
                    continue
                left -= 1
                table = _build_bindings(recorded.row, present.row, (*(lesson.field for lesson in lessons), *known))
                outcome = infer_volatile_fields_from_pair(table, recorded.canonical.tree, present.canonical.tree)
                if not isinstance(outcome, Mismatch):
                    found.append((recorded.row.id, outcome))
            if len(found) == 1:
                used.add(found[0][0])
                lessons += found[0][1]
    return tuple(lessons)


def find_pairs_equal_up_to_volatiles(
    store: Store, cassette: str, fields: Sequence[VolatileField], rules: Rules, upstreams: Mapping[str, str]
) -> list[PairEqualUpToVolatileFields]:
    fields = tuple(dict.fromkeys((*fields, *read_volatile_fields(store, cassette), *load_builtin_volatile_fields())))
    names = {field.name for field in fields}
    anywhere = any(field.is_outside_of_results for field in fields)
    tools = {json.dumps(field.tool).encode() for field in fields}
    tables: dict[tuple[str, str], tuple[Bindings, MatchedMessageCache]] = {}
    found = []
    for group in _group_comparable_recordings(store, cassette, rules, upstreams).values():
        held = [each for each in group if anywhere or any(tool in each.canonical.body for tool in tools)]
        for n, present in enumerate(held):
            for recorded in held[:n]:
                if recorded.row.key == present.row.key:
                    continue
                which = recorded.row.run_variables, present.row.run_variables
                if which not in tables:
                    tables[which] = _build_bindings(recorded.row, present.row, fields), MatchedMessageCache()
                table, fitted = tables[which]
                fit = match_requests_with_bindings(table, recorded.canonical.tree, present.canonical.tree, None, fitted)
                if isinstance(fit, Fit) and (guilty := names & set(fit.names)):
                    one, other = recorded.row, present.row
                    answer = rewrite_answer(table, fit, one.response)
                    told = None if isinstance(answer, Mismatch) else _read_comparable_answer(one, answer)
                    alike = told == _read_comparable_answer(other)
                    found.append(PairEqualUpToVolatileFields(tuple(sorted(guilty)), one.id or 0, other.id or 0, alike))
    return found


def _group_comparable_recordings(
    store: Store, cassette: str, rules: Rules, upstreams: Mapping[str, str]
) -> dict[tuple[object, ...], list[_RecordingWithCanonical]]:
    groups: dict[tuple[object, ...], list[_RecordingWithCanonical]] = defaultdict(list)
    for row in sorted(store.list_summaries(cassette), key=lambda row: row.id)[-MOST_LOOKED_AT:]:
        try:
            one = store.load(row.id)
            canonical = canonicalize_stored(store, one, rules, upstreams)
        except (CassetteError, RefusedError):
            continue
        if canonical.kind == "json":
            bound_key = build_value_independent_key(canonical)
            key = (one.sample, one.party, one.provider, one.operation, one.stream, bound_key)
            groups[key].append(_RecordingWithCanonical(one, canonical))
    return groups


def _build_bindings(recorded: Interaction, present: Interaction, fields: Sequence[VolatileField] = ()) -> Bindings:
    return Bindings(
        deserialize_run_variables(recorded.run_variables), deserialize_run_variables(present.run_variables), fields
    )


def _read_comparable_answer(row: Interaction, response: Response | None = None) -> object:
    """Return an answer's text and tool calls, without ids and times that differ between any two answers."""
    response = response or row.response
    if (found := parse_model_response_message(row.operation, response)) is None:
        return response.body
    return found.text, [(call.name, call.arguments) for call in found.tool_calls]


class RunWithReplacedValues(NamedTuple):
    interactions: list[Interaction]
    names: tuple[str, ...]
    """Run variables and volatile fields that were replaced, sorted."""


def rewrite_recordings_to_new_run(
    old: Sequence[Interaction],
    new: Sequence[Interaction],
    fields: Sequence[VolatileField],
    rules: Rules,
    upstreams: Mapping[str, str],
) -> RunWithReplacedValues:
    """Return the older recordings with the newer ones' values; those without declared variables stay as they are."""
    waiting = defaultdict(list)
    for n, each in enumerate(new):
        if (canonical := _canonicalize_request(each, rules, upstreams)) is not None:
            waiting[build_value_independent_key(canonical)].append((n, each, canonical))
    same = {each.key for each in old} & {each.key for each in new}
    known, names = IdPairs(), set[str]()
    used = {n for n, each in enumerate(new) if each.key in same}
    restated = []
    for one in old:
        made = one
        canonical = _canonicalize_request(one, rules, upstreams) if one.key not in same else None
        for n, other, theirs in waiting[build_value_independent_key(canonical)] if canonical is not None else ():
            if n in used or canonical is None:
                continue
            fit = match_requests_with_bindings(_build_bindings(one, other, fields), canonical.tree, theirs.tree, known)
            if not isinstance(fit, Fit):
                continue
            if (found := _rewrite_recording_as_newer(one, other, fields, fit, known)) is not None:
                used.add(n)
                names |= set(fit.names)
                made = found
                break
        else:
            made = one if one.key in same else _rewrite_with_newer_run_paths(one, new, names)
        restated.append(made)
    return RunWithReplacedValues(restated, tuple(sorted(names)))


def match_recording_to_other_request(
    one: Interaction, other: Interaction, fields: Sequence[VolatileField], rules: Rules, upstreams: Mapping[str, str]
) -> Fit | Mismatch | None:
    """Return whether the first would answer the second under its run variables; None for requests that are no JSON."""
    mine, theirs = _canonicalize_request(one, rules, upstreams), _canonicalize_request(other, rules, upstreams)
    if mine is None or theirs is None:
        return None
    return match_requests_with_bindings(_build_bindings(one, other, fields), mine.tree, theirs.tree, None)


def _rewrite_recording_as_newer(
    one: Interaction, other: Interaction, fields: Sequence[VolatileField], fit: Fit, known: IdPairs
) -> Interaction | None:
    response = rewrite_answer(_build_bindings(one, other, fields), fit, one.response, known)
    if isinstance(response, Mismatch):
        return None
    for each in fit.identities:
        known.record_new_pair(each)
    return replace(one, key=other.key, request=other.request, response=response)


def _rewrite_with_newer_run_paths(one: Interaction, new: Sequence[Interaction], names: set[str]) -> Interaction:
    """Return a recording that fits none of the others, with the folders of their run."""
    if (other := next((each for each in new if each.run_variables), None)) is None or not one.run_variables:
        return one
    renamed = put_bound_values_in_interaction(one, bindings := _build_bindings(one, other))
    if renamed.request != one.request or renamed.response != one.response:
        names |= bindings.changed
    return renamed


def _canonicalize_request(one: Interaction, rules: Rules, upstreams: Mapping[str, str]) -> Canonical | None:
    try:
        canonical = canonicalize_request(one.request, derive_route_of_recording(one, upstreams), rules, lambda _: None)
    except RefusedError:
        return None
    return canonical if canonical.kind == "json" else None
