"""Summary of changed requests over all calls and cassettes of a suite, with their effects and costs.

An unknown price is reported as such, never counted as 0. Recording again costs at least the changed calls, and at most
these and all later calls of their recordings: a new answer may change the program's course.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from llmproxy.advice import format_llmproxy_command, quote_word
from llmproxy.amount_formatting import dollars, format_count, format_milliseconds, name_some
from llmproxy.core.changes.accepted_change_model import build_change_for_removed_call, digest_key_of_call_not_made
from llmproxy.core.changes.segment_change import (
    CarriedAnswerAttempt,
    ChangeCause,
    ChangeSource,
    RefusalReason,
    SegmentChange,
    shorten,
)
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.providers.stubs import OPTIONAL
from llmproxy.core.sessions.journal import ChangedAgentTrialRunResult, read_changed_agent_trial_results
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import list_key_digests_allowed_unused, read_cassette_accepted_changes
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.postgres_store_paths import store_exists
from llmproxy.settings import format_shown_path

OTHERWISE = 0.08
"""Share of changed calls that got a different answer in new recordings of real suites."""
SOON = 14
"""Days before its expiry from which on an accepted change is shown with it."""


@dataclass(slots=True)
class ChangeGroup:
    """One change over calls and cassettes; or, by reason, calls that no accepted change covers."""

    name: str
    text: str
    told: SegmentChange | None = None
    calls: int = 0
    cassettes: dict[str, set[tuple[str, str]]] = field(default_factory=dict)

    @property
    def change(self) -> SegmentChange:
        if self.told is None:
            raise LookupError(self.name)
        return self.told

    @property
    def origin(self) -> str:
        return str(self.told.origin) if self.told else ""

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("name", "text", "origin", "calls")}
        return told | {"cassettes": [*self.cassettes], "difference": self.told.difference_text if self.told else ""}


class RerecordCost(NamedTuple):
    """Cost of recording again: US dollars of each call, None if unknown."""

    costs: Sequence[float | None]
    after: Sequence[float | None]
    seconds: float
    follows: float
    """Expected number of calls in `after` that are sent again."""

    def __str__(self) -> str:
        calls, more = len(self.costs), len(self.after)
        follows = f", about {calls + round(self.follows)} with what follows, at most {calls + more}" if more else ""
        low, high = (dollars(sum(filter(None, each))) for each in (self.costs, [*self.costs, *self.after]))
        unknown = [*self.costs, *self.after].count(None)
        price = low if low == high else f"{low} to {high}"
        price += f" and {format_count(unknown, 'call')} of unknown price" if unknown else ""
        price = "at an unknown price" if unknown == calls + more else price
        took = f", about {format_milliseconds(self.seconds * 1000)}" if self.seconds else ""
        return f"to record anew: {format_count(calls, 'call')}{follows}: {price}{took}"

    def to_json(self) -> dict[str, Any]:
        every = [*self.costs, *self.after]
        sums = (None if None in each else sum(filter(None, each)) for each in (self.costs, every))
        names = ("cost", "most_cost", "calls", "most", "unpriced", "seconds")
        return dict(zip(names, (*sums, len(self.costs), len(every), every.count(None), self.seconds), strict=True))


@dataclass(frozen=True, slots=True)
class ChangedRequestsReport:
    groups: Sequence[ChangeGroup]
    refused: Sequence[ChangeGroup]
    counts: Mapping[str, int]
    """Calls, changed, carried under accepted changes; cassettes, changed; tests that pass, pass carried, fail."""
    bill: RerecordCost | None
    is_of_command: bool = False

    @property
    def has_changes(self) -> bool:
        return bool(self.groups or self.refused)

    def format_lines(self) -> Iterator[str]:
        yield self._headline
        if not self.counts["calls"]:
            return
        rows = [*self.groups, *self.refused]
        width = max((len(each.name) for each in rows), default=0)
        for each in rows:
            calls, where = format_count(each.calls, "call"), name_some(each.cassettes, " ")
            yield f"  {each.name:<{width}}  {each.text}   {calls}  {where}"
        yield from self._format_effects()

    @property
    def _headline(self) -> str:
        counts, told = self.counts, format_count(self.counts["calls"], "call")
        cassettes = format_count(counts["cassettes"], "cassette")
        if not counts["calls"]:
            return "no call came, or nothing is recorded: nothing was compared"
        if not self.has_changes:
            carried = f"; {counts['accepted']} carried under accepted changes" if counts["accepted"] else ""
            return f"no change in {told}, {cassettes}{carried}"
        if not self.groups:
            left = format_count(sum(each.calls for each in self.refused), "call has", "calls have")
            return f"{left} no recorded answer, of {told} in {cassettes}; there is no change to accept"
        where = f"{counts['changed']} of {told}, {counts['changed_cassettes']} of {cassettes}"
        return f"{format_count(len(self.groups), 'change')} in {where}"

    def _format_effects(self) -> Iterator[str]:
        counts = self.counts
        effects = {"failed": "fails", "carried": "passes with carried answers", "as_before": "passes as before"}
        if ended := [effect for name, effect in effects.items() if counts[name]]:
            passed = f"{format_count(counts['as_before'], 'test passes', 'tests pass')} as before"
            tests = f"{passed}, {counts['carried']} with carried answers, {counts['failed']} fail"
            yield f"with recorded answers: {f'the command {ended[0]}' if self.is_of_command else tests}"
        if self.groups:
            yield "(recorded answers show how the program reacts to them, not how the model reacts to the change)"
        if self.bill is not None:
            yield str(self.bill)

    def list_next_steps(self, store: Path, folder: Path | None = None, record: str = "") -> list[str]:
        """Return advice; `record` is the command that records calls without an answer, empty if others print it."""
        where = f" --cassette-dir {quote_word(format_shown_path(folder))}" if folder else ""
        review = [f"next: {format_llmproxy_command(f'review{where}', format_shown_path(store))}"] if self.groups else []
        return review + [f"record what has no answer, with your keys: {record}"] * bool(record and self.refused)

    def to_json(self) -> dict[str, Any]:
        groups = {"changes": self.groups, "refused": self.refused}
        rows = {name: [each.to_json() for each in found] for name, found in groups.items()}
        return rows | {"counts": dict(self.counts), "bill": self.bill and self.bill.to_json()}

    def to_markdown(self) -> Iterator[str]:
        yield f"**{self._headline}**"
        if self.has_changes:
            yield from ("", "| change | what | calls | cassettes |", "|---|---|---|---|")
            for each in (*self.groups, *self.refused):
                cells = (f"`{each.name}`", each.text, str(each.calls), name_some(each.cassettes, " "))
                yield f"| {' | '.join(cell.replace('|', '\\|') for cell in cells)} |"
            yield from ("", *(self._format_effects() if self.counts["calls"] else ()))


def build_changed_requests_report(store: Path, since: float = 0.0, command: str = "") -> ChangedRequestsReport:
    """Return the results of a store's trials that ended since then (Unix time); `command`: the cassette of one."""
    trials = read_changed_agent_trial_results(store, since)
    rows: dict[tuple[str, int], dict[int, StoredCallSummary]] = {}
    if trials and store_exists(store):
        with open_store(store, writable=False, now=time.time) as database:
            for trial in trials:
                gone = list_key_digests_allowed_unused(database, trial.cassette)
                found = sorted(database.list_summaries(*trial.cassette_and_sample), key=lambda row: row.started_at)
                kept = {row.id: row for row in found if digest_key_of_call_not_made(row.key) not in gone}
                rows[trial.cassette_and_sample] = kept
    summary = group_request_changes(trials, lambda trial: rows.get(trial.cassette_and_sample, {}))
    return replace(summary, is_of_command=all(trial.cassette == command for trial in trials))


