"""Concurrent calls: the order in which they ended when they were recorded, kept in replay; and shared answers.

A program's behaviour may depend on which answer ends first. So a piece of an answer is sent when everything that was
recorded between its call's begin and that piece has happened: begins of other calls, and their ends. It never waits for
an event that may depend on it, since that was recorded later.

    recorded    A |--------------------|            replayed    A, B sent; B's end; C sent; C's end; then A's end
                B    |------|  C |--|

After `patience` seconds without progress, plus the time that the recorded program took, the answer continues and notes
it. After an end that was sent while this call was open, it waits until that client has read it and is idle, as far as
known, and then for a pause, so that a client with several threads or a loop processes the two in their order. `now` is
in monotonic seconds; recorded times are Unix seconds.

A busy client may process two ends in another order than they were sent, or may have built its next request when the
second one arrived. Recorded times do not show that; its later requests do:

    B's end, A's end, X cites "A's answer ... B's answer"       A was processed before B, if their ends are close
    A's end, B's end, X cites "A's answer", a later one both    B was processed after X was built: it waits for X

A request *cites* an answer if it holds the first line of its text, or the id of its tool call, and no earlier request
did. A wrong guess only costs a little time: `EndOrderEnforcer` waits for X a short while.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, starmap, takewhile
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple, override

from llmproxy.calls_and_totals import Call
from llmproxy.core.dialects.conversation import parse_answer_as_message
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.request_stages import list_replayable_recordings
from llmproxy.core.misses.explain import MissContext
from llmproxy.core.providers.routing import does_request_change_server_state
from llmproxy.core.secrets.secret_kinds import SECRET_HEADER
from llmproxy.core.sessions.call_interceptor import ClientEnds, Decided, RecordingLookup, SessionCallInterceptor
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import PartyKey, Session
from llmproxy.core.store.queries import list_recorded_call_times
from llmproxy.core.store.reader import RecordingHead, is_complete_replayable_response
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import Interaction, header
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.errors import MissError
from llmproxy.protocol import AFTER_HEADER, Channel, Decision

LEAST_PAUSE, LONGEST_PAUSE, ALL_PAUSES = 0.010, 0.040, 0.2
"""Seconds between two ends (minimum, maximum), and for all ends of a group together; measured with
`scripts/lab/parallel`: a program that has just started still imports while it reads its first answers."""
LOOK = 0.002
"""Seconds between two checks of an awaited call."""
_MOST_GUESSED = 2
"""Maximum times that a request expected before an end may fail to come; then no end waits for one any more."""
_MOST_EXPIRED = 5
"""Maximum waits for calls that never come in one run; then none is awaited any more."""

_CLOSE = 0.1
"""Seconds between two ends that a busy client may process in the other order."""
_REACTION = 1.0
"""Maximum seconds between an end and the request that it causes."""
_LONGEST_CITED = 200
"""Characters of an answer that are searched for in requests."""
_MOST_READ, MOST_BYTES_READ = 400, 16 << 20
"""Maximum calls that are read, and bytes of their requests (0.2 s); above that, no times are corrected."""


class RecordedCallBeginAndEnd(NamedTuple):
    id: int
    began: float
    """Time when it was forwarded to its upstream, Unix seconds."""
    ended: float
    """Time when its client processed the last of its answer, as far as known."""
    party: str = ""
    key: str = ""
    answer: int = 0
    """Equal for equal answers."""
    grace: float = 0.0
    """Maximum seconds that its end waits for requests built before the client processed it; 0 if unknown."""
    late: bool = False
    """Whether it was processed later than it arrived."""
    together: bool = False
    """Whether a client that does not wait for all was still busy with the previous end when this one arrived."""


_Cites = Callable[[int, int], int]
"""Position in a call's request at which it cites another call's answer; -1 if it does not."""


class _RequestsTooLong(Exception):
    """The requests are too long to be read in full."""


def infer_answer_read_times(calls: Sequence[RecordedCallBeginAndEnd], cites: _Cites) -> list[RecordedCallBeginAndEnd]:
    """Return the calls with the times when their ends were processed, in the order of their begins."""
    try:
        return _infer_receipt_times(calls, cites)
    except _RequestsTooLong:
        return list(calls)


def _infer_receipt_times(calls: Sequence[RecordedCallBeginAndEnd], cites: _Cites) -> list[RecordedCallBeginAndEnd]:
    made = sorted(calls, key=attrgetter("began", "id"))
    begins = [each.began for each in made]
    ended = sorted(range(len(made)), key=lambda n: made[n].ended)
    ends = [made[n].ended for n in ended]
    looked = set[int]()
    for n, asked in enumerate(list(made)):
        last = bisect_right(ends, asked.began)
        near = [m for m in ended[bisect_right(ends, asked.began - _REACTION) : last] if m < n]
        if not any(made[b].began < made[a].ended for a, b in pairwise(near)):
            continue
        looked.update((n, *near))
        if len(looked) > _MOST_READ:
            raise _RequestsTooLong
        at = {m: cites(asked.id, made[m].id) for m in near}
        heard = [m for m in near if at[m] >= 0]
        _reorder_close_ends(made, heard, at, begins)
        _mark_joint_ends(made, n, heard, cites)
        for m in near:
            late = made[m]
            before = [made[each].ended for each in heard if late.began < made[each].ended < late.ended + _CLOSE]
            if at[m] < 0 and before and not late.grace and _is_first_citation_after(made, n, m, heard, cites):
                grace = 0.25 + 3 * (asked.began - min(before))
                made[m] = late._replace(ended=asked.began + 1e-6, grace=grace, late=True)
    return made


def _is_first_citation_after(
    made: Sequence[RecordedCallBeginAndEnd], n: int, m: int, heard: Sequence[int], cites: _Cites
) -> bool:
    """Return whether the first request that cites answer `m` follows the n-th, and cites one of `heard`."""
    behind = (k for k in range(len(made)) if made[m].ended < made[k].began < made[n].began + 30 * _REACTION)
    first = next((k for k in behind if cites(made[k].id, made[m].id) >= 0), -1)
    return first > n and any(cites(made[first].id, made[each].id) >= 0 for each in heard)


def _mark_joint_ends(made: list[RecordedCallBeginAndEnd], n: int, heard: Sequence[int], cites: _Cites) -> None:
    """Mark ends that a slow client processed together: it sends requests when some of them are there, not all.

    Its next request cites both. Another request that cites one of them also cites a later end of the same group.
    """
    by_end = sorted(heard, key=lambda m: made[m].ended)
    slow = made[n].began - made[by_end[-1]].ended if by_end else 0.0
    close = [(a, b) for a, b in pairwise(by_end) if made[b].ended - made[a].ended < slow]
    rest = [m for m in range(n) if close and made[m].began < made[by_end[-1]].ended < made[m].ended and m not in heard]
    for a, b in close:
        later = (k for k in range(n + 1, len(made)) if cites(made[k].id, made[a].id) >= 0)
        if any(cites(made[k].id, made[m].id) >= 0 for k in later for m in rest):
            made[b] = made[b]._replace(together=True)


def _reorder_close_ends(
    made: list[RecordedCallBeginAndEnd], heard: Sequence[int], at: dict[int, int], begins: Sequence[float]
) -> None:
    """Order ends that are close by where a request cites them; not if a request was sent between them."""
    runs: list[list[int]] = []
    for m in heard:
        before = made[runs[-1][-1]].ended if runs else 0.0
        apart = bisect_right(begins, made[m].ended) - bisect_right(begins, before)
        if not runs or made[m].ended - before >= _CLOSE or apart:
            runs.append([])
        runs[-1].append(m)
    for run in runs:
        times = [made[m].ended for m in run]
        for m, ended in zip(sorted(run, key=at.__getitem__), times, strict=True):
            made[m] = made[m]._replace(ended=ended, late=made[m].late or ended > made[m].ended)


def build_finder_of_answer_in_request(store: Store) -> _Cites:
    requests: dict[int, bytes] = {}
    answers: dict[int, re.Pattern[bytes] | None] = {}
    size = 0

    def cites(asked: int, answered: int) -> int:
        nonlocal size
        for each in {asked, answered} - requests.keys():
            made = store.load(each)
            if (size := size + len(made.request.body)) > MOST_BYTES_READ:
                raise _RequestsTooLong
            requests[each], answers[each] = made.request.body, _build_citation_pattern(made)
        words = answers[answered]
        return max((each.start() for each in words.finditer(requests[asked])), default=-1) if words else -1

    return cites


def _build_citation_pattern(made: Interaction) -> re.Pattern[bytes] | None:
    if (said := parse_answer_as_message(made)) is None:
        return None
    words = said.text.strip().partition("\n")[0].strip()[:_LONGEST_CITED]
    words = words or next((call.id for call in said.tool_calls if call.id), "")
    ways = {re.escape(json.dumps(words, ensure_ascii=escaped)[1:-1]) for escaped in (True, False)}
    border = "" if len(words) == _LONGEST_CITED else "(?![A-Za-z0-9])"  # "q1" is not cited by "q12"
    return re.compile(f"(?:{'|'.join(ways)}){border}".encode("utf-8", "surrogatepass")) if words else None


def group_concurrent(calls: Iterable[RecordedCallBeginAndEnd]) -> list[list[RecordedCallBeginAndEnd]]:
    """Return all calls in groups connected by overlaps, in the order of their begins; empty if none overlap."""
    groups: list[list[RecordedCallBeginAndEnd]] = []
    latest = -math.inf
    for each in sorted(calls, key=attrgetter("began", "id")):
        if each.began >= latest:
            groups.append([])
        groups[-1].append(each)
        latest = max(latest, each.ended)
    return groups if any(len(group) > 1 for group in groups) else []


def find_order_dependent_recordings(groups: Iterable[Sequence[RecordedCallBeginAndEnd]]) -> frozenset[int]:
    """Return recordings that overlap a different answer to an equal request: only arrival order tells them apart."""
    found = set[int]()
    for group in groups:
        equal: dict[tuple[str, str], list[RecordedCallBeginAndEnd]] = {}
        for each in group:
            others = [one for one in equal.get((each.party, each.key), ()) if one.ended > each.began]
            if beside := [one.id for one in others if one.answer != each.answer]:
                found.update(beside, [each.id])
            equal[each.party, each.key] = [*others, each]
    return frozenset(found)


@dataclass(slots=True, eq=False)
class _CallProgress:
    call: RecordedCallBeginAndEnd
    lead: float
    """Seconds that the recorded program took from the previous event to this request."""
    asked_at: float | None = None
    is_over: bool = False
    """Whether its end was sent, or nothing waits for it any more."""
    is_free: bool = False
    """Whether it waited in vain for the requests expected before its end."""


@dataclass(slots=True, eq=False)
class _ConcurrentGroup:
    members: list[_CallProgress]
    pause: float
    first: int = 0
    """Index of the first member that is not over."""

    def skip_ended(self) -> None:
        while self.first < len(self.members) and self.members[self.first].is_over:
            self.first += 1


@dataclass(slots=True)
class EndOrderEnforcer:
    calls: Sequence[Sequence[RecordedCallBeginAndEnd]]
    patience: float
    """Seconds to wait for an event without progress."""
    expired: int = 0
    """Number of times that an answer continued without an awaited call."""
    guessed: int = 0
    """Number of times that a request expected before an end did not come."""
    _last_end: float = -math.inf
    """Monotonic time when an end was last sent, or was still unread by its client."""
    _last_client: ClientEnds = None
    _moved: float = -math.inf
    _unfinished: list[_CallProgress] = field(default_factory=list)
    _by_id: dict[int, tuple[_ConcurrentGroup, _CallProgress]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._unfinished.clear()
        self._by_id.clear()
        self.expired, self.guessed, self._last_end = 0, 0, -math.inf
        for calls in self.calls:
            times = sorted([each.began for each in calls] + [each.ended for each in calls])
            earlier = (times[max(0, bisect_left(times, each.began) - 1)] for each in calls)
            members = [_CallProgress(each, each.began - time) for each, time in zip(calls, earlier, strict=True)]
            group = _ConcurrentGroup(members, max(LEAST_PAUSE, min(LONGEST_PAUSE, ALL_PAUSES / len(members))))
            self._by_id.update((each.call.id, (group, each)) for each in members)

    def on_call_begin(self, recording: int, now: float) -> bool:
        """Handle a recording's begin. Return whether it is ordered: not without overlap, nor if repeated."""
        group, progress = self._by_id.get(recording, (None, None))
        if group is None or progress is None or progress.asked_at is not None:
            return progress in self._unfinished
        if len(group.members) == 1 and not self._unfinished:
            return False
        progress.asked_at, progress.is_over, self._moved = now, False, now
        self._unfinished.append(progress)
        group.first = min(group.first, group.members.index(progress))
        return True

    def on_call_end(self, recording: int, now: float, client: ClientEnds = None) -> None:
        group, progress = self._by_id[recording]
        progress.is_over, self._last_end, self._last_client, self._moved = True, now, client, now
        if progress in self._unfinished:
            self._unfinished.remove(progress)
        group.skip_ended()

    def stop_waiting_for(self, recording: int) -> None:
        if (found := self._by_id.get(recording)) is not None and found[1].asked_at is None:
            found[1].is_over = True
            found[0].skip_ended()

    def get_send_delay(
        self, recording: int, offset: float | None, now: float, has_read: Callable[[ClientEnds], bool] = lambda _: True
    ) -> float:
        """Return seconds until the next check of whether a piece of an answer may be sent; 0 if it may now.

        `offset` is the recorded time of the piece, in seconds since its call's begin; None for the answer's end.
        `has_read` returns whether a client has read the data that was sent to it.
        """
        group, own = self._by_id[recording]
        at = own.call.ended if offset is None or own.call.late else min(own.call.began + offset, own.call.ended)
        awaited = sum((each.call.ended, each.call.id) < (at, recording) for each in self._unfinished if each is not own)
        due = takewhile(lambda each: each.call.began < at, group.members[group.first :])
        overlapping = (each for each in due if each.call.ended > own.call.began)
        absent = [each for each in overlapping if each.asked_at is None and not each.is_over]
        if awaited:
            return (awaited - 1) * group.pause + LOOK
        if absent and own.call.grace:
            if self.guessed < _MOST_GUESSED and not own.is_free:
                if (left := self._moved + own.call.grace - now) > 0:
                    return min(left, LOOK)
                self.guessed, own.is_free = self.guessed + 1, True
        elif absent and self.expired < _MOST_EXPIRED:
            if (left := self._moved + self.patience + absent[0].lead - now) > 0:
                return min(left, LOOK)
            self.expired += 1
            for each in absent:
                each.is_over = True
            group.skip_ended()
        if self._last_end > (own.asked_at or -math.inf):
            if own.call.together:
                return max(0.0, self._last_end + LEAST_PAUSE - now)
            if self._last_client is not None and now < self._moved + self.patience:
                if has_read(self._last_client):
                    self._last_client = None
                else:
                    self._last_end = now
            return max(0.0, self._last_end + group.pause - now)
        return 0.0


