"""Tool calls requested by models: name, arguments, execution, result; and calls received by MCP servers.

A call that met a fault, or that replay refused, reached no server. If an answer cannot be read, or only in part, its
tool calls are unknown, and so is everything that depends on them: an unknown kind of exchange that looks as if it could
call tools is not skipped.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Self

from llmproxy.calls_and_totals import Call
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.messages import as_dict, as_list
from llmproxy.core.keys.mcp import is_mcp_tool_call
from llmproxy.core.mcp_answer_replay import list_messages_in_mcp_response, read_mcp_call_with_result
from llmproxy.core.traffic.canonical_json import is_equal_json, parse_json_or_text
from llmproxy.core.traffic.interaction import Interaction, Usage
from llmproxy.protocol import Decision
from llmproxy.trace.reading.decoded_exchange import DecodedExchange, convert_usage_for_trace, parse_result_json_or_text
from llmproxy.trace.reading.span_builder import list_tool_names_without_prefixes

_SAME = 0.001
"""Tolerance in seconds for clocks and rounding."""
NO_SERVER = (
    "no server of tools was seen in this run, so what one got and returned is not known. Its messages must pass the "
    "proxy (`llmproxy run --mcp-config`, `llmproxy mcp -- SERVER`, `--upstream NAME=URL`)"
)
_LIST = "mcp:tools/list"
_SHOWN = 200  # characters of arguments
_CALLERS = ("realtime", "threads", "threads.runs", "responses/", "interactions", "predictions", "async-invoke",
            "rawPredict", "messages/batches", "batches", "agents/")  # fmt: skip
"""Operations that can call tools in formats not read here; with ``/`` at the end: all below."""
_LOOKS_LIKE = re.compile(
    rb'"tool_calls"\s*:\s*\[\s*\{|"type"\s*:\s*"(?:\w+_)?(?:tool_use|function_call|tool_call|function\.call)"'
    rb'|"functionCall"\s*:\s*\{|"toolUse"\s*:\s*\{'
)
_OK = range(200, 300)


@dataclass(frozen=True, slots=True)
class ExchangeTimesForOrdering:
    """Times of the exchange in which a tool was requested, for ordering."""

    live: _Span = (0.0, 0.0)
    """Start and end in seconds."""
    recorded: _Span = (0.0, 0.0)
    """Start and end of the recording: in a replay, which takes no time, concurrent exchanges may be sequential."""

    def is_over_before(self, other: ExchangeTimesForOrdering) -> bool:
        """Return whether its answer came before the other was sent, and they were not concurrent when recorded."""
        apart = self.recorded == other.recorded or _ends_before(self.recorded, other.recorded)
        return _ends_before(self.live, other.live) and (apart or _ends_before(other.recorded, self.recorded))


def _ends_before(one: _Span, other: _Span) -> bool:
    return one[1] <= other[0] + _SAME


type _Span = tuple[float, float]


@dataclass(slots=True, eq=False)
class ToolUse:
    """One tool call. Its result may come with a later request, so it changes during a run."""

    name: str
    raw: str
    """Arguments as the model wrote them."""
    id: str | None
    seq: int
    """Number in the session of the call whose answer asked for it."""
    interaction: int | None
    """Interaction id of that answer."""
    hosted: bool = False
    """Whether the provider runs it itself (web search, code interpreter)."""
    executed: bool = False
    """Whether a later request has its result, or the provider ran it. False if not observed."""
    output: str | None = None
    """Result of the tool as sent to the model; None if not observed."""
    errored: bool = False
    asking: ExchangeTimesForOrdering = ExchangeTimesForOrdering()
    heard: int | None = None
    """Number of the call whose request brought the result: tools requested from then on are later."""
    approval: bool = False
    """Whether the provider asked the agent for permission."""
    denied: bool = False
    """Whether permission was denied, so that it was not executed."""

    @property
    def arguments(self) -> Any:
        """Parsed; the model's text if it is no JSON, {} if empty."""
        return parse_json_or_text(self.raw) if self.raw.strip() else {}

    @property
    def has_json_arguments(self) -> bool:
        arguments = self.arguments
        return not (isinstance(arguments, str) and arguments == self.raw)

    @property
    def result(self) -> Any:
        """The output, parsed if it is an object or a list; None if not observed."""
        return None if self.output is None else parse_result_json_or_text(self.output)

    @property
    def is_run_by_agent(self) -> bool:
        """Whether the agent should run or permit it: a call of its own, whoever executes it."""
        return self.approval or not self.hosted

    def was_requested_after(self, other: ToolUse) -> bool:
        """Return whether it was requested after the other's request; calls of one answer, or time, are concurrent."""
        if other.heard is not None and other.heard <= self.seq:
            return True
        return self.seq > other.seq and other.asking.is_over_before(self.asking)

    @property
    def label(self) -> str:
        return format_interaction_label(self.interaction, self.seq)

    def to_message(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.raw}}


