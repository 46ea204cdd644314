"""One call of a tool that a model asked for: what, with which arguments, whether it was run, and what it answered.

What servers of tools (MCP) really got and returned, beside what models asked for: read off the servers' own messages.

    calls of a session -> ServedTools of a stretch of it: each call of a tool that a server got, in order, and what
    is not known

A call that met a fault, or that replay refused, no server got. One of which nothing was recorded is not known: it is
in `unread_reason`.

`WireCall` is one exchange of the agent, and what of it counts. Answers that nobody can read, or only in part: what they
asked for is not known, and so is nothing that depends on it. A table says which requests are no questions to a model
that could call a tool. What is in no table and looks as if it did is not passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Self

from llmproxy.core.dialects.codecs import CHAT
from llmproxy.core.keys.mcp import is_tool_call
from llmproxy.core.mcp_messages import list_messages, read_call
from llmproxy.core.traffic.canonical_json import equals_json, parse_json_or_text
from llmproxy.core.traffic.interaction import Chunk, Interaction, Usage, header
from llmproxy.protocol import Decision
from llmproxy.proxy_calls import Call
from llmproxy.trace.reading.conversations import RecordedConversation
from llmproxy.trace.reading.decoded_exchange import DecodedExchange, build_token_usage, parse_tool_result
from llmproxy.trace.reading.span_builder import list_unprefixed_names


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """The exchange in which a tool was asked for, as far as it tells what came first."""

    live: _Span = (0.0, 0.0)
    """From when to when it went on, seconds."""
    recorded: _Span = (0.0, 0.0)
    """When it was recorded, from and to: in a replay, which takes no time, what was at once may be in sequence."""

    def is_over_before(self, other: ExchangeTimes) -> bool:
        """Return whether its answer had come when the other was sent, and they were not at once when recorded."""
        apart = self.recorded == other.recorded or _ends_before(self.recorded, other.recorded)
        return _ends_before(self.live, other.live) and (apart or _ends_before(other.recorded, self.recorded))


def _ends_before(one: _Span, other: _Span) -> bool:
    return one[1] <= other[0] + _SAME


type _Span = tuple[float, float]
_SAME = 0.001
"""Seconds that clocks and their rounding may be wrong by."""


@dataclass(slots=True, eq=False)
class ToolUse:
    """One call of a tool. Its result may come with a later request, so it changes while a run goes on."""

    name: str
    raw: str
    """The arguments as the model wrote them."""
    id: str | None
    seq: int
    """Number in the session of the call whose answer asked for it."""
    interaction: int | None
    """Row of that answer in the store."""
    hosted: bool = False
    """Whether the provider runs it itself (web search, code interpreter)."""
    executed: bool = False
    """Whether a later request carries its result, or the provider ran it. False where nobody has seen that it was."""
    output: str | None = None
    """What the tool answered, as it was passed on; None if nobody has seen it."""
    errored: bool = False
    """Whether the result says that the tool failed."""
    asking: ExchangeTimes = ExchangeTimes()
    """Of the answer that asked for it."""
    heard: int | None = None
    """Number of the call whose request brought the result: whatever was asked for from then on was asked later."""
    approval: bool = False
    """Whether the provider asked the agent if it may run it."""
    denied: bool = False
    """Whether it waited for an approval, which was denied: it was not executed."""

    @property
    def arguments(self) -> Any:
        """Parsed; the text as the model wrote it where that is no JSON, {} where it wrote nothing."""
        return parse_json_or_text(self.raw) if self.raw.strip() else {}

    @property
    def has_json_arguments(self) -> bool:
        arguments = self.arguments
        return not (isinstance(arguments, str) and arguments == self.raw)

    @property
    def result(self) -> Any:
        """The output, parsed where it is an object or a list; None if no result was seen."""
        return None if self.output is None else parse_tool_result(self.output)

    @property
    def is_run_by_agent(self) -> bool:
        """Whether the agent was to run it, or to allow it: a call of its own, whoever executes it."""
        return self.approval or not self.hosted

    @property
    def is_execution_known(self) -> bool:
        """Whether it is known if it was executed: a call whose result nobody saw may have been, unless denied."""
        return self.executed or self.denied

    def comes_after(self, other: ToolUse) -> bool:
        """Return whether it was asked for when the other had been; calls of one answer, or of one time, are at once."""
        if other.heard is not None and other.heard <= self.seq:
            return True
        return self.seq > other.seq and other.asking.is_over_before(self.asking)

    @property
    def label(self) -> str:
        return format_call_label(self.interaction, self.seq)

    def to_message(self) -> dict[str, Any]:
        """Return it in the form in which a message lists tool calls."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.raw}}