class DuplicateChoiceInterceptor(SessionCallInterceptor[Exchange]):
    """Chooses a recording for each of several equal requests whose different answers overlapped."""

    def __init__(self, parts: EngineParts, dealt: frozenset[int]) -> None:
        self._stores, self._dealt, self._given = parts.state.stores, dealt, set[int]()

    def on_restart(self) -> None:
        self._given.clear()

    @override
    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        """Return the recording that followed the same request in its thread, else the next one."""
        if (chosen := decided.recording) is None or chosen.status == SWITCHING or chosen.id not in self._dealt:
            return decided
        tape = list_replayable_recordings(call.session.policy, found.recordings)
        left = [each for each in tape if each.id in self._dealt and each.id not in self._given] or [chosen]
        after, store = call.kept.after, self._stores.current
        heads = ((each, store.load(each.id).request.headers) for each in left if after and store is not None)
        fits = [each for each, headers in heads if header(headers, AFTER_HEADER) == after]
        chosen, *others = fits or left
        self._given.add(chosen.id)
        call.kept.dealt = bool(others or not fits)
        return decided._replace(recording=chosen)


class DuplicateChoiceFeature(Feature):
    """The place of an interceptor that `EndOrderFeature` adds."""

    kind = DuplicateChoiceInterceptor


