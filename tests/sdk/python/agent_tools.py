"""The tools of the agents under test: each answers something else on every run, as real tools do.

A uuid, an integer key, a time, a temporary file, a port, keys in any order. `TOOLS` describes them, `perform` runs one.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import tempfile
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

TOOLS = {
    "make_task": ("Make a task", {"title": "string"}),
    "mint_token": ("Make a token", {}),
    "close_task": ("Close a task", {"task_id": "integer", "token": "string"}),
    "write_note": ("Write a note into a temporary file", {"text": "string"}),
    "read_note": ("Read a note", {"path": "string"}),
    "serve": ("Serve the notes", {}),
    "fetch": ("Fetch a page", {"url": "string"}),
    "look_at_clock": ("Say what time it is", {}),
    "delegate": ("Let two others look", {"first": "string", "second": "string"}),
    "count": ("Count things", {"what": "string"}),
}
"""By name: description, and the type of each argument."""


def schema(name):
    """Return the arguments of a tool as a JSON schema."""
    arguments = TOOLS[name][1]
    return {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in arguments.items()},
        "required": list(arguments),
    }


def shuffled(**members):
    """Write an object, its keys in any order."""
    names = list(members)
    random.shuffle(names)
    return json.dumps({name: members[name] for name in names})


class Page(BaseHTTPRequestHandler):
    """One page, whatever is asked."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"the notes")

    def log_message(self, *_):
        pass


def serve():
    server = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"serving on http://127.0.0.1:{server.server_port}/"


def write_note(text):
    number, path = tempfile.mkstemp(prefix="note-", suffix=".txt")
    os.write(number, text.encode())
    os.close(number)
    return f"written: {path}"


def make_task(title):
    now = dt.datetime.now(dt.UTC).isoformat()
    return shuffled(id=random.randrange(1_000, 10_000_000), title=title, created_at=now, labels=["home", "shop"])


def fetch(url):
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
        return f"{answer.status} {answer.read().decode()}"


def perform(name, arguments, ask):
    """Run a tool; `ask(question)` runs a whole agent and returns what it says at its end."""
    if name == "delegate":
        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(ask, (arguments["first"], arguments["second"])))
        return "\n".join(said)
    act = {
        "make_task": make_task, "mint_token": lambda: str(uuid.uuid4()),
        "close_task": lambda task_id, token: shuffled(task_id=task_id, token=token, closed=True, left=0),
        "write_note": write_note, "read_note": lambda path: Path(path).read_text("utf-8"), "serve": serve,
        "fetch": fetch, "look_at_clock": lambda: dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "count": lambda what: shuffled(what=what, number=len(what), run=uuid.uuid4().hex[:12]),
    }  # fmt: skip
    try:
        return act[name](**arguments)
    except (OSError, ValueError, TypeError) as error:
        return f"failed: {error}"
