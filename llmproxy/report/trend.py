"""Results of the last tests, scenario by scenario, kept in ``<store>.state.db``: regressions come first.

An interrupted test says too little and is not kept. The database is no evidence: `--report json=FILE` is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from llmproxy.amount_formatting import align_rows, dollars, format_count, format_milliseconds
from llmproxy.core.sessions.journal import open_journal_database
from llmproxy.errors import CassetteCorrupt, Exit
from llmproxy.report.events import Completed, Event, EventHandlerWithNothingToClose, Selected
from llmproxy.report.run_tree import LATEST, value_has_annotated_type
from llmproxy.report.scenario_rows import measure_drop_in_rate_or_status, validate_report_row
from llmproxy.sqlite_file import (
    DatabaseErrorWording,
    SqliteFileStatus,
    detect_sqlite_file_state,
    open_sqlite_connection,
    translate_errors,
    write_transaction,
)

KEPT = 200
SHOWN = 10
BUSY_SECONDS = 2.0
_TABLES = (
    (
        "CREATE TABLE IF NOT EXISTS tests (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, title TEXT NOT "
        "NULL, mode TEXT NOT NULL, exit_code INTEGER NOT NULL, seconds REAL NOT NULL)"
    ),
    (
        "CREATE TABLE IF NOT EXISTS test_rows (test INTEGER NOT NULL, scenario TEXT NOT NULL, status TEXT NOT NULL, "
        "runs INTEGER NOT NULL, passed INTEGER NOT NULL, rate REAL, cost_usd TEXT, latency_ms REAL)"
    ),
)
_COLUMNS = ("scenario", "status", "runs", "passed", "rate", "cost_usd", "latency_ms")
_SELECT_ROWS = "SELECT scenario, status, runs, passed, rate, cost_usd, latency_ms FROM test_rows WHERE test = ?"
_REMOVE = "Remove it: it holds the last misses and what --trend tells, and no recording."
_WORDS = DatabaseErrorWording(
    name="state database", takes="test", elsewhere="use another --store", damaged=_REMOVE, unreadable=_REMOVE
)
_MARKS = {"passed": ".", "failed": "F", "agent_error": "A", "environment_error": "E", "flaky": "~", "skipped": "-"}
_LEGEND = ". passed, F failed, ~ flaky, A agent error, E environment error, - skipped"


@dataclass(frozen=True, slots=True)
class PastTestRun:
    at: float
    """Unix time of its start."""
    title: str
    exit_code: int
    rows: Mapping[str, Mapping[str, Any]]
    """Scenario -> status, runs, passed, rate, cost_usd, latency_ms."""


class TrendRecorder(EventHandlerWithNothingToClose):
    def __init__(self, path: Path, lost: Callable[[str], object]) -> None:
        """Store it in the database at `path`; `lost` gets the reason if that fails."""
        self._path, self._lost = path, lost
        self._selected = Selected(title="", scenarios=0, runs=0)

    def handle(self, event: Event) -> None:
        if isinstance(event, Selected):
            self._selected = event
        elif isinstance(event, Completed) and event.scenarios and event.exit_code != Exit.INTERRUPTED:
            try:
                add_test_run_to_trend(self._path, self._selected, event)
            except (sqlite3.Error, OSError) as error:
                self._lost(f"this test is not in the trend: {self._path}: {error}")


def add_test_run_to_trend(path: Path, selected: Selected, completed: Completed) -> None:
    """Add a test. Raises sqlite3.Error and OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(open_journal_database(path)) as conn, write_transaction(conn):
        for table in _TABLES:
            conn.execute(table)
        test = conn.execute(
            "INSERT INTO tests (at, title, mode, exit_code, seconds) VALUES (?, ?, ?, ?, ?)",
            (selected.at, selected.title, selected.mode, completed.exit_code, completed.seconds),
        ).lastrowid
        rows = [(test, *map(row.get, _COLUMNS)) for row in completed.scenarios]
        conn.executemany("INSERT INTO test_rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        conn.execute("DELETE FROM tests WHERE id <= (SELECT max(id) FROM tests) - ?", (KEPT,))
        conn.execute("DELETE FROM test_rows WHERE test NOT IN (SELECT id FROM tests)")


def read_recent_tests(path: Path, limit: int = SHOWN) -> list[PastTestRun]:
    """Return the last tests, oldest first; none if none was kept. Raises CassetteCorrupt: a damaged database."""
    with translate_errors(path, _WORDS, writing=False):
        if (state := detect_sqlite_file_state(path)) in (SqliteFileStatus.ABSENT, SqliteFileStatus.EMPTY):
            return []
        if state not in (SqliteFileStatus.ROLLBACK, SqliteFileStatus.WAL):
            raise CassetteCorrupt(f"The state database {path} is no database.", hint=_WORDS.damaged)
        with closing(open_sqlite_connection(path, "mode=ro", timeout=BUSY_SECONDS)) as conn:
            if not conn.execute("SELECT count(*) FROM sqlite_master WHERE name = 'test_rows'").fetchone()[0]:
                return []
            newest_first = "SELECT id, at, title, exit_code FROM tests ORDER BY id DESC LIMIT ?"
            found = []
            for id_, at, title, code in reversed(conn.execute(newest_first, (limit,)).fetchall()):
                named = [dict(zip(_COLUMNS, row, strict=True)) for row in conn.execute(_SELECT_ROWS, (id_,))]
                found.append(_parse_past_test_run(path, at, title, code, named))
            return found


def _parse_past_test_run(path: Path, at: Any, title: Any, code: Any, rows: Sequence[Mapping[str, Any]]) -> PastTestRun:
    """Return a test from its row. Raises CassetteCorrupt: a value has a wrong type."""
    why = ""
    if not (value_has_annotated_type(title, "str") and value_has_annotated_type(code, "int")):
        why = f"a test is called {title!r:.60} and ended with {code!r:.60}"
    if not value_has_annotated_type(at, "float") or not 0 <= at < LATEST:
        why = f"a test began at {at!r:.60}"
    made: dict[str, Mapping[str, Any]] = {}
    try:
        made = {row["scenario"]: validate_report_row(row) for row in rows}
    except TypeError as error:
        why = str(error)
    if why:
        raise CassetteCorrupt(f"The state database {path} is damaged: {why}.", hint=_REMOVE)
    return PastTestRun(at, title, code, made)


def build_trend_table_columns(tests: Sequence[PastTestRun], names: AbstractSet[str]) -> list[dict[str, Any]]:
    return [
        {"at": test.at, "statuses": {name: row["status"] for name, row in test.rows.items() if name in names}}
        for test in tests
        if names & test.rows.keys()
    ]


def format_trend(tests: Sequence[PastTestRun], only: Callable[[str], bool] = lambda _name: True) -> list[str]:
    names = list(dict.fromkeys(name for test in reversed(tests) for name in test.rows if only(name)))
    if not names:
        return []
    lines = sorted((_summarize_scenario(name, tests) for name in names), key=lambda line: line[0])
    worse = sum(order == 0 for order, _, _ in lines)
    days = f"{_format_minute(tests[0].at)} to {_format_minute(tests[-1].at)} UTC"
    head = f"the last {format_count(len(tests), 'test')}, {days}, the newest at the right"
    rows = []
    for _, name, text in lines:
        marks = (_MARKS.get(str(test.rows[name]["status"]), "?") if name in test.rows else " " for test in tests)
        rows.append(("".join(marks), name, text))
    return [f"{head}; {worse} worse than the time before", *(f"  {text}" for text in align_rows(rows)), _LEGEND]


def _summarize_scenario(name: str, tests: Sequence[PastTestRun]) -> tuple[int, str, str]:
    """Return a scenario's urgency, its name, and the change between the last two tests that ran it."""
    rows = [test.rows[name] for test in tests if name in test.rows]
    last, before = rows[-1], rows[-2] if len(rows) > 1 else None
    step = 0 if before is None else measure_drop_in_rate_or_status(before, last)
    good = sum(row["status"] == "passed" for row in rows)
    told = [f"passed {good} of {len(rows)}", "worse" if step > 0 else "better" if step < 0 else ""]
    told.append(_format_value_with_earlier(before, last, "cost_usd", lambda value: dollars(Decimal(value))))
    told.append(_format_value_with_earlier(before, last, "latency_ms", lambda value: format_milliseconds(float(value))))
    urgency = 0 if step > 0 else 1 if last["status"] not in ("passed", "skipped") else 2
    return urgency, name, "  ".join(filter(None, told))


def _format_value_with_earlier(
    before: Mapping[str, Any] | None, last: Mapping[str, Any], name: str, shown: Callable[[Any], str]
) -> str:
    """Return a figure, with its earlier value if different; empty if unknown."""
    if last[name] is None:
        return ""
    old, new = None if before is None or before[name] is None else shown(before[name]), shown(last[name])
    return new if old in (None, new) else f"{old} -> {new}"


def _format_minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
