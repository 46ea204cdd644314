"""Suites run: nothing passes by accident, everything is cleaned up, and the end says what happened."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SuiteError
from llmproxy.report.events import Selected, Started, Status
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.run_context import SuiteRunContext
from llmproxy.suite.run.runner import get_matrix_axis_values_of_case, run_cases
from llmproxy.suite.stores import MemoryEntityStore, Row, StoreResetSettings
from llmproxy.suite.stores.protocol import DeclaredEntityColumns
from tests.suite import rig

STORE = "{memory: {}, entities: {tasks: {columns: [id, title, status, userId], user: userId}}}"


def suite(agent: str, *steps: str, more: str = "", scenario: str = "", store: str = STORE) -> str:
    """Return a suite of one scenario; steps are YAML on one line."""
    listed = "\n".join(f"      - {step}" for step in steps)
    head = f"name: t\nagent: {agent}\n{more}" + (f"store: {store}\n" if store else "")
    return f"{head}scenarios:\n  - id: one\n{scenario}    steps:\n{listed}\n"


def run(folder: Path, *steps: str, body: str = 'return "An error failed"', **more: Any) -> rig.Result:
    """Run one scenario against an agent in Python that asks no model, without a proxy."""
    keys = {name: more.pop(name) for name in ("more", "scenario", "store") if name in more}
    return rig.run(rig.cases_of(folder, suite(rig.echo(folder, body), *steps, **keys)), **more)


# Every construct of the guide that the program it comes from lets pass although it should not (B0), run the same way: an agent that
# answers "An error failed" and calls nothing.
VACUOUS = [
    ("{chat: x, tools: {createTask: {gte: 1}}}", "environment_error"),
    ("{chat: x, tools: {createTask: {count: 1, input: {title: {contains: milk}}}}}", "environment_error"),
    ("{chat: x, tools: {deleteTask: 0}}", "environment_error"),
    ("{chat: x, totalToolCalls: {gte: 5}}", "environment_error"),
    ('{chat: x, response: {regex: "Task .* created"}}', "failed"),
    ('{chat: x, response: {notContains: ["error", "failed"]}}', "failed"),
    ("{chat: x, messageProcessing: {condenser: {activated: true}}}", "environment_error"),
    ("{chat: x, messageProcessing: {pruner: {activated: false}}}", "environment_error"),
    ("{chat: x, usage: {inputTokens: {gte: 1}}}", "environment_error"),
    ('{chat: x, created: [{entity: tasks, fields: {title: "Old"}}]}', "failed"),
    ('{verify: {entity: tasks, filters: {title: Old}, fields: {title: {regex: "^O.*d$"}, status: {notContains: x}}}}', "passed"),
    ("{verify: {entity: tasks, filters: {nothing: 1}, count: 0}}", "environment_error"),
    ("{verify: {entity: nothing, filters: {id: 1}, count: 0}}", "environment_error"),
    ("{wait: {entity: tasks, id: $old.id, until: {status: done}, timeout: 60, pollInterval: 20}}", "failed"),
    ("{wait: {entity: tasks, id: $old.id, until: {title: Old}, timeout: 60, pollInterval: 20}}", "passed"),
]  # fmt: skip
SETUP = '    setup:\n      - {insert: tasks, data: {title: "Old", status: todo}, as: $old}\n'


@pytest.mark.parametrize(("step", "status"), VACUOUS, ids=[str(n) for n in range(len(VACUOUS))])
def test_nothing_passes_by_accident(tmp_path: Path, step: str, status: str) -> None:
    """What cannot be evaluated is an error, what does not hold a failure; only what holds passes."""
    found = run(tmp_path, step, scenario=SETUP)
    assert found.statuses == [status], found.why
    assert found.tested.exit_code in {"passed": {0}, "failed": {1}}.get(status, range(2, 9))


def test_captured_rows_are_sent_resolved(tmp_path: Path) -> None:
    """Setup's rows are read from the store; their columns stand in messages and in other rows."""
    setup = SETUP + '      - {insert: tasks, data: {title: {ref: "$old.title"}}, as: $copy}\n'
    found = run(
        tmp_path,
        '{chat: "Finish $old.title of $userId", response: {eq: "you said Finish Old of test-user"}}',
        "{verify: {entity: tasks, id: $copy.id, fields: {title: Old, userId: test-user}}}",
        body='return "you said " + message',
        scenario=SETUP.replace("$old}", "$old}") + setup.splitlines(keepends=True)[-1],
    )
    assert found.statuses == ["passed"], found.why
    assert found.told.said[0] == "Finish Old of test-user"


