"""The agent's tool calls, as they went over the wire.

    calls of a session (as the proxy tells them) -> [ToolCall, ...], in the order in which models asked for them

A tool call is an entry in an *answer* of a model, never in the history that a request carries. It was executed if a later request of the
same conversation carries its result; the provider's own tools (web search, code interpreter) run at the provider. A request that was sent
again counts once: a client that says how often it sent it is believed; else those answers count with whose calls the conversation goes on,
or the last. Conversations and results are `llmproxy.trace`'s business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from llmproxy.core.dialects.messages import ToolCall as Asked, as_dict, as_json, as_list, as_str
from llmproxy.core.dialects.streams import events_of
from llmproxy.core.traffic.interaction import header
from llmproxy.protocol import AGENT
from llmproxy.trace.reading.exchange import CHAT, Exchange, opened
from llmproxy.trace.reading.history import History
from llmproxy.trace.reading.parts import span_id

if TYPE_CHECKING:
    from llmproxy.client.control.client import Call
    from llmproxy.core.traffic.interaction import Interaction
    from llmproxy.trace.values.model import Span

__all__ = ["ToolCall", "hosted_calls", "tool_calls"]

_OURS = frozenset({"function_call", "custom_tool_call", "tool_use", "computer_call", "local_shell_call", "shell_call",
                   "apply_patch_call"})  # fmt: skip
"""Calls that the agent has to run, although some of them are declared as tools of the provider."""
_RETRIES = "x-stainless-retry-count"
"""By this the SDKs of OpenAI and Anthropic say how often a request was sent before."""
_OTHERS = frozenset({"server_tool_use", "mcp_tool_use"})
_WORDS = re.compile(r"tool|call|function|execut|code|search|fetch|ground|\\u00", re.IGNORECASE)
"""Every name of a tool call, or of a provider's own tool, holds one of these; or its letters are escaped."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool that a model asked for."""

    name: str
    arguments: Any
    """Parsed; the text as the model wrote it where that is no JSON, {} where it wrote nothing."""
    raw: str
    """As the model wrote it."""
    id: str | None
    result: Any | None
    """What the tool answered, parsed where it is JSON; None if no result was seen."""
    executed: bool
    """Whether a later request carries its result, or the provider ran it."""
    hosted: bool
    """Whether the provider runs it itself."""
    seq: int
    """Number in the session of the call whose answer asked for it."""
    interaction: int | None
    """Row of that answer in the store."""

    def to_message(self) -> dict[str, Any]:
        """Return it in the form in which a message lists tool calls."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.raw}}


def tool_calls(calls: Iterable[Call], party: str | None = AGENT) -> list[ToolCall]:
    """Return the tool calls in the answers to a party's calls; `party` None takes everybody's. Raises CassetteCorrupt."""
    from llmproxy.trace.reading.spans import build
    from llmproxy.trace.reading.told import interactions

    told = [call for call in calls if call.recording is not None and party in (None, call.party)]
    if not any(_may_call(call.recording) for call in told):
        return []  # most agents have no tools, and reading whole conversations after each message adds up
    # Of its own place in the session, or two arrivals of one recording would be one span.
    found = [replace(each, occurrence=call.seq) for call, each in zip(told, interactions(told), strict=True)]
    spans = {span.id: span for span in build(found)}
    history = History()
    answers = [
        _Answer(call.key or str(call.seq), _sent_before(each), _of(call, opened(each, history), spans))
        for call, each in zip(told, found, strict=True)
        if each.operation in CHAT
    ]
    return [each for said in _counted(answers) for each in said]


def _may_call(recording: Mapping[str, Any] | None) -> bool:
    """Return whether there may be a tool call in an answer: whatever the dialect, its words are among these."""
    body = (recording or {}).get("response_body")
    return not isinstance(body, str) or _WORDS.search(body) is not None


class _Answer(NamedTuple):
    """An answer of a model."""

    question: str
    """The same for the same request."""
    sent_before: int | None
    tools: list[ToolCall] | None
    """None where it is not whole."""


def _of(call: Call, exchange: Exchange, spans: Mapping[str, Span]) -> list[ToolCall] | None:
    """Return the tool calls of one answer; None for an answer that is not whole."""
    if exchange.failed or exchange.answer is None:
        return None
    hosted = hosted_calls(exchange)
    asked = exchange.answer.tool_calls
    known = {each.id or each.name for each in asked}
    found = []
    for n, each in enumerate(asked):
        theirs = (each.id or each.name) in hosted
        span = spans.get(_place(exchange.interaction, n))
        result = span.tool_result if span is not None else None
        found.append(_made(call, each, result, hosted=theirs))
    return found + [_made(call, each, None, hosted=True) for name, each in hosted.items() if name not in known]


def _place(interaction: Interaction, n: int) -> str:
    return span_id(interaction, f"call{n}")


def _made(call: Call, asked: Asked, result: Any, *, hosted: bool) -> ToolCall:  # noqa: ANN401 - JSON
    return ToolCall(
        name=asked.name,
        arguments=_parsed(asked.arguments),
        raw=asked.arguments,
        id=asked.id,
        result=result,
        executed=hosted or result is not None,
        hosted=hosted,
        seq=call.seq,
        interaction=call.interaction,
    )


def _parsed(text: str) -> Any:  # noqa: ANN401 - JSON
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _counted(answers: Sequence[_Answer]) -> Iterator[list[ToolCall]]:
    """Leave out answers to requests that were sent again."""
    groups: dict[str, list[int]] = {}
    for place, each in enumerate(answers):
        if each.tools is not None:
            groups.setdefault(each.question, []).append(place)
    counted: set[int] = set()
    for places in groups.values():
        counts = [answers[place].sent_before for place in places]
        if None not in counts:
            counted.update(place for place, later in zip(places, [*counts[1:], 0], strict=True) if not later)
        else:
            counted.update([place for place in places if _goes_on(answers[place])] or places[-1:])
    for place, each in enumerate(answers):
        if place in counted and each.tools:
            yield each.tools


def _goes_on(answered: _Answer) -> bool:
    """Tell whether a tool that an answer asked for was executed by the agent."""
    return any(each.executed and not each.hosted for each in answered.tools or ())


def _sent_before(interaction: Interaction) -> int | None:
    """Return how often a request had been sent before, if its client says so."""
    said = header(interaction.request.headers, _RETRIES) or ""
    return int(said) if said.isascii() and said.isdecimal() else None


# -- what the provider runs itself -------------------------------------------------------------------------------------


def hosted_calls(exchange: Exchange) -> dict[str, Asked]:
    """Return the calls of an answer that the provider runs itself, by id (by name without one): web search, code interpreter, MCP."""
    response = exchange.interaction.response
    kind = header(response.headers, "content-type") or ""
    found: dict[str, Asked] = {}
    for value in events_of(kind, response.body):
        for block in _blocks(as_dict(value)):
            call = _hosted(block)
            if call is not None and call.name:
                found[call.id or call.name] = call
    return found


def _blocks(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts of an answer, of a whole one or of an event."""
    response = as_dict(value.get("response")) or value
    for part in (*as_list(response.get("output")), *as_list(value.get("content"))):
        yield as_dict(part)
    yield as_dict(value.get("item"))
    yield as_dict(value.get("content_block"))


def _hosted(block: dict[str, Any]) -> Asked | None:
    kind = as_str(block.get("type"))
    given = block.get("call_id") or block.get("id")
    call_id = given if isinstance(given, str) else None
    if kind in _OTHERS:
        return Asked(call_id, as_str(block.get("name")), as_json(block.get("input")))
    if kind.endswith("_call") and kind not in _OURS:
        name = as_str(block.get("name")) or kind.removesuffix("_call")
        return Asked(call_id, name, as_json(block.get("arguments", block.get("action"))))
    return None
