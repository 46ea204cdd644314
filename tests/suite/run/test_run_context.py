"""What all runs share: agents and stores from the command line, the suite or the project, in this order. Recorded runs are judged again without the agent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SettingsError, SuiteError
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.case_runner import hash_step_inputs_affecting_answer
from llmproxy.suite.run.run_context import SuiteRunContext, list_store_entities_of_scenario, load_runs_to_rejudge
from tests.provider import Provider, Reply, Script, Step, step
from tests.suite import rig
from tests.support import pytest_run
from tests.support.asking import ASK
from tests.support.process import ROOT, llmproxy, python

TEXT = """
name: t
agent: {http: "http://127.0.0.1:1/v1"}
store: {memory: {}, entities: {notes: {}}}
scenarios:
  - id: one
    setup: [{insert: tasks, data: {title: x}}]
    steps:
      - {chat: x, created: [{entity: logs}]}
      - {verify: {entity: tasks, count: 1, filters: {title: x}}}
      - {wait: {entity: reminders, until: {status: done}}}
      - {wait: {ms: 1}}
      - {setup: [{insert: users, data: {name: y}}]}
    teardown: [{delete: files, filters: {id: 1}}]
  - {id: two, steps: [{chat: x}]}
"""


def world(**more: Any) -> SuiteRunContext:
    return SuiteRunContext(options=SuiteCommandOptions(), proxy=None, **more)


def test_entities_of_the_whole_suite_are_cleaned(tmp_path: Path) -> None:
    """A scenario that names none may still make its agent write rows."""
    one, two = rig.cases_of(tmp_path, TEXT)
    assert list_store_entities_of_scenario(one.scenario) == ["tasks", "logs", "reminders", "users", "files"]
    assert world().list_case_entities(two) == ["notes", "tasks", "logs", "reminders", "users", "files"]


def test_the_nearest_description_wins(tmp_path: Path) -> None:
    """An agent of the command line, else the suite's, else the project's; without any, an error that says what to write."""
    one, _ = rig.cases_of(tmp_path, TEXT)
    (bare,) = rig.cases_of(tmp_path, "name: b\nscenarios: [{id: b, steps: [{chat: x}]}]\n", "b.suite.yaml")
    project = {"agent": {"http": "http://127.0.0.1:2/v1"}}
    assert ":1/" in getattr(world(defaults=project).agent_for_case(one), "url")  # noqa: B009
    assert ":2/" in getattr(world(defaults=project).agent_for_case(bare), "url")  # noqa: B009
    assert ":3/" in getattr(world(agent={"http": "http://127.0.0.1:3/v1"}).agent_for_case(one), "url")  # noqa: B009
    with pytest.raises(SuiteError, match="no agent is described"):
        world().agent_for_case(bare)
    assert world().get_shared_suite_store(bare) is None


def test_agents_are_one_for_each_run_and_stores_are_shared(tmp_path: Path) -> None:
    """Runs at the same time do not share an agent's connections."""
    one, two = rig.cases_of(tmp_path, TEXT)
    here = world()
    assert here.agent_for_case(one) is not here.agent_for_case(one)
    assert here.get_shared_suite_store(one) is here.get_shared_suite_store(two)
    here.close()


def test_waiting_ends_when_everything_ends() -> None:
    here = world()
    here.stopped.set()
    with pytest.raises(SuiteError, match="interrupted"):
        here.sleep(60)


AGENT = (
    f"{ASK}\n"
    """
open("agent-ran", "a").close()
for line in sys.stdin:
    messages = [{"role": "user", "content": json.loads(line)["message"]}]
    said = ask(messages)
    if said.get("tool_calls"):
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "4 degrees"}]
        said = ask(messages)
    print(json.dumps({"text": said["content"]}), flush=True)
"""
)
ENDS = [{"name": "end_conversation", "arguments": {"message": "thanks", "goal_reached": True}}]
STEP = "{chat: 'weather?', response: {contains: cold}, tools: {get_weather: 1}}"


def suite(*steps: str, more: str = "") -> str:
    agent = json.dumps({"command": [python(), "agent.py"]})
    lines = "\n".join(f"      - {each}" for each in steps)
    return f"name: t\nagent: {agent}\ndefaults: {{judgeModel: openai/gpt-4.1-mini}}\nscenarios:\n  - id: one\n{more}    steps:\n{lines}\n"


def verdict(status: str) -> Step:
    found = {"c1": {"status": status, "evidence": "", "reason": f"it is {status}"}}
    call = [{"name": "finish_test", "arguments": {"criteria": found, "reasoning": "so"}}]
    return step(call=call, model="gpt-4.1-mini", times=None)


