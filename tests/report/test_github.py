"""Annotations of GitHub Actions."""

from __future__ import annotations

from pathlib import Path

from llmproxy.report.github import GitHub
from tests.report import samples


def written(tmp_path: Path) -> tuple[list[str], str]:
    """Return the commands and the summary of the sample."""
    lines: list[str] = []
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n", "utf-8")
    handler = GitHub(lines.append, summary)
    for event in samples.events():
        handler.handle(event)
    handler.close()
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
    """Only what needs a look is."""
    lines, _ = written(tmp_path)
    assert not [line for line in lines if "fine" in line or "title=left" in line]
    assert sum("flaky" in line for line in lines) == 2


def test_the_summary_is_added_to_what_is_there(tmp_path: Path) -> None:
    """Other steps of the job wrote there before; a bar in a text does not break the table."""
    _, summary = written(tmp_path)
    assert summary.startswith("# before\n### Tasks & more\n")
    assert "| Scenario flaky | flaky | 3 of 5 | exit 1 |" in summary
