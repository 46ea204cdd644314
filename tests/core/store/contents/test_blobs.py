"""Contents of many megabytes: in and out of a row in pieces, and as exact as small ones."""

from __future__ import annotations

import random
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from llmproxy.core.store.bodies import LARGE, Bodies, contents, deflate_content, read
from llmproxy.core.store.file.migrations import upgrade
from llmproxy.errors import CassetteCorrupt
from llmproxy.sqlite_file import immediate

NOISE = random.Random(1).randbytes(LARGE + 3_000_000)
WORDS = b"the quick brown fox " * (LARGE // 10)
HALF = NOISE + WORDS
GROUP = ("default", "openai", "files")


@pytest.fixture
def conn() -> Iterator[sqlite3.Connection]:
    """Return a database in memory with the store's schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        upgrade(made)
        yield made


def put(conn: sqlite3.Connection, writer: Bodies, content: bytes) -> int:
    """Store a content as `Store.add` does."""
    prepared = writer.prepare(conn, content, GROUP)
    with immediate(conn):
        return writer.put(conn, prepared)[0]


@pytest.mark.parametrize("content", [NOISE, WORDS, HALF, NOISE[:LARGE], NOISE[: LARGE + 1]])
def test_what_is_large_comes_back_as_it_was(conn: sqlite3.Connection, content: bytes) -> None:
    """Compressed where that saves something; stored once."""
    writer = Bodies()
    row = put(conn, writer, content)
    assert read(conn, row) == content
    assert put(conn, writer, content) == row
    encoding, stored = conn.execute("SELECT encoding, length(data) FROM bodies").fetchone()
    assert encoding == ("identity" if content[:9] == NOISE[:9] and WORDS[:9] not in content else "zlib")
    assert stored <= len(content)


def test_packed_gives_up_where_nothing_is_saved() -> None:
    """And else gives what zlib gives."""
    assert deflate_content(NOISE, 1) is None
    assert deflate_content(b"", 6) is None
    made = deflate_content(WORDS, 1)
    assert made is not None
    assert zlib.decompress(made) == WORDS


@pytest.mark.parametrize("damage", ["UPDATE bodies SET data = zeroblob(length(data))", "UPDATE bodies SET encoding = 'zlib'",
                                    "UPDATE bodies SET data = substr(data, 1, length(data) - 5)"])  # fmt: skip
@pytest.mark.parametrize("content", [NOISE, HALF])
def test_what_is_damaged_is_said(conn: sqlite3.Connection, content: bytes, damage: str) -> None:
    """Never served."""
    row = put(conn, Bodies(), content)
    conn.execute(damage)
    if conn.execute("SELECT encoding FROM bodies").fetchone() == ("zlib",) and content is HALF and "encoding" in damage:
        return  # it was that before
    with pytest.raises(CassetteCorrupt, match=f"Row {row} of table `bodies`"):
        read(conn, row)


def test_a_column_is_read_to_its_end(conn: sqlite3.Connection) -> None:
    """A deflated one that stops early is an error."""
    made = zlib.compress(WORDS)
    insert = "INSERT INTO bodies (sha256, size, encoding, data) VALUES (?, 1, 'zlib', ?)"
    whole = conn.execute(insert, (b"1", made)).lastrowid
    cut = conn.execute(insert, (b"2", made[:-9])).lastrowid
    assert contents(conn, whole or 0, deflated=True) == WORDS
    assert contents(conn, whole or 0, deflated=False) == made
    with pytest.raises(zlib.error):
        contents(conn, cut or 0, deflated=True)
