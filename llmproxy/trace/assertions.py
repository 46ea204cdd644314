"""Assertions about a run's output, usage and tool calls. They return a result, true or false.

Unknown values prove nothing: a call without a known price, tokens or time fails a budget, unless the caller passes
``on_unknown="ignore"``. An assertion that could not fail is a ValueError, and an empty trace passes nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from llmproxy.amount_formatting import format_count, format_times
from llmproxy.core.traffic.canonical_json import format_value_as_one_line_json
from llmproxy.core.traffic.json_diff import dump_for_comparison
from llmproxy.trace.comparing.diff import ReplayDiff
from llmproxy.trace.span_models import AssertionResult, EvalResult, SpanKind, get_span_arguments_or_text
from llmproxy.trace.trace_file import AgentRun, Cassette

OnUnknown = Literal["fail", "ignore"]
_SHOWN = 300
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
DISJOINT_TEXTS = ("", "\n", "\N{SECTION SIGN}", "0 Zz", " a\n-b\n")
"""Texts without anything in common: a pattern that all of them match holds for every text, unless it forbids one."""
Subject = Cassette | AgentRun
Mode = Literal["strict", "unordered", "subset", "superset"]


def output_contains(run: Subject, substring: str, case_sensitive: bool = True) -> AssertionResult:
    """The output contains this text. Raises ValueError for an empty text, which every output contains."""
    if not substring:
        raise ValueError("output_contains() of an empty text always holds")
    cassette = unwrap_cassette_from_run(run)
    text = cassette.output_text
    found = substring in text if case_sensitive else substring.casefold() in text.casefold()
    problem = "" if found else f"{substring!r} is not in the output: {_clip_text(text)!r}"
    return build_assertion_result(f"output_contains({substring!r})", cassette, substring, text, problem)


def output_matches(run: Subject, pattern: str | re.Pattern[str]) -> AssertionResult:
    """The output matches this regular expression somewhere. Raises `re.error`; ValueError if every text matches it."""
    cassette = unwrap_cassette_from_run(run)
    compiled = re.compile(pattern)
    if all(map(compiled.search, DISJOINT_TEXTS)) and not re.search(r"\(\?<?!", compiled.pattern):
        raise ValueError(f"output_matches() of {compiled.pattern!r} always holds: it matches in any text")
    text = cassette.output_text
    found = compiled.search(text)
    problem = "" if found else f"{compiled.pattern!r} matches nowhere in the output: {_clip_text(text)!r}"
    actual = found[0] if found else text
    return build_assertion_result(f"output_matches({compiled.pattern!r})", cassette, compiled.pattern, actual, problem)


def output_json(run: Subject, embedded: bool = False) -> AssertionResult:
    """The output is JSON; `embedded`: or contains it in a fenced block. `actual` is the value."""
    cassette = unwrap_cassette_from_run(run)
    value, problem = _parse_json_output(cassette, embedded=embedded)
    actual = cassette.output_text if problem else value
    return build_assertion_result("output_json", cassette, "JSON", actual, problem)


def output_json_schema(run: Subject, schema: Any, embedded: bool = False) -> AssertionResult:
    """The output is JSON and fits a JSON Schema or a pydantic model. Raises ValueError, TypeError: invalid schema."""
    cassette = unwrap_cassette_from_run(run)
    value, problem = _parse_json_output(cassette, embedded=embedded)
    if not problem:
        problem = _validate_model(schema, value) if isinstance(schema, type) else _list_schema_violations(schema, value)
    expected = getattr(schema, "__name__", schema)
    actual = cassette.output_text if value is None else value
    return build_assertion_result("output_json_schema", cassette, expected, actual, problem)


def _parse_json_output(cassette: Cassette, *, embedded: bool) -> tuple[Any, str]:
    texts = [cassette.output_text, *(_FENCE.findall(cassette.output_text) if embedded else ())]
    problem = ""
    for text in texts:
        try:
            return json.loads(text), ""
        except (ValueError, RecursionError) as error:
            problem = problem or f"The output is not JSON ({error}): {_clip_text(text)!r}"
    return None, problem


def _validate_model(model: Any, value: object) -> str:
    if (validate := getattr(model, "model_validate", None)) is None:
        raise ValueError(f"output_json_schema() takes a JSON Schema or a pydantic model, not {model!r}")
    try:
        validate(value)
    except ValueError as error:  # pydantic's ValidationError is one
        return f"The output does not fit {model.__name__}: {error}"
    return ""


def _list_schema_violations(schema: object, value: object) -> str:
    import jsonschema  # type: ignore[import-untyped,unused-ignore]
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, Mapping | bool):
        raise TypeError(f"output_json_schema() takes a JSON Schema or a pydantic model, not {schema!r:.60}")
    kind: Any = jsonschema.validators.validator_for(schema)  # its types know no schema that is a boolean
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"This is no JSON Schema: {error.message}") from error
    try:  # a registry of its own fetches nothing
        problems = sorted(kind(schema, registry=Registry()).iter_errors(value), key=lambda error: error.json_path)
    except Unresolvable as error:
        raise ValueError(f"This JSON Schema has a `$ref` to nothing in it ({error}): write it into `$defs`.") from error
    return "\n".join(f"{error.json_path}: {error.message}" for error in problems)


def cost_under(
    run: Subject, max_usd: float, *, on_unknown: OnUnknown = "fail", on_unknown_price: OnUnknown | None = None
) -> AssertionResult:
    """All calls together cost at most this much, in USD; an unknown price fails. `on_unknown_price`: Evalcraft's."""
    unknown = on_unknown_price or on_unknown
    return _build_limit_result(run, "cost", unwrap_cassette_from_run(run).total_cost_usd, max_usd, "${:.6f}", unknown)


