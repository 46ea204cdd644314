"""The same scenario several times: samples apart, statuses, limits, early stop, one result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import AgentError, MachineError
from llmproxy.report.events import PartyUse, Status
from llmproxy.report.scenario_rows import wilson
from llmproxy.scenario.repeats.repeats import RepeatResult, RunOutcome, run_repeatedly
from tests.provider import Provider, step
from tests.scenario.people import Agent, Ear
from tests.support.proxy import near

P, F, A, E = Status.PASSED, Status.FAILED, Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR


class Plan:
    """Ends each sample as told, and remembers how many went on at a time."""

    def __init__(self, *statuses: Status, limit: int | None = None, seconds: float = 0.0, **result: Any) -> None:
        self.statuses, self.seconds, self.about = statuses, seconds, result
        self.limit = limit
        self.started: list[int] = []
        self.now = self.most = 0

    async def once(self, sample: int, runs: int) -> RunOutcome:
        self.started.append(sample)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        status = self.statuses[sample - 1]
        about = {"messages": [{"role": "assistant", "content": str(sample)}], "sample": sample, **self.about}
        result = scenario.ScenarioResult(success=status is P, status=status, **about)
        return RunOutcome(status, result, {A: AgentError("crashed"), E: MachineError("no store")}.get(status))


def many(plan: Plan, **given: Any) -> RepeatResult:
    return asyncio.run(run_repeatedly(plan.once, len(plan.statuses), max_concurrency=plan.limit, **given))


def repeated(name: str, *agents: Any, **given: Any) -> RepeatResult:
    found = asyncio.run(scenario.run(name, "d", list(agents), verbose=False, **given))
    assert isinstance(found, RepeatResult)
    return found


def test_every_sample_runs_once_and_in_order() -> None:
    """Run i is sample i; the result lists them so, whatever order they end in."""
    found = many(Plan(P, F, P, A, E))
    assert [(each.sample, each.status) for each in found.samples] == [(1, P), (2, F), (3, P), (4, A), (5, E)]
    assert (found.rate, found.interval, found.counted_of_total_runs) == (0.5, wilson(2, 4), "4 of 5")
    assert (found.success, found.status) == (False, E)
    assert (found.pass_at_k(2), found.pass_hat_k(2)) == (1 - 1 / 6, 1 / 6)
    assert "sample 4: agent_error: crashed" in (found.reasoning or "")
    assert "sample 5: environment_error: no store" in (found.reasoning or "")
    assert "status=environment_error" in repr(found)
    assert found.messages == [{"role": "assistant", "content": "2"}]


def test_environment_errors_can_be_allowed() -> None:
    """They stay shown, and nothing that counts is an error all the same; all must pass unless the threshold is lower."""
    found = many(Plan(P, E, P), allow_environment_errors=True)
    assert (found.success, found.status, found.rate, found.counted_of_total_runs) == (True, P, 1.0, "2 of 3")
    assert many(Plan(E, E), allow_environment_errors=True).status is E
    assert (many(Plan(P, P, F)).success, many(Plan(P, P, F)).status) == (False, Status.FLAKY)
    assert many(Plan(P, P, F), threshold=0.6).success
    assert not many(Plan(P, F, F), threshold=0.6).success


@pytest.mark.parametrize(("limit", "most"), [(3, 3), (1, 1), (None, 8)])
def test_so_many_at_a_time(limit: int | None, most: int) -> None:
    """As `max_concurrency` says, eight if it says nothing."""
    plan = Plan(*[P] * 20, limit=limit, seconds=0.01)
    many(plan)
    assert plan.most == most


def test_early_stop_is_off_unless_asked_for() -> None:
    """Then it ends when it is decided, prints bounds and no rate; a recording with samples missing would replay differently."""
    assert len(many(Plan(F, *[P] * 9, limit=1)).samples) == 10
    found = many(Plan(P, F, *[P] * 8, limit=1), early_stop=True)
    assert (len(found.samples), found.rate, found.success, found.runs) == (2, None, False, 10)
    assert "stopped after 2 of 10 runs" in (found.reasoning or "")
    enough = many(Plan(*[P] * 10, limit=1), early_stop=True, threshold=0.5)
    assert (len(enough.samples), enough.success, enough.rate) == (5, True, None)
    recording = Plan(F, *[P] * 9, limit=1, cassette="c", replayed=False)
    assert len(many(recording, early_stop=True).samples) == 10
    replaying = Plan(F, *[P] * 9, limit=1, cassette="c", replayed=True)
    assert len(many(replaying, early_stop=True).samples) == 1


def test_replayed_samples_say_that_they_are_no_evidence() -> None:
    """With the date of the recording; where one run was live, nothing of it is said."""
    found = many(Plan(P, P, replayed=True, cassette="c", recorded_at=1_800_000_000.0))
    assert "2 samples recorded on 2027-01-15: replaying them adds no evidence" in (found.reasoning or "")
    assert (found.replayed, found.recorded_at) == (True, 1_800_000_000.0)
    assert many(Plan(P, P)).replayed is None
    assert "recorded" not in (many(Plan(P, P, replayed=False)).reasoning or "")


def test_use_is_added_up_and_unknown_stays_unknown() -> None:
    """Tokens and cost by party, unknown where one run does not know; criteria pass where all runs passed them."""
    use = PartyUse(calls=2, input_tokens=10, output_tokens=None, cost_usd="0.10")
    found = many(Plan(P, P, usage={"agent": use}, agent_time=1.5))
    assert found.usage == {"agent": PartyUse(calls=4, input_tokens=20, output_tokens=None, cost_usd="0.20")}
    assert found.agent_time == 3.0
    known, silent = PartyUse(calls=1, input_tokens=5, output_tokens=2, cost_usd="0.1"), PartyUse(calls=1)
    assert known + silent == silent + known == PartyUse(calls=2)
    assert sum([known, PartyUse(), known], PartyUse()).cost_usd == "0.2"
    found = many(Plan(P, P, passed_criteria=["a"], failed_criteria=["b"], inconclusive_criteria=["c"]))
    assert (found.passed_criteria, found.failed_criteria, found.inconclusive_criteria) == (["a"], ["b"], ["c"])


@pytest.mark.parametrize(("runs", "threshold"), [(0, 1.0), (2, 0.0), (2, 1.1)])
def test_nonsense_is_refused(runs: int, threshold: float) -> None:
    with pytest.raises(ValueError, match=r"runs takes|threshold takes"):
        asyncio.run(run_repeatedly(Plan(P, P).once, runs, threshold=threshold))


async def test_cancelling_cancels_all_runs() -> None:
    plan = Plan(*[P] * 4, seconds=30)

    task = asyncio.ensure_future(run_repeatedly(plan.once, 4))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (plan.most, plan.now) == (4, 0)


class Asks(scenario.AgentAdapter):
    """Asks the model through the run's session, and crashes where the model says so."""

    uses_session = True

    async def call(self, input: scenario.AgentInput) -> str:  # noqa: A002
        from tests.scenario.running.test_run_lifecycle import ask

        assert input.llm is not None
        said = await asyncio.to_thread(ask, input.llm.base_url("openai"), [{"role": "user", "content": "toss"}])
        if said["content"] == "crash":
            raise RuntimeError("crashed")
        return str(said["content"])


