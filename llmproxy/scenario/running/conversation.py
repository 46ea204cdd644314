"""A conversation: turns, inputs of agents, handling of their answers, and the verbs of a script.

A turn has three roles, in the order user, agent, judge. Several agents of one role speak in list order; the same object
listed twice speaks once. A message goes to all agents but its author; a script's goes to all, its role's included.
A verb for a role drops the roles before it; if the role has spoken already, a new turn begins. Scripted text takes the
turn of its role and calls no agent. `max_turns` limits `proceed` only; in the last turn the judge must decide.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from llmproxy.errors import MachineError
from llmproxy.scenario.agent_adapter import AgentAdapter, OptionalAdapterAttributes
from llmproxy.scenario.running.agent_caller import AdapterAnswer, AgentCaller, AgentTraffic, await_call_in_daemon_thread
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.script import Callback
from llmproxy.scenario.types import AgentInput, AgentRole, JudgmentRequest, Message, ScenarioResult
from llmproxy.scenario.values.messages import (
    UserFarewellMessages,
    copy_messages,
    copy_value,
    get_message_text,
    to_message,
)
from llmproxy.scenario.values.run_ids_and_options import (
    ScenarioExecutorProtocol,
    classify_run_error,
    context_scenario,
    describe_error,
)
from llmproxy.trace.observing.tool_calls import ToolUse


class SpeakingOrder:
    def __init__(self, agents: Sequence[AgentAdapter], state: ScenarioState) -> None:
        self.agents, self._state = agents, state
        self.roles: list[AgentRole] = []
        self.pending: list[AgentAdapter] = []
        self.begun = False  # any agent has spoken in this turn
        self._make_all_pending()

    def start_next_turn(self) -> None:
        self._make_all_pending()
        self._state.current_turn += 1

    def _make_all_pending(self) -> None:
        self.pending = list({id(agent): agent for agent in self.agents}.values())
        self.roles = list(AgentRole)
        self.begun = False

    def remove_pending(self, agent: AgentAdapter) -> None:
        self.pending = [each for each in self.pending if each is not agent]

    def peek_next_speaker(self) -> int | None:
        while self.roles:
            if (found := self.find_unspoken_agent_of_role(self.roles[0])) is not None:
                return found
            self.roles.pop(0)
        return None

    def find_unspoken_agent_of_role(self, role: AgentRole) -> int | None:
        of_role = (index for index, agent in enumerate(self.agents) if role in self.roles and agent.role is role)
        return next((index for index in of_role if any(self.agents[index] is each for each in self.pending)), None)

    def skip_to(self, role: AgentRole) -> None:
        """Drop the roles before this one; all of them, if it is over already."""
        while self.roles and self.roles[0] is not role:
            self.roles.pop(0)

    def advance_to_role(self, role: AgentRole) -> int | None:
        """Let an agent of this role speak, in a new turn if the role is over in this one; None without one."""
        self.skip_to(role)
        if (found := self.find_unspoken_agent_of_role(role)) is None:
            self.start_next_turn()
            self.skip_to(role)
            found = self.find_unspoken_agent_of_role(role)
        if found is not None:
            self.mark_spoken(self.agents[found])
        return found

    def mark_role_spoken(self, role: AgentRole) -> None:
        """Mark a role without agents as having spoken: once in a turn."""
        self.skip_to(role)
        if not self.roles:
            self.start_next_turn()
            self.skip_to(role)
        self.roles.pop(0)
        self.begun = True

    def mark_spoken(self, agent: AgentAdapter) -> None:
        self.remove_pending(agent)
        self.begun = True


async def await_value(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class ConversationEmitter(Protocol):
    def emit_message(self, message: Message, **about: Any) -> None: ...

    def emit_step(self, kind: str, **about: Any) -> None: ...

    def emit_verdict(self, judge: str, result: ScenarioResult | None, *, forced: bool, decided: bool) -> None: ...


class ScriptOrSuiteConversationHooks(Protocol):
    """Surroundings of a conversation, which differ between a script and a suite."""

    @property
    def running_scenario(self) -> ScenarioExecutorProtocol | None:
        """The running scenario for functions called meanwhile; None: none."""

    @property
    def adds_user_farewell(self) -> bool: ...

    async def prepare_call(self, conversation: ConversationRunner, index: int) -> Mapping[str, Any]:
        """Prepare a call of the adapter; returns fields of `AgentInput` besides the conversation."""

    async def on_answer(self, conversation: ConversationRunner, answer: AdapterAnswer) -> None: ...


class ConversationRunner:
    def __init__(
        self, state: ScenarioState, agents: list[AgentAdapter], *, caller: AgentCaller, emitter: ConversationEmitter,
        setting: ScriptOrSuiteConversationHooks, name: str = "",
    ) -> None:  # fmt: skip
        self.state, self.agents, self.name = state, agents, name
        self.caller, self.emitter, self.setting = caller, emitter, setting
        self.turns = SpeakingOrder(agents, state)
        self.unscripted = False
        self.farewell: UserFarewellMessages | None = None
        """The user's farewell: the judge decides then, and no further turn begins by itself."""
        self._unheard: list[list[Message]] = [[] for _ in agents]  # by the agent's index
        self._began = caller.clock()
        self._agent_times: dict[int, float] = {}
        self._spoken: list[tuple[int, int]] = []

    @property
    def messages(self) -> list[Message]:
        return self.state.messages

    @property
    def traffic(self) -> AgentTraffic:
        return self.caller.traffic

    @property
    def wire_by_message(self) -> dict[int, list[ToolUse]]:
        """The agent's tool calls on the wire, by the position of the following message."""
        found: dict[int, list[ToolUse]] = {}
        for call in self.traffic.agent_tool_calls or ():
            place = next((place for seen, place in self._spoken if call.seq <= seen), len(self.messages))
            found.setdefault(place, []).append(call)
        return found

    @contextmanager
    def temporary_participant(self, agent: AgentAdapter) -> Iterator[None]:
        """Add an agent temporarily: a step's user or judge. It leaves before another one joins."""
        self.agents.append(agent)
        self.turns.pending.append(agent)  # in this turn too, unless its role is over
        self._unheard.append([])
        try:
            yield
        finally:
            self._unheard.pop()
            self.turns.remove_pending(self.agents.pop())

    def add_message(self, message: Message, from_agent_idx: int | None = None, **about: Any) -> None:
        kept = to_message(message, AgentRole.AGENT)
        self.messages.append(kept)
        for index, queue in enumerate(self._unheard):
            if index != from_agent_idx:
                queue.append(kept)
        self.state.record_message_turn(kept)
        author = "" if from_agent_idx is None else type(self.agents[from_agent_idx]).__name__
        self.emitter.emit_message(kept, author=author, turn=self.state.current_turn, **about)

    def add_messages(self, messages: Iterable[Message], from_agent_idx: int | None = None) -> None:
        for message in messages:
            self.add_message(message, from_agent_idx)

    def rollback_messages_to(self, index: int) -> list[Message]:
        """Remove and return all messages from an index on, also those not received yet."""
        if index < 0:
            raise ValueError(f"rollback_messages_to takes a place from 0 on, not {index}")
        removed = self.messages[index:]
        del self.messages[index:]
        for queue in self._unheard:
            queue[:] = [each for each in queue if not any(each is gone for gone in removed)]
        return removed

    async def step(self) -> list[Message] | ScenarioResult:
        """Let the next agent speak. Raises ValueError if none is left."""
        if (result := await self.let_next_agent_speak()) is None:
            raise ValueError("No result from step")
        return result

    async def let_next_agent_speak(
        self, *, may_go_on: Callable[[], bool] = lambda: True, would_go_on: Callable[[], bool] = lambda: True,
        on_turn: Callback | None = None, on_turn_end: Callback | None = None,
    ) -> list[Message] | ScenarioResult | None:  # fmt: skip
        """Execute a step; None when the turn is over and another one is not wanted.

        `may_go_on` is checked before a new turn begins, `would_go_on` by a judge in the last turn: if the script stops
        by itself, no verdict is demanded.
        """
        while (place := self.turns.peek_next_speaker()) is None:
            if not may_go_on() or self.farewell is not None:
                return None
            if on_turn_end:
                await await_value(on_turn_end(self.state))
            self.turns.start_next_turn()
            if on_turn:
                await await_value(on_turn(self.state))
            if self.state.current_turn >= self.state.config.turn_limit:
                return self.build_turns_exhausted()
        speaker = self.agents[place]
        self.turns.mark_spoken(speaker)
        at_limit = self.state.current_turn + 1 >= self.state.config.turn_limit
        forced = self.farewell is not None or (at_limit and would_go_on())
        if forced:  # unless it is no judge, or one that has nothing to decide
            criteria = OptionalAdapterAttributes.of_adapter(speaker).criteria
            forced = speaker.role is AgentRole.JUDGE and (criteria is None or len(criteria) > 0)
        self.unscripted = True
        return await self.call(place, JudgmentRequest() if forced else None)

    async def call(self, index: int, judgment: JudgmentRequest | None = None) -> list[Message] | ScenarioResult:
        agent = self.agents[index]
        typed = await self._ask_person() if agent.role is AgentRole.USER and self.state.config.debug else None
        if typed is not None:
            return typed
        try:
            answer = await self._request_answer(index, judgment)
        except BaseException as error:
            self.caller.broke = agent.role
            self.emitter.emit_step(
                agent.role.value.lower(),
                label=type(agent).__name__,
                status=classify_run_error(error, agent.role),
                message=describe_error(error),
            )
            raise
        if agent.role is AgentRole.AGENT:
            await self.setting.on_answer(self, answer)
        self._agent_times[index] = self._agent_times.get(index, 0.0) + answer.seconds
        self._unheard[index].clear()
        return self._take_answer(index, answer, judgment=judgment is not None)

    async def _request_answer(self, index: int, judgment: JudgmentRequest | None) -> AdapterAnswer:
        session, beside = self.traffic.session, await self.setting.prepare_call(self, index)
        given = AgentInput(
            thread_id=self.state.thread_id,
            messages=copy_messages(self.messages),
            new_messages=copy_messages(self._unheard[index]),
            judgment_request=judgment,
            **beside,
        ).set_llm(None if session is None else session.llm_for_role(self.agents[index].role))
        token = context_scenario.set(self.setting.running_scenario)
        try:
            return await self.caller.call_agent(self.agents[index], given)
        finally:
            context_scenario.reset(token)

    def _take_answer(self, index: int, answer: AdapterAnswer, *, judgment: bool) -> list[Message] | ScenarioResult:
        agent, said = self.agents[index], answer.returned
        name, kind, ms = type(agent).__name__, agent.role.value.lower(), answer.seconds * 1000
        if isinstance(said, ScenarioResult):
            said = self.fill_result(said.model_copy(update={"messages": []}))
        elif answer.farewell is None or self.setting.adds_user_farewell:
            self._spoken += [(self.traffic.seen, len(self.messages))] if agent.role is AgentRole.AGENT else []
            calls = [
                {
                    "name": call.name,
                    "arguments": copy_value(call.arguments),
                    "result": copy_value(call.result),
                    "where": "" if call.interaction is None else f"interaction {call.interaction}",
                }
                for call in answer.tool_calls
            ]
            for number, message in enumerate(said):
                self.add_message(message, index, ms=None if number else ms, tool_calls=() if number else calls)
        if answer.farewell is not None and agent.role is AgentRole.USER:
            self.farewell = answer.farewell
            self.turns.skip_to(AgentRole.JUDGE)
        if agent.role is AgentRole.JUDGE:
            result = said if isinstance(said, ScenarioResult) else None
            self.emitter.emit_verdict(name, result, forced=judgment, decided=not is_inconclusive_result(result))
        self.emitter.emit_step(kind, label=name, ms=ms)
        return said

    async def _ask_person(self) -> list[Message] | ScenarioResult | None:
        said = await read_person_input(self.name if (self.state.config.verbose or 0) >= 2 else "")
        if said.judge:
            self.turns.skip_to(AgentRole.JUDGE)
            if (judge := self.turns.find_unspoken_agent_of_role(AgentRole.JUDGE)) is not None:
                self.turns.mark_spoken(self.agents[judge])
                return await self.call(judge, JudgmentRequest())
            return self.fill_result(ScenarioResult(success=False, messages=[], reasoning="/judge: there is no judge."))
        if said.success is not None:
            reasoning = said.text or f"Ended by hand with /{'pass' if said.success else 'fail'}"
            return self.fill_result(ScenarioResult(success=said.success, messages=[], reasoning=reasoning))
        if not said.text:
            return None
        self.add_message({"role": "user", "content": said.text})
        return copy_messages(self.messages[-1:])

    def fill_result(self, result: ScenarioResult) -> ScenarioResult:
        times = self._agent_times.items()
        agent_time = sum(took for index, took in times if self.agents[index].role is AgentRole.AGENT)
        found: dict[str, Any] = {
            "messages": copy_messages(result.messages or self.messages),
            "total_time": self.caller.clock() - self._began if result.total_time is None else result.total_time,
            "agent_time": agent_time if result.agent_time is None else result.agent_time,
            "thread_id": self.state.thread_id,
        }
        return result.model_copy(update=found)

    def build_turns_exhausted(self, reasoning: str = "") -> ScenarioResult:
        said = reasoning or f"Reached maximum turns ({self.state.config.turn_limit}) without conclusion"
        left = list(self.criteria)
        return self.fill_result(ScenarioResult(success=False, messages=[], reasoning=said, inconclusive_criteria=left))

    @property
    def criteria(self) -> tuple[str, ...]:
        judges = (agent for agent in self.agents if agent.role is AgentRole.JUDGE)
        return tuple(
            str(each) for judge in judges for each in OptionalAdapterAttributes.of_adapter(judge).criteria or ()
        )


