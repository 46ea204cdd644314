"""What suites can say of cases, cells, order, time and cost, what is compared, judged again and labelled, each failing once: `llmproxy test` and pytest alike."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.report.trend import read_recent_tests
from tests.provider import Provider
from tests.suite.run.test_mocks import AGENT, provider
from tests.suite.run.test_run_context import verdict
from tests.support import near, pytest_run
from tests.support.process import python

SUITE = """
name: fails
agent: {command: COMMAND}
scenarios:
  - id: case
    parametrize: words.csv
    steps: [{chat: "weather?", response: {contains: $word}}]
  - id: line
    parametrize: words.jsonl
    steps: [{chat: "weather?", response: {contains: $word}}]
  - id: entry
    parametrize: words.yaml
    steps: [{chat: "weather?", response: {contains: $word}}]
  - id: cell
    matrix: {word: [real, unreal], more: [thing, nothing]}
    steps: [{chat: "weather?", response: {allOf: [{contains: $word}, {contains: $more}]}}]
  - {id: order, steps: [{chat: "weather?", toolOrder: [get_weather, book]}]}
  - {id: before, steps: [{chat: "weather?", tools: {get_weather: {before: book}}}]}
  - {id: after, steps: [{chat: "weather?", tools: {get_weather: {after: book}}}]}
  - {id: slow, steps: [{chat: "weather?", usage: {latencyMs: {gt: 600000}}}]}
  - {id: slow-run, usage: {latencyMs: {gt: 600000}}, steps: [{chat: "weather?"}]}
  - {id: first, steps: [{chat: "weather?", usage: {firstTokenMs: {gt: 600000}}}]}
  - {id: first-run, usage: {firstTokenMs: {gt: 600000}}, steps: [{chat: "weather?"}]}
  - {id: dear, steps: [{chat: "weather?", usage: {costUsd: {gt: 100}}}]}
  - {id: dear-run, usage: {costUsd: {gt: 100}}, steps: [{chat: "weather?"}]}
  - {id: mocked, mock: {get_weather: storm}, steps: [{chat: "weather?", response: {eq: "I read the real thing"}}]}
  - id: mocked-case
    parametrize: words.csv
    mock: {get_weather: $word}
    steps: [{chat: "weather?", response: {eq: "I read real"}}]
"""
WORDS = {
    "words.csv": "id,word\nrome,real\noslo,unreal\n",
    "words.jsonl": '{"id": "rome", "word": "real"}\n{"id": "oslo", "word": "unreal"}\n',
    "words.yaml": "- {id: rome, word: real}\n- {id: oslo, word: unreal}\n",
}
PYTHON = """
import sys
import pytest
from llmproxy import scenario
from llmproxy.scenario.agents import CommandAgent


async def asked(name, *looks, **more):
    script = [scenario.user("weather?"), scenario.agent(), *looks, scenario.succeed()]
    agent = CommandAgent([sys.executable, "agent.py"])
    return await scenario.run(name=name, description="d", agents=[agent], script=script, verbose=False, **more)


@pytest.mark.agent_test
async def test_mocked():
    await asked("py-mocked", lambda state: state.last_agent_message() == "I read the real thing", mock={"get_weather": "storm"})


@pytest.mark.agent_test
async def test_order():
    await asked("py-order", lambda state: [call.name for call in state.tool_calls()] == ["get_weather", "book"])


@pytest.mark.agent_test
async def test_dear():
    assert float((await asked("py-dear")).usage["agent"].cost_usd) > 100


class Agent(scenario.AgentAdapter):
    async def call(self, input):
        return "the real thing"


@pytest.mark.agent_test
@pytest.mark.parametrize("case", scenario.cases("words.csv"))
async def test_words(case):
    look = lambda state: state.field("word") in state.last_agent_message().split()
    script = [scenario.user("weather?"), scenario.agent(), look, scenario.succeed()]
    await scenario.run(name="words", description="d", agents=[Agent()], script=script, fields=case.fields, verbose=False)