class _HeldAnswer(NamedTuple):
    recording: int
    client: ClientEnds = None


class EndOrderInterceptor(SessionCallInterceptor[Exchange]):
    def __init__(self, parts: EngineParts, order: EndOrderEnforcer) -> None:
        self._clock, self.order = parts.state.clock, order

    def on_restart(self) -> None:
        self.order.restart()

    @override
    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        if (chosen := decided.recording) is None or chosen.status == SWITCHING:
            return decided
        if self.order.on_call_begin(chosen.id, call.progress.arrived):
            call.answer.held = True
            call.state.put(_HeldAnswer(chosen.id))
        return decided

    @override
    def on_explain(self, call: Exchange, context: MissContext) -> MissContext:
        overlapped = (group for group in self.order.calls if len(group) > 1)
        return replace(context, concurrent=tuple(tuple(each.id for each in group) for group in overlapped))

    def get_send_delay(
        self, call: Exchange, offset: float | None, ends: ClientEnds, has_read: Callable[[ClientEnds], bool]
    ) -> float:
        if (ordered := call.state.get(_HeldAnswer)) is None:
            return 0.0
        call.state.put(ordered._replace(client=ends))
        order = self.order
        expired, seconds = order.expired, order.get_send_delay(ordered.recording, offset, self._clock(), has_read)
        if order.expired > expired:
            call.note = f"went on after {order.patience:g} s: what was recorded before this answer's end did not come"
        return seconds

    def on_end(self, call: Exchange, record: Call) -> Call:
        if (ordered := call.state.get(_HeldAnswer)) is not None:
            self.order.on_call_end(ordered.recording, self._clock(), ordered.client)
            record = record._replace(dealt=call.kept.dealt)
        elif isinstance(call.error, MissError) and call.error.nearest is not None and call.slot is None:
            self.order.stop_waiting_for(call.error.nearest)
        return record