class InteractionLabel(str):
    """Names recorded interactions as `llmproxy show` does; which, tells who has another store with other numbers."""

    __slots__ = ("interactions",)
    interactions: tuple[int | None, ...]

    def __new__(cls, *interactions: int | None) -> Self:
        """None: one that is not in the store."""
        named = " to ".join("?" if each is None else str(each) for each in interactions)
        made = super().__new__(cls, f"interaction{'s' if len(interactions) > 1 else ''} {named}")
        made.interactions = interactions
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[int | None, ...]]:
        return type(self), self.interactions


def format_call_label(interaction: int | None, seq: int) -> str:
    """Name an exchange, as `llmproxy show` does where it is stored."""
    return f"call {seq} of the session" if interaction is None else InteractionLabel(interaction)


NO_SERVER = (
    "no server of tools was seen in this run, so what one got and returned is not known. Its messages must pass the "
    "proxy "
    "(`llmproxy run --mcp-config`, `llmproxy mcp -- SERVER`, `--upstream NAME=URL`)"
)
_LIST = "mcp:tools/list"
_SHOWN = 200
"""Characters of arguments, and of a result."""
_NO_TEXT = re.compile(r"\[(?:image|audio|resource|resource_link)\]")
"""What stands in a result's text for content that is none."""
_ESCAPED = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")


@dataclass(frozen=True, slots=True)
class ServedTools:
    """What servers of tools got in a stretch of a run."""

    tools: Sequence[ToolUse] = ()
    """Each call that a server got, in order of arrival; `output` is what it returned, None unless it came whole."""
    names: frozenset[str] = frozenset()
    """Tools that servers listed, or that were called, in the whole run."""
    listed: frozenset[str] = frozenset()
    """Those that servers listed."""
    seen: bool = False
    """Whether any message to a server was seen in this run."""
    unread: Sequence[str] = ()
    """Where calls are that may have reached a server, and of which nothing was recorded."""

    @property
    def unknown_reason(self) -> str:
        """Why nothing can be said about these calls; empty where something can."""
        if not self.seen:
            return NO_SERVER
        return f"nothing was recorded of {self.unread[0]}, so what a server got is not known" if self.unread else ""


def read_served_tools(calls: Iterable[tuple[Call, Interaction | None]], after: int) -> ServedTools:
    """Return what servers got in a run's calls after number `after`, with their recordings."""
    tools, unread, called, listed, seen = list[ToolUse](), list[str](), set[str](), set[str](), False
    for call, made in calls:
        seen = True
        if made is not None and call.operation == _LIST:
            listed.update(_list_tool_names(made))
        if not is_tool_call(call.operation) or call.fault or call.decision in (Decision.REFUSE, Decision.FAULT):
            continue  # it never reached its server
        use = None if made is None else _build_served_use(call, made)
        if use is not None:
            called.add(use.name)
        if call.seq <= after:
            continue
        if use is None:
            unread.append(format_call_label(call.interaction, call.seq))
        else:
            tools.append(use)
    return ServedTools(tools, frozenset(called | listed), frozenset(listed), seen, unread)


def _build_served_use(call: Call, made: Interaction) -> ToolUse | None:
    if (told := read_call(made)) is None:
        return None
    whole = any("method" not in each.value for each in list_messages(made.response) if isinstance(each.value, dict))
    return ToolUse(
        told.tool, told.arguments, None, call.seq, call.interaction, executed=whole,
        output=told.result if whole else None, errored=told.failed,
    )  # fmt: skip