"""
FILES = ("case", "line", "entry", "mocked-case")
GOOD = {f"{name}[rome]" for name in FILES} | {"cell[real,thing]"}
BAD = {f"{name}[oslo]" for name in FILES}
BAD |= {"cell[real,nothing]", "cell[unreal,thing]", "cell[unreal,nothing]"}
BAD |= {"order", "before", "after", "slow", "slow-run", "first", "first-run", "dear", "dear-run", "mocked"}
OTHERS = {"summary": [{"scenario": "somebody-elses", "status": "passed"}]}

pytestmark = pytest.mark.slow


@dataclass
class Both:
    """The suite's folder, and how to test it: each way gives the exit code and what was said."""

    folder: Path
    url: str
    said: dict[str, str]
    codes: dict[str, int]

    def pytest(self, *words: str) -> tuple[int, str]:
        ran = pytest_run.run(self.folder, *words, LLMPROXY_URL=self.url)
        return int(ran.ret), f"{ran.stdout}\n{ran.stderr}"


def command(*words: str) -> tuple[int, str]:
    """Run `llmproxy`, in this process; what it says is caught."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", err)
        return main(list(words)), out.getvalue() + err.getvalue()


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """The suite, tested once in either way, with its reports."""
    folder = tmp_path_factory.mktemp("alike")
    (folder / ".llmproxy").mkdir()
    for name, text in {"agent.py": AGENT, "test_words.py": PYTHON, "others.json": json.dumps(OTHERS), **WORDS}.items():
        (folder / name).write_text(text, encoding="utf-8")
    words = json.dumps([python(), str(folder / "agent.py")])
    (folder / "t.suite.yaml").write_text(SUITE.replace("COMMAND", words), encoding="utf-8")
    with (
        provider() as upstream,
        near("auto", folder / ".llmproxy" / "llmproxy.db", upstreams={"openai": upstream.url}) as px,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(folder)
        patch.setenv("LLMPROXY_URL", px.url)
        made = Both(folder, px.url, {}, {})
        made.codes["command"], made.said["command"] = command("test", "--report", "json=command.json")
        made.codes["pytest"], made.said["pytest"] = made.pytest("--scenario-report", "json=pytest.json")
        yield made


def rows(report: Path) -> dict[str, str]:
    return {row["scenario"]: row["status"] for row in json.loads(report.read_text(encoding="utf-8"))["summary"]}


def test_each_fails_once(tested: Both) -> None:
    """The same scenarios, and in the JSON reports of both the same words."""
    assert tested.codes == {"command": 1, "pytest": 1}, tested.said
    found = {way: rows(tested.folder / f"{way}.json") for way in ("command", "pytest")}
    mine = {name: status for name, status in found["pytest"].items() if not name.startswith(("words", "py-"))}
    assert mine == found["command"]
    assert {name for name, status in found["command"].items() if status == "passed"} == GOOD
    assert {name for name, status in found["command"].items() if status == "failed"} == BAD
    for said in (
        "case: 2 cases, 1 not passed",
        "cell: 4 cases, 3 not passed",
        "1 of 2 cells passed (95 % interval 9% to 91%)",
    ):
        assert said in tested.said["command"]
        assert said in tested.said["pytest"]
    assert "test_words: 2 cases, 1 not passed" in tested.said["pytest"]
    python = {name: status for name, status in found["pytest"].items() if name.startswith("py-")}
    assert python == {"py-mocked": "failed", "py-order": "failed", "py-dear": "passed"}, tested.said
    for name in ("mocked", "order", "dear"):  # what a run cost is looked at when it is over
        assert f"FAILED test_words.py::test_{name}" in tested.said["pytest"]


def test_what_got_worse_comes_first(tested: Both) -> None:
    """Beside a report of either way: a case that failed since, and the scenarios that did not run."""
    (tested.folder / "words.jsonl").write_text('{"id": "rome", "word": "gone"}\n', encoding="utf-8")
    try:
        code, said = command("test", "--id", "line[rome]", "--baseline", "pytest.json")
        assert (code, "  worse    line[rome]: passed -> failed" in said) == (1, True), said
        code, said = tested.pytest("t.suite.yaml", "-k", "line", "--scenario-baseline", "command.json")
        assert (code, "  worse    line[rome]: passed -> failed" in said) == (1, True), said
        assert "of the baseline did not run" in said
        assert "against the baseline: 1 worse, 0 better, 0 as before" in said
    finally:
        (tested.folder / "words.jsonl").write_text(WORDS["words.jsonl"], encoding="utf-8")


def test_a_baseline_of_other_suites_is_refused(tested: Both) -> None:
    """Before anything runs where it is known what will, else at the end; a file that is no report at once."""
    code, said = command("test", "--id", "order", "--baseline", "others.json")
    others = "is of other suites: it has somebody-elses, and none of the scenarios that are selected"
    assert (code, others in said) == (2, True), said
    code, said = tested.pytest("t.suite.yaml", "-k", "mocked-case and rome", "--scenario-baseline", "others.json")
    assert "is of other suites: it has somebody-elses, and none of the scenarios that ran" in said
    assert code == 3, said
    assert command("test", "--id", "order", "--baseline", "words.csv")[0] == 2
    code, said = tested.pytest("t.suite.yaml", "--scenario-baseline", "words.csv")
    assert (code, "--scenario-baseline" in said, "is no JSON report of a test" in said) == (4, True, True), said


def test_other_assertions_over_what_is_recorded(tested: Both) -> None:
    """A case whose word is another one now fails without its agent."""
    (tested.folder / "words.yaml").write_text("- {id: rome, word: gone}\n", encoding="utf-8")
    try:
        code, said = command("test", "--id", "entry[rome]", "--rejudge", "command.json")
        assert (code, "gone" in said) == (1, True), said
        code, said = tested.pytest("t.suite.yaml", "-k", "entry", "--scenario-rejudge", "pytest.json")
        assert (code, "gone" in said) == (1, True), said
        assert 'run it again: pytest "t.suite.yaml::entry[rome]" --scenario-rejudge pytest.json' in said
    finally:
        (tested.folder / "words.yaml").write_text(WORDS["words.yaml"], encoding="utf-8")


def test_the_trend_has_both(tested: Both) -> None:
    """A column for each way that was run, and what fails stands first."""
    code, said = command("test", "--trend", "--id", "order", "--id", "case[rome]")
    kept = read_recent_tests(tested.folder / ".llmproxy" / "llmproxy.db.state.db")
    assert (code, [test.title for test in kept][:2]) == (0, ["fails", "pytest"]), said
    assert [kept[number].rows["order"]["status"] for number in (0, 1)] == ["failed", "failed"]
    assert [line.split()[0][:2] for line in said.splitlines()[1:3]] == ["FF", ".."]


@pytest.mark.parametrize("way", ["command", "pytest"])
def test_a_label_that_the_judge_does_not_share(tested: Both, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made of a report of either way; a judge that says otherwise fails where so much agreement is asked for."""
    scenarios = json.loads((tested.folder / f"{way}.json").read_text("utf-8"))["scenarios"]
    begun = {each["runs"][0]["started"]["scenario"]: each["runs"][0]["started"] for each in scenarios}
    run = begun["case[rome]"]["run_id"]
    out = f"labels-{way}.jsonl"
    monkeypatch.setattr("sys.stdin", io.StringIO("f\n"))
    code, said = command("label", f"{way}.json", "--run", run, "-c", "It names a storm", "--out", out)
    assert (code, "1 conversation labelled" in said) == (0, True), said
    with Provider([verdict("passed")]) as asked, monkeypatch.context() as patch:
        patch.delenv("LLMPROXY_URL")
        patch.setenv("OPENAI_API_KEY", "k")
        patch.setenv("OPENAI_BASE_URL", f"{asked.url}/v1")
        words = ("judge", "calibrate", out, "-m", "openai/gpt-4.1-mini", "--repeats", "1", "--no-order")
        assert command(*words)[0] == 0
        code, said = command(*words, "--min-kappa", "0.5")
    assert (code, "It names a storm" in said) == (1, True), said
