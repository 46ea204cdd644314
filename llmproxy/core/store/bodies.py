"""Storage of bodies: each content once, and the requests of a growing conversation as deltas.

A *delta* has the first `prefix` and the last `suffix` bytes of an earlier body with `data` between them: an agent sends
its whole history each turn, and the file grows with the new text only. Every read is checked against the sha256.
A body that is the base of others is never deleted before `statements.delete_unused_bodies` has stored those anew.
"""

from __future__ import annotations

import hashlib
import io
import sqlite3
import zlib
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from llmproxy.core.traffic.json_diff import count_common_prefix, count_common_suffix
from llmproxy.errors import CassetteCorrupt

LARGE = 4 << 20  # bytes of a column above which it is written and read in pieces
PIECE = 1 << 20


def deflate_if_smaller_or_none(content: bytes, level: int) -> bytes | None:
    """Deflate a content; None if that does not save a tenth, which is detected before all of it is in memory."""
    deflater, view, out = zlib.compressobj(level), memoryview(content), io.BytesIO()
    most = len(content) * 9 // 10
    for at in range(0, len(content), PIECE):
        out.write(deflater.compress(view[at : at + PIECE]))
        if out.tell() >= most:
            return None
    out.write(deflater.flush())
    return out.getvalue() if out.tell() < most else None


def read_and_inflate_body_column(conn: sqlite3.Connection, row: int, *, deflated: bool) -> bytes:
    """Return the data column of a row of `bodies`. Raises sqlite3.Error, zlib.error."""
    out = io.BytesIO()
    inflater = zlib.decompressobj() if deflated else None
    with conn.blobopen("bodies", "data", row, readonly=True) as blob:
        while piece := blob.read(PIECE):
            out.write(inflater.decompress(piece) if inflater else piece)
    if inflater is not None and not inflater.eof:
        raise zlib.error("incomplete or truncated stream")
    return out.getvalue()


MAX_DEPTH = 256  # longest chain of deltas; the next body starts a new one. 256 links are read in about 2 ms
CANDIDATES = 8  # number of recent bodies tried as a base: conversations of sub-agents run side by side
REMEMBERED_BYTES = 16 << 20  # maximum bytes of the cache of recent bodies
_SMALL = 128
_FAST_ABOVE = 1 << 20
_LITTLE_WORK = 8192
"""Bytes up to which encoding is cheaper than checking whether the content exists: the insert detects that."""
_LEAST_SHARED = 256
_LITTLE = 64  # bytes; with a base that leaves no more than this to store, no other is tried

Group = tuple[str | bytes, str | bytes, str | bytes]
"""Cassette, provider, operation: bodies that are likely to share text."""

DATA = f"CASE WHEN length({{0}}data) > {LARGE} THEN NULL ELSE {{0}}data END, length({{0}}data)"
"""Columns of `LazyStoredBodyData`, after the prefix of the table's alias; large data is read in pieces."""
_ROW = f"SELECT id, sha256, encoding, base_id, prefix, suffix, {DATA.format('')} FROM bodies WHERE id = ?"
_RECENT = """
SELECT DISTINCT request_body FROM (
    SELECT request_body FROM interactions WHERE cassette = ? AND provider = ? AND operation = ? ORDER BY id DESC LIMIT ?
)
"""
_INSERT = """
INSERT INTO bodies (sha256, size, encoding, base_id, prefix, suffix, depth, data) VALUES (?, ?, ?, ?, ?, ?, ?, {0})
ON CONFLICT (sha256) DO NOTHING
"""
_SAME = "SELECT id, depth FROM bodies WHERE sha256 = ?"


@dataclass(frozen=True, slots=True)
class DeltaEncodedBody:
    encoding: str
    data: bytes
    base_id: int | None = None
    prefix: int = 0
    suffix: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class DeltaBaseBody:
    id: int
    depth: int
    content: bytes


def _deflate_if_smaller(data: bytes) -> tuple[bool, bytes]:
    if len(data) < _SMALL:
        return False, data
    packed = deflate_if_smaller_or_none(data, 1 if len(data) > _FAST_ABOVE else 6)
    return (False, data) if packed is None else (True, packed)


