"""Tests are kept in the state database, beside what the journal has there, and shown side by side, what got worse first."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.errors import CassetteCorrupt, Exit
from llmproxy.report import trend
from llmproxy.report.events import Completed, Selected
from llmproxy.report.trend import TrendRecorder, format_trend, read_recent_tests


def row(scenario: str, status: str, **more: Any) -> dict[str, Any]:
    rate = {"passed": 1.0, "failed": 0.0}.get(status)
    return {"scenario": scenario, "status": status, "runs": 1, "passed": status == "passed", "rate": rate, **more}


def end(path: Path, *rows: dict[str, Any], at: float = 0.0, code: int = 0) -> list[str]:
    """Let a test end; returns what could not be kept."""
    lost: list[str] = []
    kept = TrendRecorder(path, lost.append)
    kept.handle(Selected(title="t", scenarios=1, runs=1, at=at))
    kept.handle(Completed(exit_code=code, seconds=1.0, scenarios=rows))
    kept.close()
    return lost


def test_what_got_worse_comes_first(tmp_path: Path) -> None:
    """With what changed in cost and latency, and blanks where a scenario was not run; unknown figures are left out."""
    path = tmp_path / "x.db.state.db"
    end(path, row("good", "passed"), row("one", "passed", cost_usd="0.0010", latency_ms=800.0), at=60.0)
    end(path, row("one", "passed", cost_usd="0.0010"), row("bad", "failed"), at=120.0)
    one = row("one", "failed", cost_usd="0.0025", latency_ms=1900.0)
    end(path, row("good", "passed"), one, row("bad", "failed"), at=180.0)
    assert format_trend(read_recent_tests(path)) == [
        "the last 3 tests, 1970-01-01 00:01 to 1970-01-01 00:03 UTC, the newest at the right; 1 worse than the time before",
        "  ..F  one   passed 2 of 3  worse  $0.0010 -> $0.0025  1.9 s",
        "   FF  bad   passed 0 of 2",
        "  . .  good  passed 2 of 2",
        ". passed, F failed, ~ flaky, A agent error, E environment error, - skipped",
    ]
    assert format_trend(read_recent_tests(path), lambda name: name == "gone") == []


def test_it_lies_beside_the_journal(tmp_path: Path) -> None:
    """Whoever comes first: neither takes the other's tables for damage."""
    path = tmp_path / "x.db.state.db"
    end(path, row("a", "passed"))
    journal = CallDecisionJournalWriter.open(path, time.time)
    assert (journal.note, end(path, row("a", "failed"))) == ("", [])
    journal.close()
    assert [each.rows["a"]["status"] for each in read_recent_tests(path)] == ["passed", "failed"]


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    """With their rows; a test that was interrupted, or ran nothing, is none."""
    path = tmp_path / "x.state.db"
    for number in range(trend.KEPT + 2):
        end(path, row("a", "passed"), at=float(number))
    end(path, row("a", "failed"), code=Exit.INTERRUPTED)
    end(path)
    kept = read_recent_tests(path, 1000)
    assert (len(kept), kept[0].at, kept[-1].rows["a"]["status"]) == (trend.KEPT, 2.0, "passed")
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("SELECT count(*) FROM test_rows").fetchone() == (trend.KEPT,)


def test_an_empty_database_has_no_trend_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    """Absent, empty, a journal without tests; other files are not overwritten, and said."""
    path = tmp_path / "x.state.db"
    assert read_recent_tests(path) == []
    path.touch()
    assert read_recent_tests(path) == []
    path.unlink()
    CallDecisionJournalWriter.open(path, time.time).close()
    assert read_recent_tests(path) == []
    path.write_text("no database, but long enough to be taken for one at first sight" * 20)
    assert "not in the trend" in end(path, row("a", "passed"))[0]
    with pytest.raises(CassetteCorrupt):
        read_recent_tests(path)
    assert path.read_text().startswith("no database")


ODD = ["null", "x", b"\xff", 1e308, float("inf"), -5, "\0"]
COLUMNS = [
    ("tests", "at"),
    ("tests", "title"),
    ("tests", "exit_code"),
    *(("test_rows", each) for each in ("scenario", "status", "runs", "passed", "rate", "cost_usd", "latency_ms")),
]


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=str)
def test_a_value_that_is_none_of_its_columns_is_damage_or_told(tmp_path: Path, table: str, column: str) -> None:
    """A foreign state database ends in words, and in no figure that was made up."""
    told = 0
    for number, odd in enumerate(ODD):
        path = tmp_path / f"{number}.state.db"
        for at in (60.0, 120.0):
            end(path, row("one", "failed", cost_usd="0.0010", latency_ms=800.0), at=at)
        with closing(sqlite3.connect(path)) as conn, conn:
            conn.execute(f"UPDATE {table} SET {column} = ?", (odd,))
        with suppress(CassetteCorrupt):  # and no other error
            assert format_trend(read_recent_tests(path))
            told += 1
    assert told < len(ODD)
