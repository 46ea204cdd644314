"""Assertions about tools: which were called, with what, in which order. They return a result that is true or false.

    assert tool_called(run, "get_weather", times=1, with_args={"city": "Paris"})

Each takes a cassette or a run. An assertion that could not fail (an empty list of tools to find) is a ValueError, and a
trace in which nothing was recorded passes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from llmproxy.core.traffic.differences import fingerprint
from llmproxy.trace.files.cassette import Cassette
from llmproxy.trace.files.run import AgentRun
from llmproxy.trace.values.model import AssertionResult, Span

Subject = Cassette | AgentRun
Mode = Literal["strict", "unordered", "subset", "superset"]


def cassette_of(subject: Subject) -> Cassette:
    """Return the cassette of a run, or the cassette itself. Raises TypeError for anything else."""
    found = subject.cassette if isinstance(subject, AgentRun) else subject
    if not isinstance(found, Cassette):
        raise TypeError(f"an assertion takes a Cassette or an AgentRun, not {type(subject).__name__}")
    return found


def result(name: str, subject: Cassette, expected: Any, actual: Any, problem: str) -> AssertionResult:  # noqa: ANN401 - JSON
    """Return what an assertion found; `problem` is empty if it holds."""
    empty = not (subject.spans or subject.output_text or subject.total_tokens or subject.total_duration_ms)
    if empty and not problem and not subject.tool_call_count and not subject.total_cost_usd:
        problem = "Nothing was recorded in this trace, so nothing is proven."
    return AssertionResult(name, not problem, expected, actual, problem)


def matches(wanted: Any, given: Any) -> bool:  # noqa: ANN401 - JSON
    """Tell whether `given` has everything that `wanted` says; members of objects may be left out of `wanted`."""
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(
            name in given and matches(value, given[name]) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(given, list) and len(wanted) == len(given) and all(map(matches, wanted, given))
    return bool(wanted == given) and isinstance(wanted, bool) == isinstance(given, bool)


def tool_called(
    run: Subject,
    tool_name: str,
    times: int | None = None,
    with_args: dict[str, Any] | None = None,
    before: str | None = None,
    after: str | None = None,
) -> AssertionResult:
    """The tool was called: `times` times, with these arguments among others, first called `before`/`after` another.

    `times` counts the calls with these arguments. (Evalcraft's counts all calls of the tool.)
    """
    cassette = cassette_of(run)
    sequence = cassette.get_tool_sequence()
    calls = [span for span in cassette.get_tool_calls() if span.tool_name == tool_name]
    fitting = [span for span in calls if with_args is None or matches(with_args, _arguments(span))]
    said = "" if with_args is None else f" with {_json(with_args)}"
    name = f"tool_called({', '.join([tool_name, *_options(times, with_args, before, after)])})"
    expected: Any = {"tool": tool_name, "times": times, "with_args": with_args, "before": before, "after": after}
    expected = {key: value for key, value in expected.items() if value is not None}
    actual: Any = [_arguments(span) for span in calls] if with_args is not None else sequence
    problem = ""
    if times is not None and len(fitting) != times:
        problem = f"{tool_name!r} was called {_times(len(fitting))}{said}, not {_times(times)}."
    elif times is None and not fitting:
        problem = f"{tool_name!r} was never called{said}. "
        problem += f"Its calls had {_json(actual)}." if calls else f"Called were {sequence}."
    for other, sign, word in ((before, 1, "before"), (after, -1, "after")):
        if problem or other is None:
            continue
        if other not in sequence:
            problem = f"{other!r} was never called, so {tool_name!r} was not called {word} it. Called were {sequence}."
        elif tool_name not in sequence or sign * (sequence.index(other) - sequence.index(tool_name)) <= 0:
            problem = f"{tool_name!r} was not first called {word} {other!r}: {sequence}."
    return result(name, cassette, expected, actual, problem)


def no_tool_called(run: Subject, tool_name: str | None = None) -> AssertionResult:
    """This tool was not called; without a name: none at all."""
    cassette = cassette_of(run)
    called = [span.tool_name for span in cassette.get_tool_calls() if tool_name in (None, span.tool_name)]
    problem = f"Called {_times(len(called))}: {called}." if called else ""
    return result(f"no_tool_called({tool_name or ''})", cassette, [], called, problem)


def tool_order(run: Subject, expected_order: Sequence[str], strict: bool = False) -> AssertionResult:  # noqa: FBT001, FBT002 - Evalcraft's parameters
    """These tools were called in this order, others between them allowed; `strict`: exactly these.

    Raises ValueError if `expected_order` is empty and not `strict`: that would always hold.
    """
    cassette = cassette_of(run)
    sequence, expected = cassette.get_tool_sequence(), list(expected_order)
    if not strict and not expected:
        raise ValueError("tool_order() without tools always holds; no_tool_called(run) says that none was called")
    problem = ""
    if strict:
        problem = "" if sequence == expected else f"Called were {sequence}, not {expected}."
    else:
        rest = iter(sequence)
        lacking = next((tool for tool in expected if tool not in rest), None)  # `in` moves the iterator on
        problem = "" if lacking is None else f"{lacking!r} did not follow in this order: {sequence}."
    return result("tool_order(strict)" if strict else "tool_order", cassette, expected, sequence, problem)


def tool_trajectory(run: Subject, expected_tools: Sequence[str], *, mode: Mode = "strict") -> AssertionResult:
    """The tools called were these.

    `mode`: ``strict`` the same in the same order; ``unordered`` the same, each as often; ``subset`` no others than
    these; ``superset`` all of these, and maybe others.
    """
    cassette = cassette_of(run)
    sequence, expected = cassette.get_tool_sequence(), list(expected_tools)
    extra = list((Counter(sequence) - Counter(expected)).elements())
    missing = list((Counter(expected) - Counter(sequence)).elements())
    if mode in ("subset", "superset"):
        extra, missing = sorted(set(sequence) - set(expected)), sorted(set(expected) - set(sequence))
    problems = {
        "strict": sequence != expected,
        "unordered": bool(extra or missing),
        "subset": bool(extra),
        "superset": bool(missing),
    }
    if mode not in problems:
        raise ValueError(f"tool_trajectory() knows the modes {', '.join(problems)}, not {mode!r}")
    if mode == "superset" and not expected:
        raise ValueError("tool_trajectory(mode='superset') without tools always holds")
    problem = f"Called were {sequence}, expected {expected}: too many {extra}, missing {missing}."
    return result(f"tool_trajectory({mode})", cassette, expected, sequence, problem if problems[mode] else "")


def same_tool_calls(
    run: Subject,
    baseline: Subject | str | Path,
    *,
    ignore_fields: Iterable[str] = (),
    compare_results: bool = False,
) -> AssertionResult:
    """The same tools were called with the same arguments as in a baseline; ids, moments and temporary paths may differ."""
    from llmproxy.trace.comparing.diff import ReplayDiff

    old = Cassette.load(baseline) if isinstance(baseline, str | Path) else cassette_of(baseline)
    new = cassette_of(run)
    diff = ReplayDiff.compute(old, new, ignore_fields=ignore_fields, compare_results=compare_results)
    changed = [change for change in diff.tool_changes if change.looks is None]
    lines = [change.describe() for change in changed]
    if diff.tool_sequence_changed:
        lines.append(f"Tool sequence: {diff.old_tool_sequence} → {diff.new_tool_sequence}")
    return result("same_tool_calls", new, diff.old_tool_sequence, diff.new_tool_sequence, "\n".join(lines))


def _arguments(span: Span) -> Any:  # noqa: ANN401 - JSON
    return span.tool_args if span.tool_args is not None else ({} if span.input is None else span.input)


def call_key(span: Span) -> str:
    """Return what two calls share if they are the same call."""
    return f"{span.tool_name} {fingerprint(_arguments(span))}"


def _options(*values: object) -> list[str]:
    names = ("times", "with_args", "before", "after")
    return [f"{name}={value}" for name, value in zip(names, values, strict=True) if value is not None]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
