"""Two experiments that separate the effects of judge and agent, and reasons against others.

Re-judge: recorded transcripts, the judge live. Open loop: the recorded user's lines as a script, agent and judge live.
Any other mix of recorded and live parties would request an unrecorded answer: refused, with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from llmproxy.amount_formatting import format_count
from llmproxy.errors import SettingsError
from llmproxy.report.events import Status
from llmproxy.report.scenario_rows import ConfidenceInterval
from llmproxy.scenario.lab.judge_finished_conversation import CONCURRENCY, Transcript, judge_transcript
from llmproxy.scenario.repeats.repeats import RunOutcome
from llmproxy.scenario.repeats.statistics import (
    FEWEST_TRANSCRIPTS,
    RESAMPLES,
    JudgeVarianceSplit,
    bootstrap_judge_variance,
    estimate_judge_variance,
)
from llmproxy.scenario.run_session import gather_with_limit
from llmproxy.scenario.running.agent_caller import convert_to_agent_adapters
from llmproxy.scenario.running.run import ScenarioRunFunctionArguments
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.script import agent, judge, message
from llmproxy.scenario.types import AgentRole, Message, ScenarioResult
from llmproxy.scenario.values.messages import get_message_text
from llmproxy.scenario.values.run_ids_and_options import ScenarioRunOptions, name_cassette


@dataclass(frozen=True, slots=True)
class JudgementPassCountOfTranscript:
    id: str
    passed: int
    judged: int
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RejudgeVarianceResult:
    repeats: int
    rows: Sequence[JudgementPassCountOfTranscript]
    spread: JudgeVarianceSplit | None  # None for fewer than five transcripts
    judge_interval: ConfidenceInterval | None = None
    rest_interval: ConfidenceInterval | None = None
    notes: Sequence[str] = field(default=())

    def lines(self) -> list[str]:
        told = [f"{row.id}: {row.passed} of {row.judged} passed" for row in self.rows]
        if self.spread is not None:
            told.append(f"judge share: {_format_with_interval(self.spread.judge, self.judge_interval)}")
            told.append(f"rest: {_format_with_interval(self.spread.rest, self.rest_interval)}")
            share = self.spread.judge_share
            told.append("verdicts never differ" if share is None else f"of both, {share:.0%} is the judge's")
        return [*told, *self.notes]


def _format_with_interval(value: float, interval: ConfidenceInterval | None) -> str:
    return f"{value:.4f}" + (f" (95 % interval {interval.low:.4f} to {interval.high:.4f})" if interval else "")


async def rejudge(
    transcripts: Sequence[Transcript], judge: Any, *, repeats: int = 5, rng: random.Random,
    proxy: str | bool | None = None, mode: str | None = None, max_concurrency: int = CONCURRENCY,
    resamples: int = RESAMPLES,
) -> RejudgeVarianceResult:  # fmt: skip
    """Judge each transcript `repeats` times, and split the variance of the verdicts.

    The judge's part is the mean of p(1-p)R/(R-1), the rest the sample variance of p less that part/R, at least 0;
    intervals by resampling transcripts with `rng`. Below five transcripts there are only counts.

    Raises SettingsError: nothing to judge, no judge, or nothing repeated.
    """
    if repeats < 2:
        raise SettingsError(
            f"repeats={repeats}: a judge that is asked once cannot differ from itself.", hint="Take repeats=5, or more."
        )
    ids = [each.id for each in transcripts]
    if not ids or len(set(ids)) < len(ids):
        raise SettingsError("re-judging takes transcripts, each with an id of its own.")
    made = convert_to_agent_adapters([judge])[0]
    if made.role is not AgentRole.JUDGE:
        raise SettingsError(f"{type(made).__name__} is no judge (its role is {made.role.value}).")
    if getattr(made, "criteria", True) == []:
        raise SettingsError(f"{type(made).__name__} has no criteria: it cannot judge anything.")
    look = partial(judge_transcript, purpose="rejudge", proxy=proxy, mode=mode)
    looks = [look(judge, each, sample) for each in transcripts for sample in range(1, repeats + 1)]
    ended: list[RunOutcome] = await gather_with_limit(looks, max_concurrency)
    rows = [
        _count_transcript_verdicts(each.id, ended[n * repeats : (n + 1) * repeats])
        for n, each in enumerate(transcripts)
    ]
    whole = [row.passed for row in rows if row.judged == repeats]
    spread = estimate_judge_variance(whole, repeats)
    judge_interval, rest_interval = bootstrap_judge_variance(whole, repeats, rng, resamples)
    return RejudgeVarianceResult(
        repeats=repeats,
        rows=rows,
        spread=spread,
        judge_interval=judge_interval,
        rest_interval=rest_interval,
        notes=_list_notes(rows, repeats, ended),
    )


def _count_transcript_verdicts(id: str, ended: Sequence[RunOutcome]) -> JudgementPassCountOfTranscript:  # noqa: A002
    decided = {Status.PASSED, Status.FAILED}
    verdicts = [each.result.success for each in ended if each.status in decided]
    errors = dict.fromkeys(each.result.error or each.status.value for each in ended if each.status not in decided)
    return JudgementPassCountOfTranscript(id, sum(verdicts), len(verdicts), tuple(errors))


def _list_notes(rows: Sequence[JudgementPassCountOfTranscript], repeats: int, ended: Sequence[RunOutcome]) -> list[str]:
    whole = [row for row in rows if row.judged == repeats]
    notes = [
        f"{row.id} is left out, {repeats - row.judged} of {repeats} judgements failed: "
        f"{row.errors[0].partition(chr(10))[0]}"
        for row in rows
        if row.judged < repeats
    ]
    if len(whole) < FEWEST_TRANSCRIPTS:
        few = format_count(len(whole), "transcript")
        notes.append(f"{few}: below {FEWEST_TRANSCRIPTS} only the counts say something")
    if ended and all(each.result.replayed for each in ended):
        notes.append("all judgements were replayed from a recording: they add no evidence to it")
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUserLinesRunResult:
    result: ScenarioResult
    turn: int | None
    """The first turn, from 1, in which the agent's answer differs; None if none does."""
    recorded: str = ""
    said: str = ""