def test_a_name_without_a_value_is_never_sent(tmp_path: Path) -> None:
    """The step that should have captured it did not: the run is an error and the agent hears nothing of it."""
    steps = "{chat: first, created: [{entity: tasks, as: $new}]}", '{chat: "Finish $new.title"}'
    found = run(tmp_path, *steps, keep_going=True, body='return "ok"')
    assert found.statuses == ["failed"], found.why
    assert "has no value yet" in found.told.steps[1].message
    assert found.told.said == ["first", "ok"]


def test_all_assertions_of_a_step_are_shown(tmp_path: Path) -> None:
    """Not only the first that does not hold; and a message quotes what was seen."""
    found = run(tmp_path, '{chat: x, response: {contains: ["created", "ok"], regex: "^Task", notContains: failed}}')
    assert {each.name for each in found.told.wrong} == {"response.contains", "response.regex", "response.notContains"}
    assert all("An error failed" in each.message for each in found.told.wrong)


def test_a_failed_step_ends_the_run_unless_it_may_go_on(tmp_path: Path) -> None:
    steps = ("{chat: x, response: {contains: nope}}", "{chat: y}", "{chat: z}")
    stopped = run(tmp_path, *steps)
    assert [step.status for step in stopped.told.steps] == [Status.FAILED, Status.SKIPPED, Status.SKIPPED]
    went_on = run(tmp_path, *steps, keep_going=True)
    assert [step.status for step in went_on.told.steps] == [Status.FAILED, Status.PASSED, Status.PASSED]
    assert went_on.statuses == ["failed"]


def test_runs_are_independent(tmp_path: Path) -> None:
    """Each has its own user, rows, names and conversations; they are told apart by their sample."""
    said = '{chat: "$userId $runIndex", conversation: c, response: {regex: "^test-user(~[23])? [123] thread_"}}'
    seen = "{verify: {entity: tasks, filters: {title: Old}, count: 1}}"
    found = run(tmp_path, said, seen, body='return message + " " + thread_id', scenario=SETUP, runs=3)
    assert found.statuses == ["passed"] * 3, found.why
    assert [each.sample for each in found.told.events if isinstance(each, Started)] == [1, 2, 3]
    threads = [text for text in found.told.said if "thread_" in text]
    assert len({text.rpartition(" ")[2] for text in threads}) == 3
    assert found.told.completed.scenarios[0]["told"].startswith("3 of 3 runs passed")


def test_runs_that_differ_are_flaky(tmp_path: Path) -> None:
    """Which is a failure, unless the scenario asks for less."""
    body = 'return "even" if message.endswith("2") else "odd"'
    step = '{chat: "run $runIndex", response: {contains: odd}}'
    assert run(tmp_path, step, body=body, runs=3).told.completed.scenarios[0]["status"] == "flaky"
    enough = run(tmp_path, step, body=body, runs=3, scenario="    minPassRate: 0.6\n")
    assert (enough.told.completed.scenarios[0]["status"], enough.tested.exit_code) == ("passed", 0)


def test_skip_and_xfail(tmp_path: Path) -> None:
    """Skipped is not run; expected to fail passes only if it fails, and every assertion could be evaluated."""
    skipped = run(tmp_path, "{chat: x}", scenario="    skip: not ready\n")
    assert (skipped.statuses, skipped.told.finished[0].reasoning, skipped.told.said) == (["skipped"], "not ready", [])
    assert run(tmp_path, "{chat: x, response: {contains: nope}}", scenario="    xfail: bug 7\n").statuses == ["passed"]
    unclear = "{chat: x, response: {contains: nope, not: {gt: 5}}}"
    assert run(tmp_path, unclear, scenario="    xfail: bug 7\n").statuses == ["environment_error"]
    passed = run(tmp_path, "{chat: x}", scenario="    xfail: bug 7\n")
    assert (passed.statuses, "bug 7" in passed.told.finished[0].reasoning) == (["failed"], True)


