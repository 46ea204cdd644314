"""Results of tools made up for a scenario: the tool runs, the model reads the mock; in suites, `llmproxy test`, pytest and `scenario.run`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy import scenario
from llmproxy.core.forks.overrides import UnusedMocksError
from llmproxy.errors import SettingsError
from tests.provider import Provider, Reply, Script, Step, step
from tests.suite import rig
from tests.support import near, pytest_run
from tests.support.asking import ASK
from tests.support.process import ROOT, llmproxy, python

AGENT = (
    f"{ASK}\n"
    """
def answer(text, url):
    messages = [{"role": "user", "content": text}]
    while True:
        said = ask(messages, url)
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            with open(os.path.join(os.path.dirname(__file__), "ran.txt"), "a") as ran:
                ran.write(call["function"]["name"] + "\\n")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "the real thing"})

if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps({"text": answer(json.loads(line)["message"], os.environ["OPENAI_BASE_URL"])}), flush=True)
"""
)
SEES = Reply("I read {seen}", takes={"seen": "(?s).+"})


def provider() -> Provider:
    """A model that asks for the weather, and says what it read."""
    call = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    asks = step(user="weather?", call=[call], times=None)
    return Provider(Script((asks, Step(SEES, tool_result="", times=None)), ordered=False))


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, Provider]]:
    """A folder with the agent, and a proxy in auto."""
    folder = tmp_path_factory.mktemp("mocks")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    with provider() as upstream, near("auto", folder / "x.db", upstreams={"openai": upstream.url}) as px:
        yield folder, px.url, upstream


def suite(folder: Path, mock: object, expected: str, *, more: str = "") -> str:
    agent = json.dumps({"command": [python(), str(folder / "agent.py")]})
    made = "" if mock is None else f"    mock: {json.dumps(mock)}\n"
    steps = f"    steps:\n      - {{chat: 'weather?', response: {{eq: {expected!r}}}, tools: {{get_weather: 1}}}}\n"
    return f"name: {folder.name}\nagent: {agent}\nscenarios:\n  - id: one\n{made}{more}{steps}"


def test_the_tool_runs_and_the_model_reads_the_mock(tape: tuple[Path, str, Provider]) -> None:
    """A second time nothing is asked; another mock is another request, and without one the real result is read."""
    folder, url, upstream = tape
    (ran := folder / "ran.txt").unlink(missing_ok=True)
    cold = suite(folder, {"get_weather": {"temp": 5}}, 'I read {"temp": 5}')
    first = rig.run(rig.cases_of(folder, cold), proxy=url)
    assert (first.statuses, ran.read_text()) == (["passed"], "get_weather\n"), first.why
    asked = len(upstream.requests)
    assert rig.run(rig.cases_of(folder, cold), proxy=url).statuses == ["passed"]
    assert len(upstream.requests) == asked
    other = rig.run(rig.cases_of(folder, suite(folder, {"get_weather": "storm"}, "I read storm")), proxy=url)
    assert (other.statuses, len(upstream.requests)) == (["passed"], asked + 1), other.why
    real = rig.run(rig.cases_of(folder, suite(folder, None, "I read the real thing")), proxy=url)
    assert real.statuses == ["passed"], real.why


def test_a_mock_is_of_its_case(tape: tuple[Path, str, Provider]) -> None:
    """A variable of a set of parameters is written out in it, as an object, and in rules for arguments."""
    folder, url, _ = tape
    sets = "    parametrize: [{id: cold, city: Oslo, said: {temp: 1}}, {id: real, city: Rome, said: {temp: 2}}]\n"
    rules = {"get_weather": [{"when": {"city": "$city"}, "returns": "$said"}, {"nth": 9, "returns": ""}]}
    found = rig.run(rig.cases_of(folder, suite(folder, rules, 'I read {"temp": 1}', more=sets)), proxy=url)
    assert found.statuses == ["passed", "failed"]
    assert "I read the real thing" in found.why


@pytest.mark.parametrize(("mock", "said"), [
    ({"get_wether": 1, "get_weather": "x"},
     "mock of 'get_wether' changed nothing: the tool was never called (called: get_weather)"),
    ({"get_weather": [{"when": {"city": "Rome"}, "returns": 1}]}, "it was called, and no rule is for a call of it"),
])  # fmt: skip
def test_a_pass_beside_a_mock_that_did_nothing_is_an_error(
    tape: tuple[Path, str, Provider], mock: object, said: str
) -> None:
    folder, url, _ = tape
    expected = "I read x" if "get_wether" in json.dumps(mock) else "I read the real thing"
    found = rig.run(rig.cases_of(folder, suite(folder, mock, expected)), proxy=url)
    assert found.statuses == ["environment_error"], found.why
    assert said in found.why


@pytest.mark.slow
@pytest.mark.parametrize(("mock", "said", "code"), [({}, "passed", 0), ({"gone": 1}, "mock of 'gone'", 3)])
def test_it_is_the_same_under_pytest_and_the_command(
    tape: tuple[Path, str, Provider], tmp_path: Path, mock: dict[str, object], said: str, code: int
) -> None:
    """It passes with the mock, and both say which mock did nothing."""
    folder, url, _ = tape
    (tmp_path / "t.suite.yaml").write_text(suite(folder, {"get_weather": "storm", **mock}, "I read storm"))
    ran = llmproxy("test", cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "LLMPROXY_URL": url})
    assert (ran.returncode, said in ran.stdout) == (code, True), ran.stdout + ran.stderr
    tested = pytest_run.run(tmp_path, "t.suite.yaml", LLMPROXY_URL=url)
    assert (tested.ret == 0, said in str(tested.stdout)) == (code == 0, True), str(tested.stdout)


class Weather(scenario.AgentAdapter):
    """The same agent in Python."""

    uses_session = True

    def __init__(self, file: str) -> None:
        self.file = file

    async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:  # noqa: A002
        module: dict[str, object] = {"__name__": "agent", "__file__": self.file}
        exec(AGENT, module)
        assert input.llm is not None
        return module["answer"](input.last_new_user_message_str(), input.llm.base_url("openai"))  # type: ignore[operator]


def test_in_python_a_run_takes_mocks_too(tape: tuple[Path, str, Provider]) -> None:
    """The counterpart, failing as it does in suites; without a proxy it is refused."""
    folder, url, _ = tape

    def heard(text: str) -> scenario.ScriptStep:
        def look(state: scenario.ScenarioState) -> None:
            assert state.last_message()["content"] == text

        return look

    def play(mock: dict[str, object], expected: str, where: str | bool = url) -> scenario.ScenarioResult:
        steps = [scenario.user("weather?"), scenario.agent(), heard(expected), scenario.succeed()]
        agents = [Weather(str(folder / "agent.py"))]
        return scenario.run_sync("mocked", "weather", agents, script=steps, mock=mock, proxy=where, verbose=False)

    assert play({"get_weather": {"temp": 5}}, 'I read {"temp": 5}').success
    with pytest.raises(UnusedMocksError, match="mock of 'gone' changed nothing"):
        play({"get_weather": "storm", "gone": 1}, "I read storm")
    with pytest.raises(SettingsError, match="there is none"):
        play({"get_weather": "storm"}, "I read storm", where=False)
