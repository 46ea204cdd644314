"""The complete example, end to end: recorded once, replayed offline, and an agent that is broken fails where it is broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.reading.load import SuiteCase, load_suites
from llmproxy.suite.stores import ColumnType
from tests.provider import Provider
from tests.suite import rig
from tests.suite.dialogues import agent, dialogue, fixture_suite, store_of
from tests.support import near, process, proxy
from tests.support.process import ROOT, needed, python

SCENARIOS, RUNS = 12, 14


def llmproxy(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, far from any provider."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = {"PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "made-up", "PATH": path, **env}
    return process.llmproxy(*words, cwd=cwd, env=known)


def test_recorded_once_and_replayed_offline(tmp_path: Path) -> None:
    """Every construct of the format, against a real agent with a real database; the second process has no provider."""
    suite = fixture_suite(tmp_path)
    with Provider(dialogue(), ordered=False) as p:
        recorded = llmproxy("test", str(suite), "--mode", "record", "--upstream", f"openai={p.url}", cwd=tmp_path)
        asked = len(p.requests)
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert asked > RUNS
    shutil.rmtree(tmp_path / ".llmproxy")  # what is committed is enough
    replayed = llmproxy("test", str(suite), "--report", "json=out.json", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert replayed.stdout.count("replayed") == RUNS
    assert f"{SCENARIOS} passed" in replayed.stdout
    assert (tmp_path / "out.json").is_file()
    assert len(list((tmp_path / "tests" / "cassettes").glob("*.yaml"))) == SCENARIOS


@pytest.mark.slow
def test_the_same_suite_with_an_agent_in_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another language, store (REST) and service, named by the environment: nothing in the suite changes."""
    if shutil.which("node") is None:
        needed("node")
    suite = fixture_suite(tmp_path)
    for mode in ("record", "replay"):
        with Provider(dialogue(ColumnType.UNKNOWN), ordered=False) as p:
            upstreams = {"openai": p.url if mode == "record" else "http://127.0.0.1:9"}
            with near(mode, tmp_path / "node.db", upstreams=upstreams) as px:
                folder = tmp_path / mode
                folder.mkdir()
                with agent("node", folder, f"{px.url}/v1", env={"LLMPROXY_SEED": "s"}) as running:
                    spoken = {
                        "url": f"{running.url}/chat", "reply": "$.text", "headers": {"x-llmproxy-session": "$session"},
                        "body": {"message": "$message", "conversation": "$thread_id", "userId": "$userId"},
                    }  # fmt: skip
                    where: dict[str, Any] = {"agent": {"http": spoken}, "store": store_of("node", folder, running.url)}
                    found = rig.run(load_suites([suite]).scenarios, proxy=px.url, parallel=2, **where)
                    monkeypatch.setenv("TASKS_URL", running.url)
                    own = rig.run(load_suites([suite.with_name("tasks-node.suite.yaml")]).scenarios, proxy=px.url)
            assert set(found.statuses) == {"passed"}, found.why
            assert own.statuses == ["passed"], own.why
            assert bool(p.requests) is (mode == "record")


@dataclass(frozen=True)
class Rig:
    """A proxy that records, a provider that plays the model, the suite."""

    proxy: str
    folder: Path
    cases: Sequence[SuiteCase]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("broken")
    suite = fixture_suite(folder)
    with Provider(dialogue(), ordered=False) as p, proxy("record", folder / "x.db", upstreams={"openai": p.url}) as px:
        yield Rig(px.url, folder, load_suites([suite]).scenarios)


BROKEN = [
    ("wrong-title", "task-001", "created[0].fields.title", r"'Review PR'.*'Untitled'|Untitled"),
    ("wrong-status", "task-001", "created[0].fields.status", r"todo.*open"),
    ("wrong-parent", "subtask", "created[0].fields.parentId.ref", r"null|no value|None"),
    ("wrong-user", "task-001", "created[0]", r"no row was added to tasks in this step for the user 'test-user'"),
    ("no-row", "task-001", "created[0]", r"no row was added to tasks"),
    ("extra-row", "fields", "created[1].count", r"expected 1.*2|2.*expected 1"),
    ("deletes-other", "counting", "verify.count", r"3"),
    ("no-tool-call", "answer", "tools.createTask.count",
     r"createTask was never called.*no tool was called in this step"),
    ("extra-call", "task-001", "tools.createTask", r"createTask was called 2 times.*expected 1.*Review PR"),
    ("says-error", "answer", "response.notContains", r"error.*the agent answered|An error happened"),
]  # fmt: skip


