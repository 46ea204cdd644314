"""What holds for every matcher and every value."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from llmproxy.report.events import Status
from llmproxy.suite.matchers.apply import check_value, evaluate_matcher_on_value
from llmproxy.suite.matchers.registry import ABSENT, Unknown
from llmproxy.suite.matchers.variable_references import CaseVariables

PASSED, FAILED, ERROR = Status.PASSED, Status.FAILED, Status.ENVIRONMENT_ERROR


def scope() -> CaseVariables:
    made = CaseVariables(declared=["later"], env={})
    made.capture_row("task", {"id": 1})
    return made


odd_texts = st.sampled_from(["", "a", "ab", "1", "2026-01-01", "A"])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | odd_texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)
actuals = values | st.just(ABSENT) | st.just(Unknown("hidden"))
words = st.sampled_from(["a", "b", "1", "A"]) | st.integers(0, 3)
limits = st.integers(-3, 3) | st.just("2026-01-01")
simple = (
    scalars
    | st.builds(
        lambda name, word: {name: word},
        st.sampled_from(["contains", "containsAny", "notContains"]),
        words | st.lists(words, min_size=1, max_size=2),
    )
    | st.builds(lambda name, limit: {name: limit}, st.sampled_from(["gt", "gte", "lt", "lte"]), limits)
    | st.builds(lambda pattern: {"regex": pattern}, st.sampled_from(["a", "^a$", "[0-9]", "(["]))
    | st.builds(lambda flag: {"exists": flag}, st.booleans())
    | st.builds(lambda each: {"in": each}, st.lists(scalars, min_size=1, max_size=3))
    | st.builds(lambda each: {"eq": each}, values)
    | st.builds(lambda each: {"json": each}, values)
    | st.sampled_from(
        [{"ref": "$task.id"}, {"ref": "$later.id"}, {"jsonSchema": {"type": "string"}}, {"nonsense": 1}, {}]
    )
)
both = st.sampled_from(["anyOf", "allOf"])
matchers = st.recursive(
    simple,
    lambda inner: (
        st.builds(lambda each: {"not": each}, inner)
        | st.builds(lambda name, each: {name: each}, both, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=4,
)


def status(actual: object, matcher: object) -> Status:
    found = {each.status for each in check_value("x", actual, matcher, scope())}
    return FAILED if FAILED in found else ERROR if ERROR in found else PASSED


@settings(max_examples=200, deadline=None)
@given(actuals, matchers)
def test_a_matcher_and_its_negation_never_agree(actual: object, matcher: object) -> None:
    assert (status(actual, matcher), status(actual, {"not": matcher})) not in {(PASSED, PASSED), (FAILED, FAILED)}


@settings(max_examples=200, deadline=None)
@given(actuals, matchers)
def test_denying_twice_never_makes_more_of_it(actual: object, matcher: object) -> None:
    """What passes passes, what did not pass does not."""
    assert (status(actual, {"not": {"not": matcher}}) is PASSED) == (status(actual, matcher) is PASSED)


@settings(max_examples=150, deadline=None)
@given(matchers)
def test_what_is_not_known_passes_nothing(matcher: object) -> None:
    assert status(Unknown("hidden"), matcher) is not PASSED


@settings(max_examples=150, deadline=None)
@given(actuals, st.lists(matchers, min_size=1, max_size=3))
def test_combinations_are_those_of_logic(actual: object, branches: list[object]) -> None:
    """AnyOf passes as soon as one branch does, allOf only if all do; one key more never helps."""
    each = [status(actual, branch) is PASSED for branch in branches]
    assert (status(actual, {"anyOf": branches}) is PASSED) == any(each)
    assert (status(actual, {"allOf": branches}) is PASSED) == all(each)


@settings(max_examples=150, deadline=None)
@given(actuals, matchers)
def test_one_answer_and_the_list_of_assertions_agree(actual: object, matcher: object) -> None:
    """What selects rows is what reports about them."""
    assert (evaluate_matcher_on_value(actual, matcher, scope()).outcome.value == "holds") == (
        status(actual, matcher) is PASSED
    )
