"""The event stream as JSON: a line an event while it happens (`jsonl`), or one document at the end (`json`).

{"event": "started", "run_id": ..., ...}                                  a line of `jsonl`
{"format": 1, "title": ..., "exit_code": ..., "scenarios": [{"id", "status", "runs": [{"started", "parts", "finished"}]}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from llmproxy.report.events import Event
from llmproxy.report.story import Run, Story, plain

__all__ = ["FORMAT", "Entry", "JsonLines", "document", "read_entries", "text"]

FORMAT = 1


class JsonLines:
    """Writes each event as a line, at once: a run that is killed leaves everything up to there."""

    def __init__(self, path: Path) -> None:
        """Write to `path`, which is made anew. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._out: TextIO = path.open("w", encoding="utf-8")

    def handle(self, event: Event) -> None:
        """Write it."""
        self._out.write(json.dumps(plain(event), ensure_ascii=False) + "\n")
        self._out.flush()

    def close(self) -> None:
        """Close the file."""
        self._out.close()


Entry = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]], Mapping[str, Any] | None]
"""A run: how it started, what happened, how it ended; None if it did not."""


def read_entries(path: Path) -> list[Entry]:
    """Return the runs of a report, `json` or `jsonl`, as plain values. Raises OSError; ValueError, KeyError or TypeError where it is none."""
    text = path.read_text("utf-8")
    first = text.lstrip().partition("\n")[0].rstrip()
    if not (first.startswith('{"event"') and first.endswith("}")):
        runs = [run for scenario in json.loads(text)["scenarios"] for run in scenario["runs"]]
        return [(run["started"], run["parts"], run["finished"]) for run in runs]
    found: dict[str, tuple[Mapping[str, Any], list[Mapping[str, Any]], list[Mapping[str, Any]]]] = {}
    for line in text.splitlines():
        event = json.loads(line)
        kind, run = event["event"], event.get("run_id")
        if kind == "started":
            found[run] = (event, [], [])
        elif kind == "finished":
            found[run][2].append(event)
        elif run is not None:
            found[run][1].append(event)
    return [(started, parts, ended[-1] if ended else None) for started, parts, ended in found.values()]


def text(story: Story) -> str:
    """Return a story as the text of a JSON document."""
    return json.dumps(document(story), ensure_ascii=False, indent=2) + "\n"


def document(story: Story) -> dict[str, Any]:
    """Return a story as plain JSON values."""
    selected, completed = story.selected, story.completed
    return {
        "format": FORMAT,
        "title": story.title,
        "mode": selected.mode if selected else "",
        "at": selected.at if selected else None,
        "exit_code": completed.exit_code if completed else None,
        "seconds": completed.seconds if completed else None,
        "notes": plain(completed.notes) if completed else [],
        "summary": plain(completed.scenarios) if completed else [],
        "times": plain(completed.times) if completed else {},
        "shard": plain(selected.shard) if selected else None,
        "scenarios": [
            {
                "id": scenario.id,
                "name": scenario.name,
                "suite": scenario.suite,
                "status": scenario.status.value,
                "runs": [_run(run) for run in scenario.runs],
            }
            for scenario in story.scenarios()
        ],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "status": run.status.value,
        "why": run.why,
        "started": plain(run.started),
        "parts": [plain(part) for part in run.parts],
        "finished": None if run.finished is None else plain(run.finished),
    }