def heads(state: scenario.ScenarioState) -> Any:
    return scenario.succeed() if state.last_message()["content"] == "heads" else scenario.fail("tails")


def series(url: str, ear: Ear) -> RepeatResult:
    """Toss a coin four times through a proxy, one after the other."""
    script: list[Any] = [scenario.user("go"), scenario.agent(), heads]
    return repeated("coin", Asks(), script=script, proxy=url, runs=4, handlers=[ear], max_concurrency=1)


def test_run_takes_the_options_of_repeats() -> None:
    """`scenario.run(runs=..., pass_rate=..., early_stop=..., allow_environment_errors=...)`."""
    script: list[Any] = [scenario.user("go"), scenario.agent(), _by_sample]
    given: dict[str, Any] = {"script": script, "proxy": False, "max_concurrency": 1}
    found = repeated("n", Agent(), runs=4, allow_environment_errors=True, pass_rate=0.6, **given)
    assert [each.status for each in found.samples] == [P, E, F, P]
    assert (found.success, found.status) == (True, Status.FLAKY)
    stopped = repeated("n", Agent(), runs=9, early_stop=True, **given)
    assert (len(stopped.samples), stopped.rate) == (3, None)


def _by_sample(state: scenario.ScenarioState) -> Any:
    """Fail sample 3, and have no store in sample 2."""
    sample = state.executor.options.sample
    if sample == 2:
        raise MachineError("no store")
    return scenario.fail() if sample == 3 else scenario.succeed()


def test_the_sum_says_on_one_line_why_a_run_did_not_pass() -> None:
    script = [lambda _state: scenario.fail("first\n\nsecond " + "x" * 300)]
    found = repeated("n", Agent(), runs=2, script=script, proxy=False)
    told = (found.reasoning or "").splitlines()[-1]
    assert told.startswith("sample 2: failed: first second xxx")
    assert told.endswith("x…")
    assert len(told) < 250
    assert "second " + "x" * 300 in (found.samples[1].result.reasoning or "")


def test_four_recorded_conversations_are_four_when_replayed(tmp_path: Path) -> None:
    """Equal requests, different answers, an agent that crashes: recorded once, then the same four without a call."""
    sides: Sequence[str] = ("heads", "tails", "crash", "heads")
    with Provider([step(say=side) for side in sides]) as upstream:
        with near("record", tmp_path / "x.db", upstreams={"openai": upstream.url}) as px:
            recorded = series(px.url, Ear())
        assert len(upstream.requests) == 4
        with near("replay", tmp_path / "x.db", upstreams={"openai": upstream.url}) as px:
            ear = Ear()
            replayed = series(px.url, ear)
        assert len(upstream.requests) == 4
    for found in (recorded, replayed):
        assert [each.status for each in found.samples] == [P, F, A, P]
        assert (found.rate, found.status) == (0.5, Status.FLAKY)
    texts = [[each.result.messages for each in found.samples] for found in (recorded, replayed)]
    assert texts[0] == texts[1]
    assert len({each.result.thread_id for each in replayed.samples}) == 4
    assert [e.sample for e in ear.events if type(e).__name__ == "Started"] == [1, 2, 3, 4]  # type: ignore[union-attr]
    assert replayed.replayed
    assert "4 samples recorded on 2" in (replayed.reasoning or "")
    assert "samples recorded" not in (recorded.reasoning or "")
