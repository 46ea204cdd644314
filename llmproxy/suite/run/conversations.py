"""Conversations of one run: which one a step speaks in, and how the conversation of a suite differs from that of a
script.

    (nothing said)             a new conversation
    conversation: name         the one of this name: begun when it is first named in this run, gone on with afterwards
    continueConversation       the one of the talking step that was executed last, named or not

Names belong to the run. The agent knows a conversation by an id. It is derived from recording, run and conversation, so
that an agent that puts it into a prompt replays; an agent that lives longer than the run gets a new one each time, or
it would go on with the conversation of yesterday's run.

Who speaks, and is told what, is the run engine's (`scenario.running.conversation`), as for a script.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from llmproxy.errors import AgentError, LLMProxyError
from llmproxy.scenario.agent_adapter import AdapterAttributes, AgentAdapter
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.running.calling import AdapterAnswer, Caller, call_in_time
from llmproxy.scenario.running.conversation import Conversation, ScriptActions
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.types import AgentInput, AgentRole, Message, ScenarioResult
from llmproxy.scenario.values.messages import messages_of, text_of
from llmproxy.scenario.values.replies import format_value
from llmproxy.scenario.values.run import thread_id

_ENDLESS = ScenarioConfig(max_turns=sys.maxsize, verbose=False)
"""A suite's steps say themselves how long they go on."""


@dataclass(frozen=True, slots=True)
class Player:
    """What an agent's adapter is told about the run besides the conversation."""

    user_id: str
    """Whose rows the agent should work on."""


class SuiteListener(Protocol):
    """Who hears what happens in a suite's conversations."""

    async def on_answer(self, conversation: SuiteConversation, answer: AdapterAnswer) -> None:
        """Hear that the agent answered; its messages come next."""

    def on_user(self, conversation: SuiteConversation, message: Message) -> None:
        """Hear what the user says to the agent."""

    def on_agent(self, conversation: SuiteConversation, message: Message, *, first: bool) -> None:
        """Hear a message of the agent's answer; is it the first?"""


class SuiteConversation:
    """One conversation with the agent. It is the emitter and the setting of the engine's."""

    running = None
    last_words = False

    def __init__(
        self, name: str, thread: str, agent: AgentAdapter, caller: Caller, *, player: Player, listener: SuiteListener
    ) -> None:
        """Begin; `name` is what the suite calls it, empty without one, `thread` how the agent knows it."""
        self.name, self.thread_id = name, thread
        self.answer = ""
        """The last thing that the agent said."""
        self.windows: dict[int, tuple[int, int]] = {}
        """Place of an answer -> numbers of the session's last call before it, and of the last one that is its own."""
        self.states: dict[AgentRole, object] = {AgentRole.AGENT: player}
        """What each role finds as the state of the scenario."""
        self._listener = listener
        self._answering: bool | None = None
        """Whether the first message of an answer is next; None while it is not the agent who speaks."""
        state = ScenarioState(description="", messages=[], thread_id=thread, current_turn=0, config=_ENDLESS)
        self.playback = Conversation(state, [agent], caller=caller, emitter=self, setting=self)
        self.verbs = ScriptActions(self.playback)

    @property
    def messages(self) -> list[Message]:
        return self.playback.messages

    @property
    def begun(self) -> bool:
        return bool(self.messages)

    async def send(self, text: str) -> str:
        """Say something to the agent; returns its answer.

        Raises MissError: a request of it was never recorded, whatever it answered or raised; UpstreamError: it failed,
        and could not reach a provider; AgentError: it crashed, took too long, or answered what is no answer;
        AgentUnreachable: it was never reached.
        """
        await self.verbs.user(text)
        await self.verbs.agent()
        return self.answer

    # -- what the engine's conversation asks and tells

    async def prepare_call(self, conversation: Conversation, index: int) -> Mapping[str, Any]:
        """Return what an adapter is told beside the conversation."""
        return {"scenario_state": self.states[conversation.agents[index].role]}

    async def on_answer(self, conversation: Conversation, answer: AdapterAnswer) -> None:  # noqa: ARG002 - it is ours
        assert isinstance(answer.returned, list)  # noqa: S101 - `Asking.read` gives nothing else
        self.answer, self._answering = _last_words(answer.returned), True
        await self._listener.on_answer(self, answer)

    def emit_message(self, message: Message, **about: Any) -> None:  # noqa: ANN401, ARG002 (as that of a script)
        if self._answering is None:
            self._listener.on_user(self, message)
        else:
            self._listener.on_agent(self, message, first=self._answering)
            self._answering = False

    def emit_step(self, kind: str, **about: Any) -> None:  # noqa: ANN401, ARG002 - fields of an event that a suite does not tell
        """Go on to whoever is next; a step of a suite is told by itself, with what it asserts."""
        self._answering = None

    def emit_verdict(self, judge: str, result: ScenarioResult | None, *, forced: bool, decided: bool) -> None:
        """What a judge says is told with his model, once its traffic was looked at."""


