"""A script of Python, as the run engine plays it (`life.Played`): its cast, its one conversation, and the result that it comes to."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from llmproxy.client.host import HOST
from llmproxy.errors import AgentError, LLMProxyError, MachineError, SettingsError
from llmproxy.scenario.agent_adapter import AgentAdapter, Offered
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.running.cast import Cast
from llmproxy.scenario.running.conversing.calling import AdapterAnswer
from llmproxy.scenario.running.conversing.conversation import Conversation, await_value
from llmproxy.scenario.running.conversing.narrator import Narrator
from llmproxy.scenario.running.life import Life, SessionAsked
from llmproxy.scenario.running.program import PROGRAM
from llmproxy.scenario.running.scripted import Verbs
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.script import Step
from llmproxy.scenario.types import AgentRole, CriterionResult, ScenarioResult, ScriptStep
from llmproxy.scenario.values.criteria import ALL_PASSED, added_up, refuse_contradiction
from llmproxy.scenario.values.messages import copies
from llmproxy.scenario.values.run import Executor, RunOptions, describe_error, status_of, thread_id, traceparent

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.session import RunSession

LEFT = "The user ended the conversation, and no judge decided. "
END_OF_SCRIPT = """Reached end of script without conclusion, add one of the following to the end of the script:

- `scenario.proceed()` to let the simulation continue to play out
- `scenario.judge()` to force criteria judgement
- `scenario.succeed()` or `scenario.fail()` to end the test with an explicit result
"""
_NESTED = 10
"""How often a step may return a step."""


@dataclass(eq=False)
class ScriptRun:
    """Plays a script; `life` is its run, `me` what steps, callbacks and adapters know it as."""

    me: Executor
    description: str
    agents: list[AgentAdapter]
    steps: Sequence[ScriptStep]
    options: RunOptions
    config: ScenarioConfig
    cassette: str
    narrator: Narrator
    clock: Callable[[], float]
    late_hint: ClassVar[str] = (
        "Judges and steps of the script looked at the agent's calls before them. Its `call` should return, or its `close` wait,"
        " until everything is over that it began; calls that it makes outside of `call` should go by input.llm (uses_session = True)."
    )
    last_words: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.name = self.narrator.who.name
        self.running = self.me
        self._cast = Cast(self.agents)
        self._opening: AgentAdapter | None = None
        self.life: Life[ScriptStep, ScenarioResult] = Life(
            self, limit=self.options.timeout, call_limit=self.options.call_timeout, clock=self.clock
        )
        self.reset()

    def reset(self) -> None:
        """Begin anew: no messages, turn 0, a new thread id."""
        self.life.renew()
        known = self.life.session is not None and not self.options.fresh_ids
        state = ScenarioState(
            description=self.description,
            messages=[],
            thread_id=thread_id(self.cassette, self.options.sample, self.name) if known else thread_id(),
            current_turn=0,
            config=self.config,
        ).bind(self.me)
        self.conversation = Conversation(
            state, self.agents, caller=self.life.caller, voice=self.narrator, setting=self, name=self.name
        )
        self.verbs = Verbs(self.conversation)
        self.marks: list[str] = []
        self.from_cache: list[str] = []

    # -- what its conversation asks

    async def prepare_call(self, conversation: Conversation, index: int) -> Mapping[str, Any]:
        """Return what an adapter is told beside the conversation."""
        state, traffic = conversation.state, self.life.traffic
        if traffic.session is not None and self.agents[index].role is AgentRole.JUDGE:
            await traffic.catch_up()  # what the agent called since its answer is a part of what he judges
        parent = traceparent(state.thread_id, state.current_turn, index)
        return {"scenario_state": state, "propagation_headers": {"traceparent": parent}}

    async def hear_answer(self, conversation: Conversation, answer: AdapterAnswer) -> None:
        """Nothing is done about an answer."""

    # -- what the run engine asks

    @property
    def who(self) -> str:
        """Who is at work where nobody is called."""
        return "a step of the script" if self._opening is None else type(self._opening).__name__

    @property
    def watched(self) -> bool:
        """Whether somebody relies on what the agent called."""
        return self.life.traffic.relied

    async def choose_session(self) -> SessionAsked | None:
        """Return the session that it wants. Raises SettingsError for what takes a proxy where there is none."""
        proxy = await self._proxy()
        if not proxy:
            self._refuse_without_proxy()
            return None
        from llmproxy.scenario.models.route import upstreams_of_models

        if HOST.ready is not None:
            await asyncio.to_thread(HOST.wait)
        models = [model for agent in self.agents for model in Offered.by(agent).models]
        how = {
            "mode": self.options.mode or HOST.mode or None,
            "upstreams": upstreams_of_models(models, proxy),
            "faults": HOST.faults,
            "mocks": self.options.mock,
        }
        return SessionAsked(proxy, self.cassette, self.options.sample, how)

    async def _proxy(self) -> str | None:
        said, configured = self.options.proxy, ScenarioConfig.defaults.proxy
        if said is False or not (said or configured or os.environ.get("LLMPROXY_URL")):
            return None
        from llmproxy.scenario.proxy.session import proxy_of

        starts = True in (said, configured)  # that alone takes time
        found = (said, configured, os.environ)
        return await asyncio.to_thread(proxy_of, *found) if starts else proxy_of(*found)

    def _refuse_without_proxy(self) -> None:
        if self.options.mode:  # who asks for a replay must not be sent to the provider
            raise SettingsError(
                f"mode={self.options.mode!r} is a mode of the proxy, and there is none.",
                hint="LLMPROXY_URL or `proxy` names one, proxy=True starts one; or leave the mode out.",
            )
        if self.options.mock is not None:
            raise SettingsError(
                "mock= swaps what the agent's model reads on its way through the proxy, and there is none.",
                hint="LLMPROXY_URL or `proxy` names one, proxy=True starts one.",
            )

    async def open(self, session: RunSession | None) -> None:
        """Let the cast enter, and open it."""
        self._cast.enter()
        self.reset()
        if session is not None:
            self.narrator.who = replace(self.narrator.who, cassette=self.cassette)
        try:
            await self._cast.open(session)
        except BaseException:
            self._opening = self._cast.opening
            self.life.caller.broke = self._opening.role if self._opening else None
            raise

    async def leave(self) -> list[str]:
        """Close the cast."""
        return await self._cast.leave()

    def tell_start(self) -> None:
        session = self.life.session
        self.narrator.tell_start(criteria=self.conversation.criteria, mode=session.mode if session else "")

    async def take(self, number: int, step: ScriptStep) -> ScenarioResult | None:
        self.verbs.steps_left = len(self.steps) - number - 1
        result = await self._take(step)
        if not isinstance(result, ScenarioResult):
            return None
        refuse_contradiction(f"step {number + 1} of the script", result)
        return self._complete(result)

    async def came(self) -> ScenarioResult:
        """Return what a script comes to in which no step decided."""
        if self.verbs.checkpoints:
            return self._complete(ScenarioResult(success=True, messages=[], reasoning=ALL_PASSED))
        went = self.conversation.farewell is not None
        return self.conversation.out_of_turns(f"{LEFT}{END_OF_SCRIPT}" if went else END_OF_SCRIPT)

    def _complete(self, result: ScenarioResult) -> ScenarioResult:
        return self.conversation.complete(added_up(self.verbs.checkpoints, result))

    async def begin(self) -> None:
        """Begin with what was said before; where the user had the last word, it is the agent's turn."""
        history = self.options.history
        if not history:
            return
        if isinstance(history, str):
            from llmproxy.scenario.running.seeding import messages_from

            history = await await_value(messages_from(history))
        self.conversation.add_messages(copies(history))
        if self.conversation.messages and self.conversation.messages[-1]["role"] == "user":
            self.conversation.turns.skip_to(AgentRole.AGENT)

    async def _take(self, step: ScriptStep) -> object:
        if isinstance(step, Step):
            return await self._value(step)
        session = self.life.session
        if session is not None:
            self.life.unattributed = await session.count_unattributed()
            await self.life.traffic.catch_up()
        label = getattr(step, "__name__", None) or type(step).__name__
        try:
            value = await self._value(step)
            if session is not None:
                await session.disown(self.life.unattributed)
            _refuse_denial(label, value)
        except Exception as error:
            status = status_of(error, self.life.caller.broke)
            self.narrator.step("script", label=label, status=status, message=describe_error(error))
            raise
        self.narrator.step("script", label=label)
        return value

    async def _value(self, step: ScriptStep) -> object:
        value: Any = await await_value(step(self.conversation.state))
        for _ in range(_NESTED):
            if not (isinstance(value, Step) or inspect.isfunction(value)):
                break
            value = await await_value(value(self.conversation.state))
        return value

    # -- how it ended

    def out_of_time(self, *, blocked: bool = False) -> LLMProxyError:
        """Return the error for a run that took longer than it may."""
        who = self.life.caller.at_work
        kind = AgentError if who is AgentRole.AGENT else MachineError
        at = f" while {who.value} was called" if who else ""
        how = "; its thread is blocked and goes on until it returns" if blocked else ""
        limit, turn = self.options.timeout or 0.0, self.conversation.state.current_turn
        return kind(
            f"scenario {self.name!r} did not end in {limit:g} s: it was in turn {turn}{at}{how}.",
            hint="timeout=<seconds> allows more.",
        )

    def has_passed(self, result: ScenarioResult) -> bool:
        return result.success

    def build_failure(self, error: BaseException) -> ScenarioResult:
        """Return the result of a run that an error ended."""
        broke = self.life.caller.broke
        check = isinstance(error, AssertionError) and broke is None
        stated = str(error) or "an assertion in a step of the script"
        result = self.conversation.complete(
            ScenarioResult(
                success=False,
                messages=[],
                reasoning=f"Scenario failed with error: {error if isinstance(error, Exception) else describe_error(error)}",
                status=status_of(error, broke),
                error=describe_error(error),
                failed_criteria=[stated] if check else [],
                criteria=[_of_step(stated)] if check else [],
                inconclusive_criteria=list(self.conversation.criteria),
            )
        )
        return added_up(self.verbs.checkpoints, result)

    def tell_end(self, result: ScenarioResult, error: BaseException | None) -> ScenarioResult:
        result = self._add_measures(result)
        first = self.narrator.tell_end(result, broken=error is not None)
        if first and HOST.listener is None:
            PROGRAM.note_end(result)
        elif first:
            HOST.tell_end(self.me, result)
        return result

    def _add_measures(self, result: ScenarioResult) -> ScenarioResult:
        """Return the result with what the proxy measured."""
        life, traffic = self.life, self.life.traffic
        labels = [*result.labels, *self.marks, *life.problems, *life.late]
        labels += [] if life.report is None else life.report.unstruck
        if life.unattributed:
            labels.append(f"unattributed traffic: {life.unattributed} calls")
        if self.from_cache:
            names = ", ".join(dict.fromkeys(self.from_cache))
            labels.append(f"answered from cache.db, unseen on the wire: {len(self.from_cache)} calls of {names}")
        found: dict[str, Any] = {
            "run_id": self.narrator.who.run_id,
            "sample": self.options.sample,
            "labels": tuple(labels),
            **life.read_measures(),
        }
        if traffic.session is not None:
            found |= {"cassette": self.cassette, "waited": life.caller.waited}
            found["tool_calls"] = tuple(traffic.wire.tools())
            found["recorded_at"] = traffic.recorded_at()
        return result.model_copy(update=found)


def _of_step(text: str) -> CriterionResult:
    """Return the criterion that an assertion in a step is."""
    return CriterionResult(id="step", criterion=text, status="failed", reasoning="a step of the script raised it")


def _refuse_denial(label: str, value: object) -> None:
    """Refuse what a step of one's own returned that must not be passed over.

    Raises:
        AssertionError: False; whoever wrote `lambda state: state.has_tool_call("x")` meant it.
        TypeError: a generator, of which nothing has run.

    """
    if value is False:
        raise AssertionError(f"the step {label} returned False")
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError(
            f"the step {label} returned a generator, and nothing of it has run: it yields, and a step returns."
        )
