"""The turn engine: who speaks next, what he is told, what becomes of his answer. No lifecycle here, and no script.

    step = one call of one agent;  turn = user, agent, judge;  a run ends with a ScenarioResult

The judge's call in the last turn that `max_turns` allows is a forced one: it must decide, for nobody speaks after it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from llmproxy.scenario.agent_adapter import AgentAdapter, Offered
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.running.conversing.calling import AdapterAnswer, Caller
from llmproxy.scenario.running.conversing.dialogue import Dialogue
from llmproxy.scenario.running.conversing.narrator import Narrator
from llmproxy.scenario.running.conversing.traffic import Traffic
from llmproxy.scenario.running.conversing.turns import Turns
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.script import Callback
from llmproxy.scenario.types import AgentInput, AgentRole, JudgmentRequest, Message, ScenarioResult
from llmproxy.scenario.values.context import context_scenario
from llmproxy.scenario.values.executor import Executor
from llmproxy.scenario.values.fault import status_of, told
from llmproxy.scenario.values.messages import as_message, copied, copies
from llmproxy.scenario.values.naming import thread_id, traceparent
from llmproxy.scenario.values.options import RunOptions

if TYPE_CHECKING:
    from llmproxy.trace.observing.servers import Served
    from llmproxy.trace.observing.tools import ToolUse

__all__ = ["TurnEngine", "settled", "undecided"]

KINDS = {AgentRole.USER: "user", AgentRole.AGENT: "agent", AgentRole.JUDGE: "judge"}


async def settled(value: Any) -> Any:  # noqa: ANN401 (what a user's callback returns)
    """Return the value, awaited where it can be."""
    return await value if inspect.isawaitable(value) else value


class TurnEngine:
    """Plays a conversation among adapters."""

    name: str
    description: str
    agents: list[AgentAdapter]
    config: ScenarioConfig
    options: RunOptions
    narrator: Narrator
    clock: Callable[[], float] = staticmethod(time.monotonic)

    @property
    def _me(self) -> Executor:
        """What others know this engine as; no engine is made that is no executor."""
        return cast("Executor", self)

    def reset(self) -> None:
        """Begin anew: no messages, turn 0, a new thread id."""
        self._state = ScenarioState(
            description=self.description,
            messages=[],
            thread_id=self._thread_id(),
            current_turn=0,
            config=self.config,
            _executor=self._me,
        )
        self._dialogue = Dialogue(len(self.agents), self._state.messages)
        self._turns = Turns(self.agents, self._count)
        self._traffic = Traffic()
        self._caller = Caller(self.options.call_timeout, self._traffic, self.clock)
        self._began = self.clock()
        self._agent_times: dict[int, float] = {}
        self._at_work: AgentRole | None = None
        self._looked = False  # somebody relies on what he saw on the wire
        self._left = False  # the user took his leave: the judge decides, and no further turn begins by itself
        self.unscripted = False
        self._spoken: list[tuple[int, int]] = []
        self._checkpoints: list[ScenarioResult] = []  # that passed, or ended the run
        self.marks: list[str] = []  # labels that steps put on the run
        self.from_cache: list[str] = []  # decorated functions that `cache` answered: the wire saw nothing of them

    @property
    def _pending_roles_on_turn(self) -> list[AgentRole]:
        return self._turns.roles

    @property
    def _pending_agents_on_turn(self) -> list[AgentAdapter]:
        return self._turns.pending

    @property
    def wire_calls(self) -> Sequence[ToolUse] | None:
        """Tool calls of the agent as seen on the wire; None without a proxy. Whoever asks relies on there being no others."""
        if self._traffic.session is None:
            return None
        self._looked = True
        return self._traffic.wire.tools()

    @property
    def wire_served(self) -> Served | None:
        """What servers of tools (MCP) got from the agent; None without a proxy."""
        if self._traffic.session is None:
            return None
        self._looked = True
        return self._traffic.wire.served()

    @property
    def wire_unread(self) -> str:
        """Why it is not known what the agent called: an answer that nobody can read; empty where all are known."""
        return "" if self._traffic.session is None else self._traffic.unread()

    @property
    def wire_unknown(self) -> Sequence[str]:
        """Why answers to the agent may have called what nobody knows of, for a judge."""
        return () if self._traffic.session is None else self._traffic.unknown()

    @property
    def wire_before(self) -> dict[int, list[ToolUse]]:
        """The same, by the place of the message that came after them."""
        found: dict[int, list[ToolUse]] = {}
        for call in self.wire_calls or ():
            place = next((place for seen, place in self._spoken if call.seq <= seen), len(self._state.messages))
            found.setdefault(place, []).append(call)
        return found

    def add_message(self, message: Message, from_agent_idx: int | None = None, **about: Any) -> None:  # noqa: ANN401
        """Append a message to the conversation; everybody hears it but the agent at place `from_agent_idx`."""
        kept = as_message(message, AgentRole.AGENT)
        self._dialogue.add(kept, from_agent_idx)
        self._state.record_turn(self._state.messages[-1])
        author = "" if from_agent_idx is None else type(self.agents[from_agent_idx]).__name__
        self.narrator.said(kept, self._state.messages, author=author, turn=self._state.current_turn, **about)

    def add_messages(self, messages: Iterable[Message], from_agent_idx: int | None = None) -> None:
        """Append messages, one by one."""
        for message in messages:
            self.add_message(message, from_agent_idx)

    def told(self, kind: str, **about: Any) -> None:  # noqa: ANN401 (fields of the event)
        """Tell the reports of a step that an adapter took by itself."""
        self.narrator.step(kind, **about)

    def rollback_messages_to(self, index: int) -> list[Message]:
        """Take back all messages from a place on, also from those who have not heard them yet, and return them."""
        if index < 0:
            raise ValueError(f"rollback_messages_to takes a place from 0 on, not {index}")
        return self._dialogue.rollback(index)

    async def step(self) -> list[Message] | ScenarioResult:
        """Let the next agent speak, in a new turn if this one is over. Raises ValueError if nobody is left to speak."""
        result = await self._step()
        if result is None:
            raise ValueError("No result from step")
        return result

    async def _step(
        self,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
        would_go_on: Callable[[], bool] = lambda: True,
        on_turn: Callback | None = None,
        on_turn_end: Callback | None = None,
    ) -> list[Message] | ScenarioResult | None:
        """Take a step; None when the turn is over and another one is not wanted.

        `may_go_on` is asked before a new turn begins, `would_go_on` by a judge in the last turn: where the script stops by itself, his
        verdict is not demanded.
        """
        while not (speaker := self._turns.next()):
            if not may_go_on() or self._left:
                return None
            if on_turn_end:
                await settled(on_turn_end(self._state))
            self._turns.new()
            if on_turn:
                await settled(on_turn(self._state))
            if self._state.current_turn >= self.config.turns:
                return self._out_of_turns()
        self._turns.spoke(speaker.agent)
        at_limit = self._state.current_turn + 1 >= self.config.turns
        forced = (self._left or (at_limit and would_go_on())) and _can_decide(speaker.agent)
        self.unscripted = True
        return await self._call_agent(speaker.place, JudgmentRequest() if forced else None)

    async def _call_agent(self, index: int, judgment: JudgmentRequest | None = None) -> list[Message] | ScenarioResult:
        """Call an agent and let the others hear what it says."""
        agent = self.agents[index]
        typed = await self._typed() if agent.role is AgentRole.USER and self.config.debug else None
        if typed is not None:
            return typed
        try:
            answer = await self._called(index, judgment)
        except BaseException as error:
            self._at_work = agent.role
            self.narrator.step(
                KINDS[agent.role],
                label=type(agent).__name__,
                status=status_of(error, agent.role),
                message=told(error),
            )
            raise
        self._agent_times[index] = self._agent_times.get(index, 0.0) + answer.seconds
        self._dialogue.heard(index)
        return self._taken(index, answer, judgment=judgment is not None)

    async def _called(self, index: int, judgment: JudgmentRequest | None) -> AdapterAnswer:
        session = self._traffic.session
        if session is not None and self.agents[index].role is AgentRole.JUDGE:
            await self._traffic.catch_up()  # what the agent called since its answer is a part of what he judges
        given = AgentInput(
            thread_id=self._state.thread_id,
            messages=copies(self._state.messages),
            new_messages=self._dialogue.unheard(index),
            judgment_request=judgment,
            scenario_state=self._state,
            propagation_headers={"traceparent": traceparent(self._state.thread_id, self._state.current_turn, index)},
            _llm=None if session is None else session.llm_of(self.agents[index].role),
        )
        token = context_scenario.set(self._me)
        try:
            return await self._caller.call(self.agents[index], given)
        finally:
            context_scenario.reset(token)

    def _taken(self, index: int, answer: AdapterAnswer, *, judgment: bool) -> list[Message] | ScenarioResult:
        """Put an answer into the conversation, or complete the result that it is."""
        agent, said = self.agents[index], answer.returned
        name, kind, ms = type(agent).__name__, KINDS[agent.role], answer.seconds * 1000
        if isinstance(said, ScenarioResult):
            said = self._complete(said.model_copy(update={"messages": []}))
        else:
            self._spoken += [(self._traffic.seen, len(self._state.messages))] if agent.role is AgentRole.AGENT else []
            calls = [_shown(call) for call in answer.tool_calls]
            for number, message in enumerate(said):
                first = number == 0
                self.add_message(message, index, ms=ms if first else None, tool_calls=calls if first else ())
        if answer.leaves and agent.role is AgentRole.USER:
            self._left = True
            self._turns.skip_to(AgentRole.JUDGE)
        if agent.role is AgentRole.JUDGE:
            result = said if isinstance(said, ScenarioResult) else None
            self.narrator.verdict(name, result, forced=judgment, decided=not undecided(result))
        self.narrator.step(kind, label=name, ms=ms)
        return said

    async def _typed(self) -> list[Message] | ScenarioResult | None:
        """Let a person take the user's turn; None: the simulator shall speak."""
        from llmproxy.scenario.simulator.debug import ask

        said = await ask(self.name if (self.config.verbose or 0) >= 2 else "")
        if said.judge:
            self._turns.skip_to(AgentRole.JUDGE)
            judge = self._turns.of(AgentRole.JUDGE)
            if judge:
                self._turns.spoke(judge.agent)
                return await self._call_agent(judge.place, JudgmentRequest())
            return self._complete(ScenarioResult(success=False, messages=[], reasoning="/judge: there is no judge."))
        if said.success is not None:
            reasoning = said.text or f"Ended by hand with /{'pass' if said.success else 'fail'}"
            return self._complete(ScenarioResult(success=said.success, messages=[], reasoning=reasoning))
        if not said.text:
            return None
        self.add_message({"role": "user", "content": said.text})
        return copies(self._state.messages[-1:])

    def _complete(self, result: ScenarioResult) -> ScenarioResult:
        """Return a result with what only the run knows; messages are the conversation unless it brings its own."""
        found: dict[str, Any] = {
            "messages": copies(result.messages or self._state.messages),
            "total_time": self._elapsed() if result.total_time is None else result.total_time,
            "agent_time": self._agent_time() if result.agent_time is None else result.agent_time,
            "thread_id": self._state.thread_id,
        }
        return result.model_copy(update=found)

    def _out_of_turns(self, reasoning: str = "") -> ScenarioResult:
        """Return the result of a run that nobody decided: what judges were to judge is inconclusive."""
        said = reasoning or f"Reached maximum turns ({self.config.turns}) without conclusion"
        open_ones = list(self.criteria)
        return self._complete(
            ScenarioResult(success=False, messages=[], reasoning=said, inconclusive_criteria=open_ones)
        )

    @property
    def criteria(self) -> tuple[str, ...]:
        """The criteria of all judges."""
        judges = (agent for agent in self.agents if agent.role is AgentRole.JUDGE)
        return tuple(str(each) for judge in judges for each in Offered.by(judge).criteria or ())

    def _elapsed(self) -> float:
        return self.clock() - self._began

    def _agent_time(self) -> float:
        return sum(took for index, took in self._agent_times.items() if self.agents[index].role is AgentRole.AGENT)

    def _thread_id(self) -> str:
        return thread_id()

    def _count(self) -> None:
        self._state.current_turn += 1


def undecided(result: ScenarioResult | None) -> bool:
    """Return whether a judge left something open and found nothing wrong."""
    return (
        result is not None and not result.success and bool(result.inconclusive_criteria) and not result.failed_criteria
    )


def _can_decide(agent: AgentAdapter) -> bool:
    """Return whether it makes sense to demand a verdict: of a judge, unless it says that it has no criteria."""
    criteria = Offered.by(agent).criteria
    return agent.role is AgentRole.JUDGE and (criteria is None or len(criteria) > 0)


def _shown(call: ToolUse) -> dict[str, Any]:
    """Return a tool call seen on the wire, for an event."""
    where = "" if call.interaction is None else f"interaction {call.interaction}"
    return {"name": call.name, "arguments": copied(call.arguments), "result": copied(call.result), "where": where}
