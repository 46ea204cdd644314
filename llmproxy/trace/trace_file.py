"""A trace: the spans of one run of an agent, its JSON file, its fingerprints, and the result of its replay.

    {"evalcraft_version": ..., "llmproxy_trace": 1, "cassette": {...}, "spans": [...]}       enveloped: read and written
    {"name": ..., "fingerprint": ..., "spans": [...]}                                        flat: read

`fingerprint` is the original's, over every member of every span: it shows whether a file was changed.
`behavior_fingerprint` is ours, over texts and tool calls: a new recording of the same behaviour has the same one. A
total adds up known values; `unknown` says whether it is complete, so that a budget is never met by missing data.
"""

from __future__ import annotations

import copy
import json
import platform
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import llmproxy
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteCorrupt, CassetteNewer, CassetteNotFound, MachineError
from llmproxy.file_io import read_bounded_text, replace_file
from llmproxy.lazy_regex import late
from llmproxy.protocol import AGENT
from llmproxy.trace.span_models import (
    UNREAD,
    Provenance,
    Span,
    SpanKind,
    SpanListDigest,
    TraceNotJSON,
    raise_if_wrong_type,
    raise_unless_number_or_none,
)

WRITES = "0.12.0"
"""Version of Evalcraft whose format is written."""
FORMAT = 1
"""Version of llmproxy's additions to the file; a newer one is refused."""
_LLM = (SpanKind.LLM_REQUEST, SpanKind.LLM_RESPONSE)
_CLIENT_ERROR = 400
"""Least HTTP status at which nothing was generated, so nothing is billed."""
_SPACE = late(r"\s+")
_IDS = frozenset({"id", "call_id", "tool_call_id"})
"""Members that hold a message's own id."""
_DEPTH = 64
# Stricter than the table of volatile differences: there both sides are at hand, here a wrong match would hide a change.
_VOLATILE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, late(pattern))
    for name, pattern in (
        ("uuid", r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
        ("time", r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"),
        ("temp", r"(?:/private)?/(?:tmp|var/folders|var/tmp)/[^\s\"'`<>,;)]+"),
        ("id", r"\b(?:call|toolu|tooluse|chatcmpl|resp|msg|run|thread|req)[_-](?=\w*\d)[\w-]{8,}"),
        ("stamp", r"\b1[0-9]{9}(?:\.\d+|\d{3}|\d{6})?\b"),
    )
)


def _read_json_file(path: Path) -> Any:
    """Read a JSON file; errors name it. Raises as `Cassette.load`."""
    try:
        text = read_bounded_text(path)
    except FileNotFoundError as error:
        raise CassetteNotFound(f"There is no trace file {path}.", hint="`export --format spans` writes one.") from error
    except UnicodeDecodeError as error:
        raise CassetteCorrupt(f"{path}: not UTF-8 text ({error.reason}).") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = "the file is empty" if not text.strip() else f"not JSON, or cut off ({error.msg})"
        raise TraceNotJSON(f"{path}, line {error.lineno}: {what}.", error) from error
    except RecursionError as error:
        raise CassetteCorrupt(f"{path}: nested too deeply.") from error


@dataclass
class Cassette:
    """One run of an agent as spans, with totals."""

    id: str = field(default_factory=lambda: str(uuid.uuid4()))  # noqa: TID251 - the original's default
    name: str = ""
    version: str = "1.0"
    created_at: float = field(default_factory=time.time)  # noqa: TID251 - the original's default
    """Unix time, seconds."""
    agent_name: str = ""
    framework: str = ""
    spans: list[Span] = field(default_factory=list)
    input_text: str = ""
    output_text: str = ""
    total_tokens: int = 0
    """Sum over spans with tokens; :attr:`unknown` shows whether any lack them."""
    total_cost_usd: float = 0.0
    total_duration_ms: float = 0.0
    """Sum of the spans' durations, not elapsed time."""
    llm_call_count: int = 0
    """Requests *and* responses to models, as the original counts."""
    tool_call_count: int = 0
    fingerprint: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    provenance: Provenance | None = None
    created_at_unknown: bool = False
    """Whether the file has no creation time. Not written."""

    def compute_fingerprint(self) -> str:
        """Set and return the fingerprint: 16 hex digits over all members of the spans, ids and times included."""
        digest = SpanListDigest()
        for span in self.spans:
            digest.add(span.to_dict())
        self.fingerprint = digest.hexdigest()
        return self.fingerprint

    @property
    def behavior_fingerprint(self) -> str:
        """16 hex digits over texts and tool calls, unchanged in a new recording of the same behaviour."""
        return behavior_fingerprint(self)

    def compute_metrics(self) -> None:
        self.total_tokens = self.llm_call_count = self.tool_call_count = 0
        self.total_cost_usd = self.total_duration_ms = 0.0
        for span in self.spans:
            self.count_span(span)

    def add_span(self, span: Span) -> None:
        self.spans.append(span)
        self.count_span(span)

    def count_span(self, span: Span) -> None:
        self.total_duration_ms += span.duration_ms or 0.0
        if span.token_usage is not None:
            self.total_tokens += span.token_usage.total_tokens or 0
        if span.cost_usd:
            self.total_cost_usd += span.cost_usd
        self.llm_call_count += span.kind in _LLM
        self.tool_call_count += span.kind is SpanKind.TOOL_CALL

    @property
    def unknown(self) -> dict[str, int]:
        """Number of spans without ``cost``, ``tokens`` or ``duration``, and ``answers`` with unknown calls, if any."""
        found = {"cost": 0, "tokens": 0, "duration": 0, "answers": 0}
        requests: dict[str, Span] = {}
        for span in self.spans:
            if span.kind is SpanKind.LLM_REQUEST:
                requests[span.id] = requests[""] = span  # "": the last one, for traces whose spans name no parents
            elif span.kind is SpanKind.TOOL_CALL:
                found["duration"] += span.duration_ms is None
            elif _is_billed_answer(span):
                found["answers"] += UNREAD in (span.metadata or {})
                request = requests.pop(span.parent_id or "", None)
                found["cost"] += span.cost_usd is None and (request is None or request.cost_usd is None)
                found["tokens"] += not _has_tokens(span) and (request is None or not _has_tokens(request))
                found["duration"] += span.duration_ms is None
        requests.pop("", None)
        for request in requests.values():  # never answered, as far as known; one that was counted should have a price
            found["cost"] += request.token_usage is not None and request.cost_usd is None
        return {name: count for name, count in found.items() if count}

    @property
    def was_refused(self) -> bool:
        answers = [span for span in self.spans if span.kind is SpanKind.LLM_RESPONSE]
        return bool(answers) and not any(map(_is_billed_answer, answers))

    def get_tool_calls(self) -> list[Span]:
        return [span for span in self.spans if span.kind is SpanKind.TOOL_CALL]

    def get_llm_calls(self) -> list[Span]:
        return [span for span in self.spans if span.kind in _LLM]

    def get_tool_sequence(self) -> list[str]:
        """Return the called tools' names in order, without unnamed calls."""
        return [span.tool_name for span in self.get_tool_calls() if span.tool_name]

    def capture_provenance(self) -> Provenance:
        calls = self.get_llm_calls()
        text = json.dumps(
            {"input_text": self.input_text, "llm_inputs": [span.input for span in calls]}, sort_keys=True, default=str
        )
        models = sorted({span.model for span in calls if span.model})
        self.provenance = Provenance(
            recorded_at=time.time(),  # noqa: TID251 - the file holds the time of its recording
            sdk_version=f"llmproxy {llmproxy.__version__}",
            python_version=platform.python_version(),
            models=models,
            prompt_hash=sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16],
            requested_models=list(models),
        )
        return self.provenance

    def to_dict(self) -> dict[str, Any]:
        """Return the enveloped form, with recomputed totals and fingerprint."""
        self.compute_metrics()
        self.compute_fingerprint()
        return {**build_trace_file_header(self), "spans": [span.to_dict() for span in self.spans]}

    @classmethod
    def from_dict(cls, data: Any) -> Cassette:
        """Read either form, ignoring unknown members, with the totals of the file.

        Raises CassetteCorrupt, in the subclass that is also the original's error (`span_models`), and CassetteNewer.
        """
        raise_if_wrong_type(data, dict, "A trace file")
        newer = data.get("llmproxy_trace", FORMAT)
        if isinstance(newer, int) and newer > FORMAT:
            raise CassetteNewer(
                f"This trace was written by a newer llmproxy (format {newer}, we know {FORMAT}).",
                hint="Upgrade llmproxy, or export the recording again.",
            )
        head = data.get("cassette", data)
        raise_if_wrong_type(head, dict, "`cassette`")
        members = {name: copy.deepcopy(head[name]) for name in _HEAD if name in head}
        for name in ("total_tokens", "total_cost_usd", "total_duration_ms", "llm_call_count", "tool_call_count"):
            raise_unless_number_or_none(members.get(name, 0), name)
        if head.get("provenance"):
            members["provenance"] = Provenance.from_dict(head["provenance"])
        spans = data.get("spans", [])
        raise_if_wrong_type(spans, list, "`spans`")
        return cls(**members, spans=[_read_span(span, n) for n, span in enumerate(spans)],
                   created_at_unknown=head.get("created_at") is None)  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the file atomically, creating its folders; returns its path. Values without JSON form become text."""
        path, data = Path(path), self.to_dict()
        try:
            with replace_file(path, "surrogatepass") as file:
                json.dump(data, file, indent=2, default=str)
                file.write("\n")
        except OSError as error:
            raise MachineError(f"{path} cannot be written: {error.strerror or error}.") from error
        return path

    @classmethod
    def load(cls, path: str | Path) -> Cassette:
        """Read a file.

        Raises CassetteNotFound (also a FileNotFoundError); CassetteCorrupt: invalid content (also JSONDecodeError,
        AttributeError, KeyError or ValueError); CassetteNewer: a newer llmproxy wrote it.
        """
        data = _read_json_file(Path(path))
        try:
            return cls.from_dict(data)
        except (CassetteCorrupt, CassetteNewer) as error:
            where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            error.message = f"{path}: {error.message}{where}"
            raise

    @classmethod
    def from_store(cls, path: str | Path, *, cassette: str, sample: int = 1, party: str | None = AGENT) -> Cassette:
        """Convert a recording into a trace; `party` None takes all parties. Raises CassetteNotFound, CassetteError."""
        from llmproxy.trace.reading.recording_spans import spans_of

        return _build_trace(cassette, sample, spans_of(path, cassette=cassette, sample=sample, party=party))


_HEAD = tuple(name for name in Cassette.__dataclass_fields__
              if name not in ("spans", "provenance", "created_at_unknown"))  # fmt: skip


def _read_span(data: object, position: int) -> Span:
    try:
        return Span.from_dict(data)
    except Exception as error:
        error.add_note(f"in spans[{position}]")
        raise


def build_trace_file_header(cassette: Cassette) -> dict[str, Any]:
    head = {name: getattr(cassette, name) for name in _HEAD}
    head["provenance"] = cassette.provenance.to_dict() if cassette.provenance else None
    return {"evalcraft_version": WRITES, "llmproxy_trace": FORMAT, "cassette": head}


def build_empty_trace(cassette: str, sample: int) -> Cassette:
    return Cassette(
        id=f"{cassette}~{sample}", name=cassette, framework="llmproxy", created_at=0.0, created_at_unknown=True,
        metadata={"llmproxy.cassette": cassette, "llmproxy.sample": sample},
    )  # fmt: skip


def add_spans_to_totals(trace: Cassette, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans, each after adding it to a trace's totals; the first input and the last output are the trace's."""
    root: set[str] = set()
    for span in spans:
        trace.count_span(span)
        if trace.created_at_unknown:
            trace.created_at, trace.created_at_unknown = span.timestamp, False
        if span.kind is SpanKind.AGENT_STEP and span.name == "conversation":
            root.add(span.metadata["gen_ai.conversation.id"])
        elif span.metadata.get("gen_ai.conversation.id") in root:
            if span.kind is SpanKind.USER_INPUT and not trace.input_text:
                trace.input_text = span.input
            elif span.kind is SpanKind.AGENT_OUTPUT:
                trace.output_text = span.output
        yield span