def token_count_under(run: Subject, max_tokens: int, *, on_unknown: OnUnknown = "fail") -> AssertionResult:
    """All calls together took at most this many tokens."""
    return _build_limit_result(run, "tokens", unwrap_cassette_from_run(run).total_tokens, max_tokens, "{}", on_unknown)


def latency_under(run: Subject, max_ms: float, *, on_unknown: OnUnknown = "fail") -> AssertionResult:
    """All spans together took at most this many milliseconds (the sum, not elapsed time)."""
    return _build_limit_result(
        run, "duration", unwrap_cassette_from_run(run).total_duration_ms, max_ms, "{:.1f} ms", on_unknown
    )


def _build_limit_result(
    run: Subject, what: str, actual: float, limit: float, form: str, on_unknown: OnUnknown
) -> AssertionResult:
    if on_unknown not in ("fail", "ignore"):
        raise ValueError(f"what to do with the unknown is 'fail' or 'ignore', not {on_unknown!r}")
    cassette = unwrap_cassette_from_run(run)
    lacking = cassette.unknown.get(what, 0)
    problem = ""
    if not actual <= limit:
        problem = f"The {what} is {form.format(actual)}, over {form.format(limit)}."
    elif lacking and on_unknown == "fail":
        problem = (
            f"The {what} of {lacking} span{'s' * (lacking > 1)} is not known; what is known adds up to"
            f" {form.format(actual)}. on_unknown='ignore' takes the known part for the whole."
        )
    names = {"cost": "cost_under", "tokens": "token_count_under", "duration": "latency_under"}
    return build_assertion_result(f"{names[what]}({form.format(limit)})", cassette, limit, actual, problem)