def is_inconclusive_result(result: ScenarioResult | None) -> bool:
    return (
        result is not None and not result.success and bool(result.inconclusive_criteria) and not result.failed_criteria
    )


_ADD = {
    AgentRole.USER: "a scenario.UserSimulatorAgent()",
    AgentRole.AGENT: "your agent",
    AgentRole.JUDGE: "a scenario.JudgeAgent()",
}


class ScriptActions:
    def __init__(self, conversation: ConversationRunner) -> None:
        self.conversation = conversation
        self.steps_left = 0  # after the current one
        self.checkpoints: list[ScenarioResult] = []
        """Mid-script verdicts: those that passed, and the one that ended the run."""

    async def message(self, message: Message) -> None:
        role = {"user": AgentRole.USER, "assistant": AgentRole.AGENT}.get(message["role"])
        if role is None:
            self.conversation.add_message(message)
        else:
            await self._add_or_call_role(role, message)

    async def user(self, content: str | Message | None = None) -> ScenarioResult | None:
        return await self._add_or_call_role(AgentRole.USER, content)

    async def agent(self, content: str | Message | None = None) -> ScenarioResult | None:
        return await self._add_or_call_role(AgentRole.AGENT, content)

    async def judge(
        self, content: str | Message | None = None, *, criteria: Sequence[str] | None = None
    ) -> ScenarioResult | None:
        """Demand a verdict, with `content` as context; None: undecided, or a passed checkpoint: it continues."""
        context = None if content is None else get_message_text(to_message(content, AgentRole.USER))
        chosen = None if criteria is None else list(criteria)
        asked = JudgmentRequest(criteria=chosen, additional_context=context)
        result = await self._call_role(AgentRole.JUDGE, content, asked)
        if chosen is None:
            return None if self.steps_left and is_inconclusive_result(result) else result
        if result is None:
            why = "The judge was asked at a checkpoint and gave no verdict"
            result = ScenarioResult(success=False, messages=[], reasoning=why, inconclusive_criteria=chosen)
        if not result.success:
            return result
        self.checkpoints.append(result)
        return None

    async def succeed(self, reasoning: str | None = None) -> ScenarioResult:
        said = reasoning or "Scenario marked as successful with scenario.succeed()"
        return self.conversation.fill_result(ScenarioResult(success=True, messages=[], reasoning=said))

    async def fail(self, reasoning: str | None = None) -> ScenarioResult:
        said = reasoning or "Scenario marked as failed with scenario.fail()"
        return self.conversation.fill_result(ScenarioResult(success=False, messages=[], reasoning=said))

    async def proceed(
        self, turns: int | None = None, on_turn: Callback | None = None, on_step: Callback | None = None, *,
        on_turn_end: Callback | None = None,
    ) -> ScenarioResult | None:  # fmt: skip
        """Execute steps for this many turns, or until the end. The turn of the first step counts as the first."""
        self.conversation.farewell = None
        initial: int | None = None
        spoken = False

        def goes_on() -> bool:
            now = self.conversation.state.current_turn
            return turns is None or now + 1 < (now if initial is None else initial) + turns

        def may_go_on() -> bool:
            return initial is None or goes_on()

        async def turn_ends(_state: object = None) -> None:
            nonlocal spoken
            ended, spoken = spoken, False
            if ended and on_turn_end:
                await await_value(on_turn_end(self.conversation.state))

        while True:
            said = await self.conversation.let_next_agent_speak(
                may_go_on=may_go_on, would_go_on=goes_on, on_turn=on_turn, on_turn_end=turn_ends
            )
            initial = self.conversation.state.current_turn if initial is None else initial
            if said is None:
                await turn_ends()
                return None
            spoken = self.conversation.turns.begun
            if on_step:
                await await_value(on_step(self.conversation.state))
            if isinstance(said, ScenarioResult):
                await turn_ends()
                return said

    async def _add_or_call_role(self, role: AgentRole, content: str | Message | None) -> ScenarioResult | None:
        if content is None:
            return await self._call_role(role, None)
        if role is AgentRole.USER and not any(agent.role is role for agent in self.conversation.agents):
            self.conversation.turns.mark_role_spoken(role)  # a scripted user needs no simulator
        else:
            self._claim_turn_or_raise(role, content)
        self.conversation.add_message(to_message(content, role))
        self.conversation.emitter.emit_step(role.value.lower(), label="scripted")
        return None

    async def _call_role(
        self, role: AgentRole, content: object, judgment: JudgmentRequest | None = None
    ) -> ScenarioResult | None:
        place = self._claim_turn_or_raise(role, content)
        self.conversation.unscripted = False
        result = await self.conversation.call(place, judgment)
        return result if isinstance(result, ScenarioResult) else None

    def _claim_turn_or_raise(self, role: AgentRole, content: object) -> int:
        if (place := self.conversation.turns.advance_to_role(role)) is not None:
            return place
        quoted = "" if content is None else f" with content `{content}`"
        raise ValueError(
            f"Cannot generate a message for role `{role.value}`{quoted} because no agent with this role was found, "
            f"please add {_ADD[role]} to the scenario `agents` list"
        )


