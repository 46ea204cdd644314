"""Where rows are, for real: a SQLite file, a REST service that gives pages in one of many ways. Reads no code of the product."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.oracle.rows import Shape, State
from tests.support.services import QuietHandler, serving

COLUMNS = "title TEXT, status TEXT, owner TEXT"
TABLES = {
    "again": "id INTEGER PRIMARY KEY",
    "counted": "id INTEGER PRIMARY KEY AUTOINCREMENT",
    "named": "id TEXT PRIMARY KEY",
}
_JSON = {"content-type": "application/json"}
SIZE = 2
"""Rows on a page."""
PAGES = ("", "next", "link", "has_more", "total header", "total", "partial", "cursor", "range")


class Database:
    """A table in a SQLite file."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.file = folder / f"{shape.keys}-{shape.owned}.db"
        self.link = sqlite3.connect(self.file)
        self.link.execute("PRAGMA synchronous = OFF")
        with self.link as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS tasks ({TABLES[shape.keys]}, {COLUMNS})")
        user = {"user": "owner"} if shape.owned else {}
        self.store = {"sqlalchemy": f"sqlite:///{self.file}", "entities": {"tasks": user}}

    def close(self) -> None:
        self.link.close()

    def put(self, state: State) -> None:
        with self.link as db:
            there = {row[0]: row for row in db.execute("SELECT id, title, status, owner FROM tasks")}
            wanted = {key: tuple(row.values()) for key, row in state.items()}
            for key in there.keys() - wanted.keys():
                db.execute("DELETE FROM tasks WHERE id = ?", (key,))
            for key, row in wanted.items():
                if there.get(key) != row:
                    db.execute("INSERT OR REPLACE INTO tasks (id, title, status, owner) VALUES (?, ?, ?, ?)", row)


class Service:
    """A REST service; `put` gives it its rows, `shape` says how it tells of more."""

    def __init__(self, shape: Shape) -> None:
        self.rows: State = {}
        self.shape = shape
        self.later: Callable[[], None] = lambda: None
        """What happens when somebody asks for `/later`."""

    @property
    def entity(self) -> dict[str, Any]:
        found: dict[str, Any] = {"list": "GET /tasks"}
        found |= {"user": "owner"} if self.shape.owned else {}
        found |= {"rows": "$.items"} if self.wrapped else {}
        found |= {"reuses": False} if self.shape.keys == "counted" else {}
        return found | ({"next": "$.next"} if self.shape.pages == "next" else {})

    @property
    def wrapped(self) -> bool:
        return self.shape.pages in ("next", "has_more", "total", "cursor")

    def put(self, state: State) -> None:
        self.rows = state

    def close(self) -> None:
        """Nothing to let go."""

    def answer(self, address: str) -> tuple[int, dict[str, str], bytes]:
        url, pages = urlsplit(address), self.shape.pages
        if url.path == "/later":
            self.later()
            return 200, _JSON, b"[]"
        rows = list(self.rows.values())
        if url.path != "/tasks":
            one = next((row for row in rows if url.path == f"/tasks/{row['id']}"), None)
            return 200 if one else 404, _JSON, json.dumps(one).encode()
        start = int(parse_qs(url.query).get("from", ["0"])[0])
        shown = rows[start : start + SIZE] if pages else rows
        more = f"/tasks?from={start + SIZE}" if pages and start + SIZE < len(rows) else None
        headers = {"link": f'<{more}>; rel="next"'} if pages == "link" and more else {}
        headers |= {"x-total-count": str(len(rows))} if pages == "total header" else {}
        headers |= {"content-range": f"items {start}-{start + len(shown)}/{len(rows)}"} if pages == "range" else {}
        said: dict[str, Any] = {
            "next": {"next": more},
            "has_more": {"has_more": bool(more)},
            "total": {"total": len(rows)},
            "cursor": {"meta": {"nextCursor": "abc" if more else None}},
        }
        value: Any = {"items": shown, **said[pages]} if self.wrapped else shown
        return 206 if pages == "partial" and more else 200, _JSON | headers, json.dumps(value).encode()


@contextmanager
def served(service: Service) -> Iterator[str]:
    """Let a service be asked over a socket; gives its address."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:  # noqa: N802 - as the library names it
            status, headers, data = service.answer(self.path)
            self.answer(data, status=status, **headers)

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url
