"""Upkeep: damage is found, and what is pruned is gone without hurting what stays."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.integrity_checks import Damage, count_bytes_freed_by_deletion, find_damages
from tests.support.chats import NOW, chat, fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with a conversation of 30 turns, each turn's request building on the one before."""
    history, turns = "Remember this. " * 60, []
    for n in range(30):
        history += f"Turn {n} said {chr(97 + n % 26) * 30}. "
        turns.append(chat(history, f"answer {n}"))
    fill(tmp_path / "llmproxy.db", *turns)
    return tmp_path / "llmproxy.db"


@pytest.mark.parametrize(("change", "hurt"), [
    ("SELECT 'a sound store'", []),
    ("UPDATE bodies SET data = x'00' WHERE id = 2", [1]),
    ("UPDATE interactions SET chunks = '[[0,1]]' WHERE id = 3", [3]),
    ("UPDATE interactions SET chunks = 'no' WHERE id = 3", [3]),
    ("UPDATE interactions SET ending = 'odd' WHERE id = 4", [4]),
    ("UPDATE interactions SET request_headers = '{}' WHERE id = 5", []),
    ("UPDATE interactions SET request_headers = '[1]' WHERE id = 5", [5]),
    ("UPDATE interactions SET response_headers = '7' WHERE id = 5", [5]),
    ("UPDATE interactions SET request_body = 999 WHERE id = 6", [6, 6]),
    ("UPDATE interactions SET response_body = 999 WHERE id = 6", [6, 6]),
    ("UPDATE bodies SET prefix = 1 WHERE base_id IS NOT NULL AND id < 20", [*range(2, 31)]),
])  # fmt: skip
def test_each_damaged_row_is_named(path: Path, change: str, hurt: list[int]) -> None:
    """Whatever was done to a row, the report names its interaction, and all that build on it, and goes on."""
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(change)
        conn.commit()
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        assert [damage.interaction for damage in find_damages(store)] == hurt


def test_a_damaged_file_is_told_as_one(path: Path) -> None:
    """Overwritten pages are reported by SQLite's own check, without an exception."""
    content = bytearray(path.read_bytes())
    content[-4096 * 10 :] = b"\xff" * 4096 * 10
    path.write_bytes(content)
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        found = list(find_damages(store))
    assert found
    assert isinstance(found[0], Damage)
    assert found[0].interaction is None


@pytest.mark.parametrize(
    "gone", [{1}, {30}, set(range(1, 30)), set(range(2, 31)), {2, 3, 5, 7, 11, 13, 29}, set(range(1, 31))]
)
def test_what_stays_reads_exactly(path: Path, gone: set[int]) -> None:
    """Whichever turns go, the others read as before, and no body is left that nobody uses."""
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as store:
        kept = {row.id: store.load(row.id) for row in store.list_summaries() if row.id not in gone}
        assert count_bytes_freed_by_deletion(store, gone) > 0
        assert store.delete_interactions(gone).interactions == len(gone)
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        assert {row.id: store.load(row.id) for row in store.list_summaries()} == kept
        assert store.conn.execute("SELECT count(*) FROM bodies").fetchone() == (2 * len(kept),)
        assert list(find_damages(store)) == []
        assert bool(store.cassettes()) == bool(kept)
    if len(gone) == 30:
        assert b"Remember this" not in path.read_bytes()
