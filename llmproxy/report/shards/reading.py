"""A report file -> what it tells: JSON, JSON lines and HTML hold everything that happened, and become a story again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmproxy.errors import SettingsError
from llmproxy.files import read_bytes, read_text
from llmproxy.report.json_report import FORMAT
from llmproxy.report.revive import revive_event
from llmproxy.report.story import Run, Story

_DATA = re.compile(rb'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
_HEAD = 4096
_KIND = "llmproxy report"
_SUFFIXES = (".json", ".jsonl", ".html", ".htm", ".xml")


@dataclass(frozen=True, slots=True)
class PartReport:
    """The report of one part of a test."""

    path: Path
    story: Story
    shard: Mapping[str, Any]
    """As `cut.describe_cut` made it."""

    @property
    def number(self) -> int:
        """Which part, from 1."""
        return int(self.shard["number"])

    def item(self, run: Run) -> str:
        """Return the scenario or the test that a run belongs to."""
        return str(self.shard.get("runs", {}).get(run.started.run_id, run.started.scenario))


def kind_of(path: Path) -> str:
    """Return what kind of report a file is: ``json``, ``jsonl``, ``html`` or ``junit``; empty for anything else. Raises OSError."""
    if path.suffix.lower() not in _SUFFIXES:
        return ""
    with path.open("rb") as file:
        head = file.read(_HEAD).lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b'{"event"'):
        return "jsonl"
    if head.startswith(b"{"):
        return "json" if b'"format"' in head and b'"exit_code"' in head else ""
    if head[:15].lower().startswith(b"<!doctype html>"):
        return "html" if _page(path) is not None else ""
    return "junit" if b"<testsuites" in head else ""


def read_part(path: Path, kind: str) -> PartReport:
    """Return what a part of a test told.

    Raises:
        SettingsError: it is no such report, one of another version, or that of a whole test.
        OSError: it cannot be read.

    """
    try:
        story = (
            _lines(path) if kind == "jsonl" else _story(_page(path) if kind == "html" else json.loads(read_bytes(path)))
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(
            f"{path} is no report that this version reads: {str(error) or type(error).__name__}.",
            hint="llmproxy test --shard 1/2 --report json=FILE writes one; all parts of a test and `merge` need one version.",
        ) from error
    if story.selected is None:
        raise SettingsError(
            f"{path}: its test ended before it knew what to run, so it holds nothing.", hint="Run this part again."
        )
    if story.selected.shard is None:
        raise SettingsError(
            f"{path} is the report of a whole test, not of a part of one.",
            hint="Parts are made by llmproxy test --shard 1/10, or pytest --llmproxy-shard 1/10.",
        )
    return PartReport(path, story, story.selected.shard)


def _page(path: Path) -> Mapping[str, Any] | None:
    found = _DATA.search(read_bytes(path))
    try:
        data = json.loads(found[1]) if found else {}
    except (ValueError, RecursionError):
        return None
    return data["report"] if isinstance(data, dict) and data.get("kind") == _KIND else None


def _lines(path: Path) -> Story:
    story = Story()
    for line in read_text(path).splitlines():
        story.add(revive_event(json.loads(line)))
    return story


def _story(tree: Any) -> Story:  # noqa: ANN401 - what a file holds
    """Return the story of a JSON document."""
    if tree["format"] != FORMAT:
        raise ValueError(f"it is of format {tree['format']}, this version reads {FORMAT}")
    story = Story()
    runs = [run for scenario in tree["scenarios"] for run in scenario["runs"]]
    if tree["at"] is not None:
        many = {"scenarios": len(tree["scenarios"]), "runs": len(runs)}
        said = {name: tree.get(name) for name in ("title", "mode", "at", "shard")}
        story.add(revive_event({"event": "selected", **said, **many}))
    for run in runs:
        for event in (run["started"], *run["parts"], *([run["finished"]] if run["finished"] else [])):
            story.add(revive_event(event))
    if tree["exit_code"] is not None:
        ended = {"notes": tree["notes"], "scenarios": tree["summary"], "times": tree.get("times", {})}
        story.add(
            revive_event({"event": "completed", "exit_code": tree["exit_code"], "seconds": tree["seconds"], **ended})
        )
    return story