def _list_tool_names(made: Interaction) -> Iterable[str]:
    for each in list_messages(made.response):
        result = each.value.get("result") if isinstance(each.value, dict) else None
        tools = result.get("tools") if isinstance(result, dict) else None
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                yield tool["name"]


def find_mismatches(asked: Sequence[ToolUse], served: ServedTools) -> list[str]:
    """List where what models asked for and what servers got differ, without the tools of servers that an agent runs
    itself.

    Each call of a model stands for one of a server, with the same arguments in whatever order; what is left on both
    sides is told in pairs.
    """
    of_models: dict[str, list[ToolUse]] = {}
    for use in asked:
        name = find_server_name(use.name, served.names)
        if name and not use.hosted and not use.denied:
            of_models.setdefault(name, []).append(use)
    of_servers: dict[str, list[ToolUse]] = {}
    for use in served.tools:
        of_servers.setdefault(use.name, []).append(use)
    found: list[str] = []
    for name in dict.fromkeys([*of_models, *of_servers]):
        found += _describe_mismatches(of_models.get(name, []), of_servers.get(name, []))
    return found


def find_misreadings(asked: Sequence[ToolUse], served: ServedTools) -> list[str]:
    """List where a model read something else than its server returned; additions, escapes, breaks do not count."""
    left = [each for each in served.tools if each.output is not None]
    unsure: list[ToolUse] = []
    for use in asked:
        if use.output is None or use.hosted or use.denied:
            continue
        twin = next(
            (
                each
                for each in _find_candidates(use, left, served.names)
                if _contains_result(use.output, each.output or "")
            ),
            None,
        )
        if twin is None:
            unsure.append(use)
        else:
            left.remove(twin)
    found: list[str] = []
    for use in unsure:
        if (twin := next(_find_candidates(use, left, served.names), None)) is not None:
            left.remove(twin)
            found.append(
                f"a model read {_clip_text(use.output)} as the result of {_format_use(use)}, and its server had "
                f"returned {_clip_text(twin.output)}"
            )
    return found


def _find_candidates(use: ToolUse, servers: Sequence[ToolUse], names: frozenset[str]) -> Iterator[ToolUse]:
    """Yield the calls of servers that a model's call may have become."""
    name = find_server_name(use.name, names)
    return (each for each in servers if each.name == name and equals_json(each.arguments, use.arguments))


def _contains_result(read: str, returned: str) -> bool:
    """Return whether what a model read holds what a server returned: line for line, or as the same JSON."""
    there = _remove_white_space(_ESCAPED.sub(lambda match: json.loads(f'"{match[0]}"'), read))
    if all(_remove_white_space(line) in there for line in returned.splitlines() if not _NO_TEXT.fullmatch(line)):
        return True
    return any(
        equals_json(value, wanted) for wanted in _find_json_in_text(returned) for value in _find_json_in_text(read)
    )


def _remove_white_space(text: str) -> str:
    """Return a text without white space, and without the marks of escapes."""
    return re.sub(r"[\s\\]", "", text)


