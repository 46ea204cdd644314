"""Recordings that are requested anew: stale, abandoned, changed ones or all, within a limit on cost (`--max-cost`).

Stale ones are older than `--max-age` or than their cassette's file allows. A replay serves and reports them: age proves
nothing. If the mode may write, they are sent live, and a good answer replaces the recording. A request that changes an
object at a server is not sent again: that would change it twice.

`--update` replaces recordings all at once, when the session that recorded the new ones is closed. These are stored in
`NAME@new`. If nothing failed, one transaction supersedes the old ones; otherwise `NAME` is unchanged: a wrong key, a
bad day or a kill at any moment loses no recording. Recordings of several sessions of one proxy in one cassette
accumulate. `all`: a session in mode `record` replaces all. `changed`: a replay requests anew the calls that the trial
(`engine.carried_answers`) finds changed, and those that depend on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, override

from llmproxy.amount_formatting import format_count
from llmproxy.calls_and_totals import Call
from llmproxy.core.changes.segment_change import RefusalReason, SegmentChange
from llmproxy.core.dialects.conversation import parse_answer_as_message, read_request_messages
from llmproxy.core.dialects.messages import Message
from llmproxy.core.dialects.usage_and_cost import MARGIN, compute_max_call_cost
from llmproxy.core.engine.carried_answers import CarriedAnswerOutcome
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.request_identification import refuse_if_unsendable
from llmproxy.core.providers.routing import does_request_change_server_state
from llmproxy.core.sessions.call_interceptor import Decided, RecordingLookup, SessionCallInterceptor
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.queries import (
    get_strictest_recording_max_age,
    has_answers_abandoned_by_client,
    read_interaction_summary,
)
from llmproxy.core.store.reader import Place, RecordingHead, RecordingKeyUpdate
from llmproxy.core.store.row_conversion import to_sql
from llmproxy.core.store.store import UNFINISHED, Store
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Ending, Interaction, Key
from llmproxy.core.traffic.response_plan import AnswerSendingPlan
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.protocol import (
    CHOSEN_RECORDING,
    OFFLINE,
    Channel,
    Decision,
    Exhausted,
    Mode,
    ReplayablePolicy,
    UpdateMode,
)

_DAY = 86_400


class StaleHit(NamedTuple):
    recording: RecordingHead
    days: int | None
    """Age in days; None if the time of recording is unknown."""


class StaleRecordingInterceptor(SessionCallInterceptor[Exchange]):
    def __init__(self, parts: EngineParts, most: float) -> None:
        """`most` is the age in seconds above which a recording is stale."""
        self._state, self._most = parts.state, most

    @override
    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        store = self._state.stores.current
        if store is None or decided.recording is None or decided.decision is not Decision.REPLAY:
            return decided
        recorded = read_interaction_summary(store, decided.recording.id).recorded_at
        age = self._state.now() - recorded
        if -_DAY <= age <= self._most:
            return decided
        call.state.put(StaleHit(decided.recording, int(age // _DAY) if recorded and age > 0 else None))
        asks = call.session.settings.mode.policy.writes and call.channel is Channel.LLM
        asks = asks and not does_request_change_server_state(call.route, call.method)
        return Decided(Decision.RECORD) if asks else decided

    @override
    def on_interaction(self, call: Exchange, made: Interaction) -> Interaction:
        stale = call.state.get(StaleHit)
        good = made.response.status in range(200, 300) and made.response.ending is Ending.COMPLETE
        here = call.kept.into is None  # a staged answer takes no place yet
        call.kept.instead = stale.recording.id if stale is not None and good and here else None
        return made

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        if (stale := call.state.get(StaleHit)) is None:
            return record
        when = "on a day that nobody knows" if stale.days is None else f"{format_count(stale.days, 'day')} ago"
        return record._replace(stale=record.decision is Decision.REPLAY, note=record.note or f"recorded {when}")


class StaleRecordingFeature(Feature):
    kind = StaleRecordingInterceptor

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> StaleRecordingInterceptor | None:
        store, most = self.parts.state.sessions.store(session.settings.mode), self.parts.state.config.max_age
        if store is not None and session.policy.plays is not ReplayablePolicy.NOTHING:
            most = get_strictest_recording_max_age(store, session.cassette, most)
        return None if most is None else StaleRecordingInterceptor(self.parts, most)


_FAILED = 400
"""Lowest status of an answer that costs nothing."""


@dataclass(slots=True)
class CostMeter:
    """From before it is sent until its price is known, a call counts with its maximum cost: no concurrent calls exceed
    the limit. One whose maximum cost is unknown is not sent.
    """

    most: Decimal | None
    spent: Decimal = Decimal(0)
    reserved: dict[int, Decimal] = field(default_factory=dict)
    """Maximum cost of open calls, by `id` of the call."""

    def reserve_cost_or_explain(self, call: Exchange, body: bytes, prompt: int) -> str:
        """Reserve the maximum cost of a call with `prompt` tokens. Return an empty text, or why it may not be sent."""
        if self.most is None:
            return ""
        model, tree = call.identity.model, parse_json_or_none(body)
        cost = compute_max_call_cost(call.route.provider.name, model, prompt, tree if isinstance(tree, dict) else {})
        if cost is None:
            what = f"what {model or call.operation} costs at the most"
            return f"{what} is not known (max_tokens in the request may tell), and --max-cost ${self.most} was given"
        left = self.most - self.spent - sum(self.reserved.values())
        if cost > left:
            rest = f"{max(left, Decimal(0)):.4f}"
            return f"the next call may cost ${cost:.4f}, and ${rest} are left of --max-cost ${self.most}"
        self.reserved[id(call)] = cost
        return ""

    def on_call_end(self, call: Exchange, record: Call) -> None:
        """Count a call; one with an unknown price counts with its maximum cost."""
        if (most := self.reserved.pop(id(call), None)) is not None and record.status < _FAILED:
            self.spent += most if record.cost is None else record.cost


class BudgetInterceptor(SessionCallInterceptor[Exchange]):
    """Refuses calls of models that might exceed the limit; a stale recording is served instead."""

    sees_whole = True

    def __init__(self, parts: EngineParts, spending: CostMeter) -> None:
        self._state, self._keying, self._spending = parts.state, parts.keying, spending

    @override
    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        if decided.decision not in {Decision.RECORD, Decision.PASS} or call.channel is not Channel.LLM:
            return decided
        stale, store = call.state.get(StaleHit), self._state.stores.current
        body = self._keying.redact(call, call.request.body or b"").body
        prompt = len(body)  # no token is shorter than a byte
        if stale is not None and store is not None and found.key == call.key:
            tokens = read_interaction_summary(store, stale.recording.id).tokens_in
            prompt = prompt if tokens is None else int(tokens * MARGIN) + 1
        if not (why := self._spending.reserve_cost_or_explain(call, body, prompt)):
            return decided
        if stale is not None:
            return Decided(Decision.REPLAY, stale.recording)
        error = RefusedError(f"llmproxy: not asked: {why}.", hint="What is recorded is replayed all the same.")
        call.mark_refused(error)
        return Decided(Decision.REFUSE)

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        self._spending.on_call_end(call, record)
        return record


class BudgetFeature(Feature):
    kind = BudgetInterceptor

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._spending = CostMeter(parts.state.config.max_cost)

    @property
    def _has_limit(self) -> bool:
        config = self.parts.state.config  # --update changed counts for itself
        return config.max_cost is not None and config.update is not UpdateMode.CHANGED

    @override
    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        forking = asked.get("forking")
        asks = asked.get("live") or self.parts.state.config.live or (forking is not None and forking.live)
        if self._has_limit and mode in OFFLINE and asks:
            msg = "llmproxy: --max-cost does not count what live channels and forks ask."
            raise RefusedError(msg, hint="Leave either out.")

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> BudgetInterceptor | None:
        asks = self._has_limit and session.policy.reaches_network
        return BudgetInterceptor(self.parts, self._spending) if asks else None


log = logging.getLogger(__name__)

LEAVING = 1_000_000
"""Microseconds that a client has to leave where the recorded one left, before the connection breaks."""
_HOLDER = "llmproxy, late"


class PartlyRecordedAnswerInterceptor(SessionCallInterceptor[Exchange]):
    """Serves answers that their client abandoned, in sessions that may write, as far as they were recorded.

    Leaving once may be an interrupt or a timeout; twice is the agent's habit (`core.store.reader.was_abandoned_twice`).
    A client that stays needs the whole answer: the recording then counts as left once again, so that the next run
    requests it live. A request beyond the recorded occurrences goes live: a part is never repeated.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._sessions = parts.state.sessions

    def on_send_plan(self, call: Exchange, laid: AnswerSendingPlan) -> AnswerSendingPlan:
        if not _is_abandoned(call):
            return laid
        last = laid.pieces[-1][0] if call.session.settings.speed or not call.answer.held else 0
        return laid._replace(pieces=(*laid.pieces, (last + LEAVING, b"")))

    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        left = decided.recording is not None and decided.recording.was_left and call.channel is not Channel.MCP
        repeated = call.nth > len(found.recordings) and call.session.settings.exhausted is Exhausted.LAST
        return Decided(Decision.RECORD) if left and repeated else decided

    def on_sent(self, call: Exchange) -> Callable[[], None] | None:
        if call.slot is None or not _is_abandoned(call):
            return None
        call.note = "its client reads on where the recorded one left: the next time it is asked live"
        return self._build_mark_abandoned_job(call.session, call.slot.id)

    def _build_mark_abandoned_job(self, session: Session, recording: int) -> Callable[[], None]:
        store, place = self._sessions.store(session.settings.mode), (session.cassette, session.sample)
        rows = store.list_keys(*place) if store is not None else []
        mine = next((each for each in rows if each.id == recording), None)

        def write() -> None:
            if store is None or mine is None:
                return
            alike = [each.occurrence for each in rows if (each.party, each.key) == (mine.party, mine.key)]
            turn = sorted(alike).index(mine.occurrence) + 1
            try:
                store.begin_writing(*place, exclusive=True, holder=_HOLDER, anew=False)
                try:
                    store.rekey_recordings([RecordingKeyUpdate(mine.id, mine.key, mine.key, turn, mine.rules)])
                finally:
                    store.end_writing(*place, _HOLDER, clean=False)
            except LLMProxyError as why:
                log.warning("recording #%s will not be asked live again: %s", mine.id, why.message)

        return write


