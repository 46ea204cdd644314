"""What users of scenarios write down and get back: roles, the input of an adapter, what it may return, and the result
of a run.

Messages are dicts in the form of OpenAI's chat completions. They hold what their author wrote and nothing else: no ids,
no times.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SkipValidation, field_validator, model_validator

from llmproxy.client.child_env import BASE_URLS, URL_VARIABLE, EnvironmentPlan, plan_env
from llmproxy.client.control import session_url
from llmproxy.protocol import AGENT, PARTY_HEADER, SESSION_HEADER
from llmproxy.report.events import Criterion, PartyUse, Status
from llmproxy.trace.observing.tool_calls import ToolUse

type Message = dict[str, Any]
"""One message of a conversation: ``{"role": "user", "content": "hi"}``."""
type Messages = Annotated[list[Message], SkipValidation]
"""Messages as they are: nothing of them is checked, converted or copied."""


class AgentRole(Enum):
    """Who somebody is in a conversation; inside a turn they speak in this order."""

    USER = "User"
    AGENT = "Agent"
    JUDGE = "Judge"


@dataclass(frozen=True, slots=True)
class LLM:
    """Access to models through the proxy, in one session: base URLs, headers and variables that name it.

    An adapter in this process that sends its calls by `input.llm` needs no turn of its own; an agent in another process
    or language gets the same as environment variables, or as plain values in each message (:meth:`LLM.to_dict`).
    """

    proxy: str
    """Address of the proxy."""
    session: str
    """Name of the session."""
    replay: bool = False
    """Whether nothing goes to a provider, so that no key is needed."""
    party: str = AGENT
    """Whose calls these are."""
    named: Callable[[], str] | None = field(default=None, compare=False, repr=False)
    """Gives the name in URLs for calls of `party`; None: the session's own, under which they are the agent's."""
    key_names: tuple[str, ...] | None = field(default=None, repr=False)
    """Variables of keys that the recorded run needed, which get a placeholder in replay; None: all that we know."""

    def base_url(self, provider: str) -> str:
        """Return a provider's base URL for its SDK, ``"openai"``, ``"groq"``, or a name of ``--upstream mine=URL``."""
        return session_url(self.proxy, self._resolve_session_name()) + _provider_paths().get(provider, f"/{provider}")

    @property
    def headers(self) -> dict[str, str]:
        """Headers that send a call of any URL of the proxy to this session."""
        return {SESSION_HEADER: self.session} | ({} if self.party == AGENT else {PARTY_HEADER: self.party})

    @property
    def env(self) -> dict[str, str]:
        """The variables to set for an agent in another process: base URLs, and placeholders of keys in replay."""
        return self._plan_environment(os.environ).changes

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a whole environment for an agent in another process, made from `env`."""
        return self._plan_environment(env).apply_to(env)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for an agent that is told in a message."""
        env = plan_env(self.proxy, self._resolve_session_name(), {}, replay=False).base_urls
        return {
            "proxy": self.proxy,
            "session": self.session,
            "base_urls": {name: self.base_url(name) for name in _provider_paths()},
            "headers": self.headers,
            "env": {**env, URL_VARIABLE: self.proxy},
        }

    def _plan_environment(self, env: Mapping[str, str]) -> EnvironmentPlan:
        return plan_env(self.proxy, self._resolve_session_name(), env, replay=self.replay, key_names=self.key_names)

    def _resolve_session_name(self) -> str:
        return self.session if self.named is None else self.named()


@cache
def _provider_paths() -> dict[str, str]:
    """Return what follows the session in a provider's base URL; OpenAI's has no prefix."""
    found = {"openai": "/v1"}
    for each in BASE_URLS:
        provider = each.path.split("/")[1]
        if provider != "v1":
            found.setdefault(provider, each.path)
    return found


class JudgmentRequest(BaseModel):
    """That a judge has to decide now. It is true by being there: without one, `AgentInput.judgment_request` is None."""

    model_config = ConfigDict(extra="forbid")

    criteria: list[str] | None = None
    """What to judge by, in place of the judge's own criteria; None: by those."""
    additional_context: str | None = None
    """What the judge is told beside the conversation."""
    context: str | None = None
    """The older name of `additional_context`; both say the same."""

    def model_post_init(self, _: object) -> None:
        """Let both names say the same; the older one alone is warned about, as it is there."""
        if self.context is not None and self.additional_context is None:
            older = "JudgmentRequest(context=...) is the older name of additional_context=."
            warnings.warn(older, DeprecationWarning, stacklevel=3)
        said = self.context if self.additional_context is None else self.additional_context
        self.additional_context = self.context = said


