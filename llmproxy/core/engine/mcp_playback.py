"""Recorded MCP for the client of today: ids given back, and nothing told before what it depends on has happened.

The engine asks it for each recorded answer of the channel. What the client answers to the server's questions
(elicitation, sampling, roots) is a request of its own, with a key of its own; the call that asked goes on only if that
was the recorded answer (`reply`, `ready`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from llmproxy.core.keys.mcp import ANSWER, END, STREAM
from llmproxy.core.mcp import (
    MICROSECONDS,
    AnswerPart,
    Wait,
    answers,
    error_message,
    event,
    is_harmless,
    readdress,
    turns_of_call,
    turns_of_stream,
)
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Reply
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Ending, Response, header
from llmproxy.protocol import Channel, Decision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llmproxy.core.store.rows import RowSummary
    from llmproxy.core.traffic.interaction import Key

SLACK = 1.0
"""Seconds: times of an answer are counted from its release, which is a little after its arrival."""
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


def _asked_id(body: bytes | None) -> str:
    try:
        value = json.loads(body or b"null")
    except (ValueError, RecursionError):
        return ""
    return json.dumps(value.get("id")) if isinstance(value, dict) else ""


def record_reply(exchange: Exchange, key: Key) -> None:
    """Note the client's answer to a question of the server's.

    `key` is that of the recording that it equals, if it is a hit.
    """
    if exchange.operation != ANSWER:
        return
    session, which = exchange.session, (exchange.route.provider.name, _asked_id(exchange.body))
    if which not in session.questions:
        return
    hit = exchange.decision is Decision.REPLAY
    session.questions[which] = Reply(key if hit else None, "" if exchange.error is None else exchange.error.message)
    if exchange.decision is Decision.RECORD:  # the question was a recording's: no server waits for this
        exchange.decision = Decision.REFUSE
        exchange.note = "the answer to a question that was replayed; sent to nobody"


def find_harmless(exchange: Exchange) -> str:
    """Describe why a request that was never recorded may go unanswered, and is no miss; empty for one that is."""
    if exchange.route.not_llm:
        return "llmproxy: telemetry; taken, and sent to nobody"
    quiet = exchange.channel is Channel.MCP and is_harmless(exchange.operation)
    return "llmproxy: never recorded, and nothing depends on it; sent to nobody" if quiet else ""


def as_kept(exchange: Exchange, response: Response) -> Response:
    """Return an answer as it is to be stored.

    Whole is one that holds the result, and a stream that only the client can end and has ended.
    """
    if exchange.channel is not Channel.MCP or response.ending is Ending.COMPLETE:
        return response
    over = exchange.operation == STREAM and response.ending is Ending.LEFT
    if over or answers(response, exchange.body or b""):  # clients end the stream as soon as they have the result
        return replace(response, ending=Ending.COMPLETE)
    return response


class RecordedPlayback:
    """One recorded answer on its way to a client of today."""

    def __init__(self, store: Store, exchange: Exchange, response: Response) -> None:
        """Make `response`, the recorded answer that was chosen, fit the exchange's request."""
        self._store, self._exchange = store, exchange
        slot = exchange.slot
        if slot is None:
            raise ValueError("a talk is made for exchanges decided REPLAY")
        self._recorded = store.load(slot.id)
        self.response = readdress(response, self._recorded.request.body, exchange.body or b"")
        self.turns = self._turns()
        """None where nothing has to be waited for."""

    def _turns(self) -> list[AnswerPart] | None:
        exchange, response = self._exchange, self.response
        if exchange.operation == STREAM:
            if not 200 <= response.status < 300:
                return None
            messages = [(row.started_at, row.id) for row in self._rows() if row.operation not in (STREAM, END)]
            return turns_of_stream(response, self._recorded.started_at, messages, ended=False)
        turns = turns_of_call(response)
        told = turns or [AnswerPart(Wait.NOTHING, None, response.body)]
        if response.ending is Ending.LEFT:  # the recorded client gave it up, and so may this one
            return [*told, AnswerPart(Wait.FOR_EVER, None, b"")]
        if response.ending is Ending.CUT and (
            turns or self._in_lines
        ):  # else its connection is broken off where the recorded one was
            return [*told, AnswerPart(Wait.BROKEN, None, b"")]
        return turns

    @property
    def _in_lines(self) -> bool:
        return "ndjson" in (header(self.response.headers, "content-type") or "")

    def _rows(self) -> Iterator[RowSummary]:
        """Yield what is recorded of this server in this cassette, in order."""
        session, provider = self._exchange.session, self._exchange.route.provider.name
        rows = self._store.summaries(session.cassette, session.sample, channel=Channel.MCP)
        return (row for row in rows if row.provider == provider)

    def ask(self, turn: AnswerPart) -> None:
        """Hear that the client was asked what `turn` waits for."""
        if turn.wait is Wait.ANSWER:
            self._exchange.session.questions[self._exchange.route.provider.name, json.dumps(turn.what)] = None

    def ready(self, turn: AnswerPart) -> bool | str:
        """Return whether a turn's data may go out now; a text: never, and why."""
        session = self._exchange.session
        match turn.wait:
            case Wait.NOTHING:
                return True
            case Wait.SERVED:
                return turn.what in session.served or self._recorded.id is None
            case Wait.FOR_EVER:
                return False
            case Wait.BROKEN:
                return BROKE_OFF
            case Wait.ANSWER:
                which = (self._exchange.route.provider.name, json.dumps(turn.what))
                if (reply := session.questions.get(which)) is None:
                    return False
                del session.questions[which]
                if not (expected := self._find_expected(which[1])):
                    return NEVER_ANSWERED
                return True if {reply.key} == expected else f"{OTHER_ANSWER}\n{reply.text}".rstrip()

    def _find_expected(self, asked: str) -> set[Key]:
        """Return the keys of what the recorded client answered to a question of this call."""
        begun, chunks = self._recorded.started_at, self._recorded.response.chunks
        over = begun + (chunks[-1].offset if chunks else 0) / MICROSECONDS + SLACK
        rows = [row for row in self._rows() if row.operation == ANSWER and begun <= row.started_at <= over]
        return {row.key for row in rows if _asked_id(self._store.load(row.id).request.body) == asked}

    def refusal(self, text: str) -> bytes:
        """Return the end of the answer where it must not be told: an error in place of the result."""
        message = error_message(self._exchange.body or b"", text)
        return json.dumps(message).encode() + b"\n" if self._in_lines else event(message)