def _is_abandoned(call: Exchange) -> bool:
    return call.slot is not None and call.slot.was_left and call.channel is not Channel.MCP


class AbandonedRecordingFeature(Feature):
    kind = PartlyRecordedAnswerInterceptor

    @override
    def on_replay_begin(self, session: Session, store: Store) -> None:
        place = session.cassette, session.sample
        if session.settings.mode.policy.writes and has_answers_abandoned_by_client(store, *place):
            self.parts.state.sessions.add_interceptor_to_session(session, PartlyRecordedAnswerInterceptor(self.parts))


STAGED = "@new"
"""Suffix of the name of a cassette with recordings that will replace another one's."""


class RecordingReplacementInterceptor(SessionCallInterceptor[Exchange]):
    def __init__(self, parts: EngineParts, session: Session, ours: dict[Place, set[int]]) -> None:
        """Begin with an empty stage; `ours`: recordings that this proxy put in place before. Raises CassetteBusy."""
        self._state, self._session, self._ours = parts.state, session, ours
        self.replaced = False
        self.staged: Place = f"{session.cassette}{STAGED}", session.sample
        self.save_target = self.leased_cassette = self.staged
        if (store := self._state.sessions.store(Mode.RECORD)) is None:
            raise AssertionError("a recording session without a store")
        store.begin_writing(*self.staged, exclusive=True, holder=self._state.sessions.holder)
        if left := [row.id for row in store.list_keys(*self.staged)]:  # left by a session that failed or was killed
            store.delete_interactions(left)
            store.begin_writing(*self.staged, exclusive=True, holder=self._state.sessions.holder)

    @property
    def old_cassette_place(self) -> Place:
        return self._session.cassette, self._session.sample

    def on_session_end(self) -> None:
        store = self._state.stores.opened
        if store is None or not self._session.is_over or self._explain_no_replacement(store):
            return
        made = store.list_keys(*self.staged)
        asked = {(row.party, row.key) for row in made}
        ours = self._ours.setdefault(self.old_cassette_place, set())
        gone = [
            row.id
            for row in store.list_keys(*self.old_cassette_place)
            if self.replaces_recording(row.id) and (row.id not in ours or (row.party, row.key) in asked)
        ]
        holder, clean = self._state.sessions.holder, self.will_be_complete(store)
        store.promote_staged(self.staged, self.old_cassette_place, gone, holder=holder, clean=clean)
        self.replaced = True
        if self._session.sealed is not False:  # an attempt that failed makes room for the next one
            ours.update(row.id for row in made)

    def will_be_complete(self, store: Store) -> bool:
        return self._session.sealed is not False

    def replaces_recording(self, recording: int) -> bool:
        return True

    def _explain_no_replacement(self, store: Store) -> str:
        totals = self._session.calls.totals
        if not store.list_keys(*self.staged):
            return "nothing was recorded"
        if totals.failed or totals.refused:
            return "an answer could not be recorded, or its provider not be reached"
        failed = store.query(UNFINISHED, (to_sql(self.staged[0]), self.staged[1]))
        return "an answer had failed, or was cut" if failed else ""

    def build_report(self) -> Mapping[str, Any]:
        store = self._state.stores.opened
        why = self._explain_no_replacement(store) if store is not None else "nothing was recorded"
        replaced: dict[str, Any] = {} if why else {"unused": [], "unused_total": 0}  # no old recording is left
        return {"replacement": {"cassette": self.staged[0], "why_not": why}} | replaced


