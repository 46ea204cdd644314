"""The journal: soon on disk, never in the way."""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.core.sessions.journal import (
    IN_MEMORY,
    SUFFIX,
    CallDecisionJournalWriter,
    JournaledMiss,
    read_faulted_calls,
    read_ids_used_last_run,
    read_last_misses_from_journal,
    read_replayed_requests,
)
from llmproxy.core.traffic.interaction import Key
from llmproxy.postgres_store_paths import map_postgres_store_to_copy_path
from llmproxy.protocol import Decision
from tests.support.process import until


def outcome(n: int = 1, decision: Decision = Decision.REPLAY) -> Call:
    return Call(
        decision=decision, method="POST", target="/v1/chat/completions", status=200, provider="openai", input=10,
        output=3, cost=Decimal("0.01"), key=Key("v1:0"), interaction=n, at=float(n),
    )  # fmt: skip


def rows(path: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as conn:
        return conn.execute(f"SELECT * FROM {table}").fetchall()


def test_entries_are_on_disk_before_the_end_of_the_run(tmp_path: Path) -> None:
    """Decisions and misses are written behind the answer, without waiting for the end of the run."""
    path = tmp_path / "llmproxy.db.state.db"
    journal = CallDecisionJournalWriter.open(path, lambda: 5.0)
    journal.record_call(outcome())
    journal.add_miss(JournaledMiss(7.0, "no recorded response", {"text": "no recorded response", "key": "v1:1"}))
    until(lambda: rows(path, "misses"))
    assert len(rows(path, "decisions")) == 1
    (missed,) = read_last_misses_from_journal(path, 10)
    assert (missed.at, missed.text, missed.data["key"]) == (7.0, "no recorded response", "v1:1")
    journal.close()
    assert rows(path, "runs") == [(1, 5.0, 5.0)]


def test_nothing_that_was_written_is_kept(tmp_path: Path) -> None:
    """While the journal waits for the next entry, perhaps for hours, it holds none of the last ones."""
    journal = CallDecisionJournalWriter.open(tmp_path / "j.db", lambda: 0.0)
    many = [outcome(n) for n in range(100)]
    counts = [sys.getrefcount(each) for each in many]
    for each in many:
        journal.record_call(each)
    del each
    until(lambda: [sys.getrefcount(each) for each in many] == counts)  # else the last batch is still held
    assert len(rows(tmp_path / "j.db", "decisions")) == 100
    journal.close()


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    """Nothing put in before close is lost; closing twice is fine, and so is a late entry."""
    path = tmp_path / "j.db"
    journal = CallDecisionJournalWriter.open(path, lambda: 0.0)
    for n in range(500):
        journal.record_call(outcome(n))
    journal.close()
    journal.close()
    journal.record_call(outcome(501))
    assert len(rows(path, "decisions")) == 500
    assert [file.name for file in tmp_path.iterdir()] == ["j.db"]


def test_the_last_run_tells_what_was_used(tmp_path: Path) -> None:
    """Served and recorded rows of the last run only; no run is not the same as nothing used."""
    path = tmp_path / "j.db"
    assert read_ids_used_last_run(path) is None
    for ids in ((1, 2), (2, 3, 3)):
        journal = CallDecisionJournalWriter.open(path, lambda: 0.0)
        for n in ids:
            journal.record_call(outcome(n))
        journal.close()
    assert read_ids_used_last_run(path) == frozenset({2, 3})


def test_misses_are_known_at_once(tmp_path: Path) -> None:
    """The control API lists misses of this run before they are on disk, the last so many."""
    journal = CallDecisionJournalWriter.open(tmp_path / "j.db", lambda: 0.0)
    for n in range(IN_MEMORY + 5):
        journal.add_miss(JournaledMiss(float(n), str(n), {"text": str(n)}))
    assert [missed.text for missed in journal.list_misses()] == [str(n) for n in range(5, IN_MEMORY + 5)]
    journal.close()


def test_odd_text_is_kept(tmp_path: Path) -> None:
    """Lone surrogates and control characters in what a client sent do not stop the journal."""
    path = tmp_path / "j.db"
    journal = CallDecisionJournalWriter.open(path, lambda: 0.0)
    journal.add_miss(JournaledMiss(0.0, "a\udc80\x1b[31m", {"text": "a\udc80\x1b[31m", "list": ("x",)}))
    journal.close()
    (missed,) = read_last_misses_from_journal(path, 1)
    assert (missed.text, missed.data["list"]) == ("a\udc80\x1b[31m", ["x"])


def test_a_place_that_takes_no_file_costs_only_the_journal() -> None:
    """In a folder that cannot be written to the run goes on; the note says that it is in memory only."""
    journal = CallDecisionJournalWriter.open(Path("/proc/nothing.state.db"), lambda: 0.0)
    assert "in memory only" in journal.note
    journal.record_call(outcome())
    journal.add_miss(JournaledMiss(1.0, "m", {"text": "m"}))
    assert [missed.text for missed in journal.list_misses()] == ["m"]
    journal.close()


@pytest.mark.parametrize("content", [b"not sqlite at all", b"SQLite format 3\0" + b"\xff" * 200])
def test_a_damaged_journal_is_put_aside(tmp_path: Path, content: bytes) -> None:
    """The old file is kept under another name, a new one begun, the note says so."""
    path = tmp_path / "j.db"
    path.write_bytes(content)
    assert read_last_misses_from_journal(path, 5) == []
    journal = CallDecisionJournalWriter.open(path, lambda: 0.0)
    assert "j.db.broken" in journal.note
    journal.record_call(outcome())
    journal.close()
    assert len(rows(path, "decisions")) == 1
    assert (tmp_path / "j.db.broken").read_bytes() == content


def test_a_journal_of_another_version_is_put_aside(tmp_path: Path) -> None:
    """A file that another version, or another program, made is not written into."""
    path = tmp_path / "j.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA user_version = 77")
    journal = CallDecisionJournalWriter.open(path, lambda: 0.0)
    assert "version, 77" in journal.note
    journal.close()


