"""Re-judging, and the reasons against what would not be true."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import MachineError, SettingsError
from llmproxy.scenario.lab.judge_finished_conversation import Transcript
from llmproxy.scenario.lab.rejudge_and_open_loop import (
    RecordedUserLinesRunResult,
    RejudgeVarianceResult,
    open_loop,
    rejudge,
)
from llmproxy.scenario.repeats.statistics import estimate_judge_variance
from llmproxy.scenario.values.run_ids_and_options import ScenarioRunOptions
from tests.provider import Provider
from tests.scenario.parties import finish
from tests.scenario.people import Agent, Ear, Judge, User, finished, said
from tests.support.proxy import near


class Counting(Judge):
    """Passes as many samples as the first message says; breaks down where it says so."""

    async def call(self, input: scenario.AgentInput) -> Any:  # noqa: A002
        passes = input.messages[0]["content"]
        if passes == "broken":
            raise MachineError("no model")
        sample = input.scenario_state.executor.options.sample
        return scenario.ScenarioResult(success=sample <= int(passes), messages=[], reasoning="r")


def transcripts(*passes: object) -> list[Transcript]:
    return [
        Transcript(id=f"t{n}", messages=[{"role": "user", "content": str(each)}, {"role": "assistant", "content": "a"}])
        for n, each in enumerate(passes)
    ]


def judged(*passes: object, repeats: int = 4, judge: Any = Counting, **given: Any) -> RejudgeVarianceResult:
    given = {"proxy": False} | given
    return asyncio.run(rejudge(transcripts(*passes), judge, repeats=repeats, rng=random.Random(1), **given))


def test_the_judges_share_follows_the_formula() -> None:
    """Over the passes that the judge gave, with intervals; the same generator gives the same."""
    passes = (4, 4, 2, 1, 0)
    found = judged(*passes)
    assert [(row.id, row.passed, row.judged) for row in found.rows] == [(f"t{n}", p, 4) for n, p in enumerate(passes)]
    assert found.spread == estimate_judge_variance([4, 4, 2, 1, 0], 4)
    assert found.judge_interval is not None
    assert found.spread is not None
    assert found.judge_interval.low <= found.spread.judge <= found.judge_interval.high
    assert found == judged(4, 4, 2, 1, 0)
    assert "judge share: 0.1167 (95 % interval" in "\n".join(found.lines())


def test_few_transcripts_give_raw_counts_only() -> None:
    """Below five: no share, no interval, and it says so."""
    found = judged(4, 2, 1, 0)
    assert (found.spread, found.judge_interval, found.rest_interval) == (None, None, None)
    assert found.lines()[:2] == ["t0: 4 of 4 passed", "t1: 2 of 4 passed"]
    assert found.lines()[-1] == "4 transcripts: below 5 only the counts say something"


def test_a_judgement_that_failed_is_left_out_and_shown() -> None:
    found = judged(4, 4, 2, 1, 0, "broken")
    assert found.spread == estimate_judge_variance([4, 4, 2, 1, 0], 4)
    assert found.rows[-1].judged == 0
    assert "t5 is left out, 4 of 4 judgements failed: no model" in found.notes


@pytest.mark.parametrize(
    ("passes", "given"),
    [((1, 1), {"repeats": 1}), ((), {}), ((1,), {"judge": Agent()}), ((1,), {"judge": lambda: Judge(criteria=[])})],
    ids=["once", "nothing", "no judge", "no criteria"],
)
def test_what_cannot_be_measured_is_refused(passes: tuple[int, ...], given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        judged(*passes, **given)


def test_each_look_is_recorded_apart_and_can_be_replayed(tmp_path: Path) -> None:
    """Live once through the proxy, then offline the same figures, which are then said to be no new evidence."""
    calls = [finish(status, evidence=["a"]) for status in ("passed", "failed", "passed", "passed")]

    def look(url: str) -> RejudgeVarianceResult:
        judge = scenario.JudgeAgent(criteria=["It says a"], model="openai/gpt-4o-mini", api_key="k")
        return judged(1, 2, repeats=2, judge=judge, proxy=url, max_concurrency=1)

    with Provider(calls) as upstream:
        with near("record", tmp_path / "x.db", upstreams={"openai": upstream.url}) as px:
            live = look(px.url)
        with near("replay", tmp_path / "x.db") as px:
            again = look(px.url)
        assert len(upstream.requests) == 4
    assert [(row.passed, row.judged) for row in live.rows] == [(1, 2), (2, 2)]
    assert live.rows == again.rows
    replayed = "all judgements were replayed from a recording: they add no evidence to it"
    assert [replayed in each.notes for each in (again, live)] == [True, False]


def message(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


SAID = [
    message("user", "hello"),
    message("assistant", "hi"),
    message("user", "weather?"),
    message("assistant", "", tool_calls=[{"id": "1", "function": {"name": "w", "arguments": "{}"}}]),
    message("tool", "12", tool_call_id="1"),
    message("assistant", "12 degrees"),
    message("user", "thanks"),
]


def loop(*agents: Any, messages: list[dict[str, Any]] = SAID, ear: Ear | None = None) -> RecordedUserLinesRunResult:
    options = ScenarioRunOptions(proxy=False, handlers=(ear,) if ear else ())
    return asyncio.run(open_loop(Transcript(id="t", messages=messages, description="d"), agents, options=options))


def test_the_first_other_answer_marks_the_run() -> None:
    """In the result and in its events; the user's lines go on as they were."""
    ear = Ear()
    found = loop(Agent("hi", "13 degrees"), Judge(), ear=ear)
    assert (found.turn, found.recorded, found.said) == (2, "12 degrees", "13 degrees")
    assert "open-loop from turn 2" in found.result.labels
    assert "open-loop from turn 2" in finished(ear).labels
    assert said(found.result) == ["hello", "hi", "weather?", "13 degrees", "thanks"]
    assert found.result.success