class _AnswerInConversation(NamedTuple):
    answer: Message
    history: tuple[Message, ...] | None = None
    """All messages before it; None: any."""


def _compute_maximum_prompt_tokens(
    body: bytes, recorded: Interaction | None, looked: CarriedAnswerOutcome | None
) -> int:
    """Return a prompt's maximum tokens: recorded ones plus one per new byte; one per byte if those are unknown."""
    tokens = None if recorded is None else recorded.usage.input
    if recorded is None or tokens is None:
        return len(body)
    if looked is None:
        return int(tokens * MARGIN) + 1
    if looked.refusal is not None:  # further changes are unknown
        return tokens + len(body)
    new = sum(len(text.encode()) for each in looked.changes for hunk in each.hunks for text in hunk.after)
    return int(tokens * MARGIN) + 1 + max(new, len(body) - len(recorded.request.body))


class ChangedRequestReaskInterceptor(RecordingReplacementInterceptor):
    def __init__(self, parts: EngineParts, session: Session, ours: dict[Place, set[int]], spending: CostMeter) -> None:
        super().__init__(parts, session, ours)
        self._spending, self._keying = spending, parts.keying
        names = parts.state.config.change
        self._chosen = {int(name.removeprefix(CHOSEN_RECORDING)) for name in names if name.startswith(CHOSEN_RECORDING)}
        self._asked: set[Key] = set()
        self._gone: set[int] = set()
        self._lost: list[_AnswerInConversation] = []
        """Recorded answers that got a different replacement."""
        self._stopped = False
        """Whether a call was not sent, since --max-cost might not be enough."""
        self._new: list[_AnswerInConversation] = []

    @override
    def on_lookup(self, call: Exchange, found: RecordingLookup) -> RecordingLookup:
        looked, store = call.state.get(CarriedAnswerOutcome), self._state.stores.current
        again = next((each for each in found.recordings if each.id in self._chosen), None)
        if call.key is None or not (again or (looked is not None and self._must_ask_live(call, looked))):
            return found
        placed = None if looked is None else looked.placed
        at = placed.recorded if again is None and placed is not None else again
        recorded = store.load(at.id) if at is not None and store else None
        body = self._keying.redact(call, call.request.body or b"").body
        prompt = _compute_maximum_prompt_tokens(body, recorded, looked)
        if why := self._spending.reserve_cost_or_explain(call, body, prompt):
            self._stopped = True
            hint = "What was recorded before stays as it was."
            call.mark_refused(RefusedError(f"llmproxy: nothing more is asked: {why}.", hint=hint))
            return found
        if recorded is not None and store is not None:
            key = found.key if again is not None else recorded.key
            self._gone.update(slot.id for slot in store.find_keyed(*self.old_cassette_place, call.party, key))
        self._asked.add(call.key)
        if recorded is not None and (before := parse_answer_as_message(recorded)) is not None:
            call.state.put(_AnswerInConversation(before, tuple(read_request_messages(recorded.request.body))))
        call.nth = call.session.count_arrival(call.party_and_key, 1)
        call.session.keep_recording_key(call.party_and_key)
        call.decision = Decision.RECORD
        refuse_if_unsendable(call)
        self._state.pending.reserve_occurrence(call, ())
        return found

    def _must_ask_live(self, call: Exchange, looked: CarriedAnswerOutcome) -> bool:
        if call.key in self._asked:
            return True
        if looked.refusal is None:
            return any(map(self._is_change_chosen, looked.pending))
        if looked.refusal.why in {RefusalReason.NO_PLACE, RefusalReason.NOT_LOOKED_AT, RefusalReason.AMBIGUOUS}:
            follows_refused = looked.refusal.why is RefusalReason.NOT_LOOKED_AT and bool(self._asked)
            return follows_refused or _has_answer_in_history(call.request.body or b"", self._new)
        return not self._state.config.change or any(self._is_change_chosen(each) for each in looked.changes)

    def _is_change_chosen(self, change: SegmentChange) -> bool:
        return not self._state.config.change or change.name in self._state.config.change

    def on_stored(self, call: Exchange, made: Interaction) -> None:
        asked, answer = call.state.get(_AnswerInConversation), parse_answer_as_message(made)
        if answer is None or call.key not in self._asked:
            return
        self._new.append(_AnswerInConversation(answer))
        if asked is not None and _get_answer_content(asked.answer) != _get_answer_content(answer):
            self._lost.append(asked)

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        self._spending.on_call_end(call, record)
        return record

    def on_session_end(self) -> None:
        store = self._state.stores.opened
        if store is None or not self._session.is_over or self._explain_no_replacement(store):
            return
        self._gone.update(self._find_dependents(store))
        super().on_session_end()
        self._state.stores.write_cassette_file(self._session)

    def _find_dependents(self, store: Store) -> Iterator[int]:
        for row in store.list_summaries(*self.old_cassette_place) if self._lost else ():
            known = row.id in self._session.served or row.id in self._gone
            if not known and _has_answer_in_history(store.load(row.id).request.body, self._lost):
                yield row.id

    @override
    def replaces_recording(self, recording: int) -> bool:
        return recording in self._gone and recording not in self._session.served

    @override
    def will_be_complete(self, store: Store) -> bool:
        return super().will_be_complete(store) and store.last_session_ended_cleanly(*self.old_cassette_place)

    @override
    def _explain_no_replacement(self, store: Store) -> str:
        if self._session.sealed is False:
            return "what ran in it failed"
        if self._stopped:
            return "--max-cost might not be enough"
        missed = "a request was never recorded" if self._session.calls.totals.misses else ""
        return super()._explain_no_replacement(store) or missed

    @override
    def build_report(self) -> Mapping[str, Any]:
        store = self._state.stores.opened
        if self.replaced or store is None or not (self._asked or self._stopped):
            return {"replaced": True} if self.replaced else {}
        replacement = super().build_report()["replacement"]
        if replacement["why_not"]:
            return {"replacement": replacement}
        gone = {*self._gone, *self._find_dependents(store), *self._session.served}
        left = [row for row in store.list_summaries(*self.old_cassette_place) if row.id not in gone]
        rows = [row.to_unused_json() for row in left]
        return {"replacement": replacement, "unused": rows, "unused_total": len(rows)}