VAIN = [
    '{chat: x, response: {regex: ".*"}}', '{chat: x, response: {regex: "(?s)^.*$"}}',
    '{chat: x, response: {contains: x, not: {regex: ["a*"]}}}',
    '{verify: {entity: tasks, filters: {title: {regex: "[a-z]*"}}, exists: true}}',
    "{chat: x, tools: {a: {gte: 0}}}", "{chat: x, tools: {a: {count: {gte: 0}}}}",
    "{chat: x, tools: {a: {lte: .inf}}}", "{chat: x, totalToolCalls: {gte: 0}}",
    "{chat: x, usage: {inputTokens: {gte: 0}}}", "{chat: x, usage: {anyOf: [{cacheReadTokens: {gte: 0}}]}}",
    "{chat: x, created: [{entity: tasks, count: {gte: 0}}]}",
    "{chat: x, messageProcessing: {pruner: {partsRemoved: {gte: 0}}}}",
    "{verify: {entity: tasks, count: {gte: 0, lt: .inf}}}",
    "{verify: {entity: tasks, filters: {title: x}, count: 0, fields: {status: done}}}",
    "{verify: {entity: tasks, filters: {title: x}, count: {lt: 3}, fields: {status: done}}}",
    "{verify: {entity: tasks, filters: {title: x}, count: {eq: 0}, fields: {status: done}}}",
]  # fmt: skip


@pytest.mark.parametrize("step", VAIN)
def test_what_holds_whatever_happens_is_refused(tmp_path: Path, step: str) -> None:
    """When the file is read: a bound that every number meets, fields of rows that may not be there."""
    with pytest.raises(SuiteError, match=r"nothing is asserted|may be 0|asserts nothing"):
        rig.cases_of(tmp_path, suite(rig.echo(tmp_path), step))


UNJUDGED = [
    "{chat: x, response: {not: {json: 1}}}",
    "{chat: x, response: {not: {jsonSchema: {type: object}}}}",
    "{chat: x, response: {allOf: [{not: {json: {a: 1}}}]}}",
    '{verify: {entity: tasks, id: " ", exists: false}}',
]


@pytest.mark.parametrize(("step", "status"), [
    *((step, "environment_error") for step in UNJUDGED),
    ("{verify: {entity: tasks, filters: {title: x}, count: {gte: 0, lte: 2}}}", "passed"),
    ("{verify: {entity: tasks, filters: {id: 1}, count: 0}}", "no store is configured"),
])  # fmt: skip
def test_what_cannot_be_judged_cannot_be_denied(tmp_path: Path, step: str, status: str) -> None:
    """An answer that is no JSON is not JSON of another kind; an id without a letter names no row; nothing is in no store."""
    more = {"store": ""} if status == "no store is configured" else {"scenario": SETUP}
    found = run(tmp_path, step, **more)
    assert found.statuses == ["passed" if status == "passed" else "environment_error"]
    assert "store" not in more or status in found.why


UNTIDY = {
    "command": "    teardown: [{command: [sh, -c, 'echo no luck; exit 3']}]\n",
    "python": "    teardown: [{python: 'gone.py:nothing'}]\n",
    "afterEach": "",
}


@pytest.mark.parametrize("scenario", UNTIDY.values(), ids=UNTIDY)
def test_a_run_that_cannot_clean_up_does_not_pass(tmp_path: Path, scenario: str) -> None:
    """What it asserted held, and what it leaves is not what it found: an error, which the exit code shows; a failure stays one."""
    more = "" if scenario else 'hooks: {afterEach: [{command: [sh, -c, "echo no luck; exit 3"]}]}\n'
    found = run(tmp_path, "{chat: x, response: {contains: error}}", scenario=scenario, more=more)
    assert (found.statuses, found.tested.exit_code) == (["environment_error"], 3), found.why
    assert "no luck" in found.why or "there is no file" in found.why
    failed = run(tmp_path, "{chat: x, response: {contains: nope}}", scenario=scenario, more=more)
    assert failed.statuses == ["failed"]
    assert any("no luck" in label or "no file" in label for label in failed.told.finished[0].labels)