class InteractionIdsLabel(str):
    """Names recorded interactions like `llmproxy show`."""

    __slots__ = ("interactions",)
    interactions: tuple[int | None, ...]

    def __new__(cls, *interactions: int | None) -> Self:
        """None: not in the store."""
        named = " to ".join("?" if each is None else str(each) for each in interactions)
        made = super().__new__(cls, f"interaction{'s' if len(interactions) > 1 else ''} {named}")
        made.interactions = interactions
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[int | None, ...]]:
        return type(self), self.interactions


def format_interaction_label(interaction: int | None, seq: int) -> str:
    return f"call {seq} of the session" if interaction is None else InteractionIdsLabel(interaction)


@dataclass(frozen=True, slots=True)
class ToolCallsAtMcpServers:
    tools: Sequence[ToolUse] = ()
    """Each received call, in order of arrival; `output` is the returned result, None unless complete."""
    names: frozenset[str] = frozenset()
    """Tools that servers listed, or that were called, in the whole run."""
    listed: frozenset[str] = frozenset()
    """Tools that servers listed."""
    seen: bool = False
    unread: Sequence[str] = ()
    """Places of unrecorded calls that may have reached a server."""

    @property
    def unknown_reason(self) -> str:
        if not self.seen:
            return NO_SERVER
        return f"nothing was recorded of {self.unread[0]}, so what a server got is not known" if self.unread else ""


def read_calls_received_by_mcp_servers(
    calls: Iterable[tuple[Call, Interaction | None]], after: int
) -> ToolCallsAtMcpServers:
    tools, unread, called, listed, seen = list[ToolUse](), list[str](), set[str](), set[str](), False
    for call, made in calls:
        seen = True
        if made is not None and call.operation == _LIST:
            results = (
                as_dict(as_dict(each.value).get("result")) for each in list_messages_in_mcp_response(made.response)
            )
            offered = (as_dict(tool).get("name") for result in results for tool in as_list(result.get("tools")))
            listed.update(name for name in offered if isinstance(name, str))
        if not is_mcp_tool_call(call.operation) or call.fault or call.decision in (Decision.REFUSE, Decision.FAULT):
            continue  # it never reached its server
        use = None if made is None else _build_served_use(call, made)
        if use is not None:
            called.add(use.name)
        if call.seq <= after:
            continue
        if use is None:
            unread.append(format_interaction_label(call.interaction, call.seq))
        else:
            tools.append(use)
    return ToolCallsAtMcpServers(tools, frozenset(called | listed), frozenset(listed), seen, unread)


def _build_served_use(call: Call, made: Interaction) -> ToolUse | None:
    if (told := read_mcp_call_with_result(made)) is None:
        return None
    whole = any(
        "method" not in each.value
        for each in list_messages_in_mcp_response(made.response)
        if isinstance(each.value, dict)
    )
    return ToolUse(
        told.tool, told.arguments, None, call.seq, call.interaction, executed=whole,
        output=told.result if whole else None, errored=told.failed,
    )  # fmt: skip


