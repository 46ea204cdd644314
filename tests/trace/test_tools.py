"""Assertions about tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import llmproxy.trace
from llmproxy.core.traffic.interaction import Chunk, Ending
from llmproxy.trace import (
    AgentRun,
    AssertionResult,
    Cassette,
    cost_under,
    latency_under,
    no_loops,
    no_tool_called,
    same_tool_calls,
    token_count_under,
    tool_called,
    tool_order,
    tool_trajectory,
)
from llmproxy.trace.assertions import matches_partially
from llmproxy.trace.trace_file import build_trace_from_interactions
from tests.support.messages import said, user
from tests.trace.runs import Json, chat, tools, weather

RUN = tools(("a", {"x": 1, "z": {"p": 1, "q": 2}}), "b", ("a", {"x": 2}))


@pytest.mark.parametrize(("result", "passed"), [
    (tool_called(RUN, "a"), True),
    (tool_called(RUN, "c"), False),
    (tool_called(RUN, "a", times=2), True),
    (tool_called(RUN, "a", times=1), False),
    (tool_called(RUN, "c", times=0), True),
    (tool_called(RUN, "a", times=0), False),
    (tool_called(RUN, "a", with_args={"x": 2}), True),
    (tool_called(RUN, "a", with_args={"x": 3}), False),
    (tool_called(RUN, "a", with_args={"z": {"p": 1}}), True),
    (tool_called(RUN, "a", times=1, with_args={"x": 2}), True),
    (tool_called(RUN, "a", times=2, with_args={"x": 2}), False),
    (tool_called(RUN, "a", before="b"), True),
    (tool_called(RUN, "b", before="a"), False),
    (tool_called(RUN, "b", after="a"), True),
    (tool_called(RUN, "a", after="b"), False),
    (tool_called(RUN, "a", before="never"), False),
    (no_tool_called(RUN, "c"), True),
    (no_tool_called(RUN, "a"), False),
    (no_tool_called(RUN), False),
    (no_tool_called(tools(output_text="x")), True),
    (tool_order(RUN, ["a", "b"]), True),
    (tool_order(RUN, ["b", "a"]), True),
    (tool_order(RUN, ["a", "a", "b"]), False),
    (tool_order(RUN, ["a", "b"], strict=True), False),
    (tool_order(RUN, ["a", "b", "a"], strict=True), True),
    (tool_trajectory(RUN, ["a", "b", "a"]), True),
    (tool_trajectory(RUN, ["a", "a", "b"]), False),
    (tool_trajectory(RUN, ["a", "a", "b"], mode="unordered"), True),
    (tool_trajectory(RUN, ["a", "b"], mode="unordered"), False),
    (tool_trajectory(RUN, ["a", "b"], mode="subset"), True),
    (tool_trajectory(RUN, ["a"], mode="subset"), False),
    (tool_trajectory(RUN, ["a"], mode="superset"), True),
    (tool_trajectory(RUN, ["a", "c"], mode="superset"), False),
    (same_tool_calls(RUN, RUN), True),
    (same_tool_calls(tools("a", "b"), RUN), False),
    (same_tool_calls(tools(("a", {"x": 2})), tools(("a", {"x": 1}))), False),
    (same_tool_calls(tools(("a", {"x": 2})), tools(("a", {"x": 1})), ignore_fields=["a.*"]), True),
    (same_tool_calls(tools(("a", {}, 1)), tools(("a", {}, 2))), True),
    (same_tool_calls(tools(("a", {}, 1)), tools(("a", {}, 2)), compare_results=True), False),
    (same_tool_calls(tools(("a", {"x": "/tmp/b"})), tools(("a", {"x": "/tmp/a"}))), True),
], ids=str)  # fmt: skip
def test_the_table(result: AssertionResult, passed: bool) -> None:
    """What passes and what fails; a failure says something, a success nothing."""
    assert bool(result) is result.passed is passed
    assert bool(result.message) is not passed


ASKED = chat(1, [user("hi")], said("x"))
BODIES = {"garbage": b"x", "empty": b"{}", "no choices": b'{"id": "1", "model": "m"}'}


@pytest.mark.parametrize("kind", [*BODIES, "cut", "HTTP 500"])
def test_an_answer_that_was_not_read_proves_no_absence(kind: str) -> None:
    """Nobody knows what it called; a refused request proves nothing at all."""
    response, status, ending = ASKED.response, 200, Ending.COMPLETE
    if kind in BODIES:
        response = replace(response, chunks=(Chunk(1, BODIES[kind]),))
    else:
        status, ending = (200, Ending.CUT) if kind == "cut" else (500, ending)
    run = build_trace_from_interactions([replace(ASKED, response=replace(response, status=status, ending=ending))], "x")
    results = [no_tool_called(run), no_tool_called(run, "a"), tool_called(run, "a", times=0), no_loops(run)]
    results += [tool_trajectory(run, [], mode="subset"), tool_order(run, [], strict=True), same_tool_calls(run, run)]
    results += [same_tool_calls(tools(output_text="x"), run), same_tool_calls(tools(output_text="x"), Cassette())]
    late = replace(run, spans=[*RUN.spans, *run.spans])
    results += [tool_called(late, "b", after="a"), tool_called(late, "a", before="b")]
    results += [cost_under(run, 1), token_count_under(run, 999), latency_under(run, 9e9)] if status == 500 else []
    assert not any(results)
    assert all(each.message for each in results)
    assert no_tool_called(build_trace_from_interactions([ASKED], "x"))


def test_an_assert_shows_what_was_expected() -> None:
    """Plain pytest prints the result: name, expected, actual, message."""
    with pytest.raises(AssertionError, match=r"(?s)tool_called\(c\).*never called.*\['a', 'b', 'a'\]"):
        assert tool_called(RUN, "c"), tool_called(RUN, "c")


def test_a_run_and_a_file_are_taken(tmp_path: Path) -> None:
    """A run instead of a cassette; a path as baseline."""
    assert tool_called(AgentRun(RUN), "a")
    assert same_tool_calls(weather(), weather().save(tmp_path / "x.json"))
    with pytest.raises(TypeError, match="not str"):
        tool_called("x", "a")  # type: ignore[arg-type]


def test_nothing_is_proven_by_nothing() -> None:
    """An empty trace passes no assertion, and an assertion without content is refused."""
    empty = Cassette()
    for result in (no_tool_called(empty), no_tool_called(empty, "x"), tool_trajectory(empty, [], mode="strict")):
        assert not result
        assert "Nothing was recorded" in result.message
    with pytest.raises(ValueError, match="always holds"):
        tool_order(RUN, [])
    with pytest.raises(ValueError, match="always holds"):
        tool_trajectory(RUN, [], mode="superset")
    with pytest.raises(ValueError, match="strict, unordered, subset, superset, not 'any'"):
        tool_trajectory(RUN, [], mode="any")  # type: ignore[arg-type]


@pytest.mark.parametrize(("wanted", "given", "fits"), [
    ({"a": 1}, {"a": 1, "b": 2}, True),
    ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True),
    ({"a": [1]}, {"a": [1, 2]}, False),
    ({"a": True}, {"a": 1}, False),
    ({"a": None}, {}, False),
    ({}, "text", False),
])  # fmt: skip
def test_arguments_fit(wanted: Json, given: Json, fits: bool) -> None:
    """Objects may have more members, lists may not; true is not 1."""
    assert matches_partially(wanted, given) is fits


def test_evalcrafts_names_work() -> None:
    """`assert_<name>` is the same function; other names are not made up."""
    assert llmproxy.trace.assert_tool_called is tool_called
    for name in ("assert_Cassette", "assert_nothing", "nothing"):
        with pytest.raises(AttributeError):
            getattr(llmproxy.trace, name)
