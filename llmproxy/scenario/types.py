"""What users of scenarios write down and get back: roles, the input of an adapter, what it may return, and the result of a run.

Messages are dicts in the form of OpenAI's chat completions. They hold what their author wrote and nothing else: no ids, no times.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from llmproxy.report.events import Criterion, PartyUse, Status
from llmproxy.scenario.base.llm import LLM
from llmproxy.scenario.base.plain import Plain

type Message = dict[str, Any]
"""One message of a conversation: ``{"role": "user", "content": "hi"}``."""


class AgentRole(Enum):
    """Who somebody is in a conversation; inside a turn they speak in this order."""

    USER = "User"
    AGENT = "Agent"
    JUDGE = "Judge"


@dataclass(kw_only=True)
class JudgmentRequest(Plain):
    """That a judge has to decide now. It is true by being there: without one, `AgentInput.judgment_request` is None."""

    criteria: list[str] | None = None
    """What to judge by, in place of the judge's own criteria; None: by those."""
    additional_context: str | None = None
    """What the judge is told beside the conversation."""
    context: str | None = None
    """The older name of `additional_context`; both say the same."""

    def __post_init__(self) -> None:
        """Let both names say the same; the older one alone is warned about, as it is there."""
        if self.context is not None and self.additional_context is None:
            older = "JudgmentRequest(context=...) is the older name of additional_context=."
            warnings.warn(older, DeprecationWarning, stacklevel=3)
        said = self.context if self.additional_context is None else self.additional_context
        self.additional_context = self.context = said


class CriterionResult(Criterion):
    """What a judge found about one criterion, under the names of LangWatch Scenario: `criterion`, `requirement`, `reasoning`, `status`."""

    __slots__ = ("requirement",)
    requirement: str
    """What the criterion asks for; the criterion itself, unless a judge of one's own says it in other words."""

    def __init__(
        self,
        *,
        status: str,
        criterion: str = "",
        requirement: str = "",
        reasoning: str = "",
        id: str = "",  # noqa: A002 (the field's name)
        text: str = "",
        evidence: str = "",
        reason: str = "",
        votes: Sequence[str] = (),
    ) -> None:
        """Take a finding; `criterion` and `text`, `reasoning` and `reason` are two names of one thing."""
        text = criterion or text
        Criterion.__init__(
            self, id=id, text=text, status=status, evidence=evidence, reason=reasoning or reason, votes=votes
        )
        object.__setattr__(self, "requirement", requirement or text)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies and pickles keep the requirement, which is no field."""
        fields = {
            name: getattr(self, name) for name in ("id", "text", "status", "evidence", "reason", "votes", "requirement")
        }
        return _made_again, (fields,)

    @property
    def criterion(self) -> str:
        """The criterion as the scenario declares it."""
        return self.text

    @property
    def reasoning(self) -> str:
        """Why, in the judge's words."""
        return self.reason


def _made_again(fields: dict[str, Any]) -> CriterionResult:
    return CriterionResult(**fields)


@dataclass(kw_only=True)
class AgentInput(Plain):
    """What an adapter is called with. The messages are copies: changing them changes nothing."""

    thread_id: str
    """The same for everybody in one run."""
    messages: list[Message]
    """The whole conversation so far."""
    new_messages: list[Message]
    """What the others said since this adapter was last called."""
    judgment_request: JudgmentRequest | None = None
    """There when a judge has to decide now, and true then; True and False are taken too."""
    scenario_state: Any
    """The :class:`ScenarioState`, with which an adapter can also add messages."""
    propagation_headers: dict[str, str] = field(default_factory=dict)
    """W3C ``traceparent`` of this turn, for an adapter that calls a remote agent: the same in record and replay."""
    _llm: LLM | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Take what older programs say: whether a verdict is demanded, as a bool."""
        asked: Any = self.judgment_request
        if isinstance(asked, Mapping):
            self.judgment_request = JudgmentRequest.model_validate(asked)
        elif not isinstance(asked, JudgmentRequest):
            self.judgment_request = JudgmentRequest() if asked else None

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
    criteria: list[CriterionResult] = field(default_factory=list)
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
    bound: int | None = None
    """Calls that were answered with this run's values in place of the recorded ones (docs/bindings.md); None when that is not known."""
    bound_names: Sequence[str] = ()
    """What was bound in them."""
    recorded_at: float | None = None
    """When the first call that was replayed was recorded, Unix time; None when nothing was replayed."""
    waited: float | None = None
    """Seconds in which the agent waited for its turn, because agents in one process take turns; None without a proxy."""
    labels: Sequence[str] = ()
    error: str = ""
    audio: ClassVar[None] = None
    timeline: ClassVar[None] = None
    latency: ClassVar[None] = None
    evaluations: ClassVar[Sequence[Any]] = ()
    """As of every conversation of text there: nothing was spoken, and nothing computed on LangWatch's servers."""

    def __post_init__(self) -> None:
        if self.status is None:
            self.status = Status.PASSED if self.success else Status.FAILED

    def __repr__(self) -> str:
        status = "PASSED" if self.success else "FAILED"
        return f"ScenarioResult(success={self.success}, status={status}, reasoning='{self.reasoning or 'None'}')"


type AgentReturnTypes = str | Message | list[Message] | ScenarioResult | Any
"""What `AgentAdapter.call` may return: a text, a message (dict, or an object with a `role` such as litellm's), a list of messages, or
a :class:`ScenarioResult`, which ends the run. (Any, because message objects of all libraries are meant.)"""

type ScriptStep = Callable[[Any], ScenarioResult | Awaitable[Any] | Any]
"""A step of a script: takes the :class:`ScenarioState`, sync or async; a :class:`ScenarioResult` that it returns ends the run."""