def no_loops(run: Subject, *, max_tool_repeats: int = 2, max_step_repeats: int = 2) -> AssertionResult:
    """The agent did not go in circles.

    No call (tool and arguments) was made more than `max_tool_repeats` times in all, and no answer of a model occurred
    more than `max_step_repeats` times in a row with the same words.
    """
    cassette = unwrap_cassette_from_run(run)
    tools = cassette.get_tool_calls()
    calls = Counter(f"{span.tool_name} {dump_for_comparison(get_span_arguments_or_text(span))}" for span in tools)
    loops = [f"{call} x {count}" for call, count in calls.items() if count > max_tool_repeats]
    for words_, group in groupby([span.output for span in cassette.spans if span.kind is SpanKind.LLM_RESPONSE]):
        count = len(list(group))
        if words_ and count > max_step_repeats:
            loops.append(f"answer {_clip_text(str(words_))!r} x {count}")
    problem = f"The agent repeats itself: {'; '.join(loops)}." if loops else ""
    return build_assertion_result("no_loops", cassette, "no loop", loops or None, problem, counts_all=True)


def evaluate(*results: AssertionResult) -> EvalResult:
    """Combine several results. Raises ValueError for none, which would always pass."""
    if not results:
        raise ValueError("evaluate() of nothing always passes")
    passed = sum(result.passed for result in results)
    return EvalResult(passed == len(results), passed / len(results), list(results))