class CriterionResult(BaseModel):
    """What a judge found about one criterion; `criterion` is another name of `text`, `reasoning` one of `reason`."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    text: str = ""
    """The criterion as the scenario declares it."""
    requirement: str = ""
    """What the criterion asks for; the criterion itself, unless a judge of one's own says it in other words."""
    status: str
    """``passed``, ``failed`` or ``inconclusive``."""
    evidence: str = ""
    """Quoted from the conversation."""
    reason: str = ""
    """Why, in the judge's words."""
    votes: tuple[str, ...] = ()
    """The status that each judge gave, where there were several."""

    @model_validator(mode="before")
    @classmethod
    def _read_names(cls, given: Any) -> Any:
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

    def to_event(self) -> Criterion:
        return Criterion(
            id=self.id, text=self.text, status=self.status, evidence=self.evidence, reason=self.reason, votes=self.votes
        )


class AgentInput(BaseModel):
    """What an adapter is called with. The messages are copies: changing them changes nothing."""

    model_config = ConfigDict(extra="forbid")

    thread_id: str
    """The same for everybody in one run."""
    messages: Messages
    """The whole conversation so far."""
    new_messages: Messages
    """What the others said since this adapter was last called."""
    judgment_request: JudgmentRequest | None = None
    """There when a judge has to decide now, and true then; True and False are taken too."""
    scenario_state: Any
    """The :class:`ScenarioState`, with which an adapter can also add messages."""
    propagation_headers: dict[str, str] = Field(default_factory=dict)
    """W3C ``traceparent`` of this turn, for an adapter that calls a remote agent: the same in record and replay."""
    _llm: LLM | None = PrivateAttr(default=None)

    @field_validator("judgment_request", mode="before")
    @classmethod
    def _read_request(cls, asked: Any) -> Any:
        """Take what older programs say: whether a verdict is demanded, as a bool."""
        return (JudgmentRequest() if asked else None) if isinstance(asked, bool) else asked

    def bind_llm(self, llm: LLM | None) -> Self:
        """Let calls of models go there; returns the input itself."""
        self._llm = llm
        return self

    @property
    def judgment_context(self) -> str | None:
        """What ``scenario.judge(additional_context=...)`` tells the judge."""
        return self.judgment_request.additional_context if self.judgment_request else None

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
        """Return the text of the last new user message. Raises ValueError if there is none, or more than a text."""
        content = self.last_new_user_message()["content"]
        if type(content) is not str:
            raise ValueError(
                f"Last user message is not a string: {content!r}. Please use the full messages list instead."
            )
        return content


class ScenarioResult(BaseModel):  # noqa: PLW1641 (it changes, so it has no hash, as every model)
    """How a scenario ended."""

    model_config = ConfigDict(extra="forbid")

    success: bool
    messages: Messages
    """The conversation."""
    reasoning: str | None = None
    passed_criteria: list[str] = Field(default_factory=list)
    failed_criteria: list[str] = Field(default_factory=list)
    total_time: float | None = None
    """Seconds from start to end."""
    agent_time: float | None = None
    """Seconds in which the agent under test was thinking."""
    inconclusive_criteria: list[str] = Field(default_factory=list)
    criteria: list[CriterionResult] = Field(default_factory=list)
    """What the judge found about each criterion, with its evidence."""
    status: Status | None = None
    """PASSED or FAILED by `success`, unless it is said."""
    usage: dict[str, PartyUse] = Field(default_factory=dict)
    """Calls, tokens and cost by party (agent, user, judge); empty without a proxy."""
    misses: tuple[str, ...] = ()
    tool_calls: tuple[ToolUse, ...] | None = None
    """The agent's tool calls as seen on the wire; None without a proxy."""
    thread_id: str = ""
    run_id: str = ""
    cassette: str = ""
    """What the run is recorded as; empty without a proxy."""
    sample: int = 1
    replayed: bool | None = None
    """Whether every LLM call was answered from the recording; None when that is not known."""
    bound: int | None = None
    """Calls answered with this run's values in place of recorded ones (docs/bindings.md); None when not known."""
    bound_names: tuple[str, ...] = ()
    """What was bound in them."""
    carried: int = 0
    """Answers that were given although their requests have changed, because somebody accepted the changes."""
    carried_names: tuple[str, ...] = ()
    """Those changes."""
    stale: int = 0
    """Hits on recordings that are older than their max age."""
    dealt: int = 0
    """Hits that equal concurrent requests got in the order of arrival, though their answers differ."""
    recorded_at: float | None = None
    """When the first call that was replayed was recorded, Unix time; None when nothing was replayed."""
    waited: float | None = None
    """Seconds in which the agent waited for its turn, as agents in one process take them; None without a proxy."""
    labels: tuple[str, ...] = ()
    error: str = ""
    audio: ClassVar[None] = None
    timeline: ClassVar[None] = None
    latency: ClassVar[None] = None
    evaluations: ClassVar[Sequence[Any]] = ()
    """As of every conversation of text there: nothing was spoken, and nothing computed on LangWatch's servers."""

    def model_post_init(self, _: object) -> None:
        if self.status is None:
            self.status = Status.PASSED if self.success else Status.FAILED

    def __eq__(self, other: object) -> bool:
        """Compare what they say: calls of tools are objects, each equal to itself alone."""
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
"""A step of a script: takes the :class:`ScenarioState`, sync or async; a :class:`ScenarioResult` that it returns ends
the run."""
