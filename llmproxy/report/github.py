"""Annotations of GitHub Actions: each run that did not pass is marked at the line of its file, and the summary page gets a table.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from llmproxy.report.events import Event, Finished, Status
from llmproxy.report.story import Run, Story
from llmproxy.report.words import told

__all__ = ["GitHub"]

_PLACE = re.compile(r"(?P<file>[^:]+\.\w+):(?P<line>\d+)(?::\d+)?")


class GitHub:
    """Writes a workflow command for each run that did not pass, and the summary if there is a file for it."""

    def __init__(self, write: Callable[[str], object], summary: Path | None = None, root: Path | None = None) -> None:
        """Write commands with `write` (standard output of the job).

        `summary` is the file that GITHUB_STEP_SUMMARY names, `root` the folder of the checkout, to which files are relative.
        """
        self._write, self._summary, self._root, self._story = write, summary, root, Story()

    def handle(self, event: Event) -> None:
        """Mark a run that has ended."""
        self._story.add(event)
        if isinstance(event, Finished) and (run := self._story.runs.get(event.run_id)):
            for line in commands(run, self._root):
                self._write(line + "\n")

    def close(self) -> None:
        """Write the summary. Raises OSError."""
        if self._summary is not None:
            with self._summary.open("a", encoding="utf-8", errors="backslashreplace") as out:
                out.write(table(self._story))


def commands(run: Run, root: Path | None = None) -> list[str]:
    """Return the workflow commands of a run; none if it passed. `root` is the folder of the checkout."""
    if run.status in (Status.PASSED, Status.SKIPPED):
        return []
    failed = [
        (step, each)
        for step in run.steps
        for each in step.assertions
        if each.status not in (Status.PASSED, Status.SKIPPED)
    ]
    title = f"{run.started.scenario}: {run.status.value.replace('_', ' ')}"
    return [_command(title, told(each), root, each.where, step.place, run.started.place) for step, each in failed] or [
        _command(title, run.why, root, _stopped(run), run.started.place)
    ]


def _stopped(run: Run) -> str:
    """Return where the step is written that ended a run without an assertion that says why."""
    return next((step.place for step in run.steps if step.status not in (Status.PASSED, Status.SKIPPED)), "")


def _command(title: str, text: str, root: Path | None, *places: str) -> str:
    """Return an annotation at the first of these places that is a line of a file."""
    place = next((found for each in places if (found := _PLACE.fullmatch(each))), None)
    at = f"file={_property(_below(place['file'], root))},line={place['line']}," if place else ""
    return f"::error {at}title={_property(title)}::{_data(text)}"


def _below(file: str, root: Path | None) -> str:
    """Return a file as GitHub names it: relative to the checkout, wherever the tests were started."""
    if root is None:
        return file
    try:
        return Path(file).resolve().relative_to(root.resolve()).as_posix()
    except (ValueError, OSError):
        return file


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def table(story: Story) -> str:
    """Return a Markdown table of the scenarios."""
    rows = [
        f"| {_cell(each.name)} | {each.status.value.replace('_', ' ')} |"
        f" {sum(run.status is Status.PASSED for run in each.runs)} of {len(each.runs)} |"
        f" {_cell(next((run.why for run in each.runs if run.status is not Status.PASSED), ''))} |"
        for each in story.scenarios()
    ]
    return "\n".join(
        [f"### {story.title}", "", "| scenario | result | runs passed | |", "|---|---|---|---|", *rows, "", ""]
    )


def _cell(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