# -- debug mode: before the simulator speaks, a person may write in its place

HELP = "[Debug Mode] Press enter to continue or type a message to send (/pass, /fail, /judge)"
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class ParsedHumanInputLine:
    text: str = ""
    success: bool | None = None
    judge: bool = False


def parse_person_input(line: str) -> ParsedHumanInputLine:
    """Parse a line. An unknown word after a slash is part of a message."""
    word, _, rest = line.strip().partition(" ")
    if word in {"/pass", "/fail"}:
        return ParsedHumanInputLine(rest.strip(), success=word == "/pass")
    if word == "/judge" and not rest:
        return ParsedHumanInputLine(judge=True)
    return ParsedHumanInputLine(line if line.strip() else "")


async def read_person_input(name: str = "", read: Callable[[str], str] = input) -> ParsedHumanInputLine:
    """Read a line from the terminal, without blocking the loop. Raises MachineError without a terminal."""
    prefix = f"[Scenario: {name}] " if name else ""

    def ask() -> str:
        with _ONE_AT_A_TIME:
            return read(f"\n{prefix}{HELP}\n{prefix}User: ")

    try:
        return parse_person_input(await await_call_in_daemon_thread(ask))
    except (EOFError, OSError) as error:
        raise MachineError(
            f"debug=True asks at the terminal, and there is none ({type(error).__name__}).",
            hint="Run it in a terminal (pytest: with -s), or leave debug out.",
        ) from error
