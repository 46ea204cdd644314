"""Bodies: what is encoded is read back, and contents of many megabytes go in and out of a row in pieces."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.store import bodies
from llmproxy.core.store.bodies import (
    LARGE,
    DeltaBaseBody,
    DeltaBodyWriter,
    compress_body_for_storage,
    load_stored_body,
    read_and_inflate_body_column,
)
from llmproxy.core.store.file.migrations import upgrade_schema
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Chunk, Interaction, Key, Request, Response
from llmproxy.core.traffic.json_diff import count_common_prefix, count_common_suffix
from llmproxy.errors import CassetteCorrupt
from llmproxy.sqlite_file import write_transaction

GROUP = ("default", "openai", "chat.completions")
WORDS = Path(__file__).read_text().split()


@pytest.fixture
def conn() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        upgrade_schema(made)
        made.execute("PRAGMA foreign_keys=ON")
        yield made


def put(conn: sqlite3.Connection, writer: DeltaBodyWriter, content: bytes) -> int:
    prepared = writer.prepare_body(conn, content, GROUP)
    with write_transaction(conn):
        stored = writer.store_body(conn, prepared)
    writer.remember_base(GROUP, stored, content)
    return stored[0]


def conversation(turns: int, seed: int = 1, words: int = 60) -> Iterator[tuple[bytes, bytes]]:
    """Return (request, answer) of each turn, the history resent each time."""
    rng = random.Random(seed)
    messages = [{"role": "system", "content": " ".join(rng.choices(WORDS, k=100))}]
    for turn in range(turns):
        messages.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=words))})
        request = json.dumps({"model": "gpt-4o", "messages": messages, "temperature": 0.2, "tools": []}).encode()
        said = {"role": "assistant", "content": " ".join(rng.choices(WORDS, k=words))}
        messages.append(said)
        answer = {
            "id": f"chatcmpl-{rng.getrandbits(128):x}", "created": turn, "choices": [{"index": 0, "message": said}],
        }  # fmt: skip
        yield request, json.dumps(answer).encode()


@given(a=st.binary(max_size=300), b=st.binary(max_size=300), shared=st.binary(max_size=700))
def test_finds_the_longest_shared_ends(a: bytes, b: bytes, shared: bytes) -> None:
    """Prefix and suffix are what a byte by byte comparison finds."""

    def slow(x: bytes, y: bytes) -> int:
        return next((n for n in range(min(len(x), len(y))) if x[n] != y[n]), min(len(x), len(y)))

    x, y = shared + a, shared + b
    assert count_common_prefix(x, y) == slow(x, y)
    x, y = a + shared, b + shared
    for limit in (min(len(x), len(y)), len(shared) // 2):
        assert count_common_suffix(x, y, limit) == min(slow(x[::-1], y[::-1]), limit)


@given(st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=50)), min_size=1, max_size=8))
def test_any_edit_of_a_body_reads_back(edits: list[tuple[int, bytes]]) -> None:
    """A chain of bodies, each the one before with bytes put in or taken out anywhere, is exact."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as conn:
        upgrade_schema(conn)
        writer, content, stored = DeltaBodyWriter(), bytes(range(256)) * 12, {}
        for at, piece in edits:
            content = content[:at] + piece + content[at + len(piece) // 2 :]
            stored[put(conn, writer, content)] = content
        known = bodies.ByteLimitedCache[bytes](4 << 20)
        for row, wanted in stored.items():
            assert bodies.load_stored_body(conn, row) == bodies.load_stored_body(conn, row, known) == wanted


def test_a_content_is_stored_once(conn: sqlite3.Connection) -> None:
    """The same bytes give the same row, also to a writer that does not remember them."""
    assert put(conn, DeltaBodyWriter(), b"same" * 100) == put(conn, DeltaBodyWriter(), b"same" * 100)
    assert conn.execute("SELECT count(*) FROM bodies").fetchone() == (1,)


@pytest.mark.parametrize(
    ("content", "encoding"),
    [(b"", "identity"), (b"{}", "identity"), (b"word " * 200, "zlib"), (random.Random(1).randbytes(5000), "identity")],
)
def test_packs_only_what_gets_smaller(content: bytes, encoding: str) -> None:
    """Small and random contents stay as they are, text is deflated."""
    assert compress_body_for_storage(content).encoding == encoding


def test_the_nearest_body_is_the_base(conn: sqlite3.Connection) -> None:
    """Two conversations side by side each build on their own last turn."""
    writer, rows = DeltaBodyWriter(), []
    for (a, _), (b, _) in zip(conversation(6, seed=1), conversation(6, seed=2), strict=True):
        rows.append((put(conn, writer, a), put(conn, writer, b)))
    for before, after in itertools.pairwise(rows):
        bases = [conn.execute("SELECT base_id FROM bodies WHERE id = ?", (row,)).fetchone()[0] for row in after]
        assert bases == list(before)


def test_no_further_base_is_looked_at_when_one_leaves_nothing_to_say() -> None:
    """The first base that shares all but a few bytes is taken; one that leaves more does not end the search."""
    content = bytes(range(256)) * 20
    near, nearer, same = content[:-100] + b"x", content[:-50] + b"x", content[:-1] + b"x"
    bases = tuple(DeltaBaseBody(number, 0, each) for number, each in enumerate((near, nearer, same), 1))
    assert compress_body_for_storage(content, bases).base_id == 2


def test_a_chain_has_an_end(conn: sqlite3.Connection) -> None:
    """After MAX_DEPTH deltas a body stands on its own."""
    content = bytes(range(256)) * 4
    assert compress_body_for_storage(content + b"x", (DeltaBaseBody(1, bodies.MAX_DEPTH, content),)).base_id is None
    assert (
        compress_body_for_storage(content + b"x", (DeltaBaseBody(1, bodies.MAX_DEPTH - 1, content),)).depth
        == bodies.MAX_DEPTH
    )


def test_a_base_that_was_pruned_meanwhile_is_done_without(conn: sqlite3.Connection) -> None:
    """A body prepared on another that is gone at commit is stored whole."""
    writer = DeltaBodyWriter()
    content = " ".join(WORDS[:200]).encode()
    base = put(conn, writer, content)
    prepared = writer.prepare_body(conn, content + b" and more", GROUP)
    assert prepared.encoded is not None
    assert prepared.encoded.base_id == base
    conn.execute("DELETE FROM bodies")
    with write_transaction(conn):
        row, depth = writer.store_body(conn, prepared)
    assert depth == 0
    assert bodies.load_stored_body(conn, row) == content + b" and more"


def test_a_base_cannot_be_deleted(conn: sqlite3.Connection) -> None:
    """The database itself keeps a body that another builds on."""
    writer = DeltaBodyWriter()
    rows = [put(conn, writer, request) for request, _ in conversation(2)]
    with pytest.raises(sqlite3.IntegrityError):
        conn.execute("DELETE FROM bodies WHERE id = ?", (rows[0],))


@pytest.mark.parametrize(("change", "says"), [
    ("UPDATE bodies SET data = x'00' WHERE id = 1", "Row 1"),
    ("UPDATE bodies SET data = 'text' WHERE id = 1", "not bytes"),
    ("UPDATE bodies SET sha256 = x'00' WHERE id = 3", "Row 3.*sha256"),
    ("UPDATE bodies SET prefix = 99999 WHERE id = 2", "Row 2.*does not fit"),
    ("UPDATE bodies SET base_id = 3 WHERE id = 3", "Row 3.*cannot build on row 3"),
    ("UPDATE bodies SET base_id = 3 WHERE id = 2", "Row 2.*cannot build on row 3"),
    ("DELETE FROM bodies WHERE id = 1", "Row 1.*missing, and row 2 builds on it"),
    ("DELETE FROM bodies WHERE id = 3", "Row 3.*missing"),
])  # fmt: skip
def test_damage_names_the_row(conn: sqlite3.Connection, change: str, says: str) -> None:
    """Whatever was done to a row, reading says which one is damaged and gives no bytes."""
    writer = DeltaBodyWriter()
    assert [put(conn, writer, request) for request, _ in conversation(3)] == [1, 2, 3]
    conn.execute("PRAGMA foreign_keys=OFF")
    conn.execute(change)
    with pytest.raises(CassetteCorrupt, match=says):
        bodies.load_stored_body(conn, 3)


def test_the_memory_is_bounded(conn: sqlite3.Connection) -> None:
    """Large bodies push out older ones; what is remembered never exceeds its bound by more than one body."""
    writer, rng = DeltaBodyWriter(), random.Random(1)
    for n in range(12):
        content = rng.randbytes(3 << 20)
        writer.remember_base((str(n), "", ""), (n + 1, 0), content)
    kept = sum(len(base.content) for recent in writer._recent.values() for base in recent)
    assert kept <= bodies.REMEMBERED_BYTES
    assert kept == writer._bytes


def test_a_conversation_grows_with_its_new_text(tmp_path: Path) -> None:
    """200 turns, history resent each time: the file is at most 3x the new bytes, across a restart, and reads exactly."""
    path = tmp_path / "llmproxy.db"
    new = previous = total = 0
    added = {}
    store = SqliteCassetteStore.open(path, writable=True, now=lambda: 0.0)
    for turn, (request, answer) in enumerate(conversation(200)):
        if turn == 100:
            store.close()
            store = SqliteCassetteStore.open(path, writable=True, now=lambda: 0.0)
        new, previous, total = (
            new + len(request) - previous + len(answer), len(request), total + len(request) + len(answer),
        )  # fmt: skip
        headers = (("content-type", "application/json"), ("x-request-id", f"req_{turn:032x}"), ("date", "x" * 29))
        made = Interaction(
            provider="openai",
            operation="chat.completions",
            key=Key(f"v1:{turn:064x}"),
            request=Request("POST", "/v1/chat/completions", (("content-type", "application/json"),), request),
            response=Response(200, "OK", headers, (Chunk(1, answer),)),
            started_at=float(turn),
        )
        added[store.add_interaction(made, supersede=False)] = made
    last = max(added)
    store.close()
    with SqliteCassetteStore.open(path, writable=False, now=lambda: 0.0) as store:
        assert store.load(last).request == added[last].request
        assert all(store.load(id_).request.body == made.request.body for id_, made in added.items())
    size = path.stat().st_size
    print(f"growth: {total:,} bytes sent, {new:,} new, {size:,} stored ({size / new:.2f}x new)")
    assert size <= 3 * new


NOISE = random.Random(1).randbytes(LARGE + 3_000_000)
WORDS_BLOBS = b"the quick brown fox " * (LARGE // 10)
HALF = NOISE + WORDS_BLOBS


@pytest.mark.parametrize("content", [NOISE, WORDS_BLOBS, HALF, NOISE[:LARGE], NOISE[: LARGE + 1]])
def test_what_is_large_comes_back_as_it_was(conn: sqlite3.Connection, content: bytes) -> None:
    """Compressed where that saves something; stored once."""
    writer = DeltaBodyWriter()
    row = put(conn, writer, content)
    assert load_stored_body(conn, row) == content
    assert put(conn, writer, content) == row
    encoding, stored = conn.execute("SELECT encoding, length(data) FROM bodies").fetchone()
    assert encoding == ("identity" if content[:9] == NOISE[:9] and WORDS_BLOBS[:9] not in content else "zlib")
    assert stored <= len(content)


@pytest.mark.parametrize(("content", "damage"), [
    (NOISE, "data = zeroblob(length(data))"), (NOISE, "encoding = 'zlib'"),
    (NOISE, "data = substr(data, 1, length(data) - 5)"), (HALF, "data = zeroblob(length(data))"),
    (HALF, "data = substr(data, 1, length(data) - 5)"),
])  # fmt: skip
def test_what_is_damaged_is_said(conn: sqlite3.Connection, content: bytes, damage: str) -> None:
    row = put(conn, DeltaBodyWriter(), content)
    conn.execute(f"UPDATE bodies SET {damage}")
    with pytest.raises(CassetteCorrupt, match=f"Row {row} of table `bodies`"):
        load_stored_body(conn, row)


def test_a_column_is_read_to_its_end(conn: sqlite3.Connection) -> None:
    """A deflated one that stops early is an error."""
    made = zlib.compress(WORDS_BLOBS)
    insert = "INSERT INTO bodies (sha256, size, encoding, data) VALUES (?, 1, 'zlib', ?)"
    whole, cut = (conn.execute(insert, each).lastrowid or 0 for each in ((b"1", made), (b"2", made[:-9])))
    assert read_and_inflate_body_column(conn, whole, deflated=True) == WORDS_BLOBS
    assert read_and_inflate_body_column(conn, whole, deflated=False) == made
    with pytest.raises(zlib.error):
        read_and_inflate_body_column(conn, cut, deflated=True)
