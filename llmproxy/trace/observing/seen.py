"""One exchange of an agent, and what of it counts: whether a model answered, what it asked for, what of that is not
known.

Answers that nobody can read, or only in part: what they asked for is not known, and so is nothing that depends on it.

A table says which requests are no questions to a model that could call a tool. What is in no table and looks as if it
did is not passed over.

What the answers of a step took: every prompt token is input, cached or not. A sum of which a part is unknown is a lower
bound (`Tokens.complete`), never a number to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from llmproxy.calls import Call
from llmproxy.core.dialects.table import CHAT
from llmproxy.core.dialects.usage import cost_of
from llmproxy.core.traffic.interaction import Chunk, Usage, header
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


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sum of something over a step."""

    known: int | Decimal | None
    """What is known of it; None if nothing is."""
    complete: bool
    """Whether that is all; else it is a lower bound."""

    @property
    def value(self) -> int | Decimal | None:
        """The sum, None if any part of it is unknown."""
        return self.known if self.complete else None


def usage_of(chosen: Sequence[Seen]) -> dict[str, Tokens]:
    """Add up what the counted answers took; every prompt token is input, cached or not."""
    counted = [each for each in chosen if _costs(each)]
    usages = [Usage() if each.exchange is None else each.exchange.interaction.usage for each in counted]
    given, said = [each.input for each in usages], [each.output for each in usages]
    fresh = [
        None if each.input is None else max(each.input - (each.cached or 0) - (each.cache_written or 0), 0)
        for each in usages
    ]
    total = [None if None in pair else sum(each or 0 for each in pair) for pair in zip(given, said, strict=True)]
    return {
        "callCount": Tokens(
            sum(1 for each in chosen if each.answered and not _is_noise(each)),
            complete=not any(each.broken or _is_noise(each) for each in chosen),
        ),
        "inputTokens": _sum(given),
        "outputTokens": _sum(said),
        "totalTokens": _sum(total),
        "cacheReadTokens": _sum([each.cached for each in usages]),
        "cacheCreationTokens": _sum([each.cache_written for each in usages]),
        "uncachedInputTokens": _sum(fresh),
        "reasoningTokens": _sum([each.reasoning for each in usages]),
        "costUsd": _sum([_cost(each) for each in counted]),
        "latencyMs": _sum([_took(each) for each in chosen]),
        "firstTokenMs": _longest([_until_first(each) for each in counted]),
    }


def _is_noise(seen: Seen) -> bool:
    """Return whether something was answered that is no answer of a model, as far as anybody can read it."""
    exchange = seen.exchange
    return seen.answered and exchange is not None and exchange.answer is None and bool(seen.unread)


def _costs(seen: Seen) -> bool:
    """Return whether an exchange is a model's call that went well: an answer that counts, or embeddings etc."""
    if seen.call.operation in CHAT:
        return seen.answered
    exchange = seen.exchange
    return exchange is not None and not exchange.failed and exchange.interaction.usage != Usage()


def _cost(seen: Seen) -> Decimal | None:
    if seen.exchange is None:
        return None
    interaction = seen.exchange.interaction
    models = (interaction.model, seen.exchange.answer_model)
    costs = (cost_of(interaction.provider, model, interaction.usage) for model in models)
    return next((cost for cost in costs if cost is not None), None)


def _took(seen: Seen) -> int | None:
    """Return an exchange's time on the wire, milliseconds, as recorded: a replay's own pace says nothing."""
    chunks = _chunks(seen)
    return round(chunks[-1].offset / 1000) if chunks else None


def _until_first(seen: Seen) -> int | None:
    chunks = _chunks(seen)
    return round(chunks[0].offset / 1000) if chunks else None


def _chunks(seen: Seen) -> Sequence[Chunk]:
    return () if seen.exchange is None else seen.exchange.interaction.response.chunks


def _longest(values: Sequence[int | None]) -> Tokens:
    known = [value for value in values if value is not None]
    return Tokens(max(known, default=None), complete=bool(values) and len(known) == len(values))


def _sum(values: Sequence[int | None] | Sequence[Decimal | None]) -> Tokens:
    known: list[int | Decimal] = [value for value in values if value is not None]
    total = sum(known) if known or not values else None
    return Tokens(total, complete=len(known) == len(values))
