"""Types of the scenario API: roles, input and return types of adapters, and the result of a run.

Messages are dicts in the form of OpenAI's chat completions, with only what their author wrote: no ids, no times.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SkipValidation, field_validator, model_validator

from llmproxy.client.child_env import BASE_URLS, URL_VARIABLE, EnvironmentPlan, plan_env
from llmproxy.client.control import session_url
from llmproxy.protocol import AGENT, PARTY_HEADER, SESSION_HEADER
from llmproxy.report.events import JudgedCriterion, PartyUse, Status
from llmproxy.trace.observing.tool_calls import ToolUse

type Message = dict[str, Any]
"""One message of a conversation: ``{"role": "user", "content": "hi"}``."""
type Messages = Annotated[list[Message], SkipValidation]
"""Messages as they are: nothing of them is checked, converted or copied."""


class AgentRole(Enum):
    """Role in a conversation; roles speak in this order within a turn."""

    USER = "User"
    AGENT = "Agent"
    JUDGE = "Judge"


@dataclass(frozen=True, slots=True)
class AdapterModelAccessThroughProxy:
    """Access to models through the proxy, in one session.

    An adapter in this process that sends its calls by `input.llm` needs no turn of its own; an agent in another process
    gets the same as environment variables, or as plain values in each message (:meth:`LLM.to_dict`).
    """

    proxy: str
    session: str
    replay: bool = False
    """Whether nothing goes to a provider, so that no key is needed."""
    party: str = AGENT
    named: Callable[[], str] | None = field(default=None, compare=False, repr=False)
    """Returns the name in URLs for calls of `party`; None: the session's own, for the agent's calls."""
    key_names: tuple[str, ...] | None = field(default=None, repr=False)
    """Variables of keys that the recorded run had, which get a placeholder in replay; None: all known ones."""

    def base_url(self, provider: str) -> str:
        """Return a provider's base URL for its SDK, ``"openai"``, ``"groq"``, or a name of ``--upstream mine=URL``."""
        return session_url(self.proxy, self._resolve_session_name()) + _map_provider_paths().get(
            provider, f"/{provider}"
        )

    @property
    def headers(self) -> dict[str, str]:
        return {SESSION_HEADER: self.session} | ({} if self.party == AGENT else {PARTY_HEADER: self.party})

    @property
    def env(self) -> dict[str, str]:
        """Variables for an agent in another process: base URLs, and placeholder keys in replay."""
        return self._plan_environment(os.environ).changes

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return self._plan_environment(env).apply_to(env)

    def to_dict(self) -> dict[str, Any]:
        env = plan_env(self.proxy, self._resolve_session_name(), {}, replay=False).base_urls
        return {
            "proxy": self.proxy,
            "session": self.session,
            "base_urls": {name: self.base_url(name) for name in _map_provider_paths()},
            "headers": self.headers,
            "env": {**env, URL_VARIABLE: self.proxy},
        }

    def _plan_environment(self, env: Mapping[str, str]) -> EnvironmentPlan:
        return plan_env(self.proxy, self._resolve_session_name(), env, replay=self.replay, key_names=self.key_names)

    def _resolve_session_name(self) -> str:
        return self.session if self.named is None else self.named()


@cache
def _map_provider_paths() -> dict[str, str]:
    """Return the path after the session in a provider's base URL; OpenAI's has no prefix."""
    found = {"openai": "/v1"}
    for each in BASE_URLS:
        if (provider := each.path.split("/")[1]) != "v1":
            found.setdefault(provider, each.path)
    return found


class JudgmentRequest(BaseModel):
    """A demand for a verdict. It is always true; otherwise `AgentInput.judgment_request` is None."""

    model_config = ConfigDict(extra="forbid")

    criteria: list[str] | None = None
    """Criteria in place of the judge's own; None: its own."""
    additional_context: str | None = None
    context: str | None = None
    """The older name of `additional_context`, with the same value."""

    def model_post_init(self, _: object) -> None:
        """Set both names; the older one alone causes a warning, like in the original."""
        if self.context is not None and self.additional_context is None:
            older = "JudgmentRequest(context=...) is the older name of additional_context=."
            warnings.warn(older, DeprecationWarning, stacklevel=3)
        said = self.context if self.additional_context is None else self.additional_context
        self.additional_context = self.context = said


