"""A suite whose store counts its ids: recorded one by one, replayed after the counter has moved."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.suite.test_acceptance import llmproxy
from tests.support.asking import ASK
from tests.support.services import QuietHandler, serving

Json = Any

AGENT = (
    f"{ASK}\n"
    """
import sqlite3, time

DB = os.environ["TASKS_DB"]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
         for name in ("create_task", "list_tasks", "close_task", "describe_task")]

def rows(sql, *values):
    with sqlite3.connect(DB, timeout=30) as db:
        return db.execute(sql, values).fetchall()

def create_task(title):
    with sqlite3.connect(DB, timeout=30) as db:
        return json.dumps({"id": db.execute("INSERT INTO tasks (title, status, user) VALUES (?, 'open', ?)", (title, USER)).lastrowid, "seats": 7})

def list_tasks():
    return json.dumps([{"id": i, "title": t} for i, t in rows("SELECT id, title FROM tasks WHERE user = ? ORDER BY id", USER)])

def close_task(id):
    rows("UPDATE tasks SET status = 'done' WHERE id = ? AND user = ?", id, USER)
    return json.dumps({"closed": True, "task_id": id})

def describe_task(id):
    return f"Task {id} is the one."

KNOWN = dict(create_task=create_task, list_tasks=list_tasks, close_task=close_task, describe_task=describe_task)

def meet(user):
    "Wait until so many agents are at work."
    open(os.path.join("here", user), "w").close()
    for _ in range(1200):
        if len(os.listdir("here")) >= int(os.environ["MEET"]):
            return
        time.sleep(0.05)
    sys.exit("nobody came")

