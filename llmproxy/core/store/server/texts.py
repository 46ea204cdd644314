"""Texts that PostgreSQL cannot hold (a NUL, bytes that are no UTF-8), in its columns of type text and back."""

from __future__ import annotations

from llmproxy.core.store.contents.rows import Sql, to_sql

_MARK = "\x01"


def to_pg(value: Sql) -> Sql:
    """Return what stands in a column on the server for what stands in a column of a file; bytes of a text are marked and written as hex."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, bytes):
        return f"{_MARK}b{value.hex()}"
    if isinstance(value, str) and ("\0" in value or value.startswith(_MARK)):
        return f"{_MARK}t{value.encode().hex()}"
    return value


def from_pg(value: Sql) -> Sql:
    """Undo :func:`to_pg`."""
    if not isinstance(value, str) or not value.startswith(_MARK):
        return value
    content = bytes.fromhex(value[2:])
    return content if value[1] == "b" else content.decode()


def in_column(text: str) -> str:
    """Return what stands in a column on the server for a text."""
    return str(to_pg(to_sql(text)))