def build_trace_from_interactions(interactions: Iterable[Interaction], name: str) -> Cassette:
    """Convert the agent's interactions, in the order of their requests, into a trace of this name."""
    from llmproxy.trace.reading.span_builder import build_spans

    return _build_trace(name, 1, build_spans(each for each in interactions if each.party == AGENT))


def _build_trace(cassette: str, sample: int, spans: Iterable[Span]) -> Cassette:
    trace = build_empty_trace(cassette, sample)
    trace.spans += add_spans_to_totals(trace, spans)
    trace.compute_fingerprint()
    return trace


@dataclass
class AgentRun:
    cassette: Cassette
    success: bool = True
    error: str | None = None
    replayed: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "cassette": self.cassette.to_dict()}


def _has_tokens(span: Span) -> bool:
    return span.token_usage is not None and span.token_usage.total_tokens is not None


def _is_billed_answer(span: Span) -> bool:
    metadata = span.metadata or {}
    status = metadata.get("http.response.status_code")
    if isinstance(status, int) and status >= _CLIENT_ERROR:
        return False
    return span.kind is SpanKind.LLM_RESPONSE or bool(metadata.get("llmproxy.model_call"))


def behavior_fingerprint(cassette: Cassette) -> str:
    digest = sha256()
    texts = map(replace_volatile_parts, (cassette.input_text, cassette.output_text))
    # An agent's step only groups others.
    spans = (_extract_span_behavior(span) for span in cassette.spans if span.kind is not SpanKind.AGENT_STEP)
    for value in chain(texts, spans):
        digest.update(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def _extract_span_behavior(span: Span) -> list[Any]:
    is_of_tool = span.kind in (SpanKind.TOOL_CALL, SpanKind.TOOL_RESULT)
    names = [span.kind.value, span.tool_name] if is_of_tool else [span.kind.value]
    said = span.tool_args if is_of_tool and span.tool_args is not None else span.input
    result = span.tool_result if is_of_tool and span.tool_result is not None else span.output
    return [*names, replace_volatile_parts(said), replace_volatile_parts(result), bool(span.error)]


def replace_volatile_parts(value: Any, depth: int = 0) -> Any:
    """Return a value without parts that change from run to run; JSON texts count as their values."""
    if depth > _DEPTH:
        return "<deep>"
    if isinstance(value, str):
        if value[:1] in ("{", "[") and isinstance(tree := parse_json_or_none(value), dict | list):
            return replace_volatile_parts(tree, depth + 1)
        for name, pattern in _VOLATILE:
            value = pattern.sub(f"<{name}>", value)
        return _SPACE.sub(" ", value).strip()
    if isinstance(value, dict):
        # A message, or a tool call within one: its own id is irrelevant.
        identified = isinstance(value.get("role"), str) or ("name" in value and "arguments" in value)
        kept = {name: each for name, each in value.items() if not (identified and name in _IDS)}
        return {str(name): replace_volatile_parts(each, depth + 1) for name, each in kept.items()}
    if isinstance(value, list | tuple):
        return [replace_volatile_parts(each, depth + 1) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
