"""What a run needs is opened in order, and given back however far it came."""

from __future__ import annotations

from pathlib import Path

from tests.suite import rig
from tests.suite.run.test_runner import SETUP, STORE, suite
from tests.support import near


def test_a_run_that_cannot_begin_gives_back_what_was_opened(tmp_path: Path) -> None:
    """A hook that fails before it: its rows, its hooks after it, and no step was executed."""
    more = 'hooks: {beforeEach: [{command: "false"}], afterEach: [{command: [sh, -c, "echo after >> log"]}]}\n'
    found = rig.run(rig.cases_of(tmp_path, suite(rig.echo(tmp_path), "{chat: x}", more=more, scenario=SETUP)))
    assert (found.statuses, found.told.said, found.tested.exit_code) == (["environment_error"], [], 3)
    assert (tmp_path / "log").read_text() == "after\n"
    assert "beforeEach" in found.told.finished[0].error


def test_teardown_runs_whatever_came_out(tmp_path: Path) -> None:
    """It deletes what it names, and what goes wrong in it is told beside the result."""
    text = suite(
        rig.echo(tmp_path),
        "{chat: x, response: {contains: nope}}",
        scenario=SETUP + "    teardown: [{delete: tasks, filters: {title: Old}}, {command: 'false'}]\n",
        store=STORE.replace("{memory: {},", "{memory: {}, reset: none,"),
    )
    text += "  - id: two\n    steps: [{verify: {entity: tasks, filters: {id: {exists: true}}, count: 0}}]\n"
    found = rig.run(rig.cases_of(tmp_path, text))
    assert found.statuses == ["failed", "passed"], found.why
    assert any("teardown" in label for label in found.told.finished[0].labels)


def test_an_unknown_store_is_an_error_of_the_suite(tmp_path: Path) -> None:
    found = rig.run(rig.cases_of(tmp_path, suite(rig.echo(tmp_path), "{chat: x}", store="{sqlalchmy: x}")))
    assert (found.statuses, found.tested.exit_code) == (["environment_error"], 2)


def test_what_another_scenario_misspells_is_its_own_error(tmp_path: Path) -> None:
    """Every entity of the suite is put back after a run; one that does not exist stops only the scenario that names it."""
    text = suite(rig.echo(tmp_path), "{chat: x, response: {contains: said}}", store=STORE)
    text += "  - id: two\n    steps: [{verify: {entity: taskz, count: 0}}]\n"
    found = rig.run(rig.cases_of(tmp_path, text))
    assert found.statuses == ["passed", "environment_error"], found.why
    assert "did you mean 'tasks'" in found.told.finished[1].error


def test_without_a_recording_the_store_is_of_no_interest(tmp_path: Path) -> None:
    """A newcomer who replays first is told to record, not that a database is missing which the agent would make."""
    text = suite(rig.echo(tmp_path), "{chat: x}", store='{sqlalchemy: "sqlite:///none.db", entities: {tasks: {}}}')
    with near("record", tmp_path / "x.db") as px:
        found = rig.run(rig.cases_of(tmp_path, text), proxy=px.url, mode="replay")
    assert found.tested.exit_code == 4, found.why
    assert found.told.finished[0].unrecorded
