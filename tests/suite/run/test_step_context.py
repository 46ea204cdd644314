"""A step's status, and that a step sees its run. A simulated user and a judge go through the same proxy, and count for nothing about the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.report.events import Assertion, Message, Status, Verdict
from llmproxy.suite.run.step_context import StepResult
from llmproxy.trace.observing.agent_activity import AgentActivity
from tests.provider import Provider, Step, step
from tests.scenario.parties import finish
from tests.suite import rig
from tests.suite.run.test_runner import run
from tests.support import near

P, F, E = Status.PASSED, Status.FAILED, Status.ENVIRONMENT_ERROR


@pytest.mark.parametrize(
    ("wire", "rest", "status"), [([], [], P), ([P], [P], P), ([P], [F], F), ([E], [P], E), ([E], [F], F), ([F], [E], F)]
)
def test_what_failed_has_failed(wire: list[Status], rest: list[Status], status: Status) -> None:
    """Else what cannot be evaluated is an error; never a pass."""
    made = [[Assertion(name="x", status=each) for each in found] for found in (wire, rest)]
    assert StepResult(made[0], made[1]).decide_status() is status


def test_a_status_of_its_own_counts() -> None:
    """Of a step that could not be carried out."""
    assert StepResult(status=Status.AGENT_ERROR).decide_status() is Status.AGENT_ERROR


def test_traffic_can_be_looked_at_again() -> None:
    done = StepResult(
        rest=[Assertion(name="r", status=P)], again=lambda: ([Assertion(name="w", status=F)], AgentActivity())
    )
    done.recheck_traffic()
    assert [each.name for each in done.assertions] == ["w", "r"]
    StepResult().recheck_traffic()


def test_messages_are_told_with_turn_time_and_conversation(tmp_path: Path) -> None:
    found = run(tmp_path, "{chat: a, conversation: c}", "{chat: b}")
    told = [each for each in found.told.events if isinstance(each, Message)]
    assert [(each.turn, each.conversation, each.author) for each in told] == [
        (1, "c", ""), (1, "c", "agent"), (2, "", ""), (2, "", "agent"),
    ]  # fmt: skip
    assert told[1].ms is not None


def test_it_waits_until_the_traffic_is_quiet(tmp_path: Path) -> None:
    """As long as the scenario says, also without a proxy."""
    assert (run(tmp_path, "{chat: a}", scenario="    settle: 120\n").told.finished[0].total_seconds or 0) >= 0.12


ANSWER = "Your order 17 is on its way."


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an agent that asks no model; a key is set for those that do."""
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    return rig.echo(tmp_path, f'return "{ANSWER}"')


def text(agent: str, *steps: str) -> str:
    listed = "\n".join(f"      - {each}" for each in steps)
    return f"name: sim\nagent: {agent}\nscenarios:\n  - id: one\n    steps:\n{listed}\n"


def play(folder: Path, text: str, *said: Step, mode: str = "record") -> tuple[rig.Result, int]:
    """Run a suite before a provider who plays user and judge; returns what it was asked, too."""
    with Provider(said, check=False) as p, near(mode, folder / "x.db", upstreams={"openai": p.url}) as px:
        return rig.run(rig.cases_of(folder, text), proxy=px.url), len(p.requests)


def end(**arguments: object) -> Step:
    return step(call=[{"name": "end_conversation", "arguments": {"message": "Thanks", **arguments}}], times=None)


ASKS = step(say="Where is my order?")
JUDGED = "{chat: Where is it?}", "{judge: {criteria: [It names the order], model: openai/gpt-4o-mini}}"


def test_a_user_talks_until_the_goal_is_reached(tmp_path: Path, agent: str) -> None:
    """It ends the conversation itself; the agent's answers are those of the suite, and asserted like any other."""
    simulated = '{simulate: {goal: "find out where my order is", model: openai/gpt-4o-mini, maxTurns: 4}, response: {contains: "17"}}'
    found, _ = play(tmp_path, text(agent, simulated), ASKS, end(goal_reached=True))
    assert found.statuses == ["passed"], found.why
    assert found.told.said == ["Where is my order?", "Your order 17 is on its way."]
    assert found.told.assertion("simulate.goal").status is Status.PASSED
    assert "user" in found.told.finished[0].usage


def test_a_goal_that_is_not_reached_is_a_failure(tmp_path: Path, agent: str) -> None:
    """After as many turns as there may be."""
    simulated = '{simulate: {goal: g, firstMessage: "Hello", model: openai/gpt-4o-mini, maxTurns: 1}}'
    found, _ = play(tmp_path, text(agent, simulated), ASKS, end(goal_reached=True))
    assert (found.statuses, "was not reached" in found.why) == (["failed"], True)
    assert found.told.said[0] == "Hello"


def test_a_judge_that_contradicts_itself_passes_nobody(tmp_path: Path, agent: str) -> None:
    """All criteria passed, and its own verdict is a failure: that is no verdict."""
    arguments = {"criteria": {"c1": {"status": "passed"}}, "reasoning": "r", "verdict": "failure"}
    verdict = step(call=[{"name": "finish_test", "arguments": arguments}], times=None)
    found, _ = play(tmp_path, text(agent, *JUDGED), verdict)
    assert (found.statuses, "own verdict was 'failure'" in found.why) == (["environment_error"], True), found.why