def diff_asked_and_served_tool_calls(asked: Sequence[ToolUse], served: ToolCallsAtMcpServers) -> list[str]:
    """List differences, in any order, of models' calls from servers' received ones, without an agent's own tools."""
    sides: dict[str, tuple[list[ToolUse], list[ToolUse]]] = defaultdict(lambda: ([], []))
    for use in asked:
        name = next((each for each in list_tool_names_without_prefixes(use.name) if each in served.names), "")
        if name and not use.hosted and not use.denied:
            sides[name][0].append(use)
    for use in served.tools:
        sides[use.name][1].append(use)
    return [text for models, servers in sides.values() for text in _describe_server_mismatches(models, servers)]


def _describe_server_mismatches(models: Sequence[ToolUse], servers: Sequence[ToolUse]) -> list[str]:
    left, lonely = list(servers), list[ToolUse]()
    for use in models:
        twin = next((each for each in left if is_equal_json(each.arguments, use.arguments)), None)
        if twin is None:
            lonely.append(use)
        else:
            left.remove(twin)
    pairs = min(len(lonely), len(left))
    told = [
        f"a model asked for {_format_tool_use(one)}, and its server got {_format_tool_use(other)}"
        for one, other in zip(lonely, left, strict=False)
    ]
    told += [f"a model asked for {_format_tool_use(one)}, and no server got it" for one in lonely[pairs:]]
    return told + [f"a server got {_format_tool_use(other)}, which no model asked for" for other in left[pairs:]]


def _format_tool_use(use: ToolUse) -> str:
    raw = json.dumps(use.arguments, ensure_ascii=False) if use.has_json_arguments else " ".join(use.raw.split())
    return f"{use.name}({raw if len(raw) <= _SHOWN else raw[:_SHOWN] + '...'})"


def may_contain_tool_calls(operation: str, body: bytes | None) -> bool:
    """Return whether an exchange of an unknown kind may contain tool calls; `body` is its answer, if kept."""
    first = operation.partition("/")[0]
    if operation in _CALLERS or first in _CALLERS or (f"{first}/" in _CALLERS and operation != first):
        return True
    return body is not None and _LOOKS_LIKE.search(body) is not None


