"""What the model says in `fixtures/suites/tasks.suite.yaml`, and how the fixture agents are started.

    with Provider(dialogue(), ordered=False) as p: ...

The steps come in any order and any number: scenarios run as they like, `runs` repeats them, and broken agents ask things twice. An id
that the model must know it knows from `row_id`, as setup makes it (`ids: deterministic`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request

from llmproxy.suite.checks.row_selection import derive_setup_row_key
from llmproxy.suite.stores import ColumnType
from tests.provider import Step, step
from tests.support.process import ROOT, Process, clean_env, python
from tests.support.proxy import DIRECT

FIXTURES = ROOT / "fixtures"
SUITE = FIXTURES / "suites" / "tasks.suite.yaml"


def talk(
    user: str, *rounds: tuple[str, Mapping[str, Any], str], say: str, contains: str | None = None
) -> Iterator[Step]:
    """Script one message: tools called one after another, each with a text that its result contains, then what is said.

    The last round stands first: what its result contains, an earlier one does not, the other way round it may.
    """
    results = [None, *(result for _, _, result in rounds)]
    answers: list[Mapping[str, Any]] = [{"call": [{"name": name, "arguments": given}]} for name, given, _ in rounds]
    for result, answer in reversed(list(zip(results, [*answers, {"say": say}], strict=True))):
        yield step(user=user, tool_result=result, times=None, contains=contains, **answer)


def dialogue(kind: ColumnType = ColumnType.INTEGER) -> list[Step]:
    """Script the whole suite, and what broken agents ask besides; `kind` is that of the store's keys (UNKNOWN over HTTP)."""
    parent = derive_setup_row_key("subtask", 1, "parent", kind)
    review = {"title": "Review PR", "status": "todo"}
    plants = {"title": "Water the plants"}
    milk = {"title": "Buy milk", "dueDate": "2027-01-05", "priority": 2}
    sub = {"title": "Sub", "parentId": parent}
    done = {"title": "Review PR", "status": "completed"}
    return [
        # A model that may not call tools claims that it did: the case that no text assertion finds.
        *(
            step(contains=f'"tool_choice":{space}"none"', say="Task 'Review PR' created successfully.", times=None)
            for space in ("", " ")
        ),
        *talk("Create a task called 'Review PR'", ("createTask", review, "Review PR"), say="I created the task 'Review PR'."),
        *talk("Do it once more.", ("createTask", review, "Review PR"), say="I created it once more."),
        *talk("Mark 'Review PR' as complete", ("updateTask", done, ""), say="Done."),
        *talk("Mark 'Untitled' as complete", ("updateTask", done, ""), say="Done."),
        *talk("What do I have to do?", ("searchTasks", {"query": ""}, "Existing task"),
              say="You have one: Existing task."),
        *talk("Create a subtask for Parent", ("searchTasks", {"query": "Parent"}, str(parent)),
              ("createTask", sub, "Sub"), say="I created the subtask."),
        *talk("Finish the grocery task", ("searchTasks", {"query": "grocery"}, "grocery bags"),
              ("updateTask", {"title": "Buy grocery bags", "status": "completed"}, "completed"), say="It is finished."),
        *talk("Thank you", say="You are welcome."),
        *talk("Buy milk tomorrow, it is important", ("createTask", milk, "milk"), say="I will remember the milk."),
        *talk("Create a task to water the plants", ("createTask", plants, "plants"),
              say="Task 'Water the plants' created successfully."),
        *talk("How many tasks do I have?", ("searchTasks", {"query": ""}, "tasks"), say="You have none."),
        *talk("Remember that the code is 17", say="I will remember it."),
        *talk("Which code was it?", say="The code is 17.", contains="the code is 17"),
        *talk("Start conversation A", say="This is conversation A."),
        *talk("Start conversation B", say="This is conversation B."),
        *talk("Continue A", say="We are still in conversation A.", contains="This is conversation A."),
        *talk("Remind me to call mum", ("createReminder", {"text": "Call mum"}, "mum"), say="I will remind you."),
        *talk("Complete the task three", ("updateTask", {"title": "three", "status": "completed"}, "three"), say="Done."),
        *talk("Delete the task", ("deleteTask", {"title": "Old task"}, "deleted"), say="I deleted the task."),
    ]  # fmt: skip


def fixture_suite(folder: Path) -> Path:
    """Copy suites and agents into a folder, so that their databases are made there; returns the suite's path."""
    for name in ("suites", "agents"):
        shutil.copytree(FIXTURES / name, folder / name, dirs_exist_ok=True)
    return folder / "suites" / SUITE.name


class TasksAgent(Process):
    """A fixture agent that serves HTTP."""

    url = ""

    def is_up(self) -> bool:
        found = re.search(r"tasks agent: (http://\S+)", self.stdout)
        self.url = found[1] if found else ""
        return bool(found)

    def chat(self, message: str, **more: str) -> str:
        """Send a message and return the answer's text."""
        data = json.dumps({"message": message, **more}).encode()
        request = Request(f"{self.url}/chat", data, {"content-type": "application/json"})
        with DIRECT.open(request, timeout=60) as answer:
            return str(json.loads(answer.read())["text"])


def command(language: str, *options: str, db: Path) -> list[str]:
    """Return the command of a fixture agent: `python` or `node`."""
    program = [python(), "tasks.py"] if language == "python" else ["node", "tasks.mjs"]
    return [program[0], str(FIXTURES / "agents" / program[1]), "--db", str(db), *options]


def database(language: str, folder: Path) -> Path:
    return folder / ("tasks.db" if language == "python" else "tasks.json")


@contextmanager
def agent(
    language: str, folder: Path, base: str, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[TasksAgent]:
    """Run a fixture agent over HTTP for the block; `base` is its OPENAI_BASE_URL."""
    words = command(language, "--port", "0", *options, db=database(language, folder))
    known = clean_env({"OPENAI_BASE_URL": base, "OPENAI_API_KEY": "made-up", "PYTHONUNBUFFERED": "1", **(env or {})})
    running = TasksAgent(words, folder, f"agent-{language}", known)
    try:
        running.wait_until(running.is_up)
        yield running
    finally:
        running.end()


def store_of(language: str, folder: Path, url: str = "") -> dict[str, Any]:
    """Return the `store:` of a fixture agent."""
    if language == "python":
        return {"sqlalchemy": f"sqlite:///{database(language, folder)}", "ids": "deterministic"}
    rows = {
        name: {
            "list": f"GET /api/{name}?userId=$user",
            "get": f"GET /api/{name}/$id",
            "create": f"POST /api/{name}",
            "delete": f"DELETE /api/{name}/$id",
            "user": "userId",
        }
        for name in ("tasks", "reminders")
    }
    return {"http": url, "entities": rows, "ids": "deterministic"}
