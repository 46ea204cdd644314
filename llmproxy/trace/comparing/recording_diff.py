"""Differences between two recordings of the same task: turns, prompts, tool calls, texts, tokens and cost.

Two requests with one key are one turn. Requests between such turns are paired in order, within the same operation; the
rest was added or removed. Ids and times are no differences: only what an agent sees and what it costs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any, Literal

from llmproxy.core.dialects.conversation import parse_answer_as_message, read_request_messages
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.messages import ToolCall
from llmproxy.core.dialects.usage_and_cost import compute_cost
from llmproxy.core.keys.mcp import is_mcp_tool_call
from llmproxy.core.mcp_answer_replay import read_mcp_call_with_result
from llmproxy.core.traffic.canonical_json import parse_json_or_text
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.core.traffic.json_diff import build_difference, format_clipped_json, list_differences
from llmproxy.trace.comparing.diff import FailOn, ReplayDiff
from llmproxy.trace.trace_file import build_trace_from_interactions

What = Literal["same", "changed", "added", "removed"]
_ARGUMENTS = 5
_REQUEST_MEMBERS = ("provider", "operation", "model", "asked", "status", "ending")


@dataclass(frozen=True, slots=True)
class CallSummary:
    provider: str
    operation: str
    model: str | None
    asked: str
    """The last user message or tool result; for an MCP server the tool with its arguments."""
    status: int
    ending: str
    text: str
    calls: tuple[ToolCall, ...]
    tokens_in: int | None
    tokens_out: int | None
    cost: Decimal | None
    """USD; None if the price is unknown."""

    @property
    def title(self) -> str:
        return " ".join(part for part in (self.provider, self.operation, self.model) if part)


@dataclass(frozen=True, slots=True)
class TurnChange:
    what: str
    """``asked``, ``model``, ``status``, ``text``, ``call 1 get_weather $.city``, ``tokens in``, ``cost`` ..."""
    old: str
    """JSON, shortened; empty if missing."""
    new: str


@dataclass(frozen=True, slots=True)
class OldAndNewTurnPair:
    what: What
    old: int | None
    """Number of the turn in A, from 1."""
    new: int | None
    title: str
    asked: str
    changes: tuple[TurnChange, ...] = ()
    changes_beyond_run_diff: tuple[TurnChange, ...] = ()
    """Those of `changes` that the comparison of the runs lacks: all, unless both turns have the conversation."""


@dataclass(frozen=True, slots=True)
class CassetteTotals:
    turns: int
    calls: int
    tokens_in: int
    tokens_out: int
    cost: Decimal
    unpriced: int
    """Turns with an unknown price."""


@dataclass(frozen=True, slots=True)
class CassetteDiff:
    old: CassetteTotals
    new: CassetteTotals
    pairs: tuple[OldAndNewTurnPair, ...] = ()

    @property
    def is_same(self) -> bool:
        return all(pair.what == "same" for pair in self.pairs)

    def count_pairs_of_kind(self, what: What) -> int:
        return sum(pair.what == what for pair in self.pairs)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        for side in ("old", "new"):
            plain[side]["cost"] = float(plain[side]["cost"])
        for pair in plain["pairs"]:
            del pair["changes_beyond_run_diff"]
        return {"same": self.is_same, **plain}

    def summarize(self) -> str:
        kinds: tuple[What, ...] = ("same", "changed", "added", "removed")
        counts = ", ".join(f"{self.count_pairs_of_kind(kind)} {kind}" for kind in kinds)
        old, new, cost = self.old, self.new, self.new.cost - self.old.cost
        spent = f"{'-' if cost < 0 else '+'}{_format_usage_value(abs(cost))}" if cost else "unchanged"
        return (
            f"{counts}; tokens in {new.tokens_in - old.tokens_in:+d}, out {new.tokens_out - old.tokens_out:+d},"
            f" cost {spent}"
        )


def compare_cassettes(old: Sequence[Interaction], new: Sequence[Interaction]) -> CassetteDiff:
    """Compare two cassettes, each in the order of its requests. Never raises on invalid bodies."""
    a, b = [*map(summarize_recorded_call, old)], [*map(summarize_recorded_call, new)]
    pairs = tuple(_align_turns_by_key([each.key for each in old], [each.key for each in new], a, b))
    return CassetteDiff(_sum_turns(a), _sum_turns(b), pairs)


def summarize_recorded_call(one: Interaction) -> CallSummary:
    call = read_mcp_call_with_result(one) if is_mcp_tool_call(one.operation) else None
    answer = parse_answer_as_message(one)
    if call is not None:
        asked, text = f"{call.tool}({call.arguments})", f"error: {call.result}" if call.failed else call.result
    else:
        said = [each.text for each in read_request_messages(one.request.body) if each.role in ("user", "tool")]
        asked = said[-1] if said else ""
        text = _format_canonical_body(one.response.body) if answer is None else answer.text
    return CallSummary(
        provider=one.provider, operation=one.operation, model=one.model, asked=asked, status=one.response.status,
        ending=one.response.ending.value, text=text, calls=() if answer is None else answer.tool_calls,
        tokens_in=one.usage.input, tokens_out=one.usage.output,
        cost=compute_cost(one.provider, one.model, one.usage),
    )  # fmt: skip


def _format_canonical_body(body: bytes) -> str:
    text = body.decode("utf-8", "backslashreplace")
    tree = parse_json_or_text(text)
    return text if isinstance(tree, str) else json.dumps(tree, ensure_ascii=False, sort_keys=True)


def _align_turns_by_key(
    keys: list[Any], new_keys: list[Any], a: list[CallSummary], b: list[CallSummary]
) -> Iterator[OldAndNewTurnPair]:
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, keys, new_keys, autojunk=False).get_opcodes():
        i, j = i1, j1
        while i < i2 and j < j2:
            if tag != "equal" and a[i].operation != b[j].operation:
                break
            of_request = tuple(_compare_members(a[i], b[j], _REQUEST_MEMBERS))
            changes = (*of_request, *_compare_conversation(a[i], b[j]))
            what: What = "changed" if changes else "same"
            beyond = of_request if b[j].operation in CHAT else changes
            yield OldAndNewTurnPair(what, i + 1, j + 1, b[j].title, format_clipped_json(b[j].asked), changes, beyond)
            i, j = i + 1, j + 1
        for n in range(i, i2):
            changes = tuple(_list_lone_turn_changes(a[n]))
            yield OldAndNewTurnPair(
                "removed", n + 1, None, a[n].title, format_clipped_json(a[n].asked), changes, changes
            )
        for n in range(j, j2):
            changes = tuple(TurnChange(each.what, "", each.old) for each in _list_lone_turn_changes(b[n]))
            yield OldAndNewTurnPair("added", None, n + 1, b[n].title, format_clipped_json(b[n].asked), changes, changes)


def _list_lone_turn_changes(turn: CallSummary) -> Iterator[TurnChange]:
    if turn.text:
        yield TurnChange("text", format_clipped_json(turn.text), "")
    for n, call in enumerate(turn.calls, 1):
        yield TurnChange(f"call {n} {call.name}", format_clipped_json(parse_json_or_text(call.arguments)), "")


def _compare_members(old: CallSummary, new: CallSummary, names: Sequence[str]) -> Iterator[TurnChange]:
    for name in names:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            difference = build_difference(name, before, after)
            yield TurnChange(name, difference.old, difference.new)


def _compare_conversation(old: CallSummary, new: CallSummary) -> Iterator[TurnChange]:
    """Yield the changes that the comparison of the runs has too, if both turns have the conversation."""
    yield from _compare_members(old, new, ("text",))
    yield from _compare_tool_calls(old.calls, new.calls)
    for name in ("tokens_in", "tokens_out", "cost"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield TurnChange(name.replace("_", " "), _format_usage_value(before), _format_usage_value(after))


def _compare_tool_calls(old: Sequence[ToolCall], new: Sequence[ToolCall]) -> Iterator[TurnChange]:
    """Compare calls by name in order, then their arguments by JSON path. Ids are no difference."""
    names = [each.name for each in old], [each.name for each in new]
    for _, i1, i2, j1, j2 in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        both = min(i2 - i1, j2 - j1)
        for i, j in zip(range(i1, i1 + both), range(j1, j1 + both), strict=True):
            if old[i].name != new[j].name:
                yield TurnChange(f"call {j + 1}", _format_tool_call(old[i]), _format_tool_call(new[j]))
                continue
            found = list_differences(
                parse_json_or_text(old[i].arguments), parse_json_or_text(new[j].arguments), _ARGUMENTS
            )
            yield from (TurnChange(f"call {j + 1} {new[j].name} {each.path}", each.old, each.new) for each in found)
        yield from (TurnChange(f"call {i + 1}", _format_tool_call(old[i]), "") for i in range(i1 + both, i2))
        yield from (TurnChange(f"call {j + 1}", "", _format_tool_call(new[j])) for j in range(j1 + both, j2))


def _format_tool_call(call: ToolCall) -> str:
    return f"{format_clipped_json(call.name)[1:-1]}({format_clipped_json(parse_json_or_text(call.arguments))})"


def _sum_turns(turns: Sequence[CallSummary]) -> CassetteTotals:
    return CassetteTotals(
        turns=len(turns),
        calls=sum(len(each.calls) for each in turns),
        tokens_in=sum(each.tokens_in or 0 for each in turns),
        tokens_out=sum(each.tokens_out or 0 for each in turns),
        cost=sum((each.cost for each in turns if each.cost is not None), Decimal(0)),
        unpriced=sum(each.cost is None for each in turns),
    )


def _format_usage_value(value: object) -> str:
    return "unknown" if value is None else f"${value.normalize():f}" if isinstance(value, Decimal) else str(value)


@dataclass(frozen=True, slots=True)
class TraceAndRequestsDiff:
    trace: ReplayDiff
    requests: CassetteDiff

    @classmethod
    def compare(
        cls, old: Sequence[Interaction], new: Sequence[Interaction], *, names: tuple[str, str]
    ) -> TraceAndRequestsDiff:
        """Compare two recordings, each in the order of its requests. Never raises on invalid bodies."""
        before, after = (
            build_trace_from_interactions(side, name) for side, name in zip((old, new), names, strict=True)
        )
        return cls(ReplayDiff.compute(before, after), compare_cassettes(old, new))

    @property
    def pairs_beyond_run_diff(self) -> list[OldAndNewTurnPair]:
        return [
            each for each in self.requests.pairs if each.what in ("added", "removed") or each.changes_beyond_run_diff
        ]

    def fails(self, on: FailOn | None) -> bool:
        if on is None:
            return False
        return self.trace.fails(on) or (on == "any" and not self.requests.is_same)