type Tape = tuple[Path, dict[str, str], Provider]
"""A folder with an agent, the environment in which it asks a model, and the provider of that."""


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tape]:
    folder = tmp_path_factory.mktemp("rejudge")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    call = [{"name": "get_weather", "arguments": {"city": "Oslo"}}]
    steps = (
        step(user="weather?", model="gpt-4o", call=call, times=None),
        Step(Reply("It is cold."), tool_result="4 degrees", times=None),
        verdict("failed"),
        step(model="gpt-4o-mini", call=ENDS, times=None),
    )
    with Provider(Script(steps, ordered=False)) as upstream:
        made = folder, {"OPENAI_BASE_URL": upstream.url + "/v1", "OPENAI_API_KEY": "k"}, upstream
        record(made, suite(STEP), "run.json")
        yield made


def test(folder: Path, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``llmproxy test``."""
    return llmproxy("test", *words, cwd=folder, env={"PYTHONPATH": str(ROOT), **env})


test.__test__ = False  # type: ignore[attr-defined]


def record(tape: Tape, text: str, report: str, mode: str = "record", code: int = 0) -> None:
    """Run the agent by a suite, with a report."""
    folder, env, _ = tape
    (folder / "t.suite.yaml").write_text(text)
    ran = test(folder, env, "--mode", mode, "--report", f"json={report}")
    assert (ran.returncode, "Warning" in ran.stderr) == (code, False), ran.stdout + ran.stderr
    (folder / "agent-ran").unlink()


def again(tape: Tape, text: str, *words: str, report: str = "run.json") -> tuple[int, str]:
    """Judge the recorded run again by another suite; returns exit code and output."""
    folder, env, _ = tape
    (folder / "t.suite.yaml").write_text(text)
    ran = test(folder, env, "--rejudge", report, *words)
    assert not (folder / "agent-ran").exists(), "the agent was run"
    return ran.returncode, ran.stdout + ran.stderr


def test_other_assertions_are_evaluated_on_what_was_recorded(tape: Tape) -> None:
    """Of the answer and of the traffic: what holds passes, what does not fails; nobody asks a model."""
    asked = len(tape[2].requests)
    wanted = "tools: {get_weather: {input: {city: Oslo}, output: {contains: '4'}}}, usage: {callCount: 2}"
    held = suite(f"{{chat: 'weather?', {wanted}}}")
    code, said = again(tape, held)
    assert (code, "judged again: what was recorded as" in said) == (0, True), said
    for wrong, why in (
        ("response: {contains: warm}", '"warm" is not in it'),
        ("tools: {get_weather: 2}", "get_weather"),
    ):
        code, said = again(tape, suite(f"{{chat: 'weather?', {wrong}}}"))
        assert (code, why in said) == (1, True), said
    assert len(tape[2].requests) == asked


def test_a_judge_is_asked_anew_and_replayed_later(tape: Tape) -> None:
    """Without a recording of its own it is a miss, recorded it counts; its recording lies beside that of the run."""
    judged = suite(STEP, "{judge: {criteria: ['the answer names a number']}}")
    code, said = again(tape, judged)
    assert (code, "a request of the judge was never recorded" in said, "--rejudge run.json" in said) == (
        4, True, True,
    ), said  # fmt: skip
    code, said = again(tape, judged, "--mode", "auto")
    assert (code, "it is failed" in said) == (1, True), said
    asked = len(tape[2].requests)
    code, said = again(tape, judged)
    assert (code, "it is failed" in said, len(tape[2].requests)) == (1, True, asked), said
    assert len([*(tape[0] / "tests" / "cassettes").rglob("*rejudge*.yaml")]) == 1


@pytest.mark.parametrize(("steps", "why"), [
    (["{chat: 'and tomorrow?'}"], "the user says 'and tomorrow?' now and said 'weather?' in the recorded run"),
    ([STEP, "{chat: more}"], "step 2 was not run in the recorded run"),
    ([STEP, "{verify: {entity: tasks, count: 1}}"], "verify: cannot be judged again: rows were looked at"),
    (["{chat: 'weather?', created: [{entity: tasks}]}"], "created[0]: cannot be judged again"),
    (["{simulate: {goal: know the weather}}"], "step 1 was a `chat` in the recorded run"),
    (["{chat: 'weather?', conversation: other}"], "the mocks or the faults are others than in"),
    (["{chat: 'weather?', faults: http-500}"], "the mocks or the faults are others than in"),
    (["{chat: 'weather?', messageProcessing: {condenser: {activated: false}}}"], "what the agent itself said of it"),
])  # fmt: skip
def test_what_cannot_be_judged_again_is_an_error(tape: Tape, steps: list[str], why: str) -> None:
    code, said = again(tape, suite(*steps))
    assert (code, why in said) == (3, True), said


def test_under_pytest_it_is_the_same(tape: Tape) -> None:
    folder, env, _ = tape

    def rejudge(text: str, report: str) -> pytest.RunResult:
        (folder / "t.suite.yaml").write_text(text)
        words = ("t.suite.yaml", "--scenario-rejudge", report)
        return pytest_run.run(folder, *words, OPENAI_BASE_URL=env["OPENAI_BASE_URL"])

    failing = suite("{chat: 'weather?', tools: {get_weather: 0}}")
    for text, outcomes in ((suite(STEP), {"passed": 1}), (failing, {"failed": 1})):
        result = rejudge(text, "run.json")
        assert result.parseoutcomes() == outcomes, str(result.stdout)
    gone = rejudge(suite(STEP) + suite(STEP).partition("scenarios:\n")[2].replace("id: one", "id: two"), "gone.json")
    assert "passed" not in gone.parseoutcomes(), str(gone.stdout)
    assert str(gone.stdout).count("cannot be read") >= 2
    assert not (folder / "agent-ran").exists()


def test_a_run_without_its_recording_is_an_error(tape: Tape) -> None:
    """The report names recordings that are not there: of another run, or recorded anew since."""
    (tape[0] / "other.json").write_text((tape[0] / "run.json").read_text().replace("@", "@0"))
    code, said = again(tape, suite(STEP), report="other.json")
    assert (code, "it was recorded anew since" in said) == (3, True), said


def test_the_last_test_needs_no_report(tape: Tape) -> None:
    """`last` is what the last test told; judging it again leaves it."""
    for _ in range(2):
        code, said = again(tape, suite("{chat: 'weather?', tools: {get_weather: 0}}"), report="last")
        assert (code, "FAIL  one" in said) == (1, True), said


def test_recorded_verdicts_are_used_again(tape: Tape) -> None:
    """An unchanged judge is not called; and several judges of one model print no warning, for a suite has no remedy."""
    judged = suite(STEP, "{judge: {criteria: [it is short], judges: 3}}").replace("id: one", "id: two")
    record(tape, judged, "judged.json", code=1)
    asked = len(tape[2].requests)
    code, said = again(tape, judged, report="judged.json")
    assert (code, "it is failed" in said, len(tape[2].requests)) == (1, True, asked), said


def test_calls_that_nobody_recorded_are_not_none(tape: Tape) -> None:
    """They passed through, so nothing is known of them: neither their number nor their tools."""
    record(tape, suite("{chat: 'weather?', response: {contains: cold}}"), "passed.json", "passthrough")
    none = suite("{chat: 'weather?', tools: {get_weather: 0}, usage: {callCount: 0}}")
    code, said = again(tape, none, report="passed.json")
    assert (code, "seen were call 1 of the session" in said, "call 3" in said) == (3, True, False), said


def test_another_conversation_is_not_judged(tape: Tape) -> None:
    """A simulated user with another task would have said something else."""
    simulated = suite("{simulate: {goal: know it, firstMessage: 'weather?', model: openai/gpt-4o-mini}}")
    record(tape, simulated.replace("one", "who"), "simulated.json")
    other = simulated.replace("one", "who").replace("know it", "book it")
    code, said = again(tape, other, report="simulated.json")
    assert (code, "the user or the task" in said) == (3, True), said


def test_what_an_answer_depends_on_is_in_its_digest(tmp_path: Path) -> None:
    """User, conversation, rows and the variables in them; not a variable that only an assertion has."""
    step, setup = "{chat: 'weather?', response: {contains: $x}}", "    setup: [{insert: tasks, data: {title: $x}}]\n"

    def digest(step: str, more: str = "", x: int = 1) -> str:
        (case,) = rig.cases_of(tmp_path, suite("{chat: hi}", step, more=f"    vars: {{x: {x}}}\n{more}"))
        return hash_step_inputs_affecting_answer(case, case.scenario.steps[-1])

    found = [digest(step), digest(step, "    userId: bob\n"), digest(step, setup), digest(step, setup, x=2)]
    found += [digest(step.replace("}}", f"}}, {each}}}")) for each in ("conversation: a", "continueConversation: true")]
    assert len(set(found)) == len(found)
    assert digest(step, x=2) == found[0]


def test_a_report_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    """Not there, no report, of other suites; a run that came to nothing is none to judge."""
    run = {
        "started": {"scenario": "x", "sample": 1, "run_id": "r", "cassette": "c"},
        "parts": [],
        "finished": {"status": "environment_error", "error": "the store was away"},
    }
    (tmp_path / "r.json").write_text(json.dumps({"scenarios": [{"runs": [run]}]}))
    (tmp_path / "n.json").write_text("[]")
    first = {"event": "message", "message": {"content": "hi"}, "author": "agent", "recordings": []}
    (tmp_path / "m.json").write_text(json.dumps({"scenarios": [{"runs": [run | {"parts": [first]}]}]}))
    for name, said in (
        ("gone.json", "cannot be read"),
        ("n.json", "no JSON report"),
        ("m.json", "m.json is no JSON report"),
        ("r.json", "it has x, and none of what is selected"),
    ):
        with pytest.raises(SettingsError, match=said):
            load_runs_to_rejudge(tmp_path / name, ["one"], tmp_path)
    known = load_runs_to_rejudge(tmp_path / "r.json", ["x"], tmp_path)
    with pytest.raises(Exception, match="says nothing about the agent: the store was away"):
        known.get_judgeable_run("x", 1)
    with pytest.raises(Exception, match="has no run 2 of x"):
        known.get_judgeable_run("x", 2)
