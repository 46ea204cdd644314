"""Events that travelled as plain values are the same events."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest

from llmproxy.pytest.scenario_report import build_scenario_rows
from llmproxy.report.events import (
    Assertion,
    Completed,
    Event,
    Finished,
    JudgedCriterion,
    Message,
    PartyUse,
    Selected,
    Started,
    Status,
    Step,
    Verdict,
)
from llmproxy.report.run_tree import (
    EventsGroupedByRun,
    deserialize_event,
    format_conversation,
    format_message_content,
    format_tool_calls,
    show_value,
    to_plain,
    value_has_annotated_type,
)
from tests.report import samples


def test_runs_are_grouped_by_scenario_and_in_order_of_their_sample() -> None:
    """Five runs of one scenario are one scenario with five runs, whichever ended first."""
    last_first = reversed([each for each in samples.events() if getattr(each, "run_id", "").startswith("flaky")])
    story = samples.story([*last_first, *samples.events()])
    flaky = next(each for each in story.scenarios() if each.id == "flaky")
    assert [run.started.sample for run in flaky.runs] == [1, 2, 3, 4, 5]


def test_a_scenario_that_passed_and_failed_is_flaky() -> None:
    """Mixed results have a name of their own; the same result in every run keeps its own."""
    found = {each.id: each.status for each in samples.story().scenarios()}
    assert found == {
        "fine": Status.PASSED, "wrong": Status.FAILED, "flaky": Status.FLAKY, "missed": Status.ENVIRONMENT_ERROR,
        "left": Status.SKIPPED, "cut": Status.ENVIRONMENT_ERROR,
    }  # fmt: skip


def test_a_run_without_an_end_says_that_it_was_interrupted() -> None:
    """Ctrl-C must not read as a pass; a stray event makes no run."""
    run = samples.story().runs["cut-1"]
    assert run.finished is None
    assert run.status is Status.ENVIRONMENT_ERROR
    assert "interrupted" in run.reason
    assert samples.story([Finished(run_id="who", scenario="who", status=Status.PASSED)]).runs == {}


def test_every_event_is_plain_json() -> None:
    """Odd characters and half a surrogate pair included; what nobody knows is null, never 0."""
    for event in samples.events():
        assert json.loads(json.dumps(to_plain(event)))["event"] == type(event).__name__.lower()
    assert to_plain("half \ud800 of a pair") == "half \\ud800 of a pair"
    assert to_plain({"x": (Status.PASSED, {1: None}, math.nan)}) == {"x": ["passed", {"1": None}, "nan"]}
    finished = to_plain(samples.finished("fine", 1, Status.PASSED))
    assert finished["usage"]["agent"]["output_tokens"] is None
    assert finished["waited_seconds"] is None


def test_scenarios_of_one_name_in_two_tests_are_two() -> None:
    """One that passes and one that fails are not one that is flaky; runs of one test stay together."""
    story = EventsGroupedByRun()
    for place, cassette, status in (
        ("test_a.py:3", "a/same", "passed"),
        ("test_a.py:3", "a/same", "passed"),
        ("test_b.py:9", "b/same", "failed"),
        ("test_b.py:9", "b/same.2", "passed"),
    ):
        run_id = f"{len(story.runs)}"
        story.add_event(Started(run_id=run_id, scenario="same", name="same", place=place, cassette=cassette))
        story.add_event(Finished(run_id=run_id, scenario="same", status=Status(status)))
    rows = build_scenario_rows(story)
    found = [(each.status.value, len(each.runs)) for each in story.scenarios()]
    assert found == [("passed", 2), ("failed", 1), ("passed", 1)]
    story.add_event(Completed(exit_code=1, seconds=1.0, scenarios=rows))
    assert [each.status.value for each in story.scenarios()] == ["passed", "failed", "passed"]
    assert [row["status"] for row in rows] == ["passed", "failed", "passed"]
    assert len({row["scenario"] for row in rows}) == 3


CRITERION = JudgedCriterion(id="c1", text="is polite", status="failed", evidence="“no”", votes=["failed", "passed"])
CHECK = Assertion(name="tools.f", status=Status.ENVIRONMENT_ERROR, expected={"gte": 1}, actual=None)
USE = {"agent": PartyUse(calls=2, input_tokens=None, cost_usd="0.5")}
EVENTS: list[Event] = [
    Selected(title="t", scenarios=1, runs=2, mode="replay", at=1.5),
    Started(run_id="r", scenario="s", name="n", tags=["a"], criteria=["is polite"], rerun="pytest x"),
    Message(run_id="r", message={"role": "user", "content": "hi"}, tool_calls=[{"name": "f", "arguments": {"x": 1}}]),
    Step(run_id="r", index=0, kind="chat", status=Status.FAILED, assertions=[CHECK], interactions=[3]),
    Verdict(run_id="r", judge="J", success=None, criteria=[CRITERION]),
    Finished(run_id="r", scenario="s", status=Status.AGENT_ERROR, criteria=[CRITERION], usage=USE, replayed=None),
    Completed(exit_code=1, seconds=2.0, scenarios=[{"scenario": "s", "rate": 0.5}]),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_the_way_through_json(event: Event) -> None:
    """Kind, status, nested parts, and what is not known."""
    tree = json.loads(json.dumps(to_plain(event)))
    back = deserialize_event(tree)
    assert type(back) is type(event)
    assert to_plain(back) == to_plain(event)
    assert getattr(back, "status", None) is getattr(event, "status", None)


def test_what_is_no_event_is_refused() -> None:
    """Nothing is made up of values that mean something else."""
    with pytest.raises(KeyError):
        deserialize_event({"event": "party"})


ODD: list[object] = [
    None, True, -1, 10**400, 1e308, float("nan"), "", "x", [], {}, [None], {"a": None}, [[]], {"": [1]},
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda each: type(each).__name__)
def test_a_field_holds_what_it_declares_or_the_report_is_none(event: Event) -> None:
    """Whatever somebody wrote into a report: no value of another kind gets behind the reader, where sums and sorting would fall over it."""
    tree = to_plain(event)
    declared = {each.name: str(each.type) for each in fields(event)}
    refused = 0
    for name, value in tree.items():
        for odd in ODD:
            try:
                made = deserialize_event({**tree, name: odd})
            except (KeyError, TypeError, ValueError, AttributeError):
                refused += 1
                continue
            kind = declared[name]
            assert value_has_annotated_type(odd, kind) or not kind.startswith(
                ("str", "int", "float", "bool", "Mapping[str, int]", "Sequence[str]")
            ), (name, odd, made)
        assert deserialize_event({**tree, name: value}) == deserialize_event(tree)
    assert refused > len(tree)


def test_times_and_amounts_can_be_told() -> None:
    """There are no years after 9999, and `$NaN` is no price."""
    for at in (-1.0, 1e12, float("inf")):
        with pytest.raises(TypeError, match="`at` of selected is"):
            deserialize_event({**to_plain(EVENTS[0]), "at": at})
    for cost in ("nan", "x", "1e999", "Infinity"):
        with pytest.raises(TypeError, match="`cost_usd` of partyuse is"):
            deserialize_event({**to_plain(EVENTS[5]), "usage": {"agent": {"calls": 1, "cost_usd": cost}}})


def test_a_long_value_is_cut_and_says_how_long_it_was() -> None:
    """A line stays readable, and nobody takes the part for the whole."""
    text = show_value("x" * 5000)
    assert len(text) < 400
    assert text.endswith("… (5000 characters)")
    assert show_value({"a": [1, None]}) == '{"a": [1, null]}'


@pytest.mark.parametrize(("content", "expected"), [
    ("hi", "hi"),
    (None, ""),
    ([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}], "look\n[image_url]"),
    ({"odd": 1}, '{"odd": 1}'),
])  # fmt: skip
def test_content_of_every_kind_is_text(content: object, expected: str) -> None:
    """Parts that are no text are named, not dropped."""
    assert format_message_content({"role": "user", "content": content}) == expected


def test_tool_calls_come_from_the_wire_or_else_from_the_message() -> None:
    """What was seen on the wire wins; without it the message's own calls are shown, odd arguments as they are."""
    calls = [{"function": {"name": name, "arguments": text}} for name, text in (("f", '{"a": 1}'), ("g", "{"))]
    own = {"role": "assistant", "tool_calls": calls}
    assert list(format_tool_calls(Message(run_id="r", message=own))) == ["  f(a=1)", "  g({)"]
    wire = Message(run_id="r", message=own, tool_calls=({"name": "h", "arguments": {}, "result": {"ok": True}},))
    assert list(format_tool_calls(wire)) == ['  h() -> {"ok": true}']


def test_a_conversation_reads_in_order() -> None:
    """Tool calls come before the answer that they led to."""
    lines = format_conversation(samples.story().runs["fine-1"]).splitlines()
    assert lines[0].startswith("user: Create 'fine'")
    assert lines[1] == '  createTask(title="fine") -> {"id": 7}'
    assert lines[2].startswith("assistant: Created fine.")