@pytest.mark.parametrize(("told", "status", "words"), [
    ({"message": "Never mind.", "goal_reached": False}, "failed",
     'gave up, the goal was not reached: "Never mind."'),
    ({"message": ""}, "environment_error", "did not say whether the goal was reached"),
    ({"message": "", "goal_reached": "yes"}, "environment_error", "did not say whether the goal was reached"),
])  # fmt: skip
def test_who_gives_up_has_not_reached_the_goal(
    tmp_path: Path, agent: str, told: dict[str, object], status: str, words: str
) -> None:
    """The conversation is over either way; what it came to, the user says."""
    found, _ = play(tmp_path, text(agent, "{simulate: {goal: g, model: openai/gpt-4o-mini}}"), ASKS, end(**told))
    assert (found.statuses, words in found.why) == ([status], True), found.why


def test_a_recorded_failure_is_no_dead_end(tmp_path: Path, agent: str) -> None:
    """The command that runs it again requests it again, where it was recorded and where it is replayed."""
    cases = rig.cases_of(tmp_path, text(agent, "{simulate: {goal: g, model: openai/gpt-4o-mini}}"))
    with Provider([step(status=401, json={"error": {"message": "no"}})], check=False) as p:
        for mode, again, labels in (("record", "record", []), ("replay", "auto", ["1 recorded failure"])):
            with near(mode, tmp_path / "x.db", upstreams={"openai": p.url}) as px:
                found = rig.run(cases, proxy=px.url)
            end = found.told.finished[0]
            assert (found.statuses, end.rerun, list(end.labels)) == (
                ["environment_error"], f"llmproxy test --id one --mode {again}", labels), found.why  # fmt: skip
            noted = "1 answer had failed or been cut when recorded: --mode auto asks again"
            assert (noted in found.told.completed.notes) is bool(labels)


def test_who_leaves_before_the_agent_answers_says_nothing_of_it(tmp_path: Path, agent: str) -> None:
    """In a conversation that goes on: an error, whatever the user says of the goal."""
    steps = "{chat: hi}", "{simulate: {goal: g, model: openai/gpt-4o-mini}, continueConversation: true}"
    found, _ = play(tmp_path, text(agent, *steps), end(goal_reached=True))
    said = "ended the conversation before the agent had said anything"
    assert (found.statuses, said in found.why) == (["environment_error"], True), found.why


def test_a_judge_needs_a_conversation(tmp_path: Path, agent: str) -> None:
    """A model that is not said is an error that says so, never a pass."""
    found = rig.run(rig.cases_of(tmp_path, text(agent, "{chat: x}", '{judge: "It was polite"}')))
    assert found.statuses == ["environment_error"], found.why
    assert [each for each in found.told.events if isinstance(each, Verdict)] == []


@pytest.mark.parametrize(
    ("found", "status"), [("passed", "passed"), ("failed", "failed"), ("inconclusive", "environment_error")]
)
def test_a_judge_decides_each_criterion(tmp_path: Path, agent: str, found: str, status: str) -> None:
    """Passed is a pass, failed a failure, and what it could not decide an error; recorded once, it is replayed."""
    verdict = finish(found, evidence=[ANSWER], times=None)
    for mode in ("record", "replay"):
        result, asked = play(tmp_path, text(agent, *JUDGED), verdict, mode=mode)
        assert result.statuses == [status], result.why
        assert bool(asked) is (mode == "record")
        assert result.told.assertion("judge.criteria[0]").expected == "It names the order"
        assert next(each for each in result.told.events if isinstance(each, Verdict)).success is (found == "passed")
        assert result.told.finished[0].usage["judge"].calls == 1


def test_a_simulated_and_judged_conversation_is_replayed_whole(tmp_path: Path, agent: str) -> None:
    """User, agent and judge are answered from the recording; nothing is sent, and every message is the same."""
    once = step(call=[{"name": "end_conversation", "arguments": {"message": "Thanks", "goal_reached": True}}])
    script = ASKS, once, finish("passed", evidence=[ANSWER], times=None)
    simulated = "{simulate: {goal: find out where my order is, maxTurns: 4}}"
    models = "defaults: {judgeModel: openai/gpt-4o-mini, simulatorModel: openai/gpt-4o-mini}\n"
    said = text(agent, simulated, "{judge: It names the order}").replace("scenarios:", f"{models}scenarios:")
    heard = []
    for mode in ("record", "replay"):
        found, asked = play(tmp_path, said, *script, mode=mode)
        assert found.statuses == ["passed"], found.why
        assert bool(asked) is (mode == "record")
        assert found.told.finished[0].replayed is (mode == "replay")
        assert {party: use.calls for party, use in found.told.finished[0].usage.items()} == {"user": 2, "judge": 1}
        heard.append(found.told.said)
    assert heard[0] == heard[1] == ["Where is my order?", "Your order 17 is on its way."]


def test_models_of_ones_own_are_forwarded_where_they_are(tmp_path: Path, agent: str) -> None:
    """The session of a run learns where a judge's model is served; a suite without models costs nothing."""
    from llmproxy.scenario.config import ModelConfig, ScenarioConfig
    from llmproxy.suite.run.step_context import find_judge_and_user_upstreams

    (plain,) = rig.cases_of(tmp_path, text(agent, "{chat: x}"))
    (judged,) = rig.cases_of(tmp_path, text(agent, "{chat: x}", "{judge: It is kind}"), "j.suite.yaml")
    before = ScenarioConfig.default_config
    try:
        ScenarioConfig.configure(default_model=ModelConfig(model="openai/mine", api_base="http://127.0.0.1:9/v1"))
        assert find_judge_and_user_upstreams(plain) == {}
        assert find_judge_and_user_upstreams(judged) == {"model-openai-mine": "http://127.0.0.1:9"}
    finally:
        ScenarioConfig.default_config = before
