"""What a cassette teaches by itself, and what a slot would merge in it: questions to a store, asked by `llmproxy learn` and `run`.

recordings of several runs -> the values that vary between them (`Lesson`s)
slots -> the recordings of which one would answer the other's question with other words (`Merge`s)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llmproxy.core.bindings import Bindings, Fit, Mismatch, Slot, bound_key, fit_request, rewrite_answer
from llmproxy.core.bindings.learning.lessons import Lesson, find_lessons
from llmproxy.core.bindings.learning.shipped import list_shipped
from llmproxy.core.bindings.values.circumstances import read_circumstances
from llmproxy.core.dialects.conversation import answered
from llmproxy.core.keys.normalize import Canonical, Rules
from llmproxy.core.providers.routing import family_of
from llmproxy.core.store.rederive import canonical_of
from llmproxy.core.store.store import Store
from llmproxy.core.store.varying import slots_of
from llmproxy.core.traffic.interaction import Interaction, Response, header
from llmproxy.errors import CassetteError, RefusedError

MOST_LOOKED_AT = 400
"""Recordings of a cassette that are compared, the newest: each comparison of two long requests takes some hundredths of a second."""


MOST_COMPARED = 200
"""Comparisons for what varies: a long cassette is not compared through and through at the end of a run."""


class Merge(NamedTuple):
    """Two recordings of which one would be served for the other's request, although they were answered differently."""

    slots: tuple[str, ...]
    first: int
    second: int


class _Read(NamedTuple):
    row: Interaction
    canonical: Canonical


def find_varying(store: Store, cassette: str, rules: Rules, upstreams: Mapping[str, str]) -> tuple[Lesson, ...]:
    """Return what varies between the runs that were recorded into a cassette, beyond the slots that it has.

    A recording is held against the older ones that ask the same in other words; only where exactly one of them would fit it teaches.
    """
    lessons: list[Lesson] = []
    known = (*slots_of(store, cassette), *list_shipped())
    left = MOST_COMPARED
    for group in _groups(store, cassette, rules, upstreams).values():
        used: set[int | None] = set()
        for n, present in enumerate(group):
            found = []
            for recorded in group[:n]:
                if recorded.row.id in used or recorded.row.circumstances == present.row.circumstances == "" or not left:
                    continue
                left -= 1
                table = _table(recorded.row, present.row, (*(lesson.slot for lesson in lessons), *known))
                outcome = find_lessons(table, recorded.canonical.tree, present.canonical.tree)
                if not isinstance(outcome, Mismatch):
                    found.append((recorded.row.id, outcome))
            if len(found) == 1:
                used.add(found[0][0])
                lessons += found[0][1]
    return tuple(lessons)


def find_merges(
    store: Store, cassette: str, slots: Sequence[Slot], rules: Rules, upstreams: Mapping[str, str]
) -> list[Merge]:
    """Return the recordings that these slots would merge although their answers differ."""
    names = {slot.name for slot in slots}
    found = []
    for group in _groups(store, cassette, rules, upstreams).values():
        for n, present in enumerate(group):
            for recorded in group[:n]:
                if recorded.row.key == present.row.key:
                    continue
                table = _table(recorded.row, present.row, (*slots, *slots_of(store, cassette), *list_shipped()))
                fit = fit_request(table, recorded.canonical.tree, present.canonical.tree)
                if not isinstance(fit, Fit) or not (guilty := names & set(fit.names)):
                    continue
                answer = rewrite_answer(table, fit, recorded.row.response)
                if isinstance(answer, Mismatch) or _said(recorded.row, answer) != _said(present.row):
                    found.append(Merge(tuple(sorted(guilty)), recorded.row.id or 0, present.row.id or 0))
    return found


def _groups(
    store: Store, cassette: str, rules: Rules, upstreams: Mapping[str, str]
) -> dict[tuple[object, ...], list[_Read]]:
    """Return the live recordings of a cassette that may answer each other, in the order in which they were made."""
    groups: dict[tuple[object, ...], list[_Read]] = defaultdict(list)
    rows = sorted(store.summaries(cassette), key=lambda row: row.id)[-MOST_LOOKED_AT:]
    for row in rows:
        try:
            one = store.load(row.id)
            canonical = canonical_of(store, one, rules, upstreams)
        except (CassetteError, RefusedError):
            continue
        if canonical.kind == "json":
            key = (one.sample, one.party, one.provider, one.operation, one.stream, bound_key(canonical))
            groups[key].append(_Read(one, canonical))
    return groups


def _table(recorded: Interaction, present: Interaction, slots: Sequence[Slot]) -> Bindings:
    return Bindings(read_circumstances(recorded.circumstances), read_circumstances(present.circumstances), slots)


def _said(row: Interaction, response: Response | None = None) -> object:
    """Return what an answer says and calls, without the ids and times that differ between any two answers."""
    response = response or row.response
    family = family_of(row.provider, row.operation)
    kind = header(response.headers, "content-type") or ""
    found = answered(family, row.operation, kind, response.body)
    if found is None:
        return response.body
    return found.text, [(call.name, call.arguments) for call in found.tool_calls]