def test_skipping_everything_is_no_success(tmp_path: Path) -> None:
    """It ends as if nothing had been selected; some that were skipped beside others that passed are as their author said."""
    found = run(tmp_path, "{chat: x}", scenario="    skip: later\n")
    assert (found.statuses, found.tested.exit_code) == (["skipped"], 5)
    assert "nothing ran: 1 of 1 runs were skipped" in found.told.completed.notes
    text = suite(rig.echo(tmp_path), "{chat: x}", scenario="    skip: later\n") + "  - {id: two, steps: [{chat: x}]}\n"
    assert rig.run(rig.cases_of(tmp_path, text)).tested.exit_code == 0


def test_rows_are_removed_whatever_happened(tmp_path: Path) -> None:
    """The second scenario finds the store as the first one did."""
    text = suite(rig.echo(tmp_path), "{chat: x, response: {contains: nope}}", scenario=SETUP)
    text += "  - id: two\n    steps: [{verify: {entity: tasks, filters: {id: {exists: true}}, count: 0}}]\n"
    found = rig.run(rig.cases_of(tmp_path, text))
    assert found.statuses == ["failed", "passed"], found.why


def test_a_crash_is_the_agents_fault(tmp_path: Path) -> None:
    """And an answer that takes too long; those that are none are in test_odd_suites."""
    assert run(tmp_path, "{chat: x}", body="raise KeyError('oops')").statuses == ["agent_error"]
    slow = run(tmp_path, "{chat: x, timeout: 50}", body="import time; time.sleep(1); return 'x'")
    assert (slow.statuses, "0.05 s" in slow.why) == (["agent_error"], True)
    late = run(tmp_path, "{chat: x}", body="import time; time.sleep(3); return 'x'", scenario="    timeout: 1000\n")
    assert (late.statuses, "did not end within 1 s" in late.why) == (["agent_error"], True)
    assert late.tested.exit_code == 1


def test_an_agent_that_is_not_there_is_an_error_of_the_environment(tmp_path: Path) -> None:
    found = rig.run(rig.cases_of(tmp_path, suite('{http: "http://127.0.0.1:9/v1"}', "{chat: x}", store="")))
    assert (found.statuses, found.tested.exit_code) == (["environment_error"], 3)
    assert "cannot be reached" in found.why
    nobody = rig.run(rig.cases_of(tmp_path, "name: t\nscenarios: [{id: one, steps: [{chat: x}]}]\n"))
    assert (nobody.statuses, "no agent is described" in nobody.why) == (["environment_error"], True)
    assert nobody.tested.exit_code == 2


def test_models_are_asked_for_in_the_words_of_a_suite(tmp_path: Path) -> None:
    """Who writes YAML is not told what to write in Python."""
    for step, words in (
        ("{simulate: {goal: a lamp}}", "defaults: {simulatorModel:"),
        ("{chat: x, response: {judge: it is polite}}", "defaults: {judgeModel:"),
    ):
        found = run(tmp_path, step)
        assert found.statuses == ["environment_error"], found.why
        assert words in found.why
        for python in ("TestingAgent", "UserSimulatorAgent", "JudgeAgent", "scenario."):
            assert python not in found.why


def test_hooks_run_around_everything(tmp_path: Path) -> None:
    """In their order, with the run in their environment; one that fails before keeps scenarios from running."""
    note = '{command: [sh, -c, "echo %s $LLMPROXY_SCENARIO >> log"]}'
    names = ("beforeAll", "beforeEach", "afterEach", "afterAll")
    hooks = "hooks: {" + ", ".join(f"{name}: [{note % name}]" for name in names) + "}\n"
    assert run(tmp_path, "{chat: x}", more=hooks).statuses == ["passed"]
    assert (tmp_path / "log").read_text().split("\n")[:4] == [
        "beforeAll", "beforeEach one", "afterEach one", "afterAll",
    ]  # fmt: skip
    broken = run(tmp_path, "{chat: x}", more='hooks: {beforeAll: [{command: [sh, -c, "echo no luck; exit 3"]}]}\n')
    assert (broken.statuses, broken.tested.exit_code) == ([], 3)
    assert "no luck" in broken.told.completed.notes[0]