def test_two_runs_share_a_journal(tmp_path: Path) -> None:
    """Two proxies on one store write side by side."""
    path = tmp_path / "j.db"
    both = [CallDecisionJournalWriter.open(path, lambda: 0.0) for _ in range(2)]
    for n in range(50):
        for journal in both:
            journal.record_call(outcome(n))
    for journal in both:
        journal.close()
        assert journal.note == ""
    assert len(rows(path, "decisions")) == 100


def test_beside_the_copy_of_a_servers_store_it_has_a_place_at_once(tmp_path: Path) -> None:
    """On a machine that never opened this store there is no folder yet, and the first run's decisions are wanted too."""
    copy = map_postgres_store_to_copy_path("postgresql://me@db.example/team", {"XDG_CACHE_HOME": str(tmp_path / "new")})
    path = copy.with_name(f"{copy.name}{SUFFIX}")
    with closing(CallDecisionJournalWriter.open(path, time.time)) as journal:
        journal.record_call(outcome())
        assert not journal.note
    assert read_ids_used_last_run(path) == frozenset({1})
    assert copy.parent.stat().st_mode & 0o777 == 0o700


def test_a_files_folder_is_its_users(tmp_path: Path) -> None:
    """A journal makes none: a store that is misspelt must not leave folders behind."""
    with closing(CallDecisionJournalWriter.open(tmp_path / "none" / "x.db.state.db", time.time)) as journal:
        assert "kept in memory only" in journal.note
    assert list(tmp_path.iterdir()) == []


def test_calls_that_met_faults_are_found_by_their_fault(tmp_path: Path) -> None:
    """A call that passed, delayed, is one of them; what its note says does not matter."""
    path = tmp_path / "x.db.state.db"
    met = [(Decision.FAULT, "http-429", "x"), (Decision.PASS, "slow", "later"), (Decision.PASS, None, "fault of mine")]
    with closing(CallDecisionJournalWriter.open(path, time.time)) as journal:
        for n, (decision, fault, note) in enumerate(met):
            journal.record_call(outcome(n, decision)._replace(fault=fault, note=note))
    assert [each.note for each in read_faulted_calls(path, 5)] == ["x", "later"]


@pytest.mark.parametrize("odd", [None, "x", b"\xff\x00", 1e308, "[", "[" * 100_000, "null", '{"a": "\\ud800"}', "\0"])
def test_a_row_with_a_value_that_is_none_of_its_columns_is_left_out(tmp_path: Path, odd: object) -> None:
    """A journal may be lost; it is never in the way of who reads it."""
    path = tmp_path / "x.db.state.db"
    with closing(CallDecisionJournalWriter.open(path, time.time)) as journal:
        journal.record_call(outcome(1, Decision.FAULT)._replace(fault="http-429"))
    asked = "INSERT INTO asked (run, at, interaction, method, target, headers, body) VALUES (1, 1.0, 1, 'POST', '/', '[[\"a\", \"b\"]]', NULL)"
    missed = "INSERT INTO misses (run, at, text, data) VALUES (1, 1.0, 'x', '{}')"
    tables = {
        "decisions": ("at", "status", "session", "model", "note"),
        "asked": ("interaction", "method", "target", "headers", "body"),
        "misses": ("at", "text", "data"),
    }
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute(asked)
        conn.execute(missed)
    assert (
        len(read_replayed_requests(path)),
        len(read_last_misses_from_journal(path, 5)),
        len(read_faulted_calls(path, 5)),
    ) == (1, 1, 1)
    for table, columns in tables.items():
        for column in columns:
            with closing(sqlite3.connect(path)) as conn, conn:
                (before,) = conn.execute(f"SELECT {column} FROM {table}").fetchone()
                try:
                    conn.execute(f"UPDATE {table} SET {column} = ?", (odd,))
                except sqlite3.IntegrityError:
                    continue
            assert len(read_replayed_requests(path)) + len(read_last_misses_from_journal(path, 5)) + len(
                read_faulted_calls(path, 5)
            ) in (
                2,
                3,
            )
            with closing(sqlite3.connect(path)) as conn, conn:
                conn.execute(f"UPDATE {table} SET {column} = ?", (before,))
