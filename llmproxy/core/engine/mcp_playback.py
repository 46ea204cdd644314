"""MCP playback: recorded answers with this client's ids, and no part sent before its condition is met.

The engine uses it for each recorded answer of the channel. A client's answer to a server's question (elicitation,
sampling, roots) is a request of its own, with a key of its own; the call that asked continues only if that was the
recorded answer (`McpAnswerPlayback.take_ready_parts`).
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, override

from llmproxy.calls_and_totals import Call
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.keys.mcp import ANSWER, END, STREAM
from llmproxy.core.mcp_answer_replay import (
    MICROSECONDS,
    McpAnswerPartAfterCondition,
    McpAnswerPrerequisiteKind,
    adapt_mcp_answer_ids,
    answers,
    build_mcp_error_answer,
    encode_sse_event,
    may_ignore_unrecorded_message,
    split_at_server_requests,
    split_mcp_stream_at_prior_calls,
)
from llmproxy.core.sessions.call_interceptor import Decided, RecordingLookup, SessionCallInterceptor
from llmproxy.core.sessions.exchange import Exchange, TelemetryDiscardedInReplayError
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Chunk, Ending, Key, Response
from llmproxy.protocol import Channel, Decision

SLACK = 1.0
"""Seconds of tolerance: an answer's times count from its release, which is a little after its arrival."""
OTHER_ANSWER = (
    "llmproxy: the client's answer to a question of the server's is not the recorded one,"
    " so what the server said then is not told."
)
BROKE_OFF = (
    "llmproxy: while this was recorded the server broke off before it answered, so there is no answer. Record it anew."
)
NEVER_ANSWERED = (
    "llmproxy: while this was recorded the client never answered the server's question,"
    " so nothing is known of what follows."
)


Asked = tuple[str, str]
"""Server, and id of its question."""


@dataclass(slots=True)
class McpClientReply:
    key: Key | None
    """Key of the equal recorded answer; None if it was never recorded."""
    text: str = ""
    """Reason why it was refused."""


def _read_request_id(body: bytes | None) -> str:
    value = parse_json_or_none(body or b"null")
    return json.dumps(value.get("id")) if isinstance(value, dict) else ""


class McpAnswerPlayback:
    def __init__(
        self, store: Store, exchange: Exchange, response: Response, questions: dict[Asked, McpClientReply | None],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store, self._exchange, self._questions, self._clock = store, exchange, questions, clock
        self._taken: list[Chunk] = []
        self._replies: dict[Asked, McpClientReply] = {}
        """Replies to its questions, kept because a part may be checked more than once if something else holds it."""
        if (slot := exchange.slot) is None:
            raise ValueError("a talk is made for exchanges decided REPLAY")
        self._recorded = store.load(slot.id)
        self.response = adapt_mcp_answer_ids(response, self._recorded.request.body, exchange.request.data)
        turns = self._split_answer_into_parts()
        self.turns = None if turns is None else deque(turns)
        """Parts of the answer that were not taken yet; None if nothing has to be awaited."""
        self._is_refused = False

    @property
    def told_response(self) -> Response:
        """The answer as far as it was told, with the times at which it was."""
        ending = self.response.ending if self.was_followed or self._is_refused else Ending.LEFT
        return replace(self.response, chunks=tuple(self._taken), head_offset=0, ending=ending)

    @property
    def was_followed(self) -> bool:
        """Whether its client got all of the answer, having done what the recorded one did."""
        return not self._is_refused and (not self.turns or self.turns[0].wait is McpAnswerPrerequisiteKind.FOR_EVER)

    def _split_answer_into_parts(self) -> list[McpAnswerPartAfterCondition] | None:
        exchange, response = self._exchange, self.response
        if exchange.operation == STREAM:
            if not 200 <= response.status < 300:
                return None
            rows = self._list_server_recordings()
            messages = [(row.started_at, row.id) for row in rows if row.operation not in (STREAM, END)]
            return split_mcp_stream_at_prior_calls(response, self._recorded.started_at, messages)
        turns = split_at_server_requests(response)
        told = turns or [McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.NOTHING, None, response.body)]
        if response.ending is Ending.LEFT:  # the recorded client left, and so may this one
            return [*told, McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.FOR_EVER, None, b"")]
        # Else its connection breaks where the recorded one did.
        if response.ending is Ending.CUT and (turns or self._is_ndjson):
            return [*told, McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.BROKEN, None, b"")]
        return turns

    @property
    def _is_ndjson(self) -> bool:
        return "ndjson" in self.response.mime_type

    def _list_server_recordings(self) -> Iterator[StoredCallSummary]:
        session, provider = self._exchange.session, self._exchange.route.provider.name
        rows = self._store.list_summaries(session.cassette, session.sample, channel=Channel.MCP)
        return (row for row in rows if row.provider == provider)

    def take_ready_parts(self, wait_for_last: Callable[[], float]) -> tuple[list[bytes], float]:
        taken: list[bytes] = []
        while self.turns and (ready := self._may_send_part(self.turns[0])):
            if len(self.turns) == 1 and (wait := wait_for_last()):
                return taken, wait
            if isinstance(ready, str):
                self._is_refused = self.turns[0].wait is not McpAnswerPrerequisiteKind.BROKEN
                self.turns.clear()
                taken.append(self._build_refusal(ready))
            else:
                taken.append(self.turns.popleft().data)
            offset = round((self._clock() - self._exchange.progress.arrived) * MICROSECONDS)
            self._taken.append(Chunk(offset, taken[-1]))
            # Its question was in the part before.
            if self.turns and self.turns[0].wait is McpAnswerPrerequisiteKind.ANSWER:
                self._questions[self._exchange.route.provider.name, json.dumps(self.turns[0].what)] = None
        return taken, 0.0

    def _may_send_part(self, turn: McpAnswerPartAfterCondition) -> bool | str:
        """Return whether a turn's data may be sent now; a text: never, with the reason."""
        match turn.wait:
            case McpAnswerPrerequisiteKind.NOTHING:
                return True
            case McpAnswerPrerequisiteKind.SERVED:
                return turn.what in self._exchange.session.served or self._recorded.id is None
            case McpAnswerPrerequisiteKind.FOR_EVER:
                return False
            case McpAnswerPrerequisiteKind.BROKEN:
                return BROKE_OFF
            case McpAnswerPrerequisiteKind.ANSWER:
                which = (self._exchange.route.provider.name, json.dumps(turn.what))
                if which not in self._replies and (reply := self._questions.get(which)) is not None:
                    del self._questions[which]
                    self._replies[which] = reply
                if (given := self._replies.get(which)) is None:
                    return False
                if not (expected := self._find_client_reply_keys(which[1])):
                    return NEVER_ANSWERED
                return True if {given.key} == expected else f"{OTHER_ANSWER}\n{given.text}".rstrip()

    def _find_client_reply_keys(self, asked: str) -> set[Key]:
        """Return keys of the recorded replies to a call's question, by time and by order: clocks may be changed."""
        rows, here = list(self._list_server_recordings()), self._recorded.id or 0
        calls = {row.id: row for row in rows if row.operation not in (ANSWER, STREAM, END)}
        last, begin, end = max((id_ for id_ in calls if id_ < here), default=0), math.inf, -math.inf
        if (call := calls.get(here)) is not None:
            begin, end = call.started_at, call.started_at + (call.duration_ms or 0) / 1000 + SLACK
        answers = (row for row in rows if row.operation == ANSWER)
        answers = (row for row in answers if _read_request_id(self._store.load(row.id).request.body) == asked)
        return {row.key for row in answers if last < row.id < here or begin <= row.started_at <= end}

    def _build_refusal(self, text: str) -> bytes:
        message = build_mcp_error_answer(self._exchange.request.data, text)
        return json.dumps(message).encode() + b"\n" if self._is_ndjson else encode_sse_event(message)


