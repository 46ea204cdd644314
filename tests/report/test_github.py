"""Annotations of GitHub Actions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from llmproxy.report.events import Assertion, Completed, Event, Finished, Started, Status, Step
from llmproxy.report.github import GitHubAnnotator
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.reading.shared_parts import show_path
from llmproxy.suite.run.run_context import SuiteRunContext
from llmproxy.suite.run.runner import run_cases
from tests.report import samples
from tests.suite import rig


def written(tmp_path: Path) -> tuple[list[str], str]:
    lines: list[str] = []
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n", "utf-8")
    samples.feed(GitHubAnnotator(lines.append, summary))
    return lines, summary.read_text("utf-8")


def test_a_failed_check_is_marked_at_its_line(tmp_path: Path) -> None:
    """File and line come from the check; each check is one annotation, one line each."""
    lines, _ = written(tmp_path)
    assert (
        "::error file=tasks.yaml,line=12,title=wrong%3A failed::created[0].fields.title: "
        "the new task is called 'Review PRs', not 'Review PR' (tasks.yaml:12)\n"
    ) in lines
    assert all(line.startswith("::error ") and line.count("\n") == 1 for line in lines)


def test_passed_and_skipped_runs_are_not_marked(tmp_path: Path) -> None:
    lines, _ = written(tmp_path)
    assert not [line for line in lines if "fine" in line or "title=left" in line]
    assert sum("flaky" in line for line in lines) == 2


def test_the_summary_is_added_to_what_is_there(tmp_path: Path) -> None:
    """Other steps of the job wrote there before; a bar in a text does not break the table."""
    _, summary = written(tmp_path)
    assert summary.startswith("# before\n### Tasks & more\n")
    assert "| Scenario flaky | flaky | 3 of 5 | exit 1 |" in summary


def test_what_knows_no_line_is_marked_where_its_step_is_written(tmp_path: Path) -> None:
    """Of a step without one, where the scenario is; relative to the checkout, wherever the tests were started."""
    found = Assertion(name="tools.a", status=Status.FAILED, message="never", where="interaction 7")
    begin = Started(run_id="r", scenario="s", name="s", place="sub/t.suite.yaml:4")
    step = Step(run_id="r", index=0, kind="chat", status=Status.FAILED, assertions=[found], place="sub/t.suite.yaml:9")
    for steps, line in (([step], 9), ([replace(step, place="")], 4), ([], 4)):
        for root, file in ((None, "sub/t.suite.yaml"), (Path.cwd().parent, f"{Path.cwd().name}/sub/t.suite.yaml")):
            lines: list[str] = []
            handler = GitHubAnnotator(lines.append, None, root)
            events: list[Event] = [
                begin,
                *steps,
                Finished(run_id="r", scenario="s", status=Status.FAILED, reasoning="why"),
            ]
            samples.feed(handler, events)
            assert [text.partition(",title")[0] for text in lines] == [f"::error file={file},line={line}"]


def test_annotations_of_a_suite_point_into_it(tmp_path: Path) -> None:
    """A step that fails, and one that raises, are marked at their lines."""
    text = f"name: t\nagent: {rig.echo(tmp_path)}\nscenarios:\n  - id: one\n    steps:\n      - chat: x\n"
    text += "        response: {contains: nope}\n  - id: two\n    steps:\n      - {chat: x}\n      - chat: $runIndex\n        timeout: 1\n"
    lines: list[str] = []
    world = SuiteRunContext(options=SuiteCommandOptions(), proxy=None, handlers=[GitHubAnnotator(lines.append)])
    asyncio.run(run_cases(world, rig.cases_of(tmp_path, text)))
    assert any(f"file={show_path(tmp_path / 't.suite.yaml')},line=6,title=one" in line for line in lines), lines


def told(*runs: Status, code: int, passes: bool, notes: tuple[str, ...] = ()) -> list[str]:
    """Return the commands for one scenario's runs, and what it comes to."""
    lines: list[str] = []
    handler = GitHubAnnotator(lines.append)
    for number, status in enumerate(runs, 1):
        name = f"r{number}"
        handler.handle(Started(run_id=name, scenario="s", name="s", sample=number, runs=len(runs)))
        handler.handle(Finished(run_id=name, scenario="s", status=status, error="why"))
    row = {"scenario": "s", "status": "passed" if passes else "flaky"}
    handler.handle(Completed(exit_code=code, seconds=1.0, notes=notes, scenarios=[row] if runs else []))
    handler.close()
    return [line.partition("::")[2].partition(",")[0].partition("::")[0] for line in lines]


def test_annotations_say_what_the_exit_code_says() -> None:
    """A run that its scenario can do without is a warning; a test that ended badly has an error, whoever says so."""
    passed, failed = Status.PASSED, Status.FAILED
    assert told(passed, failed, code=0, passes=True) == ["warning title=s%3A failed"]
    assert told(passed, failed, code=1, passes=False) == ["error title=s%3A failed"]
    assert told(passed, code=3, passes=True, notes=("t: afterAll: no",)) == ["error title=the test as a whole"]
    assert told(code=5, passes=True, notes=("nothing selected",)) == ["error title=the test as a whole"]
    assert told(failed, code=3, passes=False, notes=("t: afterAll: no",)) == ["error title=s%3A failed"]
    assert told(passed, code=0, passes=True) == []


def test_the_summary_says_why_the_test_as_a_whole_ended_badly(tmp_path: Path) -> None:
    """Where no scenario ran there is no table."""
    handler = GitHubAnnotator(lambda _: None, tmp_path / "s.md")
    handler.handle(Completed(exit_code=5, seconds=0.0, notes=["nothing selected: none of 2 scenarios"]))
    handler.close()
    assert (tmp_path / "s.md").read_text() == (
        "### llmproxy\n\n- nothing selected: none of 2 scenarios\n- the test ended with exit code 5\n\n"
    )
