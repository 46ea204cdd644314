"""The fixture agents, driven through a real proxy: recorded from the scripted model, replayed without it, and broken in each way."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from llmproxy.suite.checks.row_checks import (
    check_created_rows,
    run_verify_step_row_checks,
    take_row_snapshot_before_step,
    wait_until_rows_match,
)
from llmproxy.suite.checks.row_selection import CaseStoreCleaner, RowCheckContext
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import CreatedRowsAssertion, Verify, WaitForRows
from llmproxy.suite.stores import ColumnType, StoreAdapter, build_suite_store
from tests.provider import Provider
from tests.suite.dialogues import FIXTURES, TasksAgent, agent, command, database, dialogue, store_of
from tests.support import near, needed
from tests.support.process import clean_env
from tests.support.proxy import DIRECT

LANGUAGES = ["python", "node"]
SEEDED = {"LLMPROXY_SEED": "tests", "LLMPROXY_NOW": "2027-01-04T09:00:00Z"}


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    if request.param == "node" and shutil.which("node") is None:
        needed("Node, for fixtures/agents/tasks.mjs")
    return str(request.param)


def model(language: str) -> Provider:
    return Provider(dialogue(ColumnType.INTEGER if language == "python" else ColumnType.UNKNOWN), ordered=False)


@contextmanager
def rows(
    language: str, folder: Path, running: TasksAgent, clock: Callable[[], float]
) -> Iterator[tuple[StoreAdapter, RowCheckContext]]:
    """Look at the agent's rows, as one run of a scenario does."""
    store = build_suite_store(store_of(language, folder, running.url), folder)
    cleaner = CaseStoreCleaner(store, user="test-user")
    run = RowCheckContext(adapter=store, scope=CaseVariables(), user="test-user", clock=clock, sleep=time.sleep,
                  cleaner=cleaner, scenario="subtask", deterministic=True)  # fmt: skip
    cleaner.begin_run(["tasks", "reminders"])
    yield store, run
    assert cleaner.clean_up() == []
    store.close()


def bad(assertions: list[Any]) -> list[str]:
    """Return what did not pass, as a report shows it."""
    return [f"{each.status} {each.name}: {each.message}" for each in assertions if each.status != "passed"]


def story(language: str, folder: Path, running: TasksAgent) -> tuple[list[str], list[str]]:
    """Play setup, chat, created, verify, wait and clean-up, which leaves nothing; returns what was said and what was wrong."""
    with rows(language, folder, running, time.monotonic) as (store, entities):
        entities.insert_row("tasks", {"title": "Parent"}, "parent")
        before = take_row_snapshot_before_step(entities, ["tasks", "reminders"])
        said = [running.chat("Create a subtask for Parent", conversation="a")]
        sub = CreatedRowsAssertion(entity="tasks", fields={"parentId": {"ref": "$parent.id"}})
        wrong = bad(check_created_rows(entities, before, [sub]))
        said.append(running.chat("Create a task called 'Review PR'", conversation="b"))
        review = CreatedRowsAssertion(entity="tasks", **{"as": "new"}, fields={"title": "Review PR"})
        wrong += bad(check_created_rows(entities, before, [review]))
        said.append(running.chat("Mark 'Review PR' as complete", conversation="b"))
        done = Verify(entity="tasks", id="$new", fields={"status": "completed"})
        wrong += bad(run_verify_step_row_checks(entities, "verify", done))
        said.append(running.chat("Remind me to call mum"))
        mum: dict[str, Any] = {"filters": {"text": {"contains": "mum"}}, "until": {"status": "delivered"}}
        wait = WaitForRows(entity="reminders", timeout=9000, pollInterval=20, **mum)
        wrong += bad(wait_until_rows_match(entities, "wait", wait))
        made = store.list("tasks")
        assert [row["createdAt"] for row in made if row["title"] == "Sub"] == [SEEDED["LLMPROXY_NOW"]]
    store = build_suite_store(store_of(language, folder, running.url), folder)
    assert store.list("tasks") == store.list("reminders") == []
    store.close()
    return said, wrong


def test_what_was_recorded_is_replayed_without_the_model(language: str, tmp_path: Path) -> None:
    """The agent with its tools runs twice: the second time no request leaves, and the same is said and stored."""
    with model(language) as p, near("record", tmp_path / "x.db", upstreams={"openai": p.url}) as px:
        folder = tmp_path / "recording"
        with agent(language, folder, f"{px.url}/v1", env=SEEDED) as running:
            recorded = story(language, folder, running)
        asked = len(p.requests)
    assert recorded[1] == []
    assert asked == 9
    with near("replay", tmp_path / "x.db") as px:
        folder = tmp_path / "replay"
        with agent(language, folder, f"{px.url}/v1", env=SEEDED) as running:
            assert story(language, folder, running) == recorded