def _clip_text(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def unwrap_cassette_from_run(subject: Subject) -> Cassette:
    """Return the cassette of a run, or the cassette itself. Raises TypeError for anything else."""
    found = subject.cassette if isinstance(subject, AgentRun) else subject
    if not isinstance(found, Cassette):
        raise TypeError(f"an assertion takes a Cassette or an AgentRun, not {type(subject).__name__}")
    return found


def build_assertion_result(
    name: str, subject: Cassette, expected: Any, actual: Any, problem: str, *, counts_all: bool = False
) -> AssertionResult:
    """Return an assertion's result; `problem`: empty if it holds; `counts_all`: only if every tool call is known."""
    problem = problem or _explain_unproven(subject, counts_all=counts_all)
    return AssertionResult(name, not problem, expected, actual, problem)


def _explain_unproven(subject: Cassette, *, counts_all: bool) -> str:
    seen = subject.spans or subject.output_text or subject.total_tokens or subject.total_duration_ms
    if not (seen or subject.tool_call_count or subject.total_cost_usd):
        return "Nothing was recorded in this trace, so nothing is proven."
    if subject.was_refused:
        return "Every request to a model in this trace got an HTTP error, so nothing is proven."
    if counts_all and (unread := subject.unknown.get("answers")):
        return f"Not all tool calls are known: {format_count(unread, 'answer')} could not be read, or broke off."
    return ""


def matches_partially(wanted: Any, given: Any) -> bool:
    """Return whether `given` contains everything in `wanted`, which may lack members of objects."""
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(
            name in given and matches_partially(value, given[name]) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(given, list) and len(wanted) == len(given) and all(map(matches_partially, wanted, given))
    return bool(wanted == given) and isinstance(wanted, bool) == isinstance(given, bool)


def tool_called(
    run: Subject, tool_name: str, times: int | None = None, with_args: dict[str, Any] | None = None,
    before: str | None = None, after: str | None = None,
) -> AssertionResult:  # fmt: skip
    """The tool was called: `times` times, with these arguments among others, first called `before`/`after` another.

    `times` counts the calls with these arguments. (Evalcraft's counts all calls of the tool.)
    """
    cassette = unwrap_cassette_from_run(run)
    sequence = cassette.get_tool_sequence()
    calls = [span for span in cassette.get_tool_calls() if span.tool_name == tool_name]
    fitting = [
        span for span in calls if with_args is None or matches_partially(with_args, get_span_arguments_or_text(span))
    ]
    said = "" if with_args is None else f" with {format_value_as_one_line_json(with_args)}"
    given = {"times": times, "with_args": with_args, "before": before, "after": after}
    conditions = {key: value for key, value in given.items() if value is not None}
    name = f"tool_called({', '.join([tool_name, *(f'{key}={value}' for key, value in conditions.items())])})"
    actual: Any = [get_span_arguments_or_text(span) for span in calls] if with_args is not None else sequence
    problem = ""
    if times is not None and len(fitting) != times:
        problem = f"{tool_name!r} was called {format_times(len(fitting))}{said}, not {format_times(times)}."
    elif times is None and not fitting:
        problem = f"{tool_name!r} was never called{said}. "
        problem += f"Its calls had {format_value_as_one_line_json(actual)}." if calls else f"Called were {sequence}."
    for other, sign, word in ((before, 1, "before"), (after, -1, "after")):
        if problem or other is None:
            continue
        if other not in sequence:
            problem = f"{other!r} was never called, so {tool_name!r} was not called {word} it. Called were {sequence}."
        elif tool_name not in sequence or sign * (sequence.index(other) - sequence.index(tool_name)) <= 0:
            problem = f"{tool_name!r} was not first called {word} {other!r}: {sequence}."
    expected = {"tool": tool_name} | conditions
    counts_all = (times, before, after) != (None, None, None)
    return build_assertion_result(name, cassette, expected, actual, problem, counts_all=counts_all)


def no_tool_called(run: Subject, tool_name: str | None = None) -> AssertionResult:
    """This tool was not called; without a name: no tool was."""
    cassette = unwrap_cassette_from_run(run)
    called = [span.tool_name for span in cassette.get_tool_calls() if tool_name in (None, span.tool_name)]
    problem = f"Called {format_times(len(called))}: {called}." if called else ""
    return build_assertion_result(f"no_tool_called({tool_name or ''})", cassette, [], called, problem, counts_all=True)


def tool_order(run: Subject, expected_order: Sequence[str], strict: bool = False) -> AssertionResult:
    """These tools were called in this order, with others between; `strict`: exactly. Raises ValueError: none."""
    cassette = unwrap_cassette_from_run(run)
    sequence, expected = cassette.get_tool_sequence(), list(expected_order)
    if not strict and not expected:
        raise ValueError("tool_order() without tools always holds; no_tool_called(run) says that none was called")
    if strict:
        problem = "" if sequence == expected else f"Called were {sequence}, not {expected}."
    else:
        rest = iter(sequence)
        lacking = next((tool for tool in expected if tool not in rest), None)  # `in` moves the iterator on
        problem = "" if lacking is None else f"{lacking!r} did not follow in this order: {sequence}."
    name = "tool_order(strict)" if strict else "tool_order"
    return build_assertion_result(name, cassette, expected, sequence, problem, counts_all=strict)


def tool_trajectory(run: Subject, expected_tools: Sequence[str], *, mode: Mode = "strict") -> AssertionResult:
    """These tools were called.

    `mode`: ``strict`` the same in the same order; ``unordered`` the same, each as often; ``subset`` no others than
    these; ``superset`` all of these, and maybe others.
    """
    cassette = unwrap_cassette_from_run(run)
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
    problem, exact = problem if problems[mode] else "", mode != "superset"
    return build_assertion_result(f"tool_trajectory({mode})", cassette, expected, sequence, problem, counts_all=exact)


def same_tool_calls(
    run: Subject, baseline: Subject | str | Path, *, ignore_fields: Iterable[str] = (), compare_results: bool = False
) -> AssertionResult:
    """The same tools had the same arguments as in a baseline; ids, times and temporary paths may differ."""
    old = Cassette.load(baseline) if isinstance(baseline, str | Path) else unwrap_cassette_from_run(baseline)
    new = unwrap_cassette_from_run(run)
    diff = ReplayDiff.compute(old, new, ignore_fields=ignore_fields, compare_results=compare_results)
    lines = [change.describe() for change in diff.tool_changes if change.looks is None]
    if diff.tool_sequence_changed:
        lines.append(f"Tool sequence: {diff.old_tool_sequence} → {diff.new_tool_sequence}")
    if not lines and (unproven := _explain_unproven(old, counts_all=True)):
        lines.append(f"The baseline: {unproven}")
    sequences = diff.old_tool_sequence, diff.new_tool_sequence
    return build_assertion_result("same_tool_calls", new, *sequences, "\n".join(lines), counts_all=True)
