"""The event stream as JSON: a line for each event as it happens (`jsonl`), or one document at the end (`json`).

{"event": "started", "run_id": ..., ...}
{"format": 1, ..., "scenarios": [{"id", "status", "runs": [{"started", "parts", "finished"}]}]}
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from llmproxy.file_io import read_bounded_text
from llmproxy.report.events import Event
from llmproxy.report.run_tree import EventsGroupedByRun, Run, RunsOfOneScenario, to_plain

FORMAT = 1


class JsonLinesReport:
    """Writes each event as a line at once, under a file lock that shows readers that the test is running."""

    def __init__(self, path: Path) -> None:
        """Create `path`. Raises OSError; BlockingIOError if another test is writing it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._out: TextIO = path.open("a", encoding="utf-8")
        try:
            if path.is_file():
                _lock_file(self._out)
                self._out.truncate(0)
        except BaseException:
            self._out.close()
            raise

    def handle(self, event: Event) -> None:
        self._out.write(json.dumps(to_plain(event), ensure_ascii=False) + "\n")
        self._out.flush()

    def close(self) -> None:
        self._out.close()


_TRIES, _PAUSE = 20, 0.005
"""Attempts to take the lock: a reader that checks it holds it for a moment."""


def _lock_file(file: TextIO) -> None:
    """Take the writer's lock; nothing on systems without locks. Raises BlockingIOError if another process has it."""
    try:
        import fcntl
    except ImportError:
        return
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not left:
                raise BlockingIOError(error.errno, "another test that runs writes it") from error
            time.sleep(_PAUSE)
        except OSError:  # a file system without locks
            return
        else:
            return


def is_live_report_being_written(path: Path) -> bool | None:
    """Return whether a live process is writing a file of lines; None if unknown."""
    try:
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except (ImportError, OSError):
        return None
    return False


Entry = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]], Mapping[str, Any] | None]
"""A run: its start, events and end; None if it did not end."""


def read_report_runs(path: Path) -> list[Entry]:
    """Return a report's runs, `json` or `jsonl`, as plain values. Raises OSError, ValueError, KeyError, TypeError."""
    text = read_bounded_text(path)
    first = text.lstrip().partition("\n")[0].rstrip()
    if not (first.startswith('{"event"') and first.endswith("}")):
        runs = [run for scenario in json.loads(text)["scenarios"] for run in scenario["runs"]]
        return [(run["started"], run["parts"], run["finished"]) for run in runs]
    found: dict[str, dict[str, Any]] = {}
    ended = text[: text.rfind("\n") + 1]  # of a test that runs, or was killed, the last line may be half of one
    for line in ended.splitlines():
        event = json.loads(line)
        kind, run = event["event"], event.get("run_id")
        if kind == "started":
            found[run] = {"started": event, "parts": [], "finished": None}
        elif kind == "finished":
            found[run]["finished"] = event
        elif run is not None:
            found[run]["parts"].append(event)
    return [(run["started"], run["parts"], run["finished"]) for run in found.values()]


def render_json_report(run_tree: EventsGroupedByRun) -> str:
    return json.dumps(build_json_report(run_tree), ensure_ascii=False, indent=2) + "\n"


def build_json_report(run_tree: EventsGroupedByRun) -> dict[str, Any]:
    scenarios = [build_json_of_single_scenario(scenario) for scenario in run_tree.scenarios()]
    return build_json_report_header(run_tree) | {"scenarios": scenarios}


def build_json_report_header(run_tree: EventsGroupedByRun) -> dict[str, Any]:
    selected, completed = run_tree.selected, run_tree.completed
    return {
        "format": FORMAT,
        "title": run_tree.title,
        "mode": selected.mode if selected else "",
        "at": selected.at if selected else None,
        "exit_code": completed.exit_code if completed else None,
        "seconds": completed.seconds if completed else None,
        "notes": to_plain(completed.notes) if completed else [],
        "part_notes": to_plain(completed.part_notes) if completed else [],
        "summary": to_plain(completed.scenarios) if completed else [],
        "times": to_plain(completed.times) if completed else {},
        "shard": to_plain(selected.shard) if selected else None,
    }


def build_json_of_single_scenario(scenario: RunsOfOneScenario) -> dict[str, Any]:
    about = {"id": scenario.id, "name": scenario.name, "suite": scenario.suite}
    return about | {"status": scenario.status.value, "runs": [_run_to_json(run) for run in scenario.runs]}


def _run_to_json(run: Run) -> dict[str, Any]:
    return {
        "status": run.status.value,
        "why": run.reason,
        "started": to_plain(run.started),
        "parts": [to_plain(part) for part in run.parts],
        "finished": to_plain(run.finished),
    }
