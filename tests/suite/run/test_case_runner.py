"""One run: from its beginning to its clean-up, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

from llmproxy.report.events import Started, Status
from tests.suite import rig
from tests.suite.run.test_runner import SETUP, run, suite


def test_a_run_says_how_to_run_it_again(tmp_path: Path) -> None:
    found = run(tmp_path, "{chat: x}", command="llmproxy test a.yaml")
    started = next(each for each in found.told.events if isinstance(each, Started))
    assert (started.rerun, started.cassette, started.suite) == ("llmproxy test a.yaml --id one", "t/one", "t")


def test_it_can_end_at_a_step(tmp_path: Path) -> None:
    """What comes after it is not told at all."""
    found = run(tmp_path, "{chat: x, label: first}", "{chat: y}", label="first")
    assert [step.label for step in found.told.steps] == ["first"]


def test_setup_that_fails_is_no_failure_of_the_agent(tmp_path: Path) -> None:
    found = run(tmp_path, "{chat: x}", scenario=SETUP.replace("title:", "titel:"))
    assert (found.statuses, found.told.said) == (["environment_error"], [])
    assert [step.status for step in found.told.steps] == [Status.SKIPPED]
    assert "titel" in found.told.finished[0].error


def test_usage_of_the_whole_scenario_needs_traffic(tmp_path: Path) -> None:
    found = run(tmp_path, "{chat: x}", scenario="    usage: {totalTokens: {lt: 5}}\n")
    assert (found.statuses, found.told.steps[-1].kind) == (["environment_error"], "usage")


def test_reasons_are_told_with_their_step(tmp_path: Path) -> None:
    """A reader of one line knows where to look."""
    found = run(tmp_path, "{chat: x, label: greet, response: {contains: hello}}")
    assert found.told.finished[0].reasoning.startswith("step 1 (greet): response.contains: ")


def test_variables_of_the_environment_are_needed(tmp_path: Path) -> None:
    """A variable that is not set is an error that names it."""
    text = suite(rig.echo(tmp_path), '{chat: "${env:NO_SUCH_VARIABLE_HERE}"}')
    found = rig.run(rig.cases_of(tmp_path, text))
    assert (found.statuses, "NO_SUCH_VARIABLE_HERE" in found.why) == (["environment_error"], True)
