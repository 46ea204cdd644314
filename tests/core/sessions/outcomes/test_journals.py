"""Several journals -> one, whose recordings are those of the merged store."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.core.sessions.outcomes.journal import Journal, Noted
from llmproxy.core.sessions.outcomes.journals import merge_journals
from llmproxy.core.sessions.outcomes.reading import read_misses, read_served
from llmproxy.errors import CassetteCorrupt
from llmproxy.sqlite_file import connect


def journal(path: Path, at: float, interaction: int) -> Path:
    """Return the journal of a run with a hit and a miss."""
    kept = Journal.open(path, lambda: at)
    row = Noted(("REPLAY", "s", "agent", "openai", "chat", "gpt", "POST", "/", 200), (1, 2, "v2:x", interaction), "")
    kept.hit(row, at, 1.0, 1)
    kept.miss({"text": f"refused at {at}"}, at=at)
    kept.close()
    return path


def test_runs_stand_in_the_order_of_their_beginnings_each_once(tmp_path: Path) -> None:
    """In whatever order the journals are given; recordings have their new numbers."""
    a, b = journal(tmp_path / "a.db.state.db", 20.0, 7), journal(tmp_path / "b.db.state.db", 10.0, 7)
    for n, paths in enumerate(([a, b], [b, a, b])):
        target = tmp_path / f"all{n}.state.db"
        assert merge_journals(paths, target, {a: {7: 70}, b: {7: 71}}) == 2
        assert [each.text for each in read_misses(target, 9)] == ["refused at 10.0", "refused at 20.0"]
        assert read_served(target) == frozenset({70})
        conn = connect(target, "mode=ro", timeout=5)
        assert conn.execute("SELECT run, interaction FROM decisions ORDER BY id").fetchall() == [(1, 71), (2, 70)]
        conn.close()


def test_without_its_store_a_recording_is_not_named(tmp_path: Path) -> None:
    """A wrong number would let `prune --unused` offer the wrong ones."""
    merge_journals([journal(tmp_path / "a.state.db", 1.0, 7)], tmp_path / "all.state.db", {})
    assert read_served(tmp_path / "all.state.db") == frozenset()


def test_what_is_no_journal_of_this_version_is_refused(tmp_path: Path) -> None:
    """By name."""
    (tmp_path / "none.state.db").write_text("no")
    older = journal(tmp_path / "old.state.db", 1.0, 1)
    conn = connect(older, "mode=rw", timeout=5)
    conn.execute("PRAGMA user_version = 7")
    conn.close()
    for name, said in (("none", "is no journal"), ("old", "is a journal of version 7")):
        with pytest.raises(CassetteCorrupt, match=rf"{name}\.state\.db {said}"):
            merge_journals([tmp_path / f"{name}.state.db"], tmp_path / "all.state.db", {})
