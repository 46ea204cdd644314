"""Conversations of one run: which one a step speaks in, and one message sent to the agent in it.

    (nothing said)             a new conversation
    conversation: name         the one of this name: begun when it is first named in this run, gone on with afterwards
    continueConversation       the one of the talking step that was executed last, named or not

Names belong to the run. The agent knows a conversation by an id. It is derived from recording, run and conversation, so that an agent
that puts it into a prompt replays; an agent that lives longer than the run gets a new one each time, or it would go on with the
conversation of yesterday's run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from llmproxy.errors import AgentError, LLMProxyError
from llmproxy.scenario.agent_adapter import Offered
from llmproxy.scenario.types import AgentInput, AgentRole, Message, ScenarioResult
from llmproxy.scenario.values.fault import left
from llmproxy.scenario.values.messages import copies, messages_of, text_of
from llmproxy.scenario.values.naming import thread_id
from llmproxy.scenario.values.replies import shown

if TYPE_CHECKING:
    from llmproxy.scenario.agent_adapter import AgentAdapter
    from llmproxy.scenario.running.conversing.calling import Caller

__all__ = ["Conversation", "Conversations", "Player", "Spoken", "speak"]


@dataclass(slots=True)
class Conversation:
    """One conversation with the agent."""

    name: str
    """As the suite calls it; empty without one."""
    thread_id: str
    """As the agent knows it."""
    messages: list[Message] = field(default_factory=list)
    told: int = 0
    """How many of them the agent has been given, or said itself."""
    windows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Place of an answer -> numbers of the session's last call before it, and of the last one that belongs to it."""

    @property
    def begun(self) -> bool:
        """Whether anything was said in it."""
        return bool(self.messages)

    def take(self, messages: list[Message]) -> None:
        """Take what the agent said."""
        self.messages += messages
        self.told = len(self.messages)


class Conversations:
    """The conversations of one run."""

    def __init__(self, cassette: str, sample: int, *, fresh: bool = False) -> None:
        """Begin without any; `fresh`: ids are new in every execution."""
        self._cassette, self._sample, self._fresh = cassette, sample, fresh
        self._named: dict[str, Conversation] = {}
        self._unnamed = 0
        self.last: Conversation | None = None
        """Of the talking step that was executed last."""

    def choose(self, name: str | None = None, *, goes_on: bool = False) -> Conversation:
        """Return the conversation of a step, and remember it as the last one.

        Raises:
            LLMProxyError: there is none to go on with.

        """
        if goes_on and name is None:
            if self.last is None:
                raise LLMProxyError("continueConversation: no step has talked with the agent before this one")
            return self.last
        if name is None:
            self._unnamed += 1
            chosen = self._new("", f"#{self._unnamed}")
        else:
            chosen = self._named.get(name) or self._named.setdefault(name, self._new(name, name))
        self.last = chosen
        return chosen

    def named(self, name: str | None) -> Conversation | None:
        """Return a conversation that has begun: of this name, or the last one."""
        return self.last if name is None else self._named.get(name)

    def _new(self, name: str, key: str) -> Conversation:
        made = thread_id() if self._fresh else thread_id(self._cassette or "suite", self._sample, key)
        return Conversation(name, made)


@dataclass(frozen=True, slots=True)
class Player:
    """What an agent's adapter is told about the run besides the conversation."""

    user_id: str
    """Whose rows the agent should work on."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What the agent answered."""

    text: str
    """The last thing it said."""
    messages: list[Message]
    seconds: float


async def speak(
    caller: Caller, agent: AgentAdapter, conversation: Conversation, text: str, *, limit: float | None, user: str = ""
) -> Spoken:
    """Say something to the agent and take its answer into the conversation; `limit` in seconds.

    Raises:
        MissError: a request of it was never recorded, whatever it answered or raised.
        UpstreamError: it failed, and could not reach a provider.
        AgentError: it crashed, took too long, or answered what is no answer.
        AgentUnreachable: it was never reached.

    """
    session = caller.traffic.session
    conversation.messages.append({"role": "user", "content": text})
    given = AgentInput(
        thread_id=conversation.thread_id,
        messages=copies(conversation.messages),
        new_messages=copies(conversation.messages[conversation.told :]),
        scenario_state=Player(user),
        _llm=None if session is None else session.llm,
    )

    async def ask(agent: AgentAdapter, given: AgentInput) -> object:
        return await _limited(agent, given, limit)

    def read(agent: AgentAdapter, returned: object) -> list[Message]:
        messages = _understood(returned, agent)
        if not _last_words(messages):
            conversation.take(messages)
            raise AgentError(f"{_name(agent)} gave an empty answer to {text!r}.")
        return messages

    answer = await caller.call(agent, given, ask=ask, read=read)
    messages = cast("list[Message]", answer.returned)  # what `read` returned
    conversation.take(messages)
    return Spoken(_last_words(messages), messages, answer.seconds)


def _last_words(messages: list[Message]) -> str:
    spoken = (text_of(message).strip() for message in reversed(messages) if message["role"] == "assistant")
    return next(filter(None, spoken), "")


_ANSWERS = 'An answer is a text, a message {"role": "assistant", "content": "..."}, or a list of messages.'


async def _limited(agent: AgentAdapter, given: AgentInput, limit: float | None) -> Any:  # noqa: ANN401 - whatever it returns
    task, scope = asyncio.current_task(), asyncio.timeout(limit)
    try:
        async with scope:
            return await agent.call(given)
    except TimeoutError as error:
        if scope.expired():
            more = "`timeout: 120s` beside `chat`, or `defaults: {stepTimeout: 120s}`, allows more."
            hint = "\n".join(filter(None, [Offered.by(agent).silence, more]))
            raise AgentError(f"{_name(agent)} gave no answer within {limit:g} s.", hint=hint) from error
        raise AgentError(f"{_name(agent)} raised TimeoutError: {error}") from error
    except LLMProxyError:
        raise
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise AgentError(f"{_name(agent)} raised CancelledError, although nobody cancelled it.") from error
    except SystemExit as error:
        raise AgentError(f"{left(_name(agent), error)} instead of answering.", hint=_ANSWERS) from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise AgentError(f"{_name(agent)} crashed: {type(error).__name__}: {error}") from error


def _understood(returned: object, agent: AgentAdapter) -> list[Message]:
    if isinstance(returned, ScenarioResult):
        raise AgentError(
            f"{_name(agent)} returned a ScenarioResult; in a suite an agent answers with a text or messages."
        )
    try:
        return messages_of(returned, AgentRole.AGENT, _name(agent))
    except ValueError as error:
        what = type(returned).__name__
        raise AgentError(f"{_name(agent)} returned {shown(returned)} ({what}).", hint=_ANSWERS) from error


def _name(agent: AgentAdapter) -> str:
    return Offered.by(agent).who or type(agent).__name__