def test_runs_with_users_of_their_own_go_on_at_the_same_time(tmp_path: Path) -> None:
    """Those that share a user, or a store that knows no users, do not."""
    body = "from tests.suite.rig import MEETING; return MEETING.come()"
    scenarios = "".join(
        f"  - {{id: s{n}, userId: u{n}, steps: [{{chat: x}}, {{verify: {{entity: tasks, filters: {{title: x}}, count: 0}}}}]}}\n"
        for n in range(4)
    )
    text = f"name: t\nagent: {rig.echo(tmp_path, body)}\nstore: {STORE}\nscenarios:\n{scenarios}"

    def most(text: str, *, expected: int) -> tuple[int, rig.Result]:
        with rig.MEETING.expect(expected) as meeting:
            found = rig.run(rig.cases_of(tmp_path, text), parallel=4)
        assert set(found.statuses) == {"passed"}, found.why
        return meeting.most, found

    assert most(text, expected=4)[0] == 4
    apart, found = most(text.replace(", user: userId", ", user: null"), expected=1)
    assert apart == 1
    assert "ran one at a time" in found.told.completed.notes[0]


COUNTS = """
import sqlite3
from contextlib import closing
with closing(sqlite3.connect("FILE")) as db, db:
    db.execute("INSERT INTO tasks (title, user_id) VALUES (?, ?)", (message, message))
    return str(db.execute("SELECT max(id) FROM tasks").fetchone()[0])
"""


@pytest.mark.parametrize("key", ["INTEGER PRIMARY KEY AUTOINCREMENT", "INTEGER PRIMARY KEY"])
def test_runs_whose_ids_are_counted_up_never_go_on_at_the_same_time(tmp_path: Path, key: str) -> None:
    """Each run finds the counter where the first one did, whatever `--parallel` says, so that what it records replays; it is said."""
    file = tmp_path / "t.db"
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(f"CREATE TABLE tasks (id {key}, title TEXT, user_id TEXT)")
        db.execute("INSERT INTO tasks (id, title, user_id) VALUES (41, 'there', 'somebody')")
    agent = rig.echo(tmp_path, COUNTS.replace("FILE", str(file)).strip().replace("\n", "\n    "))
    scenarios = "".join(
        f"  - {{id: s{n}, userId: u{n}, steps: [{{chat: u{n}, response: {{eq: '42'}}, created: [{{entity: tasks}}]}}]}}\n"
        for n in range(4)
    )
    text = f"name: t\nagent: {agent}\nstore: {{sqlalchemy: 'sqlite:///t.db', entities: {{tasks: {{}}}}}}\nscenarios:\n{scenarios}"
    for _ in range(2):
        found = rig.run(rig.cases_of(tmp_path, text), parallel=4)
        assert found.statuses == ["passed"] * 4, found.why
        assert "the store counts the keys of tasks up" in found.told.completed.notes[0]
    if "AUTOINCREMENT" not in key:
        return  # side by side a number that one run deletes is given to the next: what was created is not known
    own = text.replace("entities: {tasks: {}}}", "entities: {tasks: {}}, counters: unused}")
    own = own.replace("eq: '42'", "regex: '4'")
    found = rig.run(rig.cases_of(tmp_path, own), parallel=4)
    assert (found.statuses, found.told.completed.notes) == (["passed"] * 4, ()), found.why