def _has_answer_in_history(body: bytes, answers: Sequence[_AnswerInConversation]) -> bool:
    sent = tuple(read_request_messages(body))
    return any(_is_message_this_answer(one, each, sent[:n]) for n, each in enumerate(sent) for one in answers)


def _is_message_this_answer(asked: _AnswerInConversation, message: Message, before: Sequence[Message]) -> bool:
    """Return whether a message is this answer: by the ids of its tool calls, else by its text and all before it."""
    answer = asked.answer
    ids = {call.id for call in answer.tool_calls if call.id}
    if ids:
        return bool(ids & {call.id for call in message.tool_calls})
    is_equal = message.role in ("assistant", "model") and bool(answer.text) and message.text == answer.text
    return is_equal and asked.history in (None, before)


def _get_answer_content(answer: Message) -> object:
    return answer.text, [(call.name, call.arguments) for call in answer.tool_calls]


class RecordingUpdateFeature(Feature):
    kind = RecordingReplacementInterceptor

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._ours: dict[Place, set[int]] = {}
        self._spending = CostMeter(parts.state.config.max_cost)

    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        if self.parts.state.config.update is UpdateMode.CHANGED and mode in OFFLINE:
            self.parts.state.sessions.require_live_sessions_allowed("that asks what has changed")

    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> RecordingReplacementInterceptor | None:
        update = self.parts.state.config.update
        if update is UpdateMode.CHANGED and session.settings.mode in OFFLINE:
            return ChangedRequestReaskInterceptor(self.parts, session, self._ours, self._spending)
        replaces = update is UpdateMode.ALL and session.policy.anew
        return RecordingReplacementInterceptor(self.parts, session, self._ours) if replaces else None
