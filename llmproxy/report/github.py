"""Annotations for GitHub Actions: each failed run is marked at the line of its file, and the summary page gets a table.

A failed run of a scenario that passes (`minPassRate`) is a warning; if the test fails without a failed run, the test as
a whole is an error: the annotations agree with the exit code.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from llmproxy.report.events import Completed, Event, Finished, Status
from llmproxy.report.run_tree import EventsGroupedByRun, Run, describe_abnormal_test_end, describe_assertion

_PLACE = re.compile(r"(?P<file>[^:]+\.\w+):(?P<line>\d+)(?::\d+)?")


class GitHubAnnotator:
    def __init__(self, write: Callable[[str], object], summary: Path | None = None, root: Path | None = None) -> None:
        """Write commands with `write`; `summary` is GITHUB_STEP_SUMMARY's file, `root` the checkout."""
        self._write, self._summary, self._root, self._run_tree = write, summary, root, EventsGroupedByRun()
        self._marked = False
        self._waiting: list[Run] = []
        """Runs whose scenario has no result yet."""

    def handle(self, event: Event) -> None:
        self._run_tree.add_event(event)
        if isinstance(event, Finished) and (run := self._run_tree.runs.get(event.run_id)):
            if run.started.runs > 1:
                self._waiting.append(run)
            else:
                self._annotate_run(run)
        elif isinstance(event, Completed):
            self._annotate_repeated_runs()
            if (why := describe_abnormal_test_end(event)) and not self._marked:
                self._write(_format_annotation("the test as a whole", why, self._root) + "\n")

    def _annotate_repeated_runs(self) -> None:
        passed = {id(run) for each in self._run_tree.scenarios() if each.status is Status.PASSED for run in each.runs}
        for run in self._waiting:
            self._annotate_run(run, "warning" if id(run) in passed else "error")
        self._waiting = []

    def _annotate_run(self, run: Run, level: str = "error") -> None:
        for line in build_github_annotations(run, self._root, level):
            self._marked = self._marked or level == "error"
            self._write(line + "\n")

    def close(self) -> None:
        """Write the summary, and pending annotations. Raises OSError."""
        self._annotate_repeated_runs()
        if self._summary is not None:
            with self._summary.open("a", encoding="utf-8", errors="backslashreplace") as out:
                out.write(format_github_summary_markdown(self._run_tree))


def make_github_annotator(path: Path | None) -> GitHubAnnotator:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
    root = os.environ.get("GITHUB_WORKSPACE", "")
    return GitHubAnnotator(sys.stdout.write, path or (Path(summary) if summary else None), Path(root) if root else None)


def build_github_annotations(run: Run, root: Path | None = None, level: str = "error") -> list[str]:
    if run.status in (Status.PASSED, Status.SKIPPED):
        return []
    title = f"{run.started.scenario}: {run.status.value.replace('_', ' ')}"
    found = [(describe_assertion(each), each.where, step.place) for step, each in run.failed_assertions]
    if not found:
        ended_at = next((step.place for step in run.steps if step.status not in (Status.PASSED, Status.SKIPPED)), "")
        found = [(run.reason, "", ended_at)]
    return [_format_annotation(title, text, root, *places, run.started.place, level=level) for text, *places in found]


def _format_annotation(title: str, text: str, root: Path | None, *places: str, level: str = "error") -> str:
    place = next((found for each in places if (found := _PLACE.fullmatch(each))), None)
    at = f"file={_escape_property(_path_in_checkout(place['file'], root))},line={place['line']}," if place else ""
    return f"::{level} {at}title={_escape_property(title)}::{_escape_data(text)}"


def _path_in_checkout(file: str, root: Path | None) -> str:
    if root is None:
        return file
    try:
        return Path(file).resolve().relative_to(root.resolve()).as_posix()
    except (ValueError, OSError):
        return file


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


def format_github_summary_markdown(run_tree: EventsGroupedByRun) -> str:
    rows = [
        f"| {_escape_cell(each.name)} | {each.status.value.replace('_', ' ')} |"
        f" {sum(run.status is Status.PASSED for run in each.runs)} of {len(each.runs)} |"
        f" {_escape_cell(next((run.reason for run in each.runs if run.status is not Status.PASSED), ''))} |"
        for each in run_tree.scenarios()
    ]
    why = describe_abnormal_test_end(run_tree.completed)
    said = [f"- {_escape_cell(line)}" for line in why.splitlines() if line.strip()]
    head = ["| scenario | result | runs passed | |", "|---|---|---|---|"] if rows else []
    return "\n".join([f"### {run_tree.title}", "", *head, *rows, *([""] if rows and said else []), *said, "", ""])


def _escape_cell(text: str) -> str:
    return text.strip().partition("\n")[0].replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