Recordings = Callable[[ChangedAgentTrialRunResult], Mapping[int, StoredCallSummary]]
"""Returns the recordings of a trial's cassette in order, without removed calls."""


def describe_acceptance_dates(store: Path, names: Sequence[str]) -> list[str]:
    if not names or not store_exists(store):
        return []
    today = datetime.now().date()  # noqa: DTZ005 - the user's day
    with open_store(store, writable=False, now=time.time) as database:
        cassettes = dict.fromkeys(info.name for info in database.cassettes())
        changes = [each for name in cassettes for each in read_cassette_accepted_changes(database, name)]
        found = dict.fromkeys(each._replace(exactly=frozenset()) for each in changes)
    told: dict[str, list[str]] = {}
    for each in found:
        if each.name in names:
            ends = each.until is not None and (each.until - today).days <= SOON
            verb = "ended" if each.has_expired(today) else "ends"
            until = f"; it {verb} on {each.until}, and is a miss then" if ends else ""
            told.setdefault(f"accepted {each.accepted}{until}", []).append(each.name)
    return [f"{name_some(dict.fromkeys(some))}: {when}" for when, some in told.items()]


def group_request_changes(
    trials: Iterable[ChangedAgentTrialRunResult], recordings: Recordings
) -> ChangedRequestsReport:
    groups, refused = dict[str, ChangeGroup](), dict[str, ChangeGroup]()
    counts = dict.fromkeys(_COUNTS, 0)
    bills = []
    for trial in trials:
        open_ = [call for call in trial.seen if call.refusal is not None or call.pending]
        changed = [call for call in open_ if call.refusal is None or call.refusal.why not in _MISSING]
        for call in open_:
            seen = [change for change in call.changes if change.name in call.pending and call.refusal is None]
            rows = [groups.setdefault(each.edit_digest, ChangeGroup(each.name, str(each), each)) for each in seen]
            if call.refusal is not None:
                text = f"{call.operation} without a recorded counterpart" if call.has_no_place else call.refusal.text
                rows = [refused.setdefault(f"{call.refusal.why} {text}", ChangeGroup(call.refusal.why, text))]
            for row in rows:
                row.calls += 1
                row.cassettes.setdefault(trial.cassette, set())
            for each in seen:
                groups[each.edit_digest].cassettes[trial.cassette].add(each.digests)
        ended = "failed" if trial.passed is False else "carried" if trial.seen else "as_before"
        found = (trial.calls, len(changed), len(trial.seen) - len(open_), 1, bool(changed))
        for name, number in zip(_COUNTS, found, strict=False):
            counts[name] += number
        counts[ended] += trial.passed is not None
        for change in _find_removed_calls(trial, recordings):
            group = groups.setdefault(change.edit_digest, ChangeGroup(change.name, str(change), change))
            group.calls += 1
            group.cassettes.setdefault(trial.cassette, set()).add(change.digests)
        bills.append(_estimate_rerecord_cost(changed, recordings(trial) if changed else {}))
    ordered = sorted(groups.values(), key=lambda each: (each.origin, each.name.partition("-")[0], -each.calls))
    costs, after = [cost for bill in bills for cost in bill.costs], [cost for bill in bills for cost in bill.after]
    seconds, follows = sum(each.seconds for each in bills), sum(each.follows for each in bills)
    bill = RerecordCost(costs, after, seconds, follows) if costs else None
    return ChangedRequestsReport(ordered, list(refused.values()), counts, bill)