class CriterionResult(BaseModel):
    """A judge's finding about one criterion; `criterion` is an alias of `text`, `reasoning` of `reason`."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    text: str = ""
    requirement: str = ""
    """The criterion's requirement; the criterion itself, unless a custom judge words it differently."""
    status: str
    """``passed``, ``failed`` or ``inconclusive``."""
    evidence: str = ""
    reason: str = ""
    votes: tuple[str, ...] = ()
    """Status by each judge, if there were several."""

    @model_validator(mode="before")
    @classmethod
    def _accept_alternative_field_names(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        other = {"criterion": "text", "reasoning": "reason"}
        found = {name: value for name, value in given.items() if name not in other}
        found |= {other[name]: value for name, value in given.items() if name in other and value}
        return {**found, "requirement": found.get("requirement") or found.get("text", "")}

    @property
    def criterion(self) -> str:
        return self.text

    @property
    def reasoning(self) -> str:
        return self.reason

    def to_event(self) -> JudgedCriterion:
        return JudgedCriterion(**self.model_dump(include={each.name for each in fields(JudgedCriterion)}))


class AgentInput(BaseModel):
    """Input of an adapter. The messages are copies: changing them has no effect."""

    model_config = ConfigDict(extra="forbid")

    thread_id: str
    messages: Messages
    new_messages: Messages
    """Messages of others since this adapter's last call."""
    judgment_request: JudgmentRequest | None = None
    """Set if a judge has to decide now, and true then; True and False are accepted too."""
    scenario_state: Any
    """The :class:`ScenarioState`, with which an adapter can also add messages."""
    propagation_headers: dict[str, str] = Field(default_factory=dict)
    """W3C ``traceparent`` of this turn, for an adapter that calls a remote agent: the same in record and replay."""
    _llm: AdapterModelAccessThroughProxy | None = PrivateAttr(default=None)

    @field_validator("judgment_request", mode="before")
    @classmethod
    def _accept_boolean_judgment_request(cls, asked: Any) -> Any:
        return (JudgmentRequest() if asked else None) if isinstance(asked, bool) else asked

    def set_llm(self, llm: AdapterModelAccessThroughProxy | None) -> Self:
        self._llm = llm
        return self

    @property
    def judgment_context(self) -> str | None:
        return self.judgment_request.additional_context if self.judgment_request else None

    @property
    def llm(self) -> AdapterModelAccessThroughProxy | None:
        """Access to models for this run: base URLs, headers and variables of its session; None without a proxy."""
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
        """Return the text of the last new user message. Raises ValueError if there is none, or not only text."""
        content = self.last_new_user_message()["content"]
        if type(content) is not str:
            raise ValueError(
                f"Last user message is not a string: {content!r}. Please use the full messages list instead."
            )
        return content


class ScenarioResult(BaseModel):  # noqa: PLW1641 (it changes, so it has no hash, as every model)
    model_config = ConfigDict(extra="forbid")

    success: bool
    messages: Messages
    reasoning: str | None = None
    passed_criteria: list[str] = Field(default_factory=list)
    failed_criteria: list[str] = Field(default_factory=list)
    total_time: float | None = None  # seconds
    agent_time: float | None = None  # seconds in which the agent under test was working
    inconclusive_criteria: list[str] = Field(default_factory=list)
    criteria: list[CriterionResult] = Field(default_factory=list)
    status: Status | None = None
    """PASSED or FAILED by `success`, unless given."""
    usage: dict[str, PartyUse] = Field(default_factory=dict)
    """Calls, tokens and cost by party (agent, user, judge); empty without a proxy."""
    misses: tuple[str, ...] = ()
    tool_calls: tuple[ToolUse, ...] | None = None
    """The agent's tool calls on the wire; None without a proxy."""
    thread_id: str = ""
    run_id: str = ""
    cassette: str = ""
    sample: int = 1
    replayed: bool | None = None
    """Whether every LLM call was answered from the recording; None if unknown."""
    bound: int | None = None
    """Calls answered with this run's values in place of recorded ones (docs/bindings.md); None if unknown."""
    bound_names: tuple[str, ...] = ()
    carried: int = 0
    """Answers carried over changed requests, by accepted changes."""
    carried_names: tuple[str, ...] = ()
    stale: int = 0
    """Hits on recordings older than their max age."""
    dealt: int = 0
    """Hits of equal concurrent requests with different answers, assigned in order of arrival."""
    recorded_at: float | None = None
    """Unix time of the first replayed recording; None without any."""
    waited: float | None = None
    """Seconds that the agent waited for its turn, since agents in one process take turns; None without a proxy."""
    labels: tuple[str, ...] = ()
    error: str = ""
    audio: ClassVar[None] = None
    timeline: ClassVar[None] = None
    latency: ClassVar[None] = None
    evaluations: ClassVar[Sequence[Any]] = ()

    def model_post_init(self, _: object) -> None:
        if self.status is None:
            self.status = Status.PASSED if self.success else Status.FAILED

    def __eq__(self, other: object) -> bool:
        """Compare by fields; tool call objects are equal only to themselves."""
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    def __repr__(self) -> str:
        status = "PASSED" if self.success else "FAILED"
        return f"ScenarioResult(success={self.success}, status={status}, reasoning='{self.reasoning or 'None'}')"

    __str__ = __repr__


type AgentReturnTypes = str | Message | list[Message] | ScenarioResult | Any
"""What `AgentAdapter.call` may return: a text, a message (dict, or an object with a `role` such as litellm's), a list
of messages, or a :class:`ScenarioResult`, which ends the run. (Any, because message objects of all libraries are
meant.)"""

type ScriptStep = Callable[[Any], ScenarioResult | Awaitable[Any] | Any]
"""A script's step: takes the :class:`ScenarioState`, sync or async; a returned :class:`ScenarioResult` ends the run."""
