"""Data classes of a trace: spans, usage, a run, assertion results.

The shape is Evalcraft's (0.12): the same names, defaults and JSON, so that a file written by either is read by the
other and has the same fingerprint there. Where the original has 0 for an unknown value, it is None here; a number that
the original's reader adds up is written as 0 and named in ``metadata["llmproxy.unknown"]``. Each error is also a
subclass of the one that the original raises (JSONDecodeError, AttributeError, KeyError, ValueError).
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

from llmproxy.errors import CassetteCorrupt

_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
UNKNOWN = "llmproxy.unknown"
"""Member of a span's metadata in files: names of unknown numbers, which are written as 0."""
UNREAD = "llmproxy.unread"
"""Member of an answer's metadata: why it is not known what the answer called."""


class TraceNotJSON(CassetteCorrupt, json.JSONDecodeError):
    """The file is no JSON: empty, cut off, or something else."""

    def __init__(self, message: str, cause: json.JSONDecodeError) -> None:
        ValueError.__init__(self, message)  # the next in line is JSONDecodeError's, which wants a document
        self.message, self.hint = message, ""
        self.msg, self.doc, self.pos = cause.msg, cause.doc, cause.pos
        self.lineno, self.colno = cause.lineno, cause.colno

    def __reduce__(self) -> Any:
        """Pickle like our errors; JSONDecodeError's way would lose the message."""
        return type(self), (self.message, json.JSONDecodeError(self.msg, self.doc, self.pos))


class TraceFileWrongShapeError(CassetteCorrupt, AttributeError, TypeError):
    """A list, a text or a number in place of an object, or the other way round."""


class TraceFileMissingMemberError(CassetteCorrupt, KeyError):
    """A required member is missing."""


class TraceFileInvalidValueError(CassetteCorrupt):
    """A member has an invalid value, such as an unknown kind."""


def raise_if_wrong_type(given: object, wanted: type, what: str) -> None:
    if not isinstance(given, wanted):
        raise TraceFileWrongShapeError(
            f"{what} must be {_NAMES[wanted]}, not {_NAMES.get(type(given), type(given).__name__)}."
        )


class SpanKind(StrEnum):
    LLM_REQUEST = "llm_request"
    LLM_RESPONSE = "llm_response"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    AGENT_STEP = "agent_step"
    USER_INPUT = "user_input"
    AGENT_OUTPUT = "agent_output"

    # As members of Evalcraft's enumeration print: a log line or a snapshot stays as it was.
    def __str__(self) -> str:
        return f"SpanKind.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


@dataclass
class TokenUsage:
    """Tokens of one call. `prompt_tokens` is the *fresh* input alone, unlike `core.traffic.interaction.Usage.input`."""

    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    total_tokens: int | None = 0
    """Sum of fresh, cached, cache-written and generated tokens."""
    cache_read_tokens: int | None = 0
    cache_write_tokens: int | None = 0

    @property
    def cached_tokens(self) -> int | None:
        """Tokens read from the cache and written to it; None if neither is known."""
        known = [count for count in (self.cache_read_tokens, self.cache_write_tokens) if count is not None]
        return sum(known) if known else None

    def to_dict(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in _COUNTS}

    @classmethod
    def from_dict(cls, data: Any) -> TokenUsage:
        raise_if_wrong_type(data, dict, "token_usage")
        counts = {name: data.get(name, 0) for name in _COUNTS}
        for name, count in counts.items():
            raise_unless_number_or_none(count, f"token_usage.{name}")
        return cls(**counts)


_COUNTS = tuple(TokenUsage.__dataclass_fields__)


def raise_unless_number_or_none(given: object, name: str) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
        raise TraceFileInvalidValueError(f"`{name}` must be a number, not {given!r:.60}.")


