"""Events folded into scenarios and runs."""

from __future__ import annotations

import json

from llmproxy.pytest.scenario_report import rows_of
from llmproxy.report.events import Completed, Finished, Started, Status
from llmproxy.report.story import Story, plain
from tests.report import samples


def test_runs_are_grouped_by_scenario_and_in_order_of_their_sample() -> None:
    """Five runs of one scenario are one scenario with five runs, whichever ended first."""
    story = Story()
    for event in reversed([event for event in samples.events() if getattr(event, "run_id", "").startswith("flaky")]):
        story.add(event)
    for event in samples.events():
        story.add(event)
    flaky = next(each for each in story.scenarios() if each.id == "flaky")
    assert [run.started.sample for run in flaky.runs] == [1, 2, 3, 4, 5]


def test_a_scenario_that_passed_and_failed_is_flaky() -> None:
    """Mixed results have a name of their own; the same result in every run keeps its own."""
    found = {each.id: each.status for each in samples.story().scenarios()}
    assert found == {
        "fine": Status.PASSED,
        "wrong": Status.FAILED,
        "flaky": Status.FLAKY,
        "missed": Status.ENVIRONMENT_ERROR,
        "left": Status.SKIPPED,
        "cut": Status.ENVIRONMENT_ERROR,
    }


def test_a_run_without_an_end_says_that_it_was_interrupted() -> None:
    """Ctrl-C must not read as a pass."""
    run = samples.story().runs["cut-1"]
    assert run.finished is None
    assert run.status is Status.ENVIRONMENT_ERROR
    assert "interrupted" in run.why


def test_an_end_without_a_beginning_is_dropped() -> None:
    """A stray event makes no run."""
    story = Story()
    story.add(Finished(run_id="who", scenario="who", status=Status.PASSED))
    assert story.runs == {}


def test_every_event_is_plain_json() -> None:
    """Every field of every event can be written, odd characters and half a surrogate pair included."""
    for event in samples.events():
        assert json.loads(json.dumps(plain(event)))["event"] == type(event).__name__.lower()
    assert plain("half \ud800 of a pair") == "half \\ud800 of a pair"
    assert plain({"x": (Status.PASSED, {1: None})}) == {"x": ["passed", {"1": None}]}


def test_unknown_stays_unknown() -> None:
    """What nobody knows is null in JSON, never 0."""
    finished = plain(samples.finished("fine", 1, Status.PASSED))
    assert finished["usage"]["agent"]["output_tokens"] is None
    assert finished["waited_seconds"] is None


def test_scenarios_of_one_name_in_two_tests_are_two() -> None:
    """One that passes and one that fails are not one that is flaky; runs of one test stay together."""
    story = Story()
    for place, cassette, status in (
        ("test_a.py:3", "a/same", "passed"),
        ("test_a.py:3", "a/same", "passed"),
        ("test_b.py:9", "b/same", "failed"),
        ("test_b.py:9", "b/same.2", "passed"),
    ):
        run_id = f"{len(story.runs)}"
        story.add(Started(run_id=run_id, scenario="same", name="same", place=place, cassette=cassette))
        story.add(Finished(run_id=run_id, scenario="same", status=Status(status)))
    rows = rows_of(story)
    assert [(each.status.value, len(each.runs)) for each in story.scenarios()] == [
        ("passed", 2),
        ("failed", 1),
        ("passed", 1),
    ]
    story.add(Completed(exit_code=1, seconds=1.0, scenarios=rows))
    assert [each.status.value for each in story.scenarios()] == ["passed", "failed", "passed"]
    assert [row["status"] for row in rows] == ["passed", "failed", "passed"]
    assert len({row["scenario"] for row in rows}) == 3
