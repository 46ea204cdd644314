"""Sessions with live and recorded channels (`mixed_live_replay`): what differs for a request."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, override

from llmproxy.calls_and_totals import Call
from llmproxy.core.dialects.conversation import parse_model_response_message
from llmproxy.core.dialects.dialect_table import ERROR_HEADER, build_dialect_error_response, get_miss_status
from llmproxy.core.dialects.stream_events import split_body_into_json_values
from llmproxy.core.engine.fault_injection import FaultInterceptor
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.mcp_playback import McpAnswerPlayback
from llmproxy.core.engine.request_identification import refuse_if_unsendable
from llmproxy.core.forks.fork_rows import Fork, delete_fork_row, store_fork_row
from llmproxy.core.keys.mcp import STREAM
from llmproxy.core.keys.server_state_in_keys import is_success
from llmproxy.core.mcp_answer_replay import build_mcp_refusal_response, read_mcp_call_with_result
from llmproxy.core.misses.explain import MissContext
from llmproxy.core.mixed_live_replay import (
    LISTS,
    TOOLS,
    ChangeCountsAtRecordedToolCalls,
    ChosenRecording,
    LiveChannelSettings,
    SessionWithLiveChannels,
    count_state_changes_before_calls,
    format_call_display_name,
    is_model_request,
    is_same_call_as_mcp_request,
    may_change_tool_state,
    may_depend_on_tool_state,
    split_tools_by_read_only,
)
from llmproxy.core.sessions.call_interceptor import Decided, MissReason, RecordingLookup, SessionCallInterceptor
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import LiveSessionForbidden, Session, split_cassette_and_sample
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import Chunk, Interaction, Response, Usage, header
from llmproxy.core.traffic.response_plan import scale_time_by_speed
from llmproxy.errors import LeaseLost, MissError, RefusedError
from llmproxy.protocol import AGENT, OFFLINE, Channel, Decision, Mode, UnknownToolPolicy

log = logging.getLogger(__name__)

_REFUSED = (ERROR_HEADER, MissError.code)


class NoRecordingsForLiveSession(RefusedError):
    code = "llmproxy_nothing_to_serve"
    status = 404


class _Refused(NamedTuple):
    is_error: bool
    """Whether the model gets a failure of its tool instead; this is no miss of the run."""


class _AnswerInParts(NamedTuple):
    """Stored in the child when it has ended: what was told of it, when its client did what the recorded one did."""

    made: Interaction
    playback: McpAnswerPlayback


class MixedLiveReplayInterceptor(SessionCallInterceptor[Exchange]):
    reads_answers = True

    def __init__(self, parts: EngineParts, session: Session, live: LiveChannelSettings) -> None:
        """Begin the child cassette. Raises NoRecordingsForLiveSession."""
        self._parts, self._session = parts, session
        self._in_parts: dict[int, _AnswerInParts] = {}
        """Answers that have not ended, by number of the call in the session."""
        cassette, sample = split_cassette_and_sample(session.name)
        store = parts.state.sessions.store(Mode.REPLAY)
        places = [(cassette, each) for each in dict.fromkeys((sample, 1))]
        parent = next((place for place in places if store is not None and store.has_recordings(*place)), None)
        if parent is None:
            msg = (
                f"llmproxy: nothing is recorded in cassette {cassette!r},"
                " so there is nothing to serve beside live channels."
            )
            raise NoRecordingsForLiveSession(msg, hint="Record it first, with its tools.")
        self.live_session = SessionWithLiveChannels(live, parent, "")
        self._begin_child_cassette()
        session.cassette, session.sample = parent

    def _begin_child_cassette(self) -> None:
        live_session, sessions = self.live_session, self._parts.state.sessions
        store, live_session.child = sessions.lease_child_cassette(live_session.parent[0], None, kind="live")
        self.leased_cassette = child = live_session.child, 1
        self.id_source = child if live_session.is_channel_live(Channel.LLM) else None
        live = ", ".join(sorted(live_session.asked.channels))
        fork = Fork(live_session.child, live_session.parent[0], 1, why=f"live: {live}", live=live)
        store_fork_row(store, replace(fork, parent_sample=live_session.parent[1], created_at=sessions.now()))
        live_session.again = live_session.begun = False

    def on_restart(self) -> None:
        self.live_session.restart()

    @override
    def on_interceptor_added(self, other: SessionCallInterceptor[Exchange]) -> None:
        if isinstance(other, FaultInterceptor):
            raise RefusedError("llmproxy: live channels and injected faults exclude each other.", hint="Give either.")

    def on_session_end(self) -> None:
        if (store := self._parts.state.stores.opened) is not None:
            streams = (each for each in self._in_parts.values() if each.made.operation == STREAM)
            self.live_session.waiting.extend(replace(one.made, response=one.playback.told_response) for one in streams)
            self._in_parts.clear()
            try:
                self._store_waiting(store)
            except LeaseLost as error:  # nobody could close the session
                log.warning("the last calls of %s are not recorded: %s", self._session.name, error.message)
                self._session.sealed = False
            if not store.has_recordings(self.live_session.child, 1):
                delete_fork_row(store, self.live_session.child)

    def find_unstored_call(self, seq: int) -> Interaction | None:
        return self.live_session.made.get(seq)

    def build_report(self) -> Mapping[str, Any]:
        return {"live": self.live_session.to_json()}

    def replays_channel(self, channel: Channel) -> bool:
        return not self.live_session.is_channel_live(channel)

    def _store_waiting(self, store: Store) -> None:
        if not (waiting := self.live_session.take_unstored_interactions()):
            return
        try:
            ids = store.add_interactions([InteractionToStore(each) for each in waiting])
        except BaseException:
            self.live_session.waiting.extendleft(reversed(waiting))
            raise
        self._session.position.failed.update(ids)  # of this run: no answer of it takes their place

    def on_lookup(self, call: Exchange, found: RecordingLookup) -> RecordingLookup:
        """Send calls of live channels, except telemetry and possible tools behind a name of --upstream."""
        if call.route.row.not_llm or not self.live_session.is_channel_live(call.channel):
            return found
        provider, asked = call.route.provider.name, call.request.data
        if call.channel is Channel.LLM and not is_model_request(provider, call.operation, asked):
            return found
        if may_depend_on_tool_state(call.channel, call.operation):
            chosen = self._choose_recording(call, found, loose=False)
            if chosen.recording is None and self._may_change_state(call):  # the state is no longer the recorded one
                self.live_session.parted = self.live_session.parted or _name_call(call)
        self._send_live(call, len(found.recordings))
        return found

    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        channel, lists = call.channel, call.channel is Channel.MCP and call.operation in LISTS
        if channel is Channel.LLM or not (lists or may_depend_on_tool_state(channel, call.operation)):
            return decided
        chosen = self._choose_recording(call, found, loose=lists)
        if chosen.recording is not None:
            return Decided(Decision.REPLAY, chosen.recording)
        return Decided(Decision.REFUSE, reason=MissReason.STATE if chosen.why else MissReason.NEVER)

    def _choose_recording(self, call: Exchange, found: RecordingLookup, *, loose: bool) -> ChosenRecording:
        live_session, store = self.live_session, self._parts.state.stores.current
        if store is None:
            return ChosenRecording()
        if live_session.path is None:
            live_session.path = _build_recorded_tool_sequence(live_session, store)
        chosen = live_session.choose_recording(
            live_session.path, found.key, [each for each in found.recordings if not _is_refusal(store, each.id)],
            alike=lambda some: len({_dump_mcp_answer_without_id(store, slot.id) for slot in some}) <= 1,
            announced=lambda ids: _are_requested_by_model(live_session, store, ids), loose=loose,
        )  # fmt: skip
        call.state.put(chosen)
        return chosen

    def _send_live(self, call: Exchange, recordings: int) -> None:
        session = call.session
        call.nth = session.count_arrival(call.party_and_key, recordings)
        self._record_in_child_cassette(call)
        session.keep_recording_key(call.party_and_key)
        call.decision = Decision.RECORD
        refuse_if_unsendable(call)
        self._parts.state.pending.reserve_occurrence(call, ())

    def _record_in_child_cassette(self, call: Exchange) -> None:
        """Record a call in the child; a restarted session begins a new one. Blocks for a few short transactions."""
        if self.live_session.again:
            self._parts.state.sessions.release_recording_lease(call.session)
            self._begin_child_cassette()
        self.live_session.begun = True
        call.kept.into = self.leased_cassette

    @override
    def on_miss(self, call: Exchange, why: MissReason, recordings: int) -> bool:
        if call.channel is Channel.LLM:
            return False
        live_session = self.live_session
        live_session.record_unanswered(name := _name_call(call), call.state.get(ChosenRecording))
        if live_session.asked.unknown is UnknownToolPolicy.LIVE:
            live_session.parted = live_session.parted or (name if self._may_change_state(call) else "")
            self._send_live(call, recordings)
            return True
        is_error = live_session.asked.unknown is UnknownToolPolicy.ERROR
        call.state.put(_Refused(is_error))
        call.error = self._parts.misses.record_miss(call, why, recordings, to_model=is_error)
        call.note = call.note or f"no recording of {name} holds here"
        self._record_in_child_cassette(call)
        response = build_tool_miss_response(call, str(call.error), self._parts.state.config.miss_status)
        made = self._parts.builder.build(call, response, Usage(), redacted=False)
        live_session.made[call.progress.seq] = made
        live_session.waiting.append(made)
        return True

    def _may_change_state(self, call: Exchange) -> bool:
        live_session, name = self.live_session, _name_call(call)
        path = live_session.path or ChangeCountsAtRecordedToolCalls()
        known = name in path.reading.get(call.route.provider.name, ())
        known = known or live_session.asked.is_user_declared_read_only(name)
        return may_change_tool_state(call.channel, call.method, call.operation) and not known

    def on_explain(self, call: Exchange, context: MissContext) -> MissContext:
        chosen = call.state.get(ChosenRecording) or ChosenRecording()
        named = "" if call.channel is Channel.LLM else _name_call(call)
        return replace(context, elsewhere=(), beside_live=named, state=chosen.why)

    def on_answer(self, call: Exchange, response: Response) -> Response:
        if call.slot is not None and (store := self._parts.state.stores.opened) is not None:
            self._record_in_child_cassette(call)
            recorded = store.load(call.slot.id)
            self.live_session.served += 1
            told = _scale_times(response, call.session.settings.speed)
            made = self._parts.builder.build(call, told, recorded.usage, redacted=recorded.redacted)
            playback, changing = call.state.get(McpAnswerPlayback), self._get_chosen_change(call)
            if playback is not None and playback.turns:
                self._in_parts[call.progress.seq] = _AnswerInParts(made, playback)
                self.live_session.pending.update(() if changing is None else (changing,))
            else:
                self.live_session.waiting.append(made)
            self._record_requested_tools(call, response)
        return response

    def before_store(self, call: Exchange, response: Response) -> Response:  # noqa: ARG002 - the hook's
        """Store what was answered here before: the child has the calls of a run in their order."""
        if (store := self._parts.state.stores.opened) is not None:
            self._store_waiting(store)
        return response

    def on_end(self, call: Exchange, record: Call) -> Call:
        if (parts := self._in_parts.pop(call.progress.seq, None)) is not None:
            self.live_session.waiting.append(self._end_answer_in_parts(call, *parts))
        if call.decision is Decision.RECORD and call.kept.interaction is None:
            self._doubt_state(call)
        refused = call.state.get(_Refused)
        return record._replace(miss=False) if refused is not None and refused.is_error else record

    def _end_answer_in_parts(self, call: Exchange, made: Interaction, playback: McpAnswerPlayback) -> Interaction:
        told = playback.told_response
        self.live_session.pending.discard(self._get_chosen_change(call) or 0)
        if not playback.was_followed and may_depend_on_tool_state(call.channel, call.operation):
            self.live_session.served -= 1  # its server has done nothing of what was recorded
            self.live_session.record_unanswered(_name_call(call), call.state.get(ChosenRecording))
            told = replace(told, headers=(*told.headers, _REFUSED))
        return replace(made, response=told)

    def _get_chosen_change(self, call: Exchange) -> int | None:
        """Return the recorded change that a call was taken for; None if it changes nothing."""
        chosen = (call.state.get(ChosenRecording) or ChosenRecording()).recording
        return chosen.id if chosen is not None and chosen.id in self.live_session.done else None

    def _doubt_state(self, call: Exchange) -> None:
        """Note that a live change may have failed, so nobody knows what it did."""
        if call.channel is not Channel.LLM and self._get_chosen_change(call) is not None:
            self.live_session.parted = self.live_session.parted or _name_call(call)

    def on_stored(self, call: Exchange, made: Interaction) -> None:
        self._record_requested_tools(call, made.response)
        called = read_mcp_call_with_result(made)
        if not is_success(made.response.status) or (called is not None and called.failed):
            self._doubt_state(call)

    def _record_requested_tools(self, call: Exchange, response: Response) -> None:
        if call.channel is not Channel.LLM or call.party != AGENT:
            return
        if (message := parse_model_response_message(call.operation, response)) is not None:
            self.live_session.announced = message.tool_calls


class SessionFeatureMixingLiveAndReplay(Feature):
    kind = MixedLiveReplayInterceptor

    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        if (chosen := self._choose_channels(mode, asked)) is None:
            return
        config, named = self.parts.state.config, f"live channels ({', '.join(sorted(chosen.channels))})"
        if mode not in OFFLINE:
            msg = f"llmproxy: {named} are for sessions in mode replay; this one is in {mode}."
            raise RefusedError(msg, hint="What is not live is served from the recording.")
        if (forking := asked.get("forking")) is not None and not forking.mocks:
            msg = f"llmproxy: {named} and overrides or forks exclude each other."
            raise RefusedError(msg, hint="Give the session either.")
        met = config.faults if asked.get("faults") is None else asked["faults"]
        if met is not None and met.rules:
            raise RefusedError(f"llmproxy: {named} and injected faults exclude each other.", hint="Give either.")
        if chosen != config.live and config.mode in OFFLINE and not config.allow_live:
            msg = f"llmproxy: this proxy was started in replay; a session with {named} reaches the network."
            hint = "Start the proxy with --allow-live, or with --live itself, to permit it."
            raise LiveSessionForbidden(msg, hint=hint)

    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> MixedLiveReplayInterceptor | None:
        chosen = self._choose_channels(session.settings.mode, asked)
        return None if chosen is None else MixedLiveReplayInterceptor(self.parts, session, chosen)

    @override
    def on_replay_begin(self, session: Session, store: Store) -> None:
        """Let only the first question to a model begin another run: a list of tools may be asked for in the middle."""
        if session.find_interceptor(MixedLiveReplayInterceptor) is not None:
            asked = store.list_summaries(session.cassette, session.sample, channel=Channel.LLM)
            session.first = next(((row.party, row.key) for row in asked), None)

    def _choose_channels(self, mode: Mode, asked: Mapping[str, Any]) -> LiveChannelSettings | None:
        given: LiveChannelSettings | None = asked.get("live")
        chosen = given if given is not None else self.parts.state.config.live if mode in OFFLINE else None
        return chosen if chosen is not None and chosen.channels else None


def build_tool_miss_response(exchange: Exchange, text: str, miss_status: int | None) -> Response:
    if exchange.channel is Channel.MCP:
        status, headers, body = build_mcp_refusal_response(exchange.operation, exchange.request.data, text)
        headers = (*headers, _REFUSED)
    else:
        status = miss_status or get_miss_status(exchange.family, exchange.operation, exchange.request.headers)
        headers, body = build_dialect_error_response(exchange.family, status, MissError.code, text)
    return Response(status, "", headers, (Chunk(0, body),) if body else ())


def _scale_times(response: Response, speed: float) -> Response:
    """Return an answer with the times of its replay: with the recorded ones it would seem to run beside later calls."""
    chunks = tuple(Chunk(scale_time_by_speed(each.offset, speed), each.data) for each in response.chunks)
    return replace(response, chunks=chunks, head_offset=scale_time_by_speed(response.head_offset, speed))


def _name_call(exchange: Exchange) -> str:
    route = exchange.route
    return format_call_display_name(exchange.operation, route.provider.name, exchange.method, route.target)


def _build_recorded_tool_sequence(
    live_session: SessionWithLiveChannels, store: Store
) -> ChangeCountsAtRecordedToolCalls:
    rows = [row for row in store.list_summaries(*live_session.parent) if row.channel is not Channel.LLM]
    rows = [row for row in rows if not _is_refusal(store, row.id)]
    reading = _list_read_only_tools(store, rows)
    return count_state_changes_before_calls(rows, reading, live_session.asked.is_user_declared_read_only)


def _is_refusal(store: Store, id_: int) -> bool:
    """Return whether a proxy of ours answered it, as in a live run: it is no result of a tool."""
    return header(store.response(id_).headers, ERROR_HEADER) is not None


def _list_read_only_tools(store: Store, rows: Sequence[StoredCallSummary]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for provider in {row.provider for row in rows if row.operation == TOOLS}:
        listed = (row.id for row in rows if row.provider == provider and row.operation == TOOLS)
        messages = (each for id_ in listed for each in _read_recorded_mcp_answer(store, id_))
        found[provider] = frozenset(split_tools_by_read_only(messages)[0])
    return found


def _read_recorded_mcp_answer(store: Store, id_: int) -> Iterator[object]:
    response = store.response(id_)
    return (part.value for part in split_body_into_json_values(response.mime_type, response.body))


def _dump_mcp_answer_without_id(store: Store, id_: int) -> str:
    response = store.response(id_)
    found = list(_read_recorded_mcp_answer(store, id_))
    if not found or not all(isinstance(each, dict) and "jsonrpc" in each for each in found):
        return f"{response.status} {response.body!r}"
    bare = [{name: value for name, value in each.items() if name != "id"} for each in found if isinstance(each, dict)]
    return json.dumps([response.status, bare], sort_keys=True)


def _are_requested_by_model(live_session: SessionWithLiveChannels, store: Store, ids: Sequence[int]) -> bool:
    left = list(live_session.announced)
    for id_ in ids:
        request = store.load(id_).request.body
        call = next((each for each in left if is_same_call_as_mcp_request(request, each.name, each.arguments)), None)
        if call is None:
            return False
        left.remove(call)  # of two equal calls each is requested once
    return True