def _find_json_in_text(text: str) -> Iterator[Any]:
    """Yield the JSON objects and lists that lines of a text begin with."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"(?m)^\s*(?=[{\[])", text):
        try:
            yield decoder.raw_decode(text, match.end())[0]
        except (ValueError, RecursionError):
            continue


def find_server_name(name: str, known: frozenset[str]) -> str:
    """Return the name that a server has for a tool which a model calls `name`; empty for one that no server has."""
    return next((each for each in list_unprefixed_names(name) if each in known), "")


def _describe_mismatches(models: Sequence[ToolUse], servers: Sequence[ToolUse]) -> list[str]:
    left = list(servers)
    lonely: list[ToolUse] = []
    for use in models:
        twin = next((each for each in left if equals_json(each.arguments, use.arguments)), None)
        if twin is None:
            lonely.append(use)
        else:
            left.remove(twin)
    pairs = min(len(lonely), len(left))
    told = [
        f"a model asked for {_format_use(one)}, and its server got {_format_use(other)}"
        for one, other in zip(lonely, left, strict=False)
    ]
    told += [f"a model asked for {_format_use(one)}, and no server got it" for one in lonely[pairs:]]
    return told + [f"a server got {_format_use(other)}, which no model asked for" for other in left[pairs:]]


def _format_use(use: ToolUse) -> str:
    raw = json.dumps(use.arguments, ensure_ascii=False) if use.has_json_arguments else " ".join(use.raw.split())
    return f"{use.name}({raw if len(raw) <= _SHOWN else raw[:_SHOWN] + '...'})"


def _clip_text(text: str | None) -> str:
    said = json.dumps(text or "", ensure_ascii=False)
    return said if len(said) <= _SHOWN else said[:_SHOWN] + '..."'


_CALLERS = ("realtime", "threads", "threads.runs", "responses/", "interactions", "predictions", "async-invoke",
            "rawPredict", "messages/batches", "batches", "agents/")  # fmt: skip
"""Operations whose answers can call tools and which nobody reads here; one with ``/`` at its end: all below."""
_LOOKS_LIKE = re.compile(
    rb'"tool_calls"\s*:\s*\[\s*\{|"type"\s*:\s*"(?:\w+_)?(?:tool_use|function_call|tool_call|function\.call)"'
    rb'|"functionCall"\s*:\s*\{|"toolUse"\s*:\s*\{'
)
"""What answers that call tools have in common, whatever the path."""


def explain_unreadable_answer(exchange: DecodedExchange) -> str:
    """Describe why a whole answer of a model cannot be read, or not all of it; empty where it can."""
    answer = exchange.answer
    if answer is None and not exchange.finish_reasons:
        kind = header(exchange.interaction.response.headers, "content-type") or "no content-type"
        return f"could not be read as an answer of {exchange.interaction.operation} ({kind})"
    if answer is not None and answer.unknown:
        return f"holds what is not known, and may call a tool: {', '.join(answer.unknown)}"
    return ""


def may_contain_tool_calls(operation: str, body: bytes | None) -> bool:
    """Return whether an exchange of an unknown kind may hold tool calls; `body` is its answer, if kept."""
    first = operation.partition("/")[0]
    if operation in _CALLERS or first in _CALLERS or (f"{first}/" in _CALLERS and operation != first):
        return True
    return body is not None and _LOOKS_LIKE.search(body) is not None


_OK = range(200, 300)


@dataclass(slots=True, eq=False)
class WireCall:
    call: Call
    exchange: DecodedExchange | None
    """None where nothing is recorded: passed through, refused, lost."""
    conversation: RecordedConversation | None = None
    replaced: bool = False
    """Whether the client asked again, and another answer counts."""
    unclear: bool = False
    """Whether it is one of several alike of which the client asked for one again, and nothing tells which."""
    tools: list[ToolUse] = field(default_factory=list)
    """What its answer asked for, whether it counts or not."""

    @property
    def is_chat(self) -> bool:
        """Whether a model was asked something."""
        return self.call.operation in CHAT

    @property
    def is_complete(self) -> bool:
        """Whether a whole answer came; of one that is not recorded, whether its status says so."""
        return self.call.status in _OK if self.exchange is None else not self.exchange.failed

    @property
    def ran_tool(self) -> bool:
        """Whether the agent ran a tool that the answer asked for, however much of it came."""
        return any(tool.executed and not tool.hosted for tool in self.tools)

    @property
    def is_answered(self) -> bool:
        """Whether a model answered, and the answer counts."""
        return self.is_chat and not self.replaced and (self.is_complete or self.ran_tool)

    @property
    def is_readable(self) -> bool:
        """Whether a model answered, and everything that it asked for is known."""
        return self.is_answered and self.exchange is not None and not self.unread_reason

    @property
    def unread_reason(self) -> str:
        """Describe why it is not known what was asked for here; empty where it is."""
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
            return explain_unreadable_answer(exchange)
        # What the provider ran itself tells nothing about who went on with the answer.
        missing = [tool.name or "a tool" for tool in self.tools if not tool.executed or not self.ran_tool]
        if missing:
            return f"was cut off while it asked for {', '.join(missing)}"
        return explain_unreadable_answer(exchange) if self.ran_tool else ""

    @property
    def is_cut_off(self) -> bool:
        """Whether an answer broke off, and nobody can tell whether its client was content with what it had."""
        if not self.is_chat or self.replaced or self.exchange is None or self.exchange.answer is None:
            return False
        return not self.is_complete and not self.ran_tool

    @property
    def label(self) -> str:
        return format_call_label(self.call.interaction, self.call.seq)


@dataclass(frozen=True, slots=True)
class UsageSum:
    """A sum of something over a step."""

    known: int | Decimal | None
    """What is known of it; None if nothing is."""
    complete: bool
    """Whether that is all; else it is a lower bound."""

    @property
    def value(self) -> int | Decimal | None:
        """The sum, None if any part of it is unknown."""
        return self.known if self.complete else None


def sum_usage(chosen: Sequence[WireCall]) -> dict[str, UsageSum]:
    """Add up what the counted answers took; every prompt token is input, cached or not."""
    counted = [each for each in chosen if _counts_for_usage(each)]
    usages = [Usage() if each.exchange is None else each.exchange.interaction.usage for each in counted]
    tokens = [build_token_usage(each) for each in usages]
    return {
        "callCount": UsageSum(
            sum(1 for each in chosen if each.is_answered and not _is_unread_answer(each)),
            complete=not any(each.is_cut_off or _is_unread_answer(each) for each in chosen),
        ),
        "inputTokens": _sum_known_values([each.input for each in usages]),
        "outputTokens": _sum_known_values([each.output for each in usages]),
        "totalTokens": _sum_known_values([each.total_tokens for each in tokens]),
        "cacheReadTokens": _sum_known_values([each.cached for each in usages]),
        "cacheCreationTokens": _sum_known_values([each.cache_written for each in usages]),
        "uncachedInputTokens": _sum_known_values([each.prompt_tokens for each in tokens]),
        "reasoningTokens": _sum_known_values([each.reasoning for each in usages]),
        "costUsd": _sum_known_values([each.exchange.cost if each.exchange else None for each in counted]),
        "latencyMs": _sum_known_values([_measure_duration_ms(each) for each in chosen]),
        "firstTokenMs": _find_maximum([_measure_first_chunk_ms(each) for each in counted]),
    }


def _is_unread_answer(seen: WireCall) -> bool:
    """Return whether something was answered that is no answer of a model, as far as anybody can read it."""
    exchange = seen.exchange
    return seen.is_answered and exchange is not None and exchange.answer is None and bool(seen.unread_reason)


def _counts_for_usage(seen: WireCall) -> bool:
    """Return whether an exchange is a model's call that went well: an answer that counts, or embeddings etc."""
    if seen.call.operation in CHAT:
        return seen.is_answered
    exchange = seen.exchange
    return exchange is not None and not exchange.failed and exchange.interaction.usage != Usage()


def _measure_duration_ms(seen: WireCall) -> int | None:
    """Return an exchange's time on the wire, milliseconds, as recorded: a replay's own pace says nothing."""
    chunks = _list_chunks(seen)
    return round(chunks[-1].offset / 1000) if chunks else None


def _measure_first_chunk_ms(seen: WireCall) -> int | None:
    chunks = _list_chunks(seen)
    return round(chunks[0].offset / 1000) if chunks else None


def _list_chunks(seen: WireCall) -> Sequence[Chunk]:
    return () if seen.exchange is None else seen.exchange.interaction.response.chunks


def _find_maximum(values: Sequence[int | None]) -> UsageSum:
    known = [value for value in values if value is not None]
    return UsageSum(max(known, default=None), complete=bool(values) and len(known) == len(values))


def _sum_known_values(values: Sequence[int | None] | Sequence[Decimal | None]) -> UsageSum:
    known: list[int | Decimal] = [value for value in values if value is not None]
    return UsageSum(sum(known) if known or not values else None, complete=len(known) == len(values))