def test_the_same_answers_are_no_open_loop() -> None:
    """Texts count, not how the agent came to them; an agent that says nothing says something else."""
    found = loop(Agent("hi", "12 degrees"), Judge())
    assert (found.turn, list(found.result.labels)) == (None, [])
    found = loop(Agent([], "13 degrees"), Judge())
    assert (found.turn, found.recorded, found.said) == (1, "hi", "")


def test_what_comes_before_the_user_is_kept() -> None:
    """A system message, an agent that speaks first: scripted, not asked, and no turn of their own."""
    agent = Agent("hi!")
    messages = [message("system", "Be brief."), message("assistant", "Welcome"), *SAID[:2]]
    found = loop(agent, Judge(), messages=messages)
    assert said(found.result) == ["Be brief.", "Welcome", "hello", "hi!"]
    assert (found.turn, len(agent.inputs)) == (1, 1)


def test_what_the_agent_raises_is_raised() -> None:
    """As in any run; without a user there are no lines to play."""
    with pytest.raises(RuntimeError, match="down"):
        loop(Agent(RuntimeError("down")), Judge())
    with pytest.raises(SettingsError, match="nobody speaks as the user"):
        loop(Agent(), Judge(), messages=[message("assistant", "hi")])


@pytest.mark.parametrize(("agents", "says"), [
    ((Agent(), User(), Judge()), "everything is live"),
    ((Agent(), User()), "the recorded judge judged another"),
    ((User(), Judge()), "what the agent would answer"),
    ((Agent(),), "what the user and judge would answer"),
    ((), "it is a replay"),
    ((Judge(),), "no agent among the agents"),
])  # fmt: skip
def test_other_casts_are_refused(agents: tuple[Any, ...], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        loop(*agents)


def test_it_is_recorded_under_its_own_name() -> None:
    """Never over the recording that it is compared with."""
    agent = Agent("hi", "12 degrees")
    loop(agent, Judge())
    names = {given.scenario_state.executor.cassette for given in agent.inputs}
    assert names == {"t-open-loop-" + name.rpartition("-")[2] for name in names}
    assert isinstance(agent.inputs[0], scenario.AgentInput)
