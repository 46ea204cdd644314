"""Open loop: a recorded user's lines played as a script, agent and judge live.

    transcript -> its user's lines, each followed by the agent as it is now -> the first turn in which it says something else

From that turn on the user answers what was never said, so the run is marked ``open-loop from turn k``, in its events too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llmproxy.errors import SettingsError
from llmproxy.scenario.lab.experiments import PARTIES, experiment_of
from llmproxy.scenario.lab.judgements import Transcript
from llmproxy.scenario.running.participants import participants_of
from llmproxy.scenario.types import AgentRole, Message, ScenarioResult
from llmproxy.scenario.values.messages import text_of
from llmproxy.scenario.values.run import RunOptions, cassette_of

if TYPE_CHECKING:
    from llmproxy.scenario.scenario_state import ScenarioState


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """What became of a recorded user's lines with the agent as it is now."""

    result: ScenarioResult
    turn: int | None
    """The first turn, from 1, in which the agent said something else; None if it never did."""
    recorded: str = ""
    """What it said then."""
    said: str = ""
    """What it says now."""

    @property
    def label(self) -> str:
        """What the run counts as; empty while it is the recorded conversation."""
        return _label(self.turn)


async def open_loop(
    transcript: Transcript,
    agents: Sequence[Any],
    *,
    name: str = "",
    sample: int = 1,
    options: RunOptions | None = None,
    **plan: Any,  # noqa: ANN401 - an adapter, or a plan, of the user's
) -> OpenLoop:
    """Play the recorded user's lines to the agent and let the judge decide, both live.

    From the first turn in which the agent says something else, the user's lines answer what was never said: the run is marked
    ``open-loop from turn k``, in its events too. `plan` takes what `running.Plan` takes; the recording has a name of its own.

    Raises:
        SettingsError: a simulator is among the agents, or no agent or no judge is; or the recorded user said nothing.
        Whatever the agent raises.

    """
    from llmproxy.scenario.running.run import Plan

    _check_participants(agents)
    turns = _turns(transcript.messages)
    if not any(each["role"] == "user" for each in transcript.messages):
        raise SettingsError(f"nobody speaks as the user in transcript {transcript.id!r}: there are no lines to play.")
    name = name or f"{transcript.id} open loop"
    options = options or RunOptions()
    found = _Found()
    ended = await Plan(
        name=name,
        description=transcript.description,
        agents=agents,
        script=_script(turns, found),
        options=replace(options, cassette=options.cassette or cassette_of(name)),
        **{"verbose": False, "cache_key": None, **plan},
    ).once(sample)
    return OpenLoop(result=ended.unwrap(), turn=found.turn, recorded=found.recorded, said=found.said)


def _check_participants(agents: Sequence[Any]) -> None:
    roles = [each.role for each in participants_of(agents)]
    if AgentRole.USER in roles:
        experiment_of(PARTIES if AgentRole.JUDGE in roles else PARTIES[:2])  # raises, with the reason
    missing = [role.value.lower() for role in (AgentRole.AGENT, AgentRole.JUDGE) if role not in roles]
    if missing:
        experiment_of({"agent", "judge"} - set(missing))
        raise SettingsError(
            f"an open loop needs agent and judge live, and there is no {' and no '.join(missing)} among the agents."
        )


@dataclass(slots=True)
class _Turn:
    """What the user said, and what the agent answered."""

    user: list[Message] = field(default_factory=list)
    agent: list[Message] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What the agent said aloud."""
        return "\n".join(filter(None, map(text_of, (each for each in self.agent if each["role"] == "assistant"))))


def _turns(messages: Sequence[Message]) -> list[_Turn]:
    """Take a conversation apart; a turn begins where the user speaks after the agent. What comes before him is the first turn's."""
    turns = [_Turn()]
    for message in messages:
        if message["role"] in {"user", "system"}:
            if turns[-1].agent:
                turns.append(_Turn())
            turns[-1].user.append(message)
        else:
            turns[-1].agent.append(message)
    return turns


@dataclass(slots=True)
class _Found:
    turn: int | None = None
    recorded: str = ""
    said: str = ""

    def step(self, number: int, turn: _Turn) -> Callable[[ScenarioState], None]:
        """Return a step that compares what the agent has just said with what it said then, and marks the run if it differs."""

        def compare(state: ScenarioState) -> None:
            said = _turns(state.messages)[-1].text
            if self.turn is None and said != turn.text:
                self.turn, self.recorded, self.said = number, turn.text, said
                state.executor.marks.append(_label(number))

        return compare


def _script(turns: Sequence[_Turn], found: _Found) -> list[Any]:
    from llmproxy.scenario.script import agent, judge, message

    steps: list[Any] = []
    number = 0
    for turn in turns:
        if not any(each["role"] == "user" for each in turn.user):
            steps += [message(each) for each in (*turn.user, *turn.agent)]  # an agent that speaks first answers nobody
            continue
        number += 1
        steps += [message(each) for each in turn.user]
        if turn.agent:
            steps += [agent(), found.step(number, turn)]
    return [*steps, judge()]


def _label(turn: int | None) -> str:
    return "" if turn is None else f"open-loop from turn {turn}"