async def open_loop(
    transcript: Transcript, agents: Sequence[Any], *, name: str = "", sample: int = 1,
    options: ScenarioRunOptions | None = None, **plan: Any,
) -> RecordedUserLinesRunResult:  # fmt: skip
    """Run the recorded user's lines with the agent and let the judge decide, both live.

    From the first differing turn on, the user's lines answer messages that were never sent: the run is marked
    ``open-loop from turn k``, in its events too. `plan` takes the arguments of `ScenarioRunFunctionArguments`.

    Raises SettingsError: a simulator, no agent or no judge; the recorded user said nothing; and the agent's exceptions.
    """
    given = {each.role for each in convert_to_agent_adapters(agents)}
    live = tuple(role.value for role in AgentRole if role in given)
    if live != ("Agent", "Judge"):
        raise SettingsError(
            f"an experiment with {', '.join(live).lower() or 'nobody'} live and the rest recorded is refused: "
            f"{_REFUSED.get(live, _USER_LIVE)}.",
            hint="Possible: the judge live (re-judge), or agent and judge live with the recorded user's lines "
            "(open loop).",
        )
    turns = _split_turns(transcript.messages)
    if not any(each["role"] == "user" for each in transcript.messages):
        raise SettingsError(f"nobody speaks as the user in transcript {transcript.id!r}: there are no lines to play.")
    name = name or f"{transcript.id} open loop"
    options = options or ScenarioRunOptions()
    found: list[tuple[int, str, str]] = []
    ended = await ScenarioRunFunctionArguments(
        name=name,
        description=transcript.description,
        agents=agents,
        script=_build_script(turns, found),
        options=replace(options, cassette=options.cassette or name_cassette(name)),
        **{"verbose": False, "cache_key": None, **plan},
    ).once(sample)
    turn, recorded, said = found[0] if found else (None, "", "")
    return RecordedUserLinesRunResult(result=ended.result_or_raise(), turn=turn, recorded=recorded, said=said)


_REFUSED = {
    (): "nothing is live, so it is a replay; run the scenario with the proxy in mode replay",
    ("Agent",): (
        "as soon as the live agent says something else, nobody recorded what the user and judge would answer, and "
        "every call is a miss"
    ),
    ("Judge",): "there is no agent among the agents; the judge alone is live in `rejudge`",
    ("User", "Agent"): "the recorded judge judged another conversation; make the judge live too, with runs=N",
    ("User", "Agent", "Judge"): "everything is live, so nothing is held fixed; run the scenario with runs=N",
}
"""Roles among the agents -> why an open loop with them would not stay true."""
_USER_LIVE = "as soon as the live user says something else, nobody recorded what the agent would answer"


@dataclass(slots=True)
class _RecordedTurn:
    user: list[Message] = field(default_factory=list)
    agent: list[Message] = field(default_factory=list)

    @property
    def spoken_answer(self) -> str:
        texts = (get_message_text(each) for each in self.agent if each["role"] == "assistant")
        return "\n".join(filter(None, texts))


def _split_turns(messages: Sequence[Message]) -> list[_RecordedTurn]:
    """Split a conversation into turns, each from the user's text after an answer."""
    turns = [_RecordedTurn()]
    for each in messages:
        if each["role"] in {"user", "system"}:
            if turns[-1].agent:
                turns.append(_RecordedTurn())
            turns[-1].user.append(each)
        else:
            turns[-1].agent.append(each)
    return turns


def _build_script(turns: Sequence[_RecordedTurn], found: list[tuple[int, str, str]]) -> list[Any]:
    """Return the script; the first differing turn is put into `found`, with its recorded and its current answer."""
    steps: list[Any] = []
    number = 0
    for turn in turns:
        if not any(each["role"] == "user" for each in turn.user):
            steps += [message(each) for each in (*turn.user, *turn.agent)]  # an agent that speaks first answers nobody
            continue
        number += 1
        steps += [message(each) for each in turn.user]
        if turn.agent:

            def compare_answers(state: ScenarioState, number: int = number, recorded: str = turn.spoken_answer) -> None:
                said = _split_turns(state.messages)[-1].spoken_answer
                if not found and said != recorded:
                    found.append((number, recorded, said))
                    state.executor.marks.append(f"open-loop from turn {number}")

            steps += [agent(), compare_answers]
    return [*steps, judge()]