def test_node_keeps_rows_in_sqlite_where_it_has_one(tmp_path: Path) -> None:
    """From version 22.13 on; an older Node says so."""
    node = shutil.which("node")
    if node is None:
        needed("Node, for fixtures/agents/tasks.mjs")
    done = subprocess.run(
        [node, str(FIXTURES / "agents" / "tasks.mjs"), "--init", "--db", str(tmp_path / "tasks.db")],
        capture_output=True, text=True, check=False, timeout=60, env=clean_env(),
    )  # fmt: skip
    if done.returncode:
        assert "SQLite needs Node 22.13" in done.stderr
        return
    store = build_suite_store({"sqlalchemy": "sqlite:///tasks.db"}, tmp_path)
    assert store.insert("tasks", {"title": "t"})["status"] == "todo"
    assert set(store.describe("reminders").columns) >= {"text", "taskId", "status"}
    store.close()


WRONG = {
    "wrong-title": "title: 'Untitled' is not 'Review PR'", "wrong-status": "status",
    "wrong-user": "no row was added to tasks in this step for the user 'test-user'",
    "no-row": "no row was added to tasks", "extra-row": "2 rows of tasks could be meant",
    "no-tool-call": "no row was added to tasks", "no-llm": "no row was added to tasks",
    "extra-call": "2 rows of tasks could be meant",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_agent_is_found(language: str, name: str, tmp_path: Path) -> None:
    """What the agent does wrong with its rows is said by the assertion that looks there."""
    with (
        model(language) as p,
        agent(language, tmp_path, f"{p.url}/v1", "--break", name) as running,
        rows(language, tmp_path, running, time.monotonic) as (_, entities),
    ):
        before = take_row_snapshot_before_step(entities, ["tasks"])
        running.chat("Create a task called 'Review PR'")
        fields = {"title": "Review PR", "status": "todo"}
        wrong = bad(
            check_created_rows(entities, before, [CreatedRowsAssertion(entity="tasks", **{"as": "new"}, fields=fields)])
        )
        if name == "wrong-title":
            assert any("created[0].fields.title" in each and "Untitled" in each for each in wrong), wrong
        else:
            assert any(WRONG[name] in each for each in wrong), wrong


def test_the_other_ways_of_being_broken(language: str, tmp_path: Path) -> None:
    """Each answer that is none: an HTTP error, a page, no JSON, nothing, a dead process."""
    outcomes = {}
    with model(language) as p:
        for name in ("status-500", "html", "garbage", "no-reply", "crash", "says-error"):
            with agent(language, tmp_path / name, f"{p.url}/v1", "--break", name) as running:
                try:
                    outcomes[name] = running.chat("Thank you")
                except HTTPError as error:
                    with error:
                        outcomes[name] = str(error.code)
                except json.JSONDecodeError:
                    outcomes[name] = "no JSON"
                except OSError:
                    outcomes[name] = "gone"
    assert outcomes == {
        "status-500": "500", "html": "no JSON", "garbage": "no JSON", "no-reply": "", "crash": "gone",
        "says-error": "An error happened, it failed.",
    }  # fmt: skip


def test_lines_and_the_compatible_endpoint_say_the_same(language: str, tmp_path: Path) -> None:
    """The three ways to speak to an agent lead to one and the same agent; a frame's `llm` is obeyed."""
    with model(language) as p:
        with agent(language, tmp_path, f"{p.url}/v1") as running:
            body = json.dumps({"messages": [{"role": "user", "content": "Thank you"}]}).encode()
            request = Request(f"{running.url}/v1/chat/completions", body, {"content-type": "application/json"})
            with DIRECT.open(request, timeout=30) as answer:
                assert json.load(answer)["choices"][0]["message"]["content"] == "You are welcome."
            assert running.chat("Thank you") == "You are welcome."
        llm = {"base_urls": {"openai": f"{p.url}/v1"}}
        said = ("Remember that the code is 17", "Which code was it?")
        frames = [{"conversation": "c", "message": text, "llm": llm} for text in said]
        done = subprocess.run(
            command(language, "--lines", db=database(language, tmp_path)), text=True, capture_output=True, timeout=60, check=True,
            input="".join(json.dumps(frame) + "\n" for frame in frames), env=clean_env({"OPENAI_API_KEY": "made-up"}),
        )  # fmt: skip
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["I will remember it.", "The code is 17."]


def test_an_agent_says_why_the_model_failed(language: str, tmp_path: Path) -> None:
    """A miss in replay reaches whoever asked the agent, with the proxy's own words."""
    with near("replay", tmp_path / "x.db") as px, agent(language, tmp_path, f"{px.url}/v1") as running:
        with pytest.raises(HTTPError) as caught:
            running.chat("Nobody recorded this")
        with caught.value as error:
            assert error.code == 502
            assert "the model answered 404" in error.read().decode()
