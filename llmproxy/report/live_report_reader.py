"""Reader of a running test's JSON-lines report, polled repeatedly: ``read_state("9f1c", 12)`` returns only the
scenarios that changed since event 12 of test 9f1c.

A running test is recognised by its writer's lock, not by the file's content: that of a killed test has no end either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any
from zlib import crc32

from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.errors import SettingsError
from llmproxy.file_io import read_bounded_text
from llmproxy.report.events import Completed, Selected
from llmproxy.report.json_report import (
    FORMAT,
    build_json_of_single_scenario,
    build_json_report_header,
    is_live_report_being_written,
)
from llmproxy.report.run_tree import EventsGroupedByRun, RunsOfOneScenario, deserialize_event
from llmproxy.report.trend import build_trend_table_columns, read_recent_tests
from llmproxy.ui.queries import read_query_integer

RUNNING = "running"
_HINT = "llmproxy test --report json=FILE writes one; a newer llmproxy reads those of older ones."


class GrowingReportReader:
    """Reads the new part at each call. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path, self._alone = path, Lock()
        self._restart_reading(b"")

    def _restart_reading(self, first: bytes) -> None:
        self._first, self._read, self._count = first, 0, 0
        self._run_tree = EventsGroupedByRun()
        self._changed: dict[str, int] = {}

    def read_state(self, test: str, after: int) -> dict[str, Any]:
        """Return the state, or changes after `test`'s event `after`. Raises SettingsError."""
        with self._alone:
            # Before it is read: what ends in between is told the next time.
            locked = is_live_report_being_written(self._path)
            try:
                self._read_new_lines()
            except OSError as error:
                raise SettingsError(f"the report {self._path} cannot be read: {error.strerror or error}.") from error
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise SettingsError(f"{self._path} is no report that this version reads.", hint=_HINT) from error
            begun = self._run_tree.selected is not None
            running = self._run_tree.completed is None and (begun if locked is None else locked)
            name = f"{crc32(self._first):08x}{'+' if running else ''}"
            since = after if test == name else -1
            selected = self._run_tree.selected or Selected(title="", scenarios=0, runs=0)
            return build_json_report_header(self._run_tree) | {
                "test": name,
                "count": self._count,
                RUNNING: running,
                "wanted": {"scenarios": selected.scenarios, "runs": selected.runs},
                "scenarios": [
                    {"n": n, **_scenario_to_live_json(scenario, running=running)}
                    for n, scenario in enumerate(self._run_tree.scenarios())
                    if any(self._changed[run.started.run_id] > since for run in scenario.runs)
                ],
            }

    def _read_new_lines(self) -> None:
        try:
            with self._path.open("rb") as file:
                first = file.readline()
                if not self._first or first != self._first:
                    self._restart_reading(first if first.endswith(b"\n") else b"")
                file.seek(self._read)
                lines = file.read()
        except FileNotFoundError:
            self._restart_reading(b"")
            return
        whole_lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole_lines)
        for line in whole_lines.splitlines():
            event = deserialize_event(json.loads(line))
            self._count += 1
            self._run_tree.add_event(event)
            if not isinstance(event, Selected | Completed) and event.run_id in self._run_tree.runs:
                self._changed[event.run_id] = self._count


def _scenario_to_live_json(scenario: RunsOfOneScenario, *, running: bool) -> dict[str, Any]:
    """Return a scenario as plain values; an unfinished one is running as long as the test is."""
    tree = build_json_of_single_scenario(scenario)
    if not running:
        return tree
    for run, told in zip(scenario.runs, tree["runs"], strict=True):
        if run.finished is None:
            told |= {"status": RUNNING, "why": ""}
    if any(run.finished is None for run in scenario.runs) or len(scenario.runs) < scenario.runs[0].started.runs:
        tree["status"] = RUNNING
    return tree


def make_report_query_handler(report: Path, state: Path) -> Callable[[Mapping[str, str]], dict[str, Any]]:
    """Return the viewer's handler for a report, which raises SettingsError; `state` has past tests."""
    followed = GrowingReportReader(report)

    def read_state(query: Mapping[str, str]) -> dict[str, Any]:
        known, after = query.get("test", ""), read_query_integer(query, "after", 0, 1 << 53)
        found = read_finished_report(report, known) if report.suffix == ".json" else followed.read_state(known, after)
        if found["test"] == known:
            return found
        names = {str(each["id"]) for each in found["scenarios"]}
        return {**found, "trend": build_trend_table_columns(read_recent_tests(state), names)}

    return read_state


def read_finished_report(path: Path, known: str = "") -> dict[str, Any]:
    """Return a report in a followed one's form; only its name if it is the `known` one. Raises SettingsError."""
    try:
        same: dict[str, Any] = {"test": f"{path.stat().st_mtime_ns:x}", "count": 0, RUNNING: False, "scenarios": []}
        if same["test"] == known:
            return same
        text = read_bounded_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the report {path} cannot be read: {error}.") from error
    found = parse_json_or_none(text)
    if not (isinstance(found, dict) and isinstance(found.get("scenarios"), list) and "exit_code" in found):
        raise SettingsError(f"{path} is no JSON report of tests.", hint=_HINT)
    if found.get("format", FORMAT) != FORMAT:
        what = f"a report of format {found.get('format')!r}; this version reads {FORMAT}"
        raise SettingsError(f"{path} is {what}.", hint=_HINT)
    return same | found
