"""One place of each kind where an agent keeps tasks: what the table of tests in test_protocol.py is run on.

Each has the entities `tasks` (key id, user userId, a truth value, a date) and `notes`, empty, and a way to write into it behind the
store's back, as an agent would.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from llmproxy.suite.stores import StoreAdapter, build_suite_store
from tests.support.services import QuietHandler

SQLITE = """
CREATE TABLE tasks (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, status TEXT DEFAULT 'todo', done BOOLEAN DEFAULT 0,
  dueDate DATETIME, price DECIMAL(10, 2), data JSON, raw BLOB, userId TEXT);
CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT, taskId INTEGER REFERENCES tasks(id));
"""
POSTGRES = """
CREATE TABLE tasks (id SERIAL PRIMARY KEY, title TEXT NOT NULL, status TEXT DEFAULT 'todo', done BOOLEAN DEFAULT false,
  "dueDate" TIMESTAMPTZ, price NUMERIC(10, 2), data JSONB, raw BYTEA, "userId" TEXT);
CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT, "taskId" INTEGER REFERENCES tasks(id));
"""
Write = Callable[[str, Mapping[str, Any]], None]


@dataclass(slots=True)
class Place:
    kind: str
    store: StoreAdapter
    write: Write
    """What an agent does: adds a row, seen by everybody at once."""


class Rest:
    """A REST service with the rows in memory: lists, pages of two, wrapped rows."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, dict[str, Any]]] = {"tasks": {}, "notes": {}}
        self.seen: list[str] = []
        self.answer: tuple[int, str, str] | None = None
        """Status, type and text that answers everything instead."""
        self.wrapped = False
        self.mute = False
        """Whether it closes connections without an answer."""
        self.page = 0
        self.headers: dict[str, str] = {}
        """Sent with every answer."""
        self.links = False
        """Whether a list names its next page in the header Link, and nowhere else."""
        service = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - as the library names it
                service.serve(self)

            do_POST = do_DELETE = do_GET  # noqa: N815 - as the library names them

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self) -> None:
        """Close the port; once."""
        if not self.thread.is_alive():
            return
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)

    def add(self, entity: str, data: Mapping[str, Any]) -> dict[str, Any]:
        table = self.rows[entity]
        made = {"id": max([0, *(row["id"] for row in table.values() if isinstance(row["id"], int))]) + 1, **data}
        table[str(made["id"])] = made
        return made

    def serve(self, to: QuietHandler) -> None:
        url = urlsplit(to.path)
        body = json.loads(to.rfile.read(int(to.headers.get("content-length") or 0)) or "null")
        self.seen.append(f"{to.command} {to.path}")
        if self.mute:
            to.close_connection = True
            return
        status, kind, text = self.answer or self._answer(to.command, url.path, parse_qs(url.query), body)
        to.answer(text.encode(), kind, status, **self.headers)

    def _answer(
        self, method: str, path: str, query: Mapping[str, list[str]], body: dict[str, Any]
    ) -> tuple[int, str, str]:
        entity, _, id_ = path.strip("/").partition("/")
        if path == "/reset":
            self.rows = {name: {} for name in self.rows}
            return _json({})
        if entity not in self.rows:
            return 404, "text/html", "<html>no such page</html>"
        table = self.rows[entity]
        if method == "POST":
            return _json(self._wrap("item", self.add(entity, body["item"] if self.wrapped else body)))
        if id_:
            row = table.pop(id_, None) if method == "DELETE" else table.get(id_)
            return _json(self._wrap("item", row)) if row else (404, "application/json", "{}")
        rows = [row for row in table.values() if "userId" not in query or row.get("userId") == query["userId"][0]]
        start = int(query.get("from", ["0"])[0])
        shown = rows[start : start + self.page] if self.page else rows
        more = f"/{entity}?from={start + self.page}" if self.page and start + self.page < len(rows) else None
        self.headers = {"link": f'<{more}>; rel="next"'} if self.links and more else {}
        return _json({"items": shown, "next": more} if self.wrapped else shown)

    def _wrap(self, name: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: row} if self.wrapped else row


def _json(value: object) -> tuple[int, str, str]:
    return 200, "application/json", json.dumps(value)


@contextmanager
def place(kind: str, folder: Path, postgres_url: Callable[[], str]) -> Iterator[Place]:
    with ExitStack() as stack:
        made = PLACES[kind](stack, folder, postgres_url)
        stack.callback(made.store.close)
        yield made


