"""What users of scenarios write down and get back: roles, the input of an adapter, what it may return, and the result of a run.

Messages are dicts in the form of OpenAI's chat completions. They hold what their author wrote and nothing else: no ids, no times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from llmproxy.report.events import Criterion, PartyUse, Status
from llmproxy.scenario.values.plain import Plain

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.llm import LLM
    from llmproxy.scenario.scenario_state import ScenarioState

__all__ = ["AgentInput", "AgentReturnTypes", "AgentRole", "Message", "ScenarioResult", "ScriptStep"]

type Message = dict[str, Any]
"""One message of a conversation: ``{"role": "user", "content": "hi"}``."""


class AgentRole(Enum):
    """Who somebody is in a conversation; inside a turn they speak in this order."""

    USER = "User"
    AGENT = "Agent"
    JUDGE = "Judge"


@dataclass(kw_only=True)
class AgentInput(Plain):
    """What an adapter is called with. The messages are copies: changing them changes nothing."""

    thread_id: str
    """The same for everybody in one run."""
    messages: list[Message]
    """The whole conversation so far."""
    new_messages: list[Message]
    """What the others said since this adapter was last called."""
    judgment_request: bool = False
    """Whether a judge has to decide now."""
    scenario_state: Any
    """The :class:`ScenarioState`, with which an adapter can also add messages."""
    judgment_context: str | None = None
    """What ``scenario.judge("...")`` tells the judge."""
    _llm: LLM | None = field(default=None, repr=False, compare=False)

    @property
    def llm(self) -> LLM | None:
        """Where this run's LLM calls go: base URLs, headers and variables of its session; None without a proxy."""
        return self._llm

    def last_new_user_message(self) -> Message:
        """Return the last new message whose role is user. Raises ValueError if there is none."""
        for message in reversed(self.new_messages):
            if message["role"] == "user":
                return message
        raise ValueError(
            "No new user messages found, did you mean to call the assistant twice? "
            "Perhaps change your adapter to use the full messages list instead."
        )

    def last_new_user_message_str(self) -> str:
        """Return the text of the last new user message. Raises ValueError if there is none, or if it is more than a text."""
        content = self.last_new_user_message()["content"]
        if type(content) is not str:
            raise ValueError(
                f"Last user message is not a string: {content!r}. Please use the full messages list instead."
            )
        return content


@dataclass(kw_only=True, repr=False)
class ScenarioResult(Plain):
    """How a scenario ended."""

    success: bool
    messages: list[Message]
    """The conversation."""
    reasoning: str | None = None
    passed_criteria: list[str] = field(default_factory=list)
    failed_criteria: list[str] = field(default_factory=list)
    total_time: float | None = None
    """Seconds from start to end."""
    agent_time: float | None = None
    """Seconds in which the agent under test was thinking."""
    inconclusive_criteria: list[str] = field(default_factory=list)
    criteria: list[Criterion] = field(default_factory=list)
    """What the judge found about each criterion, with its evidence."""
    status: Status | None = None
    """PASSED or FAILED by `success`, unless it is said."""
    usage: Mapping[str, PartyUse] = field(default_factory=dict)
    """Calls, tokens and cost by party (agent, user, judge); empty without a proxy."""
    misses: Sequence[str] = ()
    tool_calls: Sequence[Any] | None = None
    """The agent's tool calls as seen on the wire; None without a proxy."""
    thread_id: str = ""
    run_id: str = ""
    cassette: str = ""
    """What the run is recorded as; empty without a proxy."""
    sample: int = 1
    replayed: bool | None = None
    """Whether every LLM call was answered from the recording; None when that is not known."""
    recorded_at: float | None = None
    """When the first call that was replayed was recorded, Unix time; None when nothing was replayed."""
    waited: float | None = None
    """Seconds in which the agent waited for its turn, because agents in one process take turns; None without a proxy."""
    labels: Sequence[str] = ()
    error: str = ""

    def __post_init__(self) -> None:
        """Derive the status."""
        if self.status is None:
            self.status = Status.PASSED if self.success else Status.FAILED

    def __repr__(self) -> str:
        status = "PASSED" if self.success else "FAILED"
        return f"ScenarioResult(success={self.success}, status={status}, reasoning='{self.reasoning or 'None'}')"


type AgentReturnTypes = str | Message | list[Message] | ScenarioResult | Any
"""What `AgentAdapter.call` may return: a text, a message (dict, or an object with a `role` such as litellm's), a list of messages, or
a :class:`ScenarioResult`, which ends the run. (Any, because message objects of all libraries are meant.)"""

type ScriptStep = Callable[[ScenarioState], ScenarioResult | Awaitable[Any] | Any]
"""A step of a script: takes the state, sync or async; a :class:`ScenarioResult` that it returns ends the run."""