def test_an_interrupted_test_cleans_up_and_says_how_far_it_came(tmp_path: Path) -> None:
    """Ctrl-C: the run under way removes its rows, the end is told with 130, and no thread is left waiting."""
    wait = "{wait: {entity: tasks, id: $old.id, until: {status: done}, timeout: 60000, pollInterval: 30000}}"
    cases = rig.cases_of(tmp_path, suite(rig.echo(tmp_path), wait, scenario=SETUP))
    told = rig.Told()
    world = SuiteRunContext(options=SuiteCommandOptions(), proxy=None, handlers=[told])

    async def live() -> None:
        task = asyncio.ensure_future(run_cases(world, cases))
        while (place := world.get_shared_suite_store(cases[0])) is None or not place[0].list("tasks"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(live())
    assert world.stopped.is_set()  # or the wait in its thread would go on for a minute
    made = world.get_shared_suite_store(cases[0])
    assert made is not None
    assert made[0].list("tasks") == []
    assert told.completed.exit_code == 130
    assert [each.status for each in told.finished] == [Status.ENVIRONMENT_ERROR]
    going = [each for each in threading.enumerate() if "asyncio" in each.name and not each.daemon]
    assert not [each for each in going if each.is_alive()]


class Counted(MemoryEntityStore):
    """A store that is slow, and tells when it is called for the n-th time."""

    def __init__(self, at: int, tell: Callable[[], object]) -> None:
        super().__init__({"tasks": DeclaredEntityColumns(user="userId", columns=("id", "title", "status", "userId"))})
        self.calls, self.at, self._tell = 0, at, tell

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self._tell()
        time.sleep(0.001)

    def insert(self, entity: str, data: Mapping[str, Any]) -> dict[str, Any]:
        self._count()
        return super().insert(entity, data)

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> list[Row]:
        self._count()
        return super().list(entity, filters, limit)

    def delete(self, entity: str, id: Any) -> bool:  # noqa: A002 - as the protocol says it
        self._count()
        return super().delete(entity, id)


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interruption_at_any_moment_leaves_no_row(tmp_path: Path, signals: int) -> None:
    """Ctrl-C, once or twice, at each call of the store, with scenarios under way and others that wait: all rows are gone, 130 is told."""
    scenarios = "".join(
        f"  - id: s{n}\n{SETUP}    steps:\n      - {{chat: x, created: [{{entity: tasks, count: 0}}]}}\n"
        "      - {verify: {entity: tasks, id: $old.id, fields: {title: Old}}}\n"
        "    teardown: [{delete: tasks, id: $old.id}]\n"
        for n in range(3)
    )
    text = f"name: t\nagent: {rig.echo(tmp_path)}\nstore: {STORE}\nscenarios:\n{scenarios}"
    cases, at, over = rig.cases_of(tmp_path, text), 0, False
    while not over:
        at += 1
        told = rig.Told()
        world = SuiteRunContext(options=SuiteCommandOptions(), proxy=None, handlers=[told])

        async def live(at: int = at, world: SuiteRunContext = world) -> Counted:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(run_cases(world, cases))
            store = Counted(at, lambda: [loop.call_soon_threadsafe(task.cancel) for _ in range(signals)])
            world._stores = {id(case.suite): (store, StoreResetSettings()) for case in cases}
            with suppress(asyncio.CancelledError):
                await task
            return store

        store = asyncio.run(live())
        over, store.at = store.calls < at, 0
        assert store.list("tasks") == [], f"interrupted at call {at}"
        assert told.completed.exit_code == (0 if over else 130), f"interrupted at call {at}"
    assert at > 20, "it was interrupted at few moments"


def test_everything_is_told_in_order(tmp_path: Path) -> None:
    """Selected, then for each run Started ... Finished, at last Completed; all of it is JSON."""
    from llmproxy.report.run_tree import to_plain

    found = run(tmp_path, "{chat: x, label: first}")
    kinds = [type(each).__name__ for each in found.told.events]
    assert kinds == ["Selected", "Started", "Message", "Message", "Step", "Finished", "Completed"]
    assert isinstance(found.told.events[0], Selected)
    assert (found.told.events[0].scenarios, found.told.steps[0].label) == (1, "first")
    json.dumps([to_plain(each) for each in found.told.events])


def test_a_handler_that_fails_disturbs_nobody(tmp_path: Path) -> None:
    """The run goes on, the others hear everything."""

    class Broken:
        def handle(self, event: object) -> None:
            raise RuntimeError(event)

        def close(self) -> None:
            pass

    told = rig.Told()
    cases = rig.cases_of(tmp_path, suite(rig.echo(tmp_path), "{chat: x}"))
    world = SuiteRunContext(options=SuiteCommandOptions(), proxy=None, handlers=[Broken(), told])
    assert asyncio.run(run_cases(world, cases)).exit_code == 0
    assert told.completed.exit_code == 0


def test_each_value_of_an_axis_has_a_text_of_its_own(tmp_path: Path) -> None:
    """Rates by value are grouped by it: what YAML tells apart is two rows."""
    axis = """[1, "1", true, "true", null, "null", 1.0, plain, '"1"', {a: 1}]"""
    text = suite(rig.echo(tmp_path), "{chat: $model}", scenario=f"    matrix: {{model: {axis}}}\n")
    told = [get_matrix_axis_values_of_case(case)["axes"]["model"] for case in rig.cases_of(tmp_path, text)]
    assert told[:8] == ["1", '"1"', "true", '"true"', "null", '"null"', "1.0", "plain"]
    assert len(set(told)) == len(told) == 10