@dataclass
class Span:
    """One event of a run: a request to a model, its answer, a tool call ..."""

    id: str = field(default_factory=lambda: str(uuid.uuid4()))  # noqa: TID251 - the original's default
    kind: SpanKind = SpanKind.LLM_REQUEST
    name: str = ""
    timestamp: float = field(default_factory=time.time)  # noqa: TID251 - the original's default
    """Unix time, seconds."""
    duration_ms: float | None = 0.0
    """None if unknown."""
    parent_id: str | None = None
    input: Any = None
    output: Any = None
    error: str | None = None
    model: str | None = None
    token_usage: TokenUsage | None = None
    cost_usd: float | None = None
    tool_name: str | None = None
    tool_args: dict[str, Any] | None = None
    tool_result: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in _SPAN}
        kind: object = self.kind
        data["kind"] = kind.value if isinstance(kind, SpanKind) else kind
        unknown = []
        if self.duration_ms is None:
            data["duration_ms"] = 0.0
            unknown.append("duration_ms")
        if self.token_usage is not None:
            data["token_usage"] = usage = self.token_usage.to_dict()
            if usage["total_tokens"] is None:
                usage["total_tokens"] = 0
                unknown.append("token_usage.total_tokens")
        if unknown:
            data["metadata"] = {**(self.metadata or {}), UNKNOWN: unknown}
        return data

    @classmethod
    def from_dict(cls, data: Any) -> Span:
        """Read one span, ignoring unknown members. Raises TraceFile{MissingMember,InvalidValue,WrongShape}Error."""
        raise_if_wrong_type(data, dict, "a span")
        for name in ("id", "kind", "timestamp"):
            if name not in data:
                raise TraceFileMissingMemberError(f"A span has no {name!r}.")
        members = {name: data[name] for name in _SPAN if name in data}
        try:
            members["kind"] = SpanKind(data["kind"])
        except ValueError as error:
            known = ", ".join(kind.value for kind in SpanKind)
            raise TraceFileInvalidValueError(
                f"{data['kind']!r:.60} is not a kind of span; there are {known}."
            ) from error
        raise_unless_number_or_none(data.get("duration_ms", 0.0), "duration_ms")
        raise_unless_number_or_none(data.get("cost_usd"), "cost_usd")
        members["token_usage"] = TokenUsage.from_dict(data["token_usage"]) if data.get("token_usage") else None
        span = cls(**members)
        if UNKNOWN in (data.get("metadata") or ()):  # numbers that the file contains as 0
            span.metadata = dict(span.metadata)
            marks = span.metadata.pop(UNKNOWN)
            marks = marks if isinstance(marks, list) else []
            if "duration_ms" in marks:
                span.duration_ms = None
            if "token_usage.total_tokens" in marks and span.token_usage is not None:
                span.token_usage.total_tokens = None
        return span


_SPAN = tuple(Span.__dataclass_fields__)


def get_span_arguments_or_text(span: Span) -> Any:
    """Return a tool call's arguments; if they were no object, their text."""
    return span.tool_args if span.tool_args is not None else ({} if span.input is None else span.input)


@dataclass
class Provenance:
    recorded_at: float = 0.0
    """Unix time, seconds."""
    sdk_version: str = ""
    python_version: str = ""
    models: list[str] = field(default_factory=list)
    prompt_hash: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    requested_models: list[str] = field(default_factory=list)
    model_aliases: dict[str, list[str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return its members; alias table, tools and requested models only if not empty."""
        always = ("recorded_at", "sdk_version", "python_version", "models", "prompt_hash")
        data = {name: getattr(self, name) for name in always}
        optional = ("tools", "requested_models", "model_aliases")
        return data | {name: given for name in optional if (given := getattr(self, name))}

    @classmethod
    def from_dict(cls, data: Any) -> Provenance:
        raise_if_wrong_type(data, dict, "provenance")
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


@dataclass
class AssertionResult:
    """Result of an assertion. True if it passed, so that ``assert tool_called(run, "search")`` is enough."""

    name: str = ""
    passed: bool = True
    expected: Any = None
    actual: Any = None
    message: str = ""

    def __bool__(self) -> bool:
        """Return whether it passed; Evalcraft's result is always true, and has `passed`."""
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in AssertionResult.__dataclass_fields__}


@dataclass
class EvalResult:
    passed: bool = True
    score: float = 1.0
    """Share of passed assertions."""
    assertions: list[AssertionResult] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def failed_assertions(self) -> list[AssertionResult]:
        return [result for result in self.assertions if not result.passed]

    def __bool__(self) -> bool:
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "assertions": [result.to_dict() for result in self.assertions]}


class SpanListDigest:
    """The original's fingerprint, over the JSON of a list of spans that are added one at a time."""

    def __init__(self) -> None:
        self._digest = sha256(b"[")
        self._between = b""

    def add(self, span: dict[str, Any]) -> None:
        """Add a span. Raises TraceFileWrongShapeError for values without JSON form."""
        try:
            text = json.dumps(span, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError, RecursionError) as error:
            raise TraceFileWrongShapeError(f"Span {span.get('id')!r} cannot be written as JSON: {error}.") from error
        self._digest.update(self._between + text)
        self._between = b", "

    def hexdigest(self) -> str:
        closed = self._digest.copy()
        closed.update(b"]")
        return closed.hexdigest()[:16]