class Conversations:
    def __init__(
        self, cassette: str, sample: int, make: Callable[[str, str], SuiteConversation], *, fresh: bool = False
    ) -> None:
        """Begin without any; `make` one of a name and an id, `fresh`: ids are new in every execution."""
        self._cassette, self._sample, self._make, self._fresh = cassette, sample, make, fresh
        self._named: dict[str, SuiteConversation] = {}
        self._unnamed = 0
        self.last: SuiteConversation | None = None
        """Of the talking step that was executed last."""

    def choose(self, name: str | None = None, *, goes_on: bool = False) -> SuiteConversation:
        """Return a step's conversation, now the last one. Raises LLMProxyError: there is none to go on with."""
        if goes_on and name is None:
            if self.last is None:
                raise LLMProxyError("continueConversation: no step has talked with the agent before this one")
            return self.last
        if name is None:
            self._unnamed += 1
            chosen = self._add_conversation("", f"#{self._unnamed}")
        else:
            chosen = self._named.get(name) or self._named.setdefault(name, self._add_conversation(name, name))
        self.last = chosen
        return chosen

    def find_conversation(self, name: str | None) -> SuiteConversation | None:
        """Return a conversation that has begun: of this name, or the last one."""
        return self.last if name is None else self._named.get(name)

    def _add_conversation(self, name: str, key: str) -> SuiteConversation:
        made = thread_id() if self._fresh else thread_id(self._cassette or "suite", self._sample, key)
        return self._make(name, made)


_ANSWERS = 'An answer is a text, a message {"role": "assistant", "content": "..."}, or a list of messages.'


@dataclass(slots=True)
class SuiteCalling:
    """How a suite's run calls (`Caller`): its agent in a step's time, in a suite's words where it gives no answer."""

    limit: float | None = None
    """Seconds for one answer of the agent."""
    _said: str = ""

    async def ask(self, agent: AgentAdapter, given: AgentInput) -> object:
        """Call an adapter; simulated users and judges take their time."""
        if agent.role is not AgentRole.AGENT:
            return await agent.call(given)
        self._said = text_of(given.messages[-1])
        return await _call_agent(agent, given, self.limit)

    def read(self, agent: AgentAdapter, returned: object) -> ScenarioResult | list[Message]:
        """Make sure of an answer. Raises AgentError for what is none of an agent."""
        if agent.role is not AgentRole.AGENT:
            return returned if isinstance(returned, ScenarioResult) else messages_of(returned, agent.role, _name(agent))
        messages = _read_messages(returned, agent)
        if not _last_words(messages):
            raise AgentError(f"{_name(agent)} gave an empty answer to {self._said!r}.")
        return messages


def _last_words(messages: list[Message]) -> str:
    spoken = (text_of(message).strip() for message in reversed(messages) if message["role"] == "assistant")
    return next(filter(None, spoken), "")


async def _call_agent(agent: AgentAdapter, given: AgentInput, limit: float | None) -> object:
    name = _name(agent)

    def too_long(limit: float) -> AgentError:
        more = "`timeout: 120s` beside `chat`, or `defaults: {stepTimeout: 120s}`, allows more."
        hint = "\n".join(filter(None, [AdapterAttributes.by(agent).silence, more]))
        return AgentError(f"{name} gave no answer within {limit:g} s.", hint=hint)

    try:
        return await call_in_time(agent, given, limit, too_long, name=name, hint=_ANSWERS)
    except TimeoutError as error:
        raise AgentError(f"{name} raised TimeoutError: {error}") from error
    except (LLMProxyError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise AgentError(f"{name} crashed: {type(error).__name__}: {error}") from error


def _read_messages(returned: object, agent: AgentAdapter) -> list[Message]:
    if isinstance(returned, ScenarioResult):
        raise AgentError(
            f"{_name(agent)} returned a ScenarioResult; in a suite an agent answers with a text or messages."
        )
    try:
        return messages_of(returned, AgentRole.AGENT, _name(agent))
    except ValueError as error:
        what = type(returned).__name__
        raise AgentError(f"{_name(agent)} returned {format_value(returned)} ({what}).", hint=_ANSWERS) from error


def _name(agent: AgentAdapter) -> str:
    return AdapterAttributes.by(agent).who or type(agent).__name__
