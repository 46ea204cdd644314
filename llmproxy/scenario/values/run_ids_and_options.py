"""Facts of a run besides its conversation: ids, options, the running scenario, classification of errors.

Names of recordings must be stable between runs. With a session a thread id is a digest of (cassette, sample, scenario),
so the same in record and replay; other ids may be random.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from llmproxy.core.forks.overrides import parse_mocks
from llmproxy.errors import AgentError, LLMProxyError
from llmproxy.report.events import HandlerLike, Status, convert_to_event_handlers
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.types import AgentRole, Message, ScenarioResult
from llmproxy.trace.observing.tool_calls import ToolCallsAtMcpServers, ToolUse

DEFAULT_SET = "default"
_BATCH = "SCENARIO_BATCH_RUN_ID"
_LONGEST = 80
"""Maximum characters of a slug: file systems allow 255 bytes, and a sample and a suffix follow."""


def name_cassette(name: str, set_id: str | None = None) -> str:
    parts = [name] if not set_id or set_id == DEFAULT_SET else [set_id, name]
    # Two hyphens are in no slug, so a set and a name never look like another name.
    slug = "--".join(filter(None, (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)))[:_LONGEST]
    if slug == "--".join(parts):
        return slug
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{slug or 'scenario'}-{digest}"


def derive_thread_id(cassette: str = "", sample: int = 1, name: str = "") -> str:
    """Return the id of a conversation; random without a cassette."""
    if not cassette:
        return f"thread_{secrets.token_hex(14)}"
    return "thread_" + hashlib.sha256(f"{cassette}\0{sample}\0{name}".encode()).hexdigest()[:28]


def traceparent(thread: str, turn: int, place: int) -> str:
    """Return the W3C trace context of a call: a trace a turn, a span an agent; the same for the same thread id."""
    trace = hashlib.sha256(f"{thread}\0{turn}".encode()).hexdigest()[:32]
    return f"00-{trace}-{hashlib.sha256(f'{trace}{place}'.encode()).hexdigest()[:16]}-01"


def make_run_id() -> str:
    return f"scenariorun_{secrets.token_hex(16)}"


def batch_run_id() -> str:
    """Return the id of the batch; created at the first call, and passed to child processes by the environment."""
    return os.environ.setdefault(_BATCH, f"scenariobatchrun_{secrets.token_hex(16)}")


CALL_TIMEOUT = 120.0
"""Seconds for a call of an adapter: enough for a slow agent with several tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRunOptions:
    """The keyword-only additions of `run`, which documents them."""

    proxy: str | bool | None = None
    timeout: float | None = None
    call_timeout: float | None = CALL_TIMEOUT
    fresh_ids: bool = False
    """Whether thread ids are random even with a recording, for agents with a store that outlives runs."""
    cassette: str | None = None
    mode: str | None = None
    handlers: Sequence[HandlerLike] = ()
    history: Sequence[Message] | str | None = None
    metadata: Mapping[str, Any] | None = None
    parameters: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] | None = None
    mock: Mapping[str, Any] | None = None
    sample: int = 1
    runs: int = 1
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        if self.handlers != ():
            object.__setattr__(self, "handlers", convert_to_event_handlers(self.handlers))
        if self.mock is not None:
            parse_mocks(self.mock)
        for name in ("timeout", "call_timeout", "max_concurrency", "sample", "runs"):
            if (value := getattr(self, name)) is not None and not value > 0:  # nor NaN
                raise ValueError(f"{name} takes a number above 0, not {value!r}")


_ENGINE = ("llmproxy.", "asyncio.", "threading", "concurrent.", "contextlib")


def classify_run_error(error: BaseException, role: AgentRole | None) -> Status:
    """Return the status of a run that `error` ended during a call of `role`; None: a step or a callback."""
    if isinstance(error, AgentError):
        return Status.AGENT_ERROR
    if isinstance(error, LLMProxyError) or not isinstance(error, Exception):
        return Status.ENVIRONMENT_ERROR
    if role is AgentRole.AGENT:
        return Status.AGENT_ERROR
    return Status.FAILED if role is None and isinstance(error, AssertionError) else Status.ENVIRONMENT_ERROR


def describe_sys_exit(who: str, error: SystemExit) -> str:
    return f"{who} called sys.exit({'' if error.code is None else repr(error.code)})"


def describe_error(error: BaseException) -> str:
    if isinstance(error, LLMProxyError):
        return str(error)
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted: the run was cancelled before it ended"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def strip_own_frames_from_error[E: BaseException](error: E) -> E:
    """Return an error with a traceback from its author's first frame on; without for ours, whose text explains."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith(_ENGINE):
        frame = frame.tb_next
    if isinstance(error, LLMProxyError | asyncio.CancelledError) or frame is not None:
        return error.with_traceback(frame)
    return error


type _Ending = Awaitable[ScenarioResult | None]


class ScenarioExecutorProtocol(Protocol):
    """The part of a run used by lower layers; `ScenarioExecutor` is one."""

    config: ScenarioConfig
    options: ScenarioRunOptions
    marks: list[str]
    from_cache: list[str]
    wire_calls: Sequence[ToolUse] | None
    wire_served: ToolCallsAtMcpServers | None
    wire_unread: str
    wire_by_message: Mapping[int, Sequence[ToolUse]]
    unattributed: int
    emit_step: Callable[..., None]
    rollback_messages_to: Callable[[int], list[Message]]
    add_message: Callable[[Message], None]

    def evaluate_step(self, step: Any) -> Awaitable[object]: ...
    def message(self, message: Message) -> Awaitable[None]: ...
    def user(self, content: str | Message | None) -> _Ending: ...
    def agent(self, content: str | Message | None) -> _Ending: ...
    def judge(self, content: Any = None, *, criteria: Any = None) -> _Ending: ...
    def succeed(self, reasoning: str | None) -> Awaitable[ScenarioResult]: ...
    def fail(self, reasoning: str | None) -> Awaitable[ScenarioResult]: ...
    def proceed(self, turns: Any, on_turn: Any, on_step: Any, *, on_turn_end: Any) -> _Ending: ...


context_scenario: ContextVar[ScenarioExecutorProtocol | None] = ContextVar("scenario", default=None)
"""The executor of this context's agents, steps and callbacks."""
