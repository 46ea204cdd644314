"""Contents of many megabytes, piece by piece into a row and out of it: SQLite and zlib would each hold the whole once more."""

from __future__ import annotations

import io
import sqlite3
import zlib

LARGE = 4 << 20
"""Bytes of a column from which on it is written and read in pieces."""
PIECE = 1 << 20


def deflate_content(content: bytes, level: int) -> bytes | None:
    """Deflate a content; None where that does not save a tenth, which is known before all of it is held."""
    deflater, view, out = zlib.compressobj(level), memoryview(content), io.BytesIO()
    most = len(content) * 9 // 10
    for at in range(0, len(content), PIECE):
        out.write(deflater.compress(view[at : at + PIECE]))
        if out.tell() >= most:
            return None
    out.write(deflater.flush())
    return out.getvalue() if out.tell() < most else None


def fill(conn: sqlite3.Connection, row: int, data: bytes) -> None:
    """Write `data` into the zeros that a row of `bodies` was made with, inside the caller's transaction. Raises sqlite3.Error."""
    view = memoryview(data)
    with conn.blobopen("bodies", "data", row) as blob:
        for at in range(0, len(data), PIECE):
            blob.write(view[at : at + PIECE])


def contents(conn: sqlite3.Connection, row: int, *, deflated: bool) -> bytes:
    """Return what the column of a row of `bodies` holds. Raises sqlite3.Error, zlib.error."""
    out = io.BytesIO()
    inflater = zlib.decompressobj() if deflated else None
    with conn.blobopen("bodies", "data", row, readonly=True) as blob:
        while piece := blob.read(PIECE):
            out.write(inflater.decompress(piece) if inflater else piece)
    if inflater is not None and not inflater.eof:
        raise zlib.error("incomplete or truncated stream")
    return out.getvalue()
