"""Assertions about what came out and what it took. They return a result that is true or false.

    assert output_contains(run, "Paris") and cost_under(run, 0.01)

What is not known proves nothing: a call whose price, tokens or time nobody told fails a budget, unless the caller says
``on_unknown="ignore"``. For assertions about tools see `trace.asserting.tools`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Literal

from llmproxy.errors import MachineError
from llmproxy.install import requirement
from llmproxy.trace.asserting.tools import Subject, call_key, cassette_of, result
from llmproxy.trace.files.cassette import Cassette
from llmproxy.trace.values.model import AssertionResult, EvalResult, SpanKind

OnUnknown = Literal["fail", "ignore"]
_SHOWN = 300
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)

# -- what came out ---------------------------------------------------------------------------------------------------------


def output_contains(run: Subject, substring: str, case_sensitive: bool = True) -> AssertionResult:  # noqa: FBT001, FBT002 - Evalcraft's parameters
    """The output has this text in it. Raises ValueError for an empty text, which is in every output."""
    if not substring:
        raise ValueError("output_contains() of an empty text always holds")
    cassette = cassette_of(run)
    text = cassette.output_text
    found = substring in text if case_sensitive else substring.casefold() in text.casefold()
    problem = "" if found else f"{substring!r} is not in the output: {_short(text)!r}"
    return result(f"output_contains({substring!r})", cassette, substring, text, problem)


def output_matches(run: Subject, pattern: str | re.Pattern[str]) -> AssertionResult:
    """The output matches this regular expression somewhere. Raises `re.error` for one that is none."""
    cassette = cassette_of(run)
    compiled = re.compile(pattern)
    found = compiled.search(cassette.output_text)
    problem = "" if found else f"{compiled.pattern!r} matches nowhere in the output: {_short(cassette.output_text)!r}"
    actual = found[0] if found else cassette.output_text
    return result(f"output_matches({compiled.pattern!r})", cassette, compiled.pattern, actual, problem)


def output_json(run: Subject, embedded: bool = False) -> AssertionResult:  # noqa: FBT001, FBT002 - Evalcraft's parameters
    """The output is JSON; `embedded`: or holds it in a fenced block. `actual` is the value."""
    cassette = cassette_of(run)
    value, problem = _json_output(cassette, embedded=embedded)
    return result("output_json", cassette, "JSON", value if not problem else cassette.output_text, problem)


def output_json_schema(run: Subject, schema: Any, embedded: bool = False) -> AssertionResult:  # noqa: ANN401, FBT001, FBT002 - JSON
    """The output is JSON and fits a JSON Schema (an object) or a pydantic model (a class).

    Raises:
        MachineError: for a JSON Schema the package ``jsonschema`` is missing.
        ValueError, TypeError: the schema itself is none.

    """
    cassette = cassette_of(run)
    value, problem = _json_output(cassette, embedded=embedded)
    if not problem:
        problem = _against_model(schema, value) if isinstance(schema, type) else _against_schema(schema, value)
    expected = getattr(schema, "__name__", schema)
    return result(
        "output_json_schema", cassette, expected, value if value is not None else cassette.output_text, problem
    )


def _json_output(cassette: Cassette, *, embedded: bool) -> tuple[Any, str]:
    texts = [cassette.output_text, *(_FENCE.findall(cassette.output_text) if embedded else ())]
    problem = ""
    for text in texts:
        try:
            return json.loads(text), ""
        except (ValueError, RecursionError) as error:
            problem = problem or f"The output is not JSON ({error}): {_short(text)!r}"
    return None, problem


def _against_model(model: Any, value: object) -> str:  # noqa: ANN401 - a pydantic class
    validate = getattr(model, "model_validate", None)
    if validate is None:
        raise ValueError(f"output_json_schema() takes a JSON Schema or a pydantic model, not {model!r}")
    try:
        validate(value)
    except ValueError as error:  # pydantic's ValidationError is one
        return f"The output does not fit {model.__name__}: {error}"
    return ""


def _against_schema(schema: object, value: object) -> str:
    try:
        import jsonschema  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        raise MachineError(
            "To compare with a JSON Schema the package jsonschema is needed.",
            hint=f"pip install jsonschema, or '{requirement('runner')}'",
        ) from error
    if not isinstance(schema, Mapping | bool):
        raise TypeError(f"output_json_schema() takes a JSON Schema or a pydantic model, not {schema!r:.60}")
    kind: Any = jsonschema.validators.validator_for(schema)  # its types know no schema that is a boolean
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"This is no JSON Schema: {error.message}") from error
    problems = sorted(kind(schema).iter_errors(value), key=lambda error: error.json_path)
    return "\n".join(f"{error.json_path}: {error.message}" for error in problems)


# -- what it took ----------------------------------------------------------------------------------------------------------


def cost_under(
    run: Subject, max_usd: float, *, on_unknown: OnUnknown = "fail", on_unknown_price: OnUnknown | None = None
) -> AssertionResult:
    """All calls together cost at most this much, in USD. A call whose price is not known fails it.

    `on_unknown_price` is Evalcraft's name of `on_unknown`.
    """
    unknown = on_unknown_price or on_unknown
    return _under(run, "cost", cassette_of(run).total_cost_usd, max_usd, "${:.6f}", unknown)


def token_count_under(run: Subject, max_tokens: int, *, on_unknown: OnUnknown = "fail") -> AssertionResult:
    """All calls together took at most this many tokens."""
    return _under(run, "tokens", cassette_of(run).total_tokens, max_tokens, "{}", on_unknown)


def latency_under(run: Subject, max_ms: float, *, on_unknown: OnUnknown = "fail") -> AssertionResult:
    """All spans together took at most this many milliseconds (the sum, not the time on the wall)."""
    return _under(run, "duration", cassette_of(run).total_duration_ms, max_ms, "{:.1f} ms", on_unknown)


def _under(run: Subject, what: str, actual: float, limit: float, form: str, on_unknown: OnUnknown) -> AssertionResult:
    if on_unknown not in ("fail", "ignore"):
        raise ValueError(f"what to do with the unknown is 'fail' or 'ignore', not {on_unknown!r}")
    cassette = cassette_of(run)
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
    return result(f"{names[what]}({form.format(limit)})", cassette, limit, actual, problem)


def no_loops(run: Subject, *, max_tool_repeats: int = 2, max_step_repeats: int = 2) -> AssertionResult:
    """The agent did not go in circles.

    No call (tool and arguments) was made more than `max_tool_repeats` times, wherever it stands, and no answer of a
    model came more than `max_step_repeats` times in a row with the same words.
    """
    cassette = cassette_of(run)
    calls = Counter(call_key(span) for span in cassette.get_tool_calls())
    loops = [f"{call} x {count}" for call, count in calls.items() if count > max_tool_repeats]
    words = [span.output for span in cassette.spans if span.kind is SpanKind.LLM_RESPONSE]
    for words_, group in groupby(words):
        count = len(list(group))
        if words_ and count > max_step_repeats:
            loops.append(f"answer {_short(str(words_))!r} x {count}")
    problem = f"The agent repeats itself: {'; '.join(loops)}." if loops else ""
    return result("no_loops", cassette, "no loop", loops or None, problem)


def evaluate(*results: AssertionResult) -> EvalResult:
    """Put several results together. Raises ValueError for none: that would always pass."""
    if not results:
        raise ValueError("evaluate() of nothing always passes")
    passed = sum(result.passed for result in results)
    return EvalResult(passed == len(results), passed / len(results), list(results))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
