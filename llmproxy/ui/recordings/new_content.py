"""A recording read in its order: of each call, what it says for the first time, and which earlier call it goes on with.

An agent sends everything said so far again with each request. `trace.reading.conversations` tells which of it was said
before; here that, and the results that a request brings for the tool calls of earlier answers, are kept beside the
decoded exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from llmproxy.core.dialects.codecs import CHAT
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.trace.reading.conversations import PendingCall, RecordedConversation, RecordedConversations, RequestPlace
from llmproxy.trace.reading.decoded_exchange import DecodedExchange, RequestMessageCache, decode_exchange


class ReportedToolResult(NamedTuple):
    """What a request says a tool answered."""

    caller: int
    """The interaction whose answer called the tool."""
    call: str
    """Id of the call, or the tool's name where the dialect has no ids."""
    text: str
    told_in: int
    """The interaction whose request says so."""


@dataclass(frozen=True, slots=True)
class LinkedExchange:
    exchange: DecodedExchange
    known: int = 0
    """How many messages of the request had been said before."""
    previous: DecodedExchange | None = None
    """The call that this one goes on with."""
    retry: bool = False
    results: tuple[ReportedToolResult, ...] = ()
    """Of tools that earlier calls asked for."""


@dataclass(slots=True)
class RecordingReader:
    """Reads the calls of one recording; feed them in the order of their requests."""

    _history: RequestMessageCache = field(default_factory=RequestMessageCache)
    _conversations: RecordedConversations = field(default_factory=RecordedConversations)
    _last: dict[str, DecodedExchange] = field(default_factory=dict)
    """By conversation."""
    _names: Iterator[int] = field(default_factory=lambda: count(1))

    def read(self, interaction: Interaction) -> LinkedExchange:
        exchange = decode_exchange(interaction, self._history)
        if interaction.operation not in CHAT:
            return LinkedExchange(exchange)
        place = self._conversations.place_exchange(exchange)
        conversation = place.conversation or self._begin_conversation(exchange, place)
        previous = self._last.get(conversation.id)
        results = tuple(self._match_tool_results(exchange, place, conversation))
        self._conversations.add_turn(exchange, place, conversation)
        self._add_pending_calls(exchange, conversation)
        self._last[conversation.id] = exchange
        return LinkedExchange(exchange, place.known if previous is not None else 0, previous, place.retry, results)

    def _begin_conversation(self, exchange: DecodedExchange, place: RequestPlace) -> RecordedConversation:
        name = str(next(self._names))
        return RecordedConversation(name, name, exchange.tools, place.system)

    def _match_tool_results(
        self, exchange: DecodedExchange, place: RequestPlace, conversation: RecordedConversation
    ) -> Iterator[ReportedToolResult]:
        for message in exchange.messages[place.known :]:
            if message.role != "tool":
                continue
            pending = self._conversations.take_pending_call(conversation, message.tool_call_id)
            if pending is not None:
                name = pending.call_id or pending.name
                yield ReportedToolResult(pending.span.id, name, message.text, exchange.interaction.id or 0)

    def _add_pending_calls(self, exchange: DecodedExchange, conversation: RecordedConversation) -> None:
        if exchange.answer is None or exchange.failed:
            return
        for call in exchange.answer.tool_calls:
            self._conversations.add_tool_call(conversation, PendingCall(call.id, call.name, exchange.interaction, None))