@dataclass(slots=True, eq=False)
class SeenModelCall:
    call: Call
    exchange: DecodedExchange | None
    """None if not recorded: passed through, refused, lost."""
    replaced: bool = False
    """Whether the client retried, and another answer counts."""
    unclear: bool = False
    """Whether it is one of several equal calls of which one was retried, and it is unknown which."""
    tools: list[ToolUse] = field(default_factory=list)
    """Tool calls of its answer, whether it counts or not."""

    @property
    def is_chat(self) -> bool:
        return self.call.operation in CHAT

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete; without a recording, by its status."""
        return self.call.status in _OK if self.exchange is None else not self.exchange.failed

    @property
    def agent_ran_tool(self) -> bool:
        """Whether the agent ran a tool requested by the answer, complete or not."""
        return any(tool.executed and not tool.hosted for tool in self.tools)

    @property
    def has_usable_answer(self) -> bool:
        """Whether the answer is complete, or the client continued with a part of it."""
        return self.is_complete or self.agent_ran_tool

    @property
    def has_counted_answer(self) -> bool:
        return self.is_chat and not self.replaced and self.has_usable_answer

    @property
    def is_readable(self) -> bool:
        """Whether a model answered, and all its tool calls are known."""
        return self.has_counted_answer and self.exchange is not None and not self.unread_reason

    @property
    def unread_reason(self) -> str:
        if self.unclear:
            return "is one of several to equal requests, of which the client asked for one again: nothing tells which"
        if self.replaced:
            return ""
        exchange = self.exchange
        if not self.is_chat:
            body = None if exchange is None else exchange.interaction.response.body
            asks = self.call.status in _OK and may_contain_tool_calls(self.call.operation, body)
            return f"went to {self.call.operation}, whose answers are not read" if asks else ""
        if exchange is None:
            return "was passed through and not recorded" if self.is_complete else ""
        if self.is_complete:
            return exchange.unread_reason
        # What the provider ran itself tells nothing about who went on with the answer.
        if missing := [tool.name or "a tool" for tool in self.tools if not tool.executed or not self.agent_ran_tool]:
            return f"was cut off while it asked for {', '.join(missing)}"
        return exchange.unread_reason if self.agent_ran_tool else ""

    @property
    def is_cut_and_unused(self) -> bool:
        """Whether the answer was cut, and it is unknown whether its client used the part."""
        if not self.is_chat or self.replaced or self.exchange is None or self.exchange.answer is None:
            return False
        return not self.has_usable_answer

    @property
    def label(self) -> str:
        return format_interaction_label(self.call.interaction, self.call.seq)


@dataclass(frozen=True, slots=True)
class PossiblyIncompleteSum:
    known: int | Decimal | None
    """Sum of known values; None if there are none."""
    complete: bool
    """Whether that is the total; else it is a lower bound."""

    @property
    def value(self) -> int | Decimal | None:
        return self.known if self.complete else None


def sum_usage_of_model_calls(chosen: Sequence[SeenModelCall]) -> dict[str, PossiblyIncompleteSum]:
    counted = [each for each in chosen if _is_successful_model_call(each)]
    usages = [Usage() if each.exchange is None else each.exchange.interaction.usage for each in counted]
    tokens = [convert_usage_for_trace(each) for each in usages]
    return {
        "callCount": PossiblyIncompleteSum(
            sum(each.has_counted_answer and not _is_unreadable_answer(each) for each in chosen),
            complete=not any(each.is_cut_and_unused or _is_unreadable_answer(each) for each in chosen),
        ),
        "inputTokens": _build_usage_sum([each.input for each in usages]),
        "outputTokens": _build_usage_sum([each.output for each in usages]),
        "totalTokens": _build_usage_sum([each.total_tokens for each in tokens]),
        "cacheReadTokens": _build_usage_sum([each.cached for each in usages]),
        "cacheCreationTokens": _build_usage_sum([each.cache_written for each in usages]),
        "uncachedInputTokens": _build_usage_sum([each.prompt_tokens for each in tokens]),
        "reasoningTokens": _build_usage_sum([each.reasoning for each in usages]),
        "costUsd": _build_usage_sum([each.exchange.cost if each.exchange else None for each in counted]),
        "latencyMs": _build_usage_sum([_read_chunk_ms(each, -1) for each in chosen]),
        "firstTokenMs": _find_maximum_over_calls([_read_chunk_ms(each, 0) for each in counted]),
    }


def _is_unreadable_answer(seen: SeenModelCall) -> bool:
    """Return whether an answer exists that is not readable as a model's."""
    exchange = seen.exchange
    return seen.has_counted_answer and exchange is not None and exchange.answer is None and bool(seen.unread_reason)


def _is_successful_model_call(seen: SeenModelCall) -> bool:
    """Return whether an exchange is a successful model call: an answer that counts, or embeddings etc."""
    if seen.call.operation in CHAT:
        return seen.has_counted_answer
    exchange = seen.exchange
    return exchange is not None and not exchange.failed and exchange.interaction.usage != Usage()


def _read_chunk_ms(seen: SeenModelCall, which: int) -> int | None:
    """Return when a chunk of the answer came, in milliseconds, as recorded: a replay's pace does not matter."""
    chunks = () if seen.exchange is None else seen.exchange.interaction.response.chunks
    return round(chunks[which].offset / 1000) if chunks else None


def _find_maximum_over_calls(values: Sequence[int | None]) -> PossiblyIncompleteSum:
    known = [value for value in values if value is not None]
    return PossiblyIncompleteSum(max(known, default=None), complete=bool(values) and len(known) == len(values))


def _build_usage_sum(values: Sequence[int | None] | Sequence[Decimal | None]) -> PossiblyIncompleteSum:
    known: list[int | Decimal] = [value for value in values if value is not None]
    return PossiblyIncompleteSum(sum(known) if known or not values else None, complete=len(known) == len(values))