class McpPlaybackInterceptor(SessionCallInterceptor[Exchange]):
    channel = Channel.MCP
    reads_answers = True

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._questions: dict[Asked, McpClientReply | None] = {}
        """Questions of recorded servers to the client, with its reply; None until it replies."""

    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        """Record a client's reply to a question; ignore an unrecorded message on which nothing depends."""
        if decided.reason is not None and may_ignore_unrecorded_message(call.operation):
            call.error = TelemetryDiscardedInReplayError(
                "llmproxy: never recorded, and nothing depends on it; sent to nobody"
            )
            decided = Decided(Decision.REFUSE)
        which = call.route.provider.name, _read_request_id(call.request.body)
        if call.operation != ANSWER or which not in self._questions:
            return decided
        reply = self._questions[which] = McpClientReply(found.key if decided.decision is Decision.REPLAY else None)
        call.state.put(reply)
        if decided.decision is Decision.RECORD:  # the question was replayed: no server waits for the reply
            call.note = "the answer to a question that was replayed; sent to nobody"
            return Decided(Decision.REFUSE)
        return decided

    def on_answer(self, call: Exchange, response: Response) -> Response:
        if (store := self._parts.state.stores.opened) is None:
            return response
        made = McpAnswerPlayback(store, call, response, self._questions, self._parts.state.clock)
        call.state.put(made)
        return made.response

    def get_playback(self, call: Exchange) -> McpAnswerPlayback | None:
        return call.state.get(McpAnswerPlayback)

    def before_store(self, call: Exchange, response: Response) -> Response:
        if response.ending is Ending.COMPLETE:
            return response
        over = call.operation == STREAM and response.ending is Ending.LEFT
        if over or answers(response, call.request.data):  # clients end the stream as soon as they have the result
            return replace(response, ending=Ending.COMPLETE)
        return response

    def on_end(self, call: Exchange, record: Call) -> Call:
        if (reply := call.state.get(McpClientReply)) is not None and call.error is not None:
            reply.text = call.error.message
        return record


class McpPlaybackFeature(Feature):
    kind = McpPlaybackInterceptor

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> McpPlaybackInterceptor:
        return McpPlaybackInterceptor(self.parts)
