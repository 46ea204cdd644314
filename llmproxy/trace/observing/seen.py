"""One exchange of an agent, and what of it counts: whether a model answered, what it asked for, what of that is not
known.

Answers that nobody can read, or only in part: what they asked for is not known, and so is nothing that depends on it.

A table says which requests are no questions to a model that could call a tool. What is in no table and looks as if it
did is not passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from llmproxy.calls import Call
from llmproxy.core.dialects.table import CHAT
from llmproxy.core.traffic.interaction import header
from llmproxy.trace.observing.tools import ToolUse, place_of
from llmproxy.trace.reading.conversations import RecordedConversation
from llmproxy.trace.reading.exchange import OpenedExchange

_CALLERS = ("realtime", "threads", "threads.runs", "responses/", "interactions", "predictions", "async-invoke",
            "rawPredict", "messages/batches", "batches", "agents/")  # fmt: skip
"""Operations whose answers can call tools and which nobody reads here; one with ``/`` at its end: all below."""
_LOOKS_LIKE = re.compile(
    rb'"tool_calls"\s*:\s*\[\s*\{|"type"\s*:\s*"(?:\w+_)?(?:tool_use|function_call|tool_call|function\.call)"'
    rb'|"functionCall"\s*:\s*\{|"toolUse"\s*:\s*\{'
)
"""What answers that call tools have in common, whatever the path."""


def why_unread(exchange: OpenedExchange) -> str:
    """Describe why a whole answer of a model cannot be read, or not all of it; empty where it can."""
    answer = exchange.answer
    if answer is None and not exchange.finish_reasons:
        kind = header(exchange.interaction.response.headers, "content-type") or "no content-type"
        return f"could not be read as an answer of {exchange.interaction.operation} ({kind})"
    if answer is not None and answer.unknown:
        return f"holds what is not known, and may call a tool: {', '.join(answer.unknown)}"
    return ""


def can_ask_unseen(operation: str, body: bytes | None) -> bool:
    """Return whether an exchange of an unknown kind may hold tool calls; `body` is its answer, if kept."""
    first = operation.partition("/")[0]
    if operation in _CALLERS or first in _CALLERS or (f"{first}/" in _CALLERS and operation != first):
        return True
    return body is not None and _LOOKS_LIKE.search(body) is not None


_OK = range(200, 300)


@dataclass(slots=True, eq=False)
class Seen:
    call: Call
    exchange: OpenedExchange | None
    """None where nothing is recorded: passed through, refused, lost."""
    conversation: RecordedConversation | None = None
    replaced: bool = False
    """Whether the client asked again, and another answer counts."""
    unclear: bool = False
    """Whether it is one of several alike of which the client asked for one again, and nothing tells which."""
    tools: list[ToolUse] = field(default_factory=list)
    """What its answer asked for, whether it counts or not."""

    @property
    def chat(self) -> bool:
        """Whether a model was asked something."""
        return self.call.operation in CHAT

    @property
    def whole(self) -> bool:
        """Whether a whole answer came; of one that is not recorded, whether its status says so."""
        return self.call.status in _OK if self.exchange is None else not self.exchange.failed

    @property
    def went_on(self) -> bool:
        """Whether the agent ran a tool that the answer asked for, however much of it came."""
        return any(tool.executed and not tool.hosted for tool in self.tools)

    @property
    def answered(self) -> bool:
        """Whether a model answered, and the answer counts."""
        return self.chat and not self.replaced and (self.whole or self.went_on)

    @property
    def readable(self) -> bool:
        """Whether a model answered, and everything that it asked for is known."""
        return self.answered and self.exchange is not None and not self.unread

    @property
    def unread(self) -> str:
        """Describe why it is not known what was asked for here; empty where it is."""
        if self.unclear:
            return "is one of several to equal requests, of which the client asked for one again: nothing tells which"
        if self.replaced:
            return ""
        exchange = self.exchange
        if not self.chat:
            body = None if exchange is None else exchange.interaction.response.body
            asks = self.call.status in _OK and can_ask_unseen(self.call.operation, body)
            return f"went to {self.call.operation}, whose answers are not read" if asks else ""
        if exchange is None:
            return "was passed through and not recorded" if self.whole else ""
        if self.whole:
            return why_unread(exchange)
        # What the provider ran itself tells nothing about who went on with the answer.
        missing = [tool.name or "a tool" for tool in self.tools if not tool.executed or not self.went_on]
        if missing:
            return f"was cut off while it asked for {', '.join(missing)}"
        return why_unread(exchange) if self.went_on else ""

    @property
    def broken(self) -> bool:
        """Whether an answer broke off, and nobody can tell whether its client was content with what it had."""
        if not self.chat or self.replaced or self.exchange is None or self.exchange.answer is None:
            return False
        return not self.whole and not self.went_on

    @property
    def where(self) -> str:
        return place_of(self.call.interaction, self.call.seq)