_MISSING = frozenset({RefusalReason.NO_PLACE, RefusalReason.NOT_LOOKED_AT})
"""Reasons of unchanged calls that are new, or follow a refused one: nothing more is known of them."""
_COUNTS = ("calls", "changed", "accepted", "cassettes", "changed_cassettes", "as_before", "carried", "failed")


def _find_removed_calls(trial: ChangedAgentTrialRunResult, recordings: Recordings) -> Iterator[SegmentChange]:
    """Yield recorded calls that are no longer made, if a trial followed the recording to its end."""
    if trial.served is None or trial.passed is False or any(call.refusal for call in trial.seen):
        return
    clients = {each.origin for call in trial.seen for each in call.changes if each.origin.source is ChangeSource.CLIENT}
    played = trial.served.union(call.recording for call in trial.seen if call.recording)
    for row in recordings(trial).values():
        if row.id not in played and row.operation not in OPTIONAL:
            asks = row.operation in CHAT
            own = (each for each in clients if not asks or row.client.startswith(f"{each.name} "))
            said = f'"{shorten(row.last_user_text)}"' if row.last_user_text else ""
            what = " ".join(filter(None, (row.operation if asks else f"{row.method} {row.target}", row.model, said)))
            yield build_change_for_removed_call(what, row.key, next(own, ChangeCause(ChangeSource.PROMPT)))


def _estimate_rerecord_cost(
    changed: Sequence[CarriedAnswerAttempt], rows: Mapping[int, StoredCallSummary]
) -> RerecordCost:
    seen, before = {call.recording for call in changed}, 0
    after, follows = list[float | None](), 0.0
    for id_, row in rows.items():
        before += id_ in seen
        if before and id_ not in seen:  # it is asked if any of the changed ones before it is answered otherwise
            after.append(row.cost_usd)
            follows += 1 - (1 - OTHERWISE) ** before
    return RerecordCost([call.cost for call in changed], after, sum(call.ms or 0.0 for call in changed) / 1000, follows)
