"""A judge that looks at a conversation which is over."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import SettingsError
from llmproxy.report.events import Status
from llmproxy.scenario.lab.judge_finished_conversation import Transcript, judge_transcript
from llmproxy.scenario.run_session import gather_with_limit
from llmproxy.scenario.values.run_ids_and_options import context_scenario
from tests.scenario.people import Judge

SAID = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


pytestmark = pytest.mark.usefixtures("untouched")


def test_the_judge_sees_the_whole_conversation_and_must_decide() -> None:
    """With the description, and with no cache: one that is remembered would always agree with itself."""
    scenario.configure(cache_key="k")
    keys: list[object] = []

    def decide(given: scenario.AgentInput) -> Any:
        running = context_scenario.get()
        keys.append(running and running.config.cache_key)
        return scenario.ScenarioResult(success=False, messages=[], reasoning="no")

    judge = Judge(decide)
    transcript = Transcript(id="t", messages=SAID, description="greeting")
    look = judge_transcript(lambda: judge, transcript, 3, "reversed", purpose="test", proxy=False)
    ended = asyncio.run(look)
    (given,) = judge.inputs
    assert (given.messages, bool(given.judgment_request), given.scenario_state.description) == (SAID, True, "greeting")
    assert given.scenario_state.executor.options.sample == 3
    assert (ended.status, ended.result.reasoning, keys) == (Status.FAILED, "no", [None])


def test_looks_have_recordings_of_their_own() -> None:
    """By purpose, transcript and variant; equal names, equal recordings."""
    cassettes = []

    def decide(given: scenario.AgentInput) -> Any:
        cassettes.append(given.scenario_state.executor.cassette)
        return scenario.ScenarioResult(success=True, messages=[])

    look = partial(judge_transcript, purpose="rejudge", proxy=False)
    for id_, about in (("a", ""), ("a", ""), ("b", ""), ("a", "reversed")):
        asyncio.run(look(Judge(decide), Transcript(id=id_, messages=SAID), 1, about))
    assert cassettes[0] == cassettes[1]
    assert len(set(cassettes)) == 3


@pytest.mark.parametrize("wrong", [{"id": ""}, {"messages": []}, {"messages": [{"content": "x"}]}], ids=str)
def test_a_transcript_that_nobody_can_judge_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="transcript"):
        Transcript(**({"id": "t", "messages": SAID} | wrong))


def test_a_result_is_a_transcript() -> None:
    """Its conversation, under the id of its run."""
    found = Transcript.of(scenario.ScenarioResult(success=True, messages=SAID, run_id="r"), description="d")
    assert (found.id, found.messages, found.description) == ("r", SAID, "d")


def test_work_is_done_in_parallel_in_order_and_stops_at_an_error() -> None:
    """So many at a time; what has not begun never begins."""
    running: list[int] = []
    most: list[int] = []

    async def work(n: int, *, fail: bool = False) -> int:
        running.append(n)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.remove(n)
        if fail:
            raise RuntimeError("broken")
        return n

    async def go(*, fail: bool) -> list[int]:
        return await gather_with_limit([work(n, fail=fail) for n in range(6)], 2)

    assert asyncio.run(go(fail=False)) == list(range(6))
    assert max(most) == 2
    most.clear()
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(go(fail=True))
    assert len(most) < 6


def test_what_cannot_be_meant_is_no_look() -> None:
    """A mode of the proxy without one would send a replay to the provider: refused, and nobody is asked."""
    judge = Judge(lambda given: scenario.ScenarioResult(success=True, messages=[]))
    look = judge_transcript(judge, Transcript(id="t", messages=SAID), purpose="test", proxy=False, mode="replay")
    with pytest.raises(SettingsError, match="mode='replay' is a mode of the proxy"):
        asyncio.run(look)
    assert judge.inputs == []