def compress_body_for_storage(content: bytes, bases: tuple[DeltaBaseBody, ...] = ()) -> DeltaEncodedBody:
    """Return the smallest of the forms worth trying, given possible bases."""
    best: tuple[int, int, DeltaBaseBody] | None = None
    for base in bases:
        if base.depth >= MAX_DEPTH:
            continue
        prefix = count_common_prefix(base.content, content)
        suffix = count_common_suffix(base.content, content, min(len(base.content), len(content)) - prefix)
        if best is None or prefix + suffix > best[0] + best[1]:
            best = (prefix, suffix, base)
            if prefix + suffix >= len(content) - _LITTLE:
                break
    if best is not None and best[0] + best[1] >= max(_LEAST_SHARED, len(content) // 2):
        prefix, suffix, base = best
        deflated, data = _deflate_if_smaller(content[prefix : len(content) - suffix])
        return DeltaEncodedBody("delta+zlib" if deflated else "delta", data, base.id, prefix, suffix, base.depth + 1)
    deflated, data = _deflate_if_smaller(content)
    return DeltaEncodedBody("zlib" if deflated else "identity", data)


def _damage_error(row: int, why: str) -> CassetteCorrupt:
    return CassetteCorrupt(f"Row {row} of table `bodies` is damaged: {why}.")


class LazyStoredBodyData(NamedTuple):
    """The data column of a row, as far as it was read with the row."""

    row: int
    encoding: str
    data: object  # None if it is to be read in pieces
    length: object

    def read_content(self, conn: sqlite3.Connection) -> bytes:
        """Return the inflated data. Raises CassetteCorrupt."""
        deflated = self.encoding.endswith("zlib")
        try:
            if self.data is None and isinstance(self.length, int):
                return read_and_inflate_body_column(conn, self.row, deflated=deflated)
            if not isinstance(self.data, bytes):
                raise _damage_error(self.row, f"its data is {type(self.data).__name__}, not bytes")
            return zlib.decompress(self.data) if deflated else self.data
        except zlib.error as error:
            raise _damage_error(self.row, str(error)) from error


def decode_body_stored_whole(conn: sqlite3.Connection, sha256: bytes, stored: LazyStoredBodyData) -> bytes:
    """Return the content of a row without a base. Raises CassetteCorrupt if its sha256 differs."""
    content = stored.read_content(conn)
    if hashlib.sha256(content).digest() != sha256:
        raise _damage_error(stored.row, "its content does not have the sha256 it was stored with")
    return content


class ByteLimitedCache[T]:
    def __init__(self, limit: int) -> None:
        """Hold at most `limit` bytes."""
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        self._kept: OrderedDict[int, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def get(self, row: int) -> T | None:
        if (known := self._kept.get(row)) is None:
            return None
        self._kept.move_to_end(row)
        return known[0]

    def put(self, row: int, value: T, size: int) -> None:
        """Cache a value of `size` bytes, and drop the least recently used ones above the limit."""
        if row in self._kept or size > self._limit:
            return
        self._kept[row] = value, size
        self._bytes += size
        while self._bytes > self._limit:
            self._bytes -= self._kept.popitem(last=False)[1][1]


def load_stored_body(conn: sqlite3.Connection, body_id: int, known: ByteLimitedCache[bytes] | None = None) -> bytes:
    """Return the content of a body. Raises CassetteCorrupt naming the damaged or missing row."""
    chain: list[tuple[int, int, int, LazyStoredBodyData]] = []
    at, digest = body_id, b""
    content: bytes | None = None
    while content is None:
        if known is not None and (content := known.get(at)) is not None:
            break
        if (row := conn.execute(_ROW, (at,)).fetchone()) is None:
            raise _damage_error(at, "it is missing" + (f", and row {chain[-1][0]} builds on it" if chain else ""))
        row_id, sha256, encoding, base_id, prefix, suffix, *data = row
        digest = digest or sha256
        stored = LazyStoredBodyData(row_id, encoding, *data)
        if base_id is None:
            content = stored.read_content(conn)
        elif not isinstance(base_id, int) or base_id >= at:  # a body builds on an earlier one only: no cycles
            raise _damage_error(at, f"it cannot build on row {base_id}")
        else:
            chain.append((row_id, prefix, suffix, stored))
            at = base_id
    if chain:
        buffer = bytearray(content)
        for row_id, prefix, suffix, stored in reversed(chain):
            if prefix < 0 or suffix < 0 or prefix + suffix > len(buffer):
                raise _damage_error(row_id, "it does not fit the body it builds on")
            buffer[prefix : len(buffer) - suffix] = stored.read_content(conn)
        content = bytes(buffer)
    if digest and hashlib.sha256(content).digest() != digest:
        raise _damage_error(body_id, "its content does not have the sha256 it was stored with")
    if known is not None:
        known.put(body_id, content, len(content))
    return content


@dataclass(frozen=True, slots=True)
class BodyToStore:
    content: bytes
    sha256: bytes
    encoded: DeltaEncodedBody | None  # None if the content was in the store already


def _insert_body(conn: sqlite3.Connection, prepared: BodyToStore, how: DeltaEncodedBody) -> int | None:
    values = prepared.sha256, len(prepared.content), how.encoding, how.base_id, how.prefix, how.suffix, how.depth
    large = len(how.data) > LARGE
    sql = _INSERT.format("zeroblob(?)" if large else "?")
    cursor = conn.execute(sql, (*values, len(how.data) if large else how.data))
    if cursor.rowcount <= 0 or cursor.lastrowid is None:
        return None
    if large:
        view = memoryview(how.data)
        with conn.blobopen("bodies", "data", cursor.lastrowid) as blob:
            for at in range(0, len(view), PIECE):
                blob.write(view[at : at + PIECE])
    return cursor.lastrowid


class DeltaBodyWriter:
    """Writer of bodies, which caches the last few request bodies of each group as bases for the next."""

    def __init__(self) -> None:
        self._recent: OrderedDict[Group, deque[DeltaBaseBody]] = OrderedDict()
        self._bytes = 0

    def prepare_body(self, conn: sqlite3.Connection, content: bytes, group: Group | None) -> BodyToStore:
        """Encode `content`, as a delta on a recent body of `group` if there is a good one. The slow part of storing."""
        digest = hashlib.sha256(content).digest()
        if len(content) > _LITTLE_WORK and conn.execute(_SAME, (digest,)).fetchone():
            return BodyToStore(content, digest, None)
        bases = self._find_bases(conn, group) if group is not None and len(content) >= _LEAST_SHARED else ()
        return BodyToStore(content, digest, compress_body_for_storage(content, bases))

    def store_body(self, conn: sqlite3.Connection, prepared: BodyToStore) -> tuple[int, int]:
        """Store inside the caller's transaction and return (row, depth); existing content is shared."""
        if (encoded := prepared.encoded) is not None:
            try:
                new = _insert_body(conn, prepared, encoded)
            except sqlite3.IntegrityError:  # another process pruned its base
                new = None
            if new is not None:
                return new, encoded.depth
        if (row := conn.execute(_SAME, (prepared.sha256,)).fetchone()) is not None:
            return int(row[0]), int(row[1])
        # another process pruned the row to share; we hold the write lock, so nothing else changes
        return _insert_body(conn, prepared, compress_body_for_storage(prepared.content)) or 0, 0

    def remember_base(self, group: Group, stored: tuple[int, int], content: bytes) -> None:
        """Cache a committed body, as (row, depth), as a base for the next ones of its group."""
        body_id, depth = stored
        if len(content) < _LEAST_SHARED or len(content) > REMEMBERED_BYTES // 4:
            return
        recent = self._recent.setdefault(group, deque())
        self._recent.move_to_end(group)
        for base in recent:
            if base.id == body_id:
                recent.remove(base)
                recent.append(base)
                return
        recent.append(DeltaBaseBody(body_id, depth, content))
        self._bytes += len(content)
        if len(recent) > CANDIDATES:
            self._bytes -= len(recent.popleft().content)
        while self._bytes > REMEMBERED_BYTES and len(self._recent) > 1:
            _, dropped = self._recent.popitem(last=False)
            self._bytes -= sum(len(base.content) for base in dropped)
        while self._bytes > REMEMBERED_BYTES:
            self._bytes -= len(recent.popleft().content)

    def forget_bases(self) -> None:
        self._recent.clear()
        self._bytes = 0

    def _find_bases(self, conn: sqlite3.Connection, group: Group) -> tuple[DeltaBaseBody, ...]:
        """Return bases, newest first: of equally good ones the first wins, and the newest shares most."""
        if group not in self._recent:
            self._recent[group] = deque()
            for (body_id,) in reversed(conn.execute(_RECENT, (*group, CANDIDATES)).fetchall()):
                found = conn.execute("SELECT size, depth FROM bodies WHERE id = ?", (body_id,)).fetchone()
                if found is not None and found[0] <= REMEMBERED_BYTES // 4:
                    try:
                        content = load_stored_body(conn, body_id)
                    except CassetteCorrupt:
                        continue  # a damaged body is no base; `verify` and reading it report it
                    self.remember_base(group, (body_id, int(found[1])), content)
        return tuple(reversed(self._recent.get(group, ())))
