"""The stages of a call: its head arrives, its body arrives, then it gets a key, is looked up and decided.

The stages know no feature: at each border they call the interceptors of the call's session
(`core.sessions.call_interceptor`), unless the head alone determined the decision. A request that nothing answers is
refused with a full explanation, once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from llmproxy.core.dialects.conversation import read_last_user_text
from llmproxy.core.dialects.dialect_table import detect_retry_degrading_client
from llmproxy.core.engine.engine_state import TEXT, EngineState
from llmproxy.core.engine.request_identification import KeyDeriver, refuse_if_unsendable
from llmproxy.core.forks.fork_rows import find_fork
from llmproxy.core.keys.mcp import is_mcp_tool_call
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.keys.server_state_in_keys import is_success
from llmproxy.core.mcp_answer_replay import MICROSECONDS
from llmproxy.core.misses.explain import ExplainedMiss, MissContext, RecordedElsewhere, build_miss_explanation
from llmproxy.core.misses.nearest_recording import AS_RECORDED, RecordingToCurrentRunRewriter
from llmproxy.core.providers.provider_table import SAFE, parse_user_agent_client
from llmproxy.core.providers.routing import find_unset_recorded_upstream
from llmproxy.core.secrets.redact import has_placeholder_api_key
from llmproxy.core.sessions.call_interceptor import (
    ClientDrivenAnswerPlayback,
    ClientEnds,
    Decided,
    MissReason,
    RecordingLookup,
)
from llmproxy.core.sessions.exchange import CallProgress, EffectiveRequest, EngineConfig, Exchange, RoutedRequestHead
from llmproxy.core.sessions.journal import JournaledMiss, ReplayedRequest
from llmproxy.core.sessions.session import MissedCallForRetryDetection, Question, Session, split_cassette_and_sample
from llmproxy.core.store.queries import canonicalize_stored, find_cassettes_with_key
from llmproxy.core.store.reader import RecordingHead, is_replayable_status, was_abandoned_twice
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Ending, Headers, Key, Response, header
from llmproxy.core.traffic.response_plan import (
    REDIRECTS,
    AnswerSendingPlan,
    ClientFramingTraits,
    StreamedResponseHead,
    build_stream_response_head,
    find_redirect_host_past_proxy,
    plan_response_sending,
)
from llmproxy.errors import MissError, RefusedError
from llmproxy.protocol import THREAD_FIELD, Channel, Decision, Exhausted, ModePolicy, ReplayablePolicy


def decide_from_request_head(place: RoutedRequestHead, session: Session) -> Decision | None:
    """Return the decision on a request that does not depend on its body; None if it must be looked up."""
    policy, not_llm = session.policy, place.route.row.not_llm
    if any(each.always for each in place.stubs) and not (not_llm and policy.on_miss is not Decision.REFUSE):
        return None
    if not policy.reaches_network:
        return None if place.in_scope else Decision.PASS
    if not place.in_scope or not_llm:
        return Decision.PASS
    if session.needs_whole_requests:
        return None
    return policy.on_miss if policy.plays is ReplayablePolicy.NOTHING else None


def assign_call_occurrence(call: Exchange, found: RecordingLookup) -> None:
    if not call.nth:
        recordings = list_replayable_recordings(call.session.policy, found.recordings)
        call.nth = call.session.count_arrival((call.party, found.key), len(recordings))
        thread = header(call.request.headers, THREAD_FIELD) or call.progress.connection
        call.kept.after = call.session.position.swap_last_key_of_thread(thread, found.key)


def decide_by_mode(call: Exchange, found: RecordingLookup, nth: int) -> Decided:
    session, place = call.session, call.place
    chosen = session.settings.exhausted
    exhausted = choose_exhausted_rule(chosen, call.channel, call.method, call.operation, changes=place.changes)
    here = (call.party, found.key) in session.position.recorded_here
    return decide(session.policy, found.recordings, nth, exhausted, recorded_here=here)


def decide(
    policy: ModePolicy, recordings: Sequence[RecordingHead], nth: int, exhausted: Exhausted, *, recorded_here: bool
) -> Decided:
    """Decide on the `nth` arrival of a key, from 1; `recordings` are its live ones in order of occurrence.

    `recorded_here`: it was first recorded in this session, so it is again: a first run in `auto` equals `record`.
    """
    if policy.plays is ReplayablePolicy.NOTHING:
        return Decided(policy.on_miss)
    tape, replays_only = list_replayable_recordings(policy, recordings), policy.on_miss is Decision.REFUSE
    if nth <= len(tape) and (replays_only or not recorded_here):
        return Decided(Decision.REPLAY, tape[nth - 1])
    if not replays_only:
        return Decided(policy.on_miss)
    if not tape:
        return Decided(Decision.REFUSE, reason=MissReason.NEVER)
    match exhausted:
        case Exhausted.MISS:
            return Decided(Decision.REFUSE, reason=MissReason.EXHAUSTED)
        case Exhausted.CYCLE:
            return Decided(Decision.REPLAY, tape[(nth - 1) % len(tape)])
        case Exhausted.LAST:
            return Decided(Decision.REPLAY, next((each for each in reversed(tape) if each.is_good_answer), tape[-1]))


def list_replayable_recordings(policy: ModePolicy, recordings: Sequence[RecordingHead]) -> Sequence[RecordingHead]:
    """Return the recordings that count for this policy: those that it plays in turn, or all if it plays none."""
    if policy.plays is ReplayablePolicy.GOOD:
        return [
            each for turn, each in enumerate(recordings, 1) if each.is_good_answer or was_abandoned_twice(each, turn)
        ]
    return recordings


def choose_exhausted_rule(
    chosen: Exhausted, channel: Channel, method: str, operation: str = "", *, changes: bool = False
) -> Exhausted:
    """Return how to answer a request that comes more often than it was recorded; `chosen` is the session's setting.

    What changes something is not answered with the last recording again: a second invoice would have the first's
    number.
    """
    tells = channel is Channel.HTTP and method not in SAFE
    # It is unknown whether a tool changes something.
    tells = tells or changes or (channel is Channel.MCP and is_mcp_tool_call(operation))
    return Exhausted.MISS if tells and chosen is Exhausted.LAST else chosen


_SAID: dict[Ending, str] = {
    Ending.LEFT: "the client left it",
    Ending.CUT: "it broke off",
    Ending.UNTERMINATED: "it has no end",
    Ending.FAILED: "its grpc-status says so",
}


def describe_recorded_failure(recording: RecordingHead) -> str:
    if recording.ending is not Ending.COMPLETE:
        return f"a recorded failure: {_SAID[recording.ending]}"
    return "" if is_replayable_status(recording.status) else f"a recorded failure: {recording.status}"


CANDIDATES = 50
"""Maximum recordings that are compared with a missed request."""
PLACES = 3
"""Maximum other places of the key that are named."""


def build_initial_miss_context(exchange: Exchange, config: EngineConfig) -> MissContext:
    session = exchange.session
    is_own = session.cassette == split_cassette_and_sample(config.cassette)[0]
    again = replace(config.again, names_cassette=is_own or not config.again.is_for_one_command)
    return MissContext(
        mode=session.settings.mode, cassette=session.cassette, session=session.name, sample=session.sample,
        party=exchange.party, key=exchange.key or "", method=exchange.method, provider=exchange.route.provider.name,
        operation=exchange.operation, model=exchange.identity.model, store=config.shown_store_path,
        again=again, upstreams=session.settings.upstreams,
        outside_tests=again.is_pytest and not session.settings.opened,
    )  # fmt: skip


def _find_other_places(store: Store, key: Key, channel: Channel) -> tuple[RecordedElsewhere, ...]:
    """Return other places of a key, except child cassettes whose recording of it may be a refused call."""
    found = [RecordedElsewhere(*each) for each in find_cassettes_with_key(store, key, limit=PLACES)]
    forks = {each: find_fork(store, each.cassette, each.sample) for each in found}
    return tuple(each for each, fork in forks.items() if fork is None or not fork.was_channel_offline(channel))


def _list_candidates(
    exchange: Exchange, config: EngineConfig, store: Store, wording: RecordingToCurrentRunRewriter
) -> list[tuple[int, Canonical]]:
    place, found = (exchange.session.cassette, exchange.party), list[tuple[int, Canonical]]()
    for id_ in store.list_candidate_ids(*place, exchange.route.provider.name, exchange.operation, CANDIDATES):
        if (recorded := wording.find_cached_request(id_)) is None:
            try:
                recorded = canonicalize_stored(store, store.load(id_), config.rules, config.upstreams)
            except RefusedError:  # recorded under a provider that has no route today
                continue
        found.append((id_, recorded))
    return found


class MissOfRetriedRequestError(MissError):
    """A repeated request that is no second miss: when its first request failed, Claude Code repeats it without a
    stream, with fewer betas or with other tools. Its error explains the first request's miss.
    """

    note = "asked again by its client: the miss before"


def identify_question_across_retries(exchange: Exchange, wanted: Canonical, typed: str) -> Question | None:
    """Return the values that all attempts at a request share, for a client that drops options and repeats it."""
    if (client := detect_retry_degrading_client(exchange.request.headers)) is None:
        return None
    turns = wanted.tree.get("messages") if isinstance(wanted.tree, dict) else None
    answers = [turn for turn in turns if turn.get("role") == "assistant"] if isinstance(turns, list) else []
    return client, exchange.party, exchange.identity.model, typed, len(answers)


class MissExplainer:
    def __init__(self, state: EngineState, keying: KeyDeriver) -> None:
        self._state, self._keying = state, keying

    def record_miss(self, exchange: Exchange, why: MissReason, recordings: int, *, to_model: bool = False) -> MissError:
        """Explain a miss in the error to the client (or `to_model` alone), and in the journal for `llmproxy why`."""
        wanted = self._keying.build_canonical(exchange, exchange.request.data)
        miss = self.explain_miss(exchange, why, recordings, wanted)
        exchange.kept.asked = self._state.redactor.text(miss.context.last_user[:TEXT])
        question = identify_question_across_retries(exchange, wanted, miss.context.last_user)
        this = MissedCallForRetryDetection(wanted, question, exchange.progress.arrived)
        first = exchange.session.find_or_record_first_attempt(this)
        if first is not None and isinstance(first.error, MissError):
            exchange.note = MissOfRetriedRequestError.note
            error: MissError = MissOfRetriedRequestError(first.error.message)
            error.nearest = first.error.nearest
            return error
        places = miss.nearest.places if miss.nearest else ()
        text, data = miss.text, miss.to_dict() | {"to_model": to_model}
        self._state.journal.add_miss(JournaledMiss(exchange.progress.started_at, text, data, places, miss.steps))
        for each in exchange.interceptors:
            text = each.on_miss_message(exchange, miss, text)
        error = MissError(self._state.redactor.text(text))
        error.nearest = miss.nearest.id if miss.nearest else None
        this.error = error
        return error

    def explain_miss(self, exchange: Exchange, why: MissReason, recordings: int, wanted: Canonical) -> ExplainedMiss:
        config, store = self._state.config, self._state.stores.current
        request = self._keying.redact(exchange, exchange.request.data)
        session, where = exchange.session, exchange.route
        key, channel = exchange.key or Key(""), exchange.channel
        place, kind = (session.cassette, session.sample), (where.provider.name, exchange.operation)
        recorded_here = store.count_interactions(*place) if store else 0
        context = replace(
            build_initial_miss_context(exchange, config),
            stream=exchange.identity.stream, last_user=read_last_user_text(request.body) or "",
            store_exists=store is not None, recordings=recorded_here,
            incomplete=bool(store and recorded_here and not store.last_session_ended_cleanly(*place)),
            same_operation=store.count_interactions(*place, kind=kind) if store else 0,
            played=recordings if why is MissReason.EXHAUSTED else 0,
            elsewhere=_find_other_places(store, key, channel) if store else (), complete=session.complete,
            toolless=bool(store and channel is Channel.MCP and not store.count_interactions(*place, channel=channel)),
            client=parse_user_agent_client(exchange.request.headers),
            is_placeholder=has_placeholder_api_key(exchange.request.headers, where.target),
            is_python="python" in (header(exchange.request.headers, "user-agent") or "").lower(),
        )  # fmt: skip
        for each in exchange.interceptors:
            context = each.on_explain(exchange, context)
        if store is None:
            return build_miss_explanation(context, wanted, ())
        told = (each.build_recording_rewriter(store, wanted) for each in exchange.interceptors)
        wording = next((each for each in told if each is not None), AS_RECORDED)
        found = _list_candidates(exchange, config, store, wording)
        load, named = store.load, {**config.upstreams, **session.settings.upstreams}

        def add_recorded(context: MissContext, id_: int) -> MissContext:
            recorded = load(id_)
            upstreams = find_unset_recorded_upstream(where, recorded.upstream, named) | dict(context.upstreams)
            return replace(context, recorded_by=parse_user_agent_client(recorded.request.headers), upstreams=upstreams)

        return build_miss_explanation(context, wanted, found, wording, add_recorded)


class RequestDecider:
    def __init__(self, state: EngineState, keying: KeyDeriver, misses: MissExplainer) -> None:
        self._state, self._keying, self._misses = state, keying, misses

    def begin_exchange(self, place: RoutedRequestHead) -> Exchange:
        """Count a request's arrival; `place` was read from its head, now or earlier. Raises as the engine's."""
        state = self._state
        session = state.sessions.get_or_open(place.name)
        progress = CallProgress(session.calls.begin(), state.clock(), state.now())
        received, decision = EffectiveRequest(place.headers), decide_from_request_head(place, session)
        exchange = Exchange(place, session, progress, received, decision=decision)
        refuse_if_unsendable(exchange)
        return exchange

    def identify_and_decide(self, exchange: Exchange, body: bytes) -> None:
        self._run_stages(exchange, body)
        if exchange.change is not None:
            slot = exchange.slot
            fails = exchange.error is not None or (slot is not None and not is_success(slot.status))
            if fails or exchange.decision is Decision.FAULT or exchange.answer.withheld:
                exchange.change = None
            else:
                exchange.session.position.changes.begin_change(exchange.change)

    def _run_stages(self, exchange: Exchange, body: bytes) -> None:
        exchange.request.body = body
        if exchange.error is not None or (exchange.decision is Decision.PASS and exchange.route.row.not_llm):
            return
        undecided = exchange.decision is None
        for each in exchange.interceptors if undecided else ():
            body = each.before_key(exchange, body)
            if exchange.decision is not None:
                return
        seen = self._derive_and_set_identity(exchange, body)
        refuse_if_unsendable(exchange)
        if exchange.decision is Decision.PASS or exchange.error is not None:
            return
        found = self._look_up_recordings(exchange, body, seen)
        for each in exchange.interceptors if undecided else ():
            found = each.on_lookup(exchange, found)
            if exchange.decision is not None:
                return
        assign_call_occurrence(exchange, found)
        if exchange.decision is not None:
            self._state.pending.reserve_occurrence(exchange, found.recordings)
            return
        self._decide_call(exchange, found)

    def _derive_and_set_identity(self, exchange: Exchange, body: bytes) -> Canonical | None:
        known, seen = self._keying.derive_key(exchange, body)
        if exchange.session.position.changes.made and self._begins_new_run(exchange, known.key):
            exchange.session.restart()
        exchange.session.position.stateless = (exchange.party, known.key)
        exchange.identity, seen = self._keying.add_server_state(exchange, body, known, seen)
        return seen

    def _look_up_recordings(self, exchange: Exchange, body: bytes, seen: Canonical | None) -> RecordingLookup:
        session, store = exchange.session, self._state.stores.current
        if session.first is None and store:
            self._state.stores.refresh_cassette(store, session.cassette, session.sample)
            self._state.sessions.load_first_request_key(session, store)
        key = exchange.key or Key("")
        slots: tuple[RecordingHead, ...] = ()
        if store and not (exchange.decision is Decision.RECORD and session.policy.anew):
            slots = store.find_keyed(session.cassette, session.sample, exchange.party, key)

        def canonical() -> Canonical:
            return seen or self._keying.build_canonical(exchange, body)

        return RecordingLookup(key, slots, canonical)

    def _decide_call(self, exchange: Exchange, found: RecordingLookup) -> None:
        slots = found.recordings
        verdict = decide_by_mode(exchange, found, exchange.nth)
        for each in exchange.interceptors:
            verdict = each.on_decision(exchange, found, verdict)
        exchange.decision = verdict.decision
        if verdict.recording is not None:
            exchange.slot = verdict.recording
            exchange.note = exchange.note or describe_recorded_failure(verdict.recording)
            if found.key == exchange.key:
                self._keep_question_for_audit(exchange, verdict.recording)
        elif (why := verdict.reason) is not None:
            if not any(each.on_miss(exchange, why, len(slots)) for each in exchange.interceptors):
                exchange.error = self._misses.record_miss(exchange, why, len(slots))
        elif verdict.decision is not Decision.REFUSE:
            if not slots or not exchange.session.policy.writes:
                exchange.session.keep_recording_key(exchange.party_and_key)
            refuse_if_unsendable(exchange)
            self._state.pending.reserve_occurrence(exchange, slots)

    def _begins_new_run(self, exchange: Exchange, key: Key) -> bool:
        session, store = exchange.session, self._state.stores.current
        party_key = (exchange.party, key)
        if party_key != session.first or store is None or session.position.stateless == party_key:
            return False
        slots = store.find_keyed(session.cassette, session.sample, *party_key)
        return session.is_new_run(party_key, len(list_replayable_recordings(session.policy, slots)))

    def _keep_question_for_audit(self, exchange: Exchange, slot: RecordingHead) -> None:
        redacted = exchange.request.redacted
        if self._state.journal.asks <= 0 or redacted is None or exchange.answer.made is not None:
            return
        request = redacted[1]
        same = slot.asked == hashlib.sha256(request.body).digest()
        replayed = ReplayedRequest(exchange.progress.started_at, slot.id, request, same)
        self._state.journal.record_replayed_request(replayed)


class AnswerSendingPlanner:
    def __init__(self, state: EngineState) -> None:
        self._state = state

    def serve_recorded(self, exchange: Exchange) -> Response:
        if exchange.slot is None and exchange.answer.made is not None:
            return exchange.answer.made
        if exchange.slot is None or self._state.stores.opened is None:
            raise ValueError("answer() is for exchanges decided REPLAY")
        response = exchange.answer.made or self._state.stores.opened.response(exchange.slot.id)
        self._record_served(exchange, exchange.slot)
        for each in reversed(exchange.interceptors):
            response = each.on_answer(exchange, response)
        return response

    def plan_recorded(
        self, exchange: Exchange, client: ClientFramingTraits, *, extra: Headers = ()
    ) -> AnswerSendingPlan:
        extra = (*extra, *exchange.answer.told)
        slot, store = exchange.slot, self._state.stores.opened
        speed, now = exchange.session.settings.speed, self._state.now()
        if slot is None or store is None:
            return plan_response_sending(self.serve_recorded(exchange), client, speed=0, now=now, extra=extra)
        looked_at = exchange.answer.made is not None or any(each.reads_answers for each in exchange.interceptors)
        if speed or looked_at or exchange.answer.held or slot.status in REDIRECTS:
            answer = self.serve_recorded(exchange)
            if (host := find_redirect_host_past_proxy(answer.headers)) is not None:
                exchange.note = f"location left out: it leads to {host}, and in replay nothing leaves the machine"
            prefix, timed = exchange.place.prefix, exchange.answer.held and answer.chunked
            laid = plan_response_sending(answer, client, speed=speed, now=now, extra=extra, prefix=prefix, timed=timed)
            return self._apply_plan_hooks(exchange, laid)
        sent = self._state.plans.get(slot.id, client, now=now, extra=extra, read=store.response)
        self._record_served(exchange, slot)
        return self._apply_plan_hooks(exchange, AnswerSendingPlan(((0, sent.data),), sent.close))

    @staticmethod
    def _apply_plan_hooks(exchange: Exchange, laid: AnswerSendingPlan) -> AnswerSendingPlan:
        for each in reversed(exchange.interceptors):
            laid = each.on_send_plan(exchange, laid)
        return laid

    def get_send_delay(
        self, exchange: Exchange, offset: int | None, ends: ClientEnds, has_read: Callable[[ClientEnds], bool]
    ) -> float:
        """Return seconds as `EndOrderEnforcer.get_send_delay`; `offset`: microseconds in the plan; None: the last."""
        if not exchange.answer.held:
            return 0.0
        recorded = None if offset is None else offset * (exchange.session.settings.speed or 1) / MICROSECONDS
        waits = (each.get_send_delay(exchange, recorded, ends, has_read) for each in exchange.interceptors)
        return max(waits, default=0.0)

    @staticmethod
    def get_playback(exchange: Exchange) -> ClientDrivenAnswerPlayback | None:
        """Return the playback of an answer that waits for its client; mostly None. After `plan_recorded`."""
        made = (each.get_playback(exchange) for each in exchange.interceptors)
        return next((each for each in made if each is not None and each.turns is not None), None)

    def plan_playback_head(
        self, exchange: Exchange, client: ClientFramingTraits, *, extra: Headers = ()
    ) -> tuple[ClientDrivenAnswerPlayback, StreamedResponseHead] | None:
        """Return the playback and head of an answer that waits for its client; else None. After `plan_recorded`."""
        if (playback := self.get_playback(exchange)) is None or client.method == "HEAD":
            return None
        extra = (*extra, *exchange.answer.told)
        return playback, build_stream_response_head(playback.response, client, now=self._state.now(), extra=extra)

    @staticmethod
    def list_jobs_after_sending(exchange: Exchange) -> list[Callable[[], None]]:
        """Handle that a replayed answer was sent completely; return jobs for the writer's thread."""
        return [job for each in exchange.interceptors if (job := each.on_sent(exchange)) is not None]

    def plan_made_answer(
        self, exchange: Exchange, client: ClientFramingTraits, *, extra: Headers = ()
    ) -> AnswerSendingPlan:
        """Return the plan, in real time, for an interceptor's own answer; an empty one if there is none."""
        laid, made = AnswerSendingPlan((), close=True), exchange.answer.made
        if made is not None:
            said = "fault" if exchange.decision is Decision.FAULT else "passed"
            more, now, prefix = (*exchange.answer.told, *extra), self._state.now(), exchange.place.prefix
            laid = plan_response_sending(made, client, speed=1, now=now, extra=more, prefix=prefix, said=said)
        return self._apply_plan_hooks(exchange, laid)

    @staticmethod
    def _record_served(exchange: Exchange, slot: RecordingHead) -> None:
        exchange.session.served.add(slot.id)
        exchange.kept.interaction = slot.id