def broken(running: Rig, scenario: str, how: str) -> rig.Result:
    """Run a scenario with an agent that is broken so."""
    cases = [case for case in running.cases if case.id == scenario]
    agent = rig.lines(cases[0].folder / "tasks.db", "--break", how)
    return rig.run(cases, proxy=running.proxy, agent=agent, folder=running.folder)


@pytest.mark.parametrize(("how", "scenario", "assertion", "message"), BROKEN, ids=[each[0] for each in BROKEN])
def test_a_broken_agent_fails_where_it_is_broken(
    running: Rig, how: str, scenario: str, assertion: str, message: str
) -> None:
    """The right assertion fails, and says what was expected, what was seen, and where."""
    found = broken(running, scenario, how)
    assert found.statuses == ["failed"], found.why
    wrong = found.told.assertion(assertion)
    assert wrong.status is Status.FAILED, found.why
    assert re.search(message, wrong.message), wrong.message
    assert found.tested.exit_code == 1
    claims = how == "no-tool-call"  # it says that it did what no call shows
    assert any("says that something was done" in label for label in found.told.finished[0].labels) is claims


@pytest.mark.parametrize(("how", "message"), [
    ("no-reply", "empty answer|no answer|nothing"),
    ("html", "<html>|web page|no JSON"),
    ("garbage", "no JSON|oops"),
    ("crash", "ended|exit"),
    ("status-500", "it broke"),
])  # fmt: skip
def test_an_agent_that_gives_no_answer_is_an_error_of_the_agent(running: Rig, how: str, message: str) -> None:
    """It was reached, so it counts against the agent, and the rest of its steps is skipped."""
    found = broken(running, "task-001", how)
    assert found.statuses == ["agent_error"], found.why
    assert re.search(message, found.told.finished[0].error), found.told.finished[0].error
    assert [step.status for step in found.told.steps][1:] == [Status.SKIPPED, Status.SKIPPED]


def test_an_agent_that_goes_past_the_proxy_passes_nothing(running: Rig) -> None:
    """It claims that all is done and asked no model: what is asserted about its tools is an error, not a failure and not a pass."""
    found = broken(running, "tools", "no-llm")
    assert found.statuses == ["environment_error"], found.why
    for name in ("tools.deleteTask", "tools.updateTask", "totalToolCalls"):
        wrong = found.told.assertion(name)
        assert (wrong.status, "did not pass the proxy" in wrong.message) == (Status.ENVIRONMENT_ERROR, True)
    assert found.tested.exit_code == 3


@pytest.mark.slow
def test_a_recorded_conversation_becomes_a_suite_that_passes_at_once(tmp_path: Path) -> None:
    """Recorded without any suite; the suite that is made of it passes in replay, and fails once the agent is broken."""
    with (
        Provider(dialogue(), ordered=False) as p,
        near("record", tmp_path / "llmproxy.db", upstreams={"openai": p.url}) as px,
        agent("python", tmp_path / "a", px.session_url("demo") + "/v1") as talks,
    ):
        talks.chat("Create a task called 'Review PR'", conversation="c")
        talks.chat("Mark 'Review PR' as complete", conversation="c")
    told = f'{{command: {{run: [{python()}, {rig.AGENT}, --lines, --db, new.db], env: {{LLMPROXY_SEED: ""}}}}}}'
    made = llmproxy("suite", "from-session", "demo", "--agent", told, cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    passed = llmproxy("test", "tests/demo.suite.yaml", cwd=tmp_path)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    (tmp_path / "new.db").unlink()
    broken = told.replace("--lines,", "--lines, --break, says-error,")
    failed = llmproxy("test", "tests/demo.suite.yaml", "--agent", broken, cwd=tmp_path)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "response.contains" in failed.stdout
