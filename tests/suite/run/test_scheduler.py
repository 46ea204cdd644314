"""Which runs may go on at the same time: a table of stores, modes and entities."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.run_context import SuiteRunContext
from llmproxy.suite.run.runner import ParallelCasesPermission, plan_parallel_cases
from tests.suite import rig

AUTO, UUID = "id INTEGER PRIMARY KEY AUTOINCREMENT", "id TEXT PRIMARY KEY"


def decide(
    folder: Path, *, key: str = AUTO, mode: str = "replay", parallel: int = 4, more: str = "", user: str = "owner",
    step: str = "{chat: x, created: [{entity: tasks}]}",
) -> ParallelCasesPermission:  # fmt: skip
    """Decide for a suite with one scenario that looks at a table."""
    with closing(sqlite3.connect(folder / "t.db")) as db, db:
        db.execute(f"CREATE TABLE IF NOT EXISTS tasks ({key}, title TEXT, {user} TEXT)")
        db.execute("INSERT INTO tasks (id, title) VALUES ('7', 'x') ON CONFLICT DO NOTHING")
    text = f"""
name: lanes
agent: {rig.echo(folder)}
store: {{sqlalchemy: "sqlite:///t.db", entities: {{tasks: {{user: {"owner" if user == "owner" else "null"}}}}}{more}}}
scenarios: [{{id: one, steps: [{step}]}}]
"""
    world = SuiteRunContext(options=SuiteCommandOptions(mode=mode, parallel=parallel), proxy=None)
    try:
        lanes = asyncio.run(plan_parallel_cases(world, rig.cases_of(folder, text)))
        for store, _ in lanes.counters:
            assert store is not None
        return lanes
    finally:
        world.close()


@pytest.mark.parametrize(("given", "users", "bound", "why"), [
    ({}, True, {"one"}, ""),
    ({"mode": "record"}, False, set(), "counts the keys of tasks up"),
    ({"mode": "auto"}, False, set(), "counts the keys of tasks up"),
    ({"mode": "record", "more": ", counters: unused"}, True, set(), ""),
    ({"key": UUID, "mode": "record"}, True, set(), ""),
    ({"key": UUID, "more": ", reset: truncate"}, False, set(),
     "`store.reset: truncate` takes the rows of all of them away"),
    ({"key": UUID, "more": ", reset: copy"}, False, set(), "`store.reset: copy` takes"),
    ({"user": "anybody"}, False, set(), "tasks has no user column"),
    ({"parallel": 1}, False, set(), ""),
    ({"step": "{chat: x, created: [{entity: tasks, fields: {owner: bob}}]}"}, False, set(), "whose rows of tasks"),
    ({"step": "{verify: {entity: tasks, filters: {owner: bob}}}"}, False, set(), "one says whose rows of tasks"),
    ({"step": "{wait: {entity: tasks, filters: {owner: bob}, until: {title: x}}}"}, False, set(), "whose rows"),
    ({"step": "{verify: {entity: tasks, filters: {owner: $userId}}}"}, True, {"one"}, ""),
    ({"step": "{verify: {entity: tasks, filters: {owner: test-user}}}"}, True, {"one"}, ""),
])  # fmt: skip
def test_lanes(tmp_path: Path, given: dict[str, str], users: bool, bound: set[str], why: str) -> None:
    """In replay ids are bound, so that they may differ; else a store that counts them is left in peace."""
    lanes = decide(tmp_path, **given)  # type: ignore[arg-type]
    assert (lanes.users, set(lanes.bound), why in lanes.why_not, bool(lanes.why_not)) == (users, bound, True, bool(why))


def test_counters_go_back(tmp_path: Path) -> None:
    """What runs at once used up is given back, never below a key that is in use."""
    ((_, known),) = decide(tmp_path).counters
    assert known == {"tasks": (7, True)}
    assert decide(tmp_path, more=", counters: keep").counters == []