messages = [{"role": "system", "content": "You keep tasks."}]
for line in sys.stdin:
    asked = json.loads(line)
    USER = asked["userId"]
    if "MEET" in os.environ:
        meet(USER)
    messages.append({"role": "user", "content": asked["message"]})
    try:
        while (said := ask(messages, tools=TOOLS)).get("tool_calls"):
            messages.append(said)
            for call in said["tool_calls"]:
                result = KNOWN[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        messages.append(said)
        print(json.dumps({"text": said["content"]}), flush=True)
    except urllib.error.HTTPError as error:
        print(json.dumps({"text": json.load(error)["error"]["message"]}), flush=True)
"""
)
SUITE = """
name: Tasks that count
agent:
  command: {{run: [python, agent.py], lines: true, process: run, env: {{TASKS_DB: "{db}"}}}}
store:
  sqlalchemy: "sqlite:///{db}"
  entities: {{tasks: {{user: user}}}}
scenarios:
"""
SCENARIO = """
  - id: task-{n}
    name: Task {n}
    userId: user-{n}
    setup:
      - insert: tasks
        data: {{title: "old {n}", status: open}}
        as: $old
    steps:
      - chat: "Add milk {n}"
        created:
          - entity: tasks
            as: $made
            fields: {{title: "milk {n}"}}
      - chat: "Close both"
        continueConversation: true
      - verify: {{entity: tasks, id: $made.id, fields: {{status: done}}}}
      - verify: {{entity: tasks, id: $old.id, fields: {{status: done}}}}
"""
CASES = 3


class _Model(QuietHandler):
    """A model that names the ids which the tools told it."""

    asked = 0

    def do_POST(self) -> None:  # noqa: N802 - as the library names it
        type(self).asked += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = self._say(body["messages"])
        choices = [{"index": 0, "message": said}]
        answer = {"id": "x", "object": "chat.completion", "model": "gpt-4o", "choices": choices}
        self.answer(json.dumps(answer).encode())

    @staticmethod
    def _say(messages: list[Json]) -> Json:
        user = max(n for n, each in enumerate(messages) if each["role"] == "user")
        results = [each["content"] for each in messages[user:] if each["role"] == "tool"]
        text = messages[user]["content"]

        def call(name: str, **arguments: object) -> Json:
            function = {"name": name, "arguments": json.dumps(arguments)}
            made = {"id": f"call_{len(messages)}", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [made]}

        def say(text: str) -> Json:
            return {"role": "assistant", "content": text}

        if text.startswith("Add "):
            return say("Added.") if results else call("create_task", title=text.removeprefix("Add "))
        if text.startswith("Describe"):
            made = next(m["content"] for m in messages if m["role"] == "tool" and "seats" in m["content"])
            return say("Described.") if results else call("describe_task", id=json.loads(made)["id"])
        if not results:
            return call("list_tasks")
        ids = [each["id"] for each in json.loads(results[0])]
        return call("close_task", id=ids[len(results) - 1]) if len(results) <= len(ids) else say("Closed both.")


def _folder(tmp_path: Path, suite: str) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    db = tmp_path / "tasks.db"
    with closing(sqlite3.connect(db, isolation_level=None)) as made:
        made.execute("CREATE TABLE tasks (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT, status TEXT, user TEXT)")
    (tmp_path / "tasks.suite.yaml").write_text(suite.format(db=db))
    return db


def _move(db: Path, by: int) -> None:
    with closing(sqlite3.connect(db, isolation_level=None)) as made:
        made.execute("UPDATE sqlite_sequence SET seq = seq + ?", (by,))


def _counter(db: Path) -> int:
    with closing(sqlite3.connect(db)) as made:
        return int(made.execute("SELECT seq FROM sqlite_sequence").fetchone()[0])


@pytest.mark.slow
def test_ids_that_count_up_replay_side_by_side(tmp_path: Path) -> None:
    """Recorded one by one, replayed at once, each waiting for the others, the counter moved by 1,000: every id is this run's own."""
    db = _folder(tmp_path, SUITE + "".join(SCENARIO.replace("{n}", str(n)) for n in range(CASES)))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Model)) as url:
        words = ("test", "tasks.suite.yaml", "--mode", "record", "--upstream", f"openai={url}", "--parallel", "4")
        recorded = llmproxy(*words, cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert "ran one at a time: the store counts the keys of tasks up" in recorded.stdout
    _move(db, 1000)
    before = _counter(db)
    (tmp_path / "here").mkdir()
    replayed = llmproxy("test", "tasks.suite.yaml", "--parallel", "4", cwd=tmp_path, MEET=str(CASES))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert f"{CASES} passed" in replayed.stdout
    assert "one at a time" not in replayed.stdout
    assert _counter(db) == before, "the counter has moved for good"
    bound = replayed.stdout.count("replayed, 5 bound: made.tasks.id, ")
    assert bound == CASES, "each line says how many of its answers were bound"


@pytest.mark.slow
def test_an_id_in_prose_is_not_bound(tmp_path: Path) -> None:
    """A number in a sentence may be any number: side by side such a run is repeated alone; after the counter has moved it is a miss."""
    more = """
      - chat: "Describe it"
        continueConversation: true
"""
    db = _folder(tmp_path, SUITE + (SCENARIO.replace("{n}", "1") + more + SCENARIO.replace("{n}", "2")))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Model)) as url:
        recorded = llmproxy("test", "tasks.suite.yaml", "--mode", "record", "--upstream", f"openai={url}", cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    (tmp_path / "here").mkdir()
    beside = llmproxy("test", "tasks.suite.yaml", "--parallel", "4", cwd=tmp_path, MEET="2")
    assert beside.returncode == 0, beside.stdout + beside.stderr
    assert "2 passed" in beside.stdout
    assert "ran again, one at a time: task-1." in beside.stdout
    _move(db, 1000)
    replayed = llmproxy("test", "tasks.suite.yaml", "--id", "task-1", cwd=tmp_path)
    assert replayed.returncode == 4, replayed.stdout
    moved = "the store counts the keys of tasks up: if they are ids, its counter has moved since the recording"
    assert moved in replayed.stdout
    assert "$.messages[15].content: made.tasks.id ('2', now '1002') stands in prose" in replayed.stdout
