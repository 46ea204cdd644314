"""Comparison of how two models, or prompts, handle the same task: their tool calls and usage.

Equal calls (tool and arguments) are paired in order as far as possible; of the rest, calls of one tool at the same
place between pairs are the same call with other arguments; the others are new, or gone. A changed order is reported for
two consecutive calls that were swapped.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, NamedTuple

from llmproxy.amount_formatting import sum_if_all_known
from llmproxy.core.dialects.conversation import parse_answer_as_message
from llmproxy.core.dialects.usage_and_cost import compute_cost
from llmproxy.core.providers.provider_table import get_call_channel
from llmproxy.core.traffic.canonical_json import parse_json_or_text
from llmproxy.core.traffic.interaction import Ending, Interaction
from llmproxy.core.traffic.json_diff import clip, dump_for_comparison, list_differences
from llmproxy.protocol import AGENT, Channel

_FAILED = 400
_PLACES = 20
_SHOWN = 80


class ToolCallNameAndArguments(NamedTuple):
    tool: str
    arguments: Any
    """The value; the text if it is no JSON."""

    def __str__(self) -> str:
        return f"{self.tool}({clip(json.dumps(self.arguments, ensure_ascii=False, sort_keys=True), _SHOWN)})"


@dataclass(frozen=True, slots=True, order=True)
class BehaviorChange:
    what: str
    """``gone``, ``new``, ``arguments``, ``order``, ``answer``, ``verdict``."""
    tool: str = ""
    place: str = ""
    """JSON path in the arguments, ``$.city``."""
    old: str = ""
    new: str = ""

    def describe(self) -> str:
        match self.what:
            case "gone":
                return f"no longer called: {self.old}"
            case "new":
                return f"called besides: {self.new}"
            case "arguments":
                return (
                    f"other arguments of {self.tool}: {self.place} {self.old or '(nothing)'} -> "
                    f"{self.new or '(nothing)'}"
                )
            case "order":
                return f"other order: {self.new} before {self.old}"
            case "verdict":
                return f"verdict: {self.old} -> {self.new}"
            case _:
                return f"other last words: {self.new}"

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RunBehaviorSummary:
    calls: tuple[ToolCallNameAndArguments, ...] = ()
    answer: str = ""
    requests: int = 0
    tokens_in: int | None = 0
    """None if an answer does not report it."""
    tokens_out: int | None = 0
    cost: Decimal | None = Decimal(0)
    """US dollars; None if a price is unknown."""
    models: tuple[str, ...] = ()
    ended: bool = True
    """Whether its last answer was complete, successful and without tool calls: the run ended by itself."""

    def to_json(self) -> dict[str, object]:
        return {
            "calls": [{"tool": each.tool, "arguments": each.arguments} for each in self.calls],
            "answer": self.answer,
            "requests": self.requests,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "cost_usd": None if self.cost is None else float(self.cost),
            "models": list(self.models),
        }


def extract_run_behavior(interactions: Iterable[Interaction]) -> RunBehaviorSummary:
    calls: list[ToolCallNameAndArguments] = []
    counted: list[Interaction] = []
    answer, ended = "", False
    for one in interactions:
        if one.party != AGENT or get_call_channel(one.provider, one.operation) is not Channel.LLM:
            continue
        if one.response.status >= _FAILED:
            ended = False
            continue
        if (said := parse_answer_as_message(one)) is None:
            continue
        counted.append(one)
        ended = not said.tool_calls and one.response.ending is Ending.COMPLETE
        calls += [
            ToolCallNameAndArguments(call.name, parse_json_or_text(call.arguments or "{}")) for call in said.tool_calls
        ]
        answer = said.text or answer
    return RunBehaviorSummary(
        calls=tuple(calls),
        answer=answer,
        requests=len(counted),
        tokens_in=sum_if_all_known([0, *(one.usage.input for one in counted)]),
        tokens_out=sum_if_all_known([0, *(one.usage.output for one in counted)]),
        cost=sum_if_all_known([Decimal(0), *(compute_cost(one.provider, one.model, one.usage) for one in counted)]),
        models=tuple(dict.fromkeys(one.model for one in counted if one.model)),
        ended=ended,
    )


def compare_behaviors(old: RunBehaviorSummary, new: RunBehaviorSummary) -> tuple[BehaviorChange, ...]:
    """Return the differences of the new run, sorted; tokens and cost are compared over all runs elsewhere."""
    pairs, gone, added = _pair_calls(old.calls, new.calls)
    found = [BehaviorChange("gone", old.calls[at].tool, old=str(old.calls[at])) for at in gone]
    found += [BehaviorChange("new", new.calls[at].tool, new=str(new.calls[at])) for at in added]
    for i, j in pairs:
        places = list_differences(old.calls[i].arguments, new.calls[j].arguments, _PLACES)
        found += [BehaviorChange("arguments", old.calls[i].tool, each.path, each.old, each.new) for each in places]
    for (i, j), (later, after) in pairwise(sorted(pairs, key=lambda pair: pair[1])):
        if later < i:
            found.append(BehaviorChange("order", new.calls[j].tool, old=str(new.calls[after]), new=str(new.calls[j])))
    if old.answer != new.answer:
        found.append(BehaviorChange("answer", old=_clip_text(old.answer), new=_clip_text(new.answer)))
    return tuple(sorted(found))


def _pair_calls(
    old: Sequence[ToolCallNameAndArguments], new: Sequence[ToolCallNameAndArguments]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    keys, new_keys = ([(call.tool, dump_for_comparison(call.arguments)) for call in side] for side in (old, new))
    blocks = SequenceMatcher(None, keys, new_keys, autojunk=False).get_matching_blocks()
    pairs = [(i + n, j + n) for i, j, size in blocks for n in range(size)]
    left, right = dict[int, object](enumerate(keys)), dict[int, object](enumerate(new_keys))
    for i, j in pairs:
        del left[i], right[j]
    pairs += _take_all_equal_pairs(left, right)  # moved
    # The rest by tool and place: equally many paired calls before them.
    gone: dict[int, object] = {i: (old[i].tool, sum(n < i for n, _ in pairs)) for i in left}
    added: dict[int, object] = {j: (new[j].tool, sum(n < j for _, n in pairs)) for j in right}
    pairs += _take_all_equal_pairs(gone, added)
    return sorted(pairs), list(gone), list(added)


def _take_all_equal_pairs(left: dict[int, object], right: dict[int, object]) -> list[tuple[int, int]]:
    waiting: dict[object, deque[int]] = defaultdict(deque)
    for j, key in right.items():
        waiting[key].append(j)
    pairs = [(i, queue.popleft()) for i, key in left.items() if (queue := waiting.get(key))]
    for i, j in pairs:
        del left[i], right[j]
    return pairs


def count_calls_per_tool(calls: Iterable[ToolCallNameAndArguments]) -> Counter[str]:
    return Counter(call.tool for call in calls)


def _clip_text(text: str) -> str:
    return clip(" ".join(text.split()), _SHOWN)
