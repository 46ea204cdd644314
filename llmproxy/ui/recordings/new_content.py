"""The new content of each call of a recording, in order, and the earlier call that it continues.

An agent sends the whole conversation again with each request. `trace.reading.conversations` finds the repeated part;
here it is combined with the tool results that a request brings for earlier answers, and the decoded exchange.
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
    """A tool result in a request."""

    caller: int
    """Interaction whose answer called the tool."""
    call: str
    """Id of the call, or the tool's name in dialects without ids."""
    text: str
    told_in: int
    """Interaction whose request contains it."""


@dataclass(frozen=True, slots=True)
class LinkedExchange:
    exchange: DecodedExchange
    known: int = 0
    """Number of the request's messages that were sent before."""
    previous: DecodedExchange | None = None
    """The call that this one continues."""
    retry: bool = False
    results: tuple[ReportedToolResult, ...] = ()
    """Results of tools called by earlier answers."""


@dataclass(slots=True)
class RecordingReader:
    """Reads the calls of one recording in the order of their requests."""

    _history: RequestMessageCache = field(default_factory=RequestMessageCache)
    _conversations: RecordedConversations = field(default_factory=RecordedConversations)
    _last: dict[str, DecodedExchange] = field(default_factory=dict)
    """Last call by conversation."""
    _names: Iterator[int] = field(default_factory=lambda: count(1))

    def read(self, interaction: Interaction) -> LinkedExchange:
        exchange = decode_exchange(interaction, self._history)
        if interaction.operation not in CHAT:
            return LinkedExchange(exchange)
        place = self._conversations.place_exchange(exchange)
        conversation = place.conversation
        if conversation is None:
            name = str(next(self._names))
            conversation = RecordedConversation(name, name, exchange.tools, place.system)
        previous = self._last.get(conversation.id)
        results = tuple(self._match_tool_results(exchange, place, conversation))
        self._conversations.add_turn(exchange, place, conversation)
        if exchange.answer is not None and not exchange.failed:
            for call in exchange.answer.tool_calls:
                pending = PendingCall(call.id, call.name, interaction, None)
                self._conversations.add_tool_call(conversation, pending)
        self._last[conversation.id] = exchange
        return LinkedExchange(exchange, place.known if previous is not None else 0, previous, place.retry, results)

    def _match_tool_results(
        self, exchange: DecodedExchange, place: RequestPlace, conversation: RecordedConversation
    ) -> Iterator[ReportedToolResult]:
        for message in (each for each in exchange.messages[place.known :] if each.role == "tool"):
            pending = self._conversations.take_pending_call(conversation, message.tool_call_id)
            if pending is not None:
                name = pending.call_id or pending.name
                yield ReportedToolResult(pending.span.id, name, message.text, exchange.interaction.id or 0)