class EndOrderFeature(Feature):
    kind = EndOrderInterceptor

    def on_replay_begin(self, session: Session, store: Store) -> None:
        if not (patience := self.parts.state.config.order_wait):
            return
        times = list_recorded_call_times(store, session.cassette, session.sample)
        calls = list(starmap(RecordedCallBeginAndEnd, times))
        if group_concurrent(calls):
            groups = group_concurrent(infer_answer_read_times(calls, build_finder_of_answer_in_request(store)))
            add = self.parts.state.sessions.add_interceptor_to_session
            add(session, DuplicateChoiceInterceptor(self.parts, find_order_dependent_recordings(groups)))
            add(session, EndOrderInterceptor(self.parts, EndOrderEnforcer(groups, patience)))


def _identify_with_credentials(call: Exchange) -> tuple[PartyKey, tuple[str, ...]]:
    """Return what makes live requests equal: of another key the answer, and the bill, may be others."""
    secret = (value for name, value in call.request.headers if SECRET_HEADER.search(name.lower()))
    return call.party_and_key, tuple(secret)


class CoalesceInterceptor(SessionCallInterceptor[Exchange]):
    """Lets equal concurrent requests to models share one answer while it is recorded (`--coalesce`).

    Each keeps a recording of its own, so that a replay that sends them one after the other has one for each. An answer
    that failed, was cut or left is not shared: the next request is then sent. Neither tools nor uploads are shared.
    """

    channel = Channel.LLM
    sees_whole = True

    def __init__(self, parts: EngineParts) -> None:
        self._state = parts.state
        self._open: dict[tuple[PartyKey, tuple[str, ...]], list[Exchange]] = {}
        """The open request and those that wait for its answer; the writer's thread ends it, too."""
        self._lock = Lock()

    @override
    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        records = decided.decision is Decision.RECORD and call.method == "POST"
        if records and not does_request_change_server_state(call.route, "POST"):
            with self._lock:
                crowd = self._open.setdefault(_identify_with_credentials(call), [])
                crowd.append(call)
                call.answer.awaited = crowd[0] is not call
        return decided

    @override
    def on_stored(self, call: Exchange, made: Interaction) -> None:
        store, got = self._state.stores.opened, made.response
        if store is None or not is_complete_replayable_response(got):
            return
        with self._lock:
            crowd = self._open.get(asked := _identify_with_credentials(call), [])
            others = self._open.pop(asked)[1:] if crowd and crowd[0] is call else []
        copies = [InteractionToStore(replace(made, occurrence=each.kept.occurrence)) for each in others]
        try:
            for other, stored in zip(others, store.add_interactions(copies) if copies else (), strict=True):
                other.slot = RecordingHead(stored, other.kept.occurrence, got.status, got.ending)
                other.decision, other.note = Decision.REPLAY, "shares the answer to the same request at the same time"
        finally:  # if it could not be stored, each waiter sends its own request
            for other in others:
                other.answer.awaited = False

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        asked = _identify_with_credentials(call)
        with self._lock:
            crowd = [each for each in self._open.pop(asked, []) if each is not call]
            if crowd:
                self._open[asked] = crowd
                crowd[0].answer.awaited = False
        return record


class CoalesceFeature(Feature):
    kind = CoalesceInterceptor

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> CoalesceInterceptor | None:
        shares = self.parts.state.config.coalesce and session.settings.mode.policy.alone
        return CoalesceInterceptor(self.parts) if shares else None