def _sqlite(stack: ExitStack, folder: Path, postgres_url: Callable[[], str]) -> Place:
    file = folder / "tasks.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SQLITE)

    def write(entity: str, data: Mapping[str, Any]) -> None:
        names, marks = ", ".join(data), ", ".join("?" * len(data))
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(f"INSERT INTO {entity} ({names}) VALUES ({marks})", tuple(data.values()))

    return Place("sqlite", build_suite_store({"sqlalchemy": "sqlite:///tasks.db"}, folder), write)


def _postgres(stack: ExitStack, folder: Path, postgres_url: Callable[[], str]) -> Place:
    import psycopg

    url = postgres_url()
    connection = stack.enter_context(closing(psycopg.connect(url, autocommit=True)))
    connection.execute(POSTGRES.encode())

    def write(entity: str, data: Mapping[str, Any]) -> None:
        names, marks = ", ".join(f'"{name}"' for name in data), ", ".join(["%s"] * len(data))
        connection.execute(f"INSERT INTO {entity} ({names}) VALUES ({marks})".encode(), tuple(data.values()))

    return Place("postgres", build_suite_store({"sqlalchemy": url}, folder), write)


def _http(stack: ExitStack, folder: Path, postgres_url: Callable[[], str]) -> Place:
    rest = Rest()
    stack.callback(rest.stop)
    tasks = {"list": "GET /tasks?userId=$user", "user": "userId", "columns": COLUMNS}
    store = build_suite_store({"http": rest.url, "entities": {"tasks": tasks, "notes": {"columns": NOTES}}}, folder)

    def write(entity: str, data: Mapping[str, Any]) -> None:
        rest.add(entity, data)

    return Place("http", store, write)


COLUMNS = ["title", "status", "done", "dueDate", "price", "data", "raw"]
NOTES = ["text", "taskId"]
MEMORY = {"tasks": {"user": "userId", "columns": COLUMNS}, "notes": {"columns": NOTES}}


def _memory(stack: ExitStack, folder: Path, postgres_url: Callable[[], str]) -> Place:
    store = build_suite_store({"memory": {}, "entities": MEMORY}, folder)
    return Place("memory", store, lambda entity, data: cast("None", store.insert(entity, data)))


def _plugin(stack: ExitStack, folder: Path, postgres_url: Callable[[], str]) -> Place:
    (folder / "mine.py").write_text(PLUGIN, "utf-8")
    file = folder / "rows.json"
    store = build_suite_store({"python": "./mine.py:JsonFile", "options": {"path": str(file)}}, folder)

    def write(entity: str, data: Mapping[str, Any]) -> None:
        rows = json.loads(file.read_text("utf-8"))
        rows[entity].append({"id": len(rows[entity]) + 1000, **data})
        file.write_text(json.dumps(rows), "utf-8")

    return Place("plugin", store, write)


PLUGIN = '''
"""A store in a JSON file: the least that a plugin has to write."""
import json
from pathlib import Path
from llmproxy.suite.stores import Column, EntityInfo, StoreBase, UnknownEntity

COLUMNS = {
    "tasks": ["id", "title", "status", "done", "dueDate", "price", "data", "raw", "userId"],
    "notes": ["id", "text", "taskId"],
}

class JsonFile(StoreBase):
    def __init__(self, path):
        self.path = Path(path)
        self.path.write_text(json.dumps({name: [] for name in COLUMNS}))

    def describe(self, entity):
        if entity not in COLUMNS:
            raise UnknownEntity(f"the store has no entity {entity!r}; did you mean 'tasks'?")
        return EntityInfo(entity, user="userId" if entity == "tasks" else None, columns={n: Column(n) for n in COLUMNS[entity]})

    def insert(self, entity, data):
        self.describe(entity).check(data, "insert")
        rows = json.loads(self.path.read_text())
        row = {"id": max([0, *(r["id"] for r in rows[entity] if isinstance(r["id"], int))]) + 1, **data}
        rows[entity].append(row)
        self.path.write_text(json.dumps(rows))
        return row

    def get(self, entity, id):
        return next((row for row in self.list(entity) if str(row["id"]) == str(id)), None)

    def list(self, entity, filters=None, limit=None):
        self.describe(entity).check(filters or {}, "filters")
        rows = json.loads(self.path.read_text())[entity]
        rows = [row for row in rows if all(row.get(k) == v for k, v in (filters or {}).items())]
        return sorted(rows, key=lambda row: str(row["id"]))[:limit]

    def delete(self, entity, id):
        rows = json.loads(self.path.read_text())
        left = [row for row in rows[entity] if str(row["id"]) != str(id)]
        gone, rows[entity] = len(left) < len(rows[entity]), left
        self.path.write_text(json.dumps(rows))
        return gone
'''
PLACES = {"sqlite": _sqlite, "postgres": _postgres, "http": _http, "memory": _memory, "plugin": _plugin}
