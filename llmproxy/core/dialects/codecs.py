"""The dialects, a row each: which operations a file speaks, and what the file says of them.

    get_operation_codec("messages")   -> how the bodies of this operation are read and written
    get_dialect("anthropic")          -> how a provider of this family says that it failed

Whoever reads or writes a body asks here and compares no names. A file is loaded when it is first asked: of seven
dialects a run speaks one or two.

Errors are said here as well: an SDK shows a message only where its provider puts one, and every family puts it
elsewhere; a provider's own errors, for injected faults, have the codes by which SDKs choose an exception and decide to
try again. Shapes were measured in 19 clients; sources: the providers' error references and recorded answers, read
2026-07.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from llmproxy.core.traffic.interaction import header

if TYPE_CHECKING:
    from llmproxy.core.dialects.messages import Draft, Message
    from llmproxy.core.providers.provider_table import Family
    from llmproxy.core.traffic.interaction import Headers

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    model: str
    message: Message
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Token counts under the names of any provider."""
    finish: str = ""
    """OpenAI's name for why it ended, or ``refusal``; empty: what fits."""

    @property
    def why(self) -> str:
        """OpenAI's finish reason."""
        if self.finish == "refusal":
            return "stop"
        return self.finish or ("tool_calls" if self.message.tool_calls else "stop")

    @property
    def id(self) -> str:
        """A part of ids, made from the content."""
        return hashlib.sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()[:24]

    def find_token_count(self, *names: str) -> int | None:
        """Return the first of these counts."""
        return next((value for name in names if isinstance(value := self.usage.get(name), int)), None)


class AnswerForm(NamedTuple):
    """In which form the client wants an answer."""

    request: Json
    """Its body."""
    stream: bool
    target: str


class FailedCall(NamedTuple):
    """Of the request, what an error's text repeats."""

    model: str = ""
    retry_after: float = 0
    """Seconds."""


class BodyLayout(NamedTuple):
    """In which members of a request what people write stands; the others are parameters."""

    turns: tuple[str, ...] = ("messages",)
    """The conversation."""
    system: tuple[str, ...] = ()
    """System text that is no message."""
    tools: tuple[str, ...] = ("tools",)
    """Definitions, or an object with `tools`."""
    results: tuple[str, ...] = ()
    """Results of tools that are no messages."""
    wrapper: str = ""
    """What may hold the whole body."""


_MESSAGES = BodyLayout()


@dataclass(frozen=True, slots=True)
class Codec:
    """How the bodies of one operation are read and written."""

    add: Callable[[Draft, Json], None]
    """Adds one JSON value of an answer to a draft: all of it, or what an event of its stream holds."""
    ends: Callable[[Json], bool] | None = None
    """Whether an event ends its stream."""
    done: bool = False
    """Whether ``data: [DONE]`` ends its stream."""
    finishes: Callable[[Json], bool] | None = None
    """Of a stream that ends with HTTP: whether an event says that the answer is complete."""
    below: bool = False
    """Whether streams of what stands below it (``threads/t/runs``) end in the same way."""
    write: Callable[[SpokenTurn, AnswerForm], tuple[Headers, list[bytes]]] | None = None
    """What is said -> header fields, pieces of the body."""
    text_whole: bool = True
    """Whether the arguments of a tool call stand in a whole answer as text, which may break off, not as an object."""
    text_streamed: bool = True
    """As `text_whole`, of a stream."""
    exclusive: bool = False
    """Whether its count of input tokens leaves cached ones out."""
    count_headers: Mapping[str, str] = field(default_factory=dict)
    """Header fields in which some of its models count tokens, and what is counted."""
    makes_ids: bool = False
    """Whether an answer makes ids (of a container, of calls to be answered) that later requests name."""
    error_event: Callable[[int], tuple[str, Json]] | None = None
    """As `Dialect.error_event`, where the operation has one of its own."""
    layout: BodyLayout = _MESSAGES


@dataclass(frozen=True, slots=True)
class Composer:
    """How a request, an answer and an error are made up, for formats that know the meaning only."""

    ask: Callable[[str, Sequence[Message], bool], tuple[str, Json]]
    """(model, messages, stream) -> URL, body."""
    answer: Callable[[SpokenTurn], Json]
    stream: Callable[[SpokenTurn], list[tuple[str, object]]]
    """Events of (name or empty, JSON value or text)."""
    error: Callable[[Json, int], Json]


@dataclass(frozen=True, slots=True)
class Dialect:
    """All that one file says: the constant DIALECT of it."""

    codecs: Mapping[str, Codec]
    """By operation."""
    error: Callable[[int, str, str], tuple[Headers, object]]
    """(status, code, message) of an error of ours -> further header fields, JSON value where SDKs look for it."""
    failure: Callable[[int, FailedCall], tuple[Json, Headers]]
    """What the provider itself sends with a status: JSON body, header fields."""
    error_event: Callable[[int], tuple[str, Json]]
    """The event that says in the middle of a stream, after so many others, that it failed: name or empty, value."""
    made_names: tuple[str, ...] = ()
    """How names begin that its servers give to what they keep."""
    reasoning_apart: bool = False
    """Whether some of its servers leave reasoning out of the output tokens, as the total says then."""
    speaker: Composer | None = None


class LazyDialect(NamedTuple):
    """What is known of a dialect before its file is loaded."""

    module: str
    families: tuple[Family, ...] = ()
    """Providers that say errors so."""
    operations: tuple[str, ...] = ()
    """In which somebody says something and a model answers."""
    others: tuple[str, ...] = ()
    miss_status: int = 404
    """Of a miss, as clients take it best (`scripts/lab/miss-status`). With ``x-should-retry: false`` every SDK tries
    once.
    """
    models: str = ""
    """How the names of its maker's models begin; its file has a `Composer`."""


ROWS = (
    LazyDialect(
        "openai_chat", ("openai", "generic"),
        ("chat.completions", "completions", "fim.completions", "agents.completions", "writer.chat",
         "writer.completions", "generate"),
        ("images.generations", "images.edits", "audio.transcriptions"),
    ),
    # 404 would say to a tool that what it asks for does not exist, and 5xx of gateways are asked again
    LazyDialect("openai_chat", ("http",), miss_status=501),
    # Codex asks six times at 404 and 422, thirty times at 501; opencode seven times at 404, twice at 400 (a title, too)
    LazyDialect("openai_responses", operations=("responses",), miss_status=400),
    LazyDialect("openai_responses", others=("realtime", "threads", "threads.runs")),
    # other clients than Claude Code (`_CLIENTS`): 404 says that the model may not exist, 501 is asked again
    LazyDialect("anthropic", ("anthropic",), ("messages", "complete"), miss_status=400, models="claude"),
    LazyDialect("gemini", ("gemini",), ("generateContent",), models="gemini"),
    LazyDialect("bedrock", ("bedrock",), ("converse", "invoke")),
    LazyDialect("ollama", ("ollama",), ("api.chat", "api.generate"), ("api.pull", "api.push", "api.create")),
    LazyDialect("cohere", ("cohere",), ("v1.chat", "v1.generate", "v2.chat")),
)  # fmt: skip
"""Every dialect. What nobody knows is taken for the first one's, which most others speak."""


class ClientMissStatus(NamedTuple):
    """A client that takes another status of a miss better than the rest of its dialect."""

    header: str
    begins: str
    """How the value of that header field begins."""
    family: Family
    status: int
    degrades: bool = False
    """Whether it drops options and asks on when it is refused."""

    def matches_headers(self, headers: Headers) -> bool:
        """Return whether these are its fields."""
        value = header(headers, self.header)
        return value is not None and value.startswith(self.begins)


_CLIENTS = (
    # 2.1.332 asks six times at 400 and 422 (with fewer betas, then other tools), and says at 404 that the model may not
    # exist; at 501 once, whole, as 2.1.197 does
    ClientMissStatus("user-agent", "claude-cli/", "anthropic", 501, degrades=True),
    # GitHub Copilot CLI says at 404 that the model was not found, and nothing of ours; 1.0.60 asks three times at 400,
    # it and 1.0.102 once at 422, whole; 1.0.62 says only which SDK of OpenAI's it has, which takes 422 as well as 404
    ClientMissStatus("x-interaction-type", "", "openai", 422),
    ClientMissStatus("user-agent", "OpenAI/JS 5.20.1", "openai", 422),
    ClientMissStatus("x-interaction-type", "", "anthropic", 422),
)
"""Measured with `scripts/lab/miss-status`; the first that fits counts."""

CHAT = frozenset(name for row in ROWS for name in row.operations)
"""Operations in which somebody says something and a model answers."""
_BY_OPERATION: Mapping[str, LazyDialect] = {name: row for row in ROWS for name in (*row.operations, *row.others)}
_BY_FAMILY: Mapping[str, LazyDialect] = {family: row for row in ROWS for family in row.families}


@cache
def _load_dialect(module: str) -> Dialect:
    return cast("Dialect", importlib.import_module(f"llmproxy.core.dialects.{module}").DIALECT)


def find_operation_codec(operation: str) -> Codec | None:
    """Return how bodies of an operation are read and written, None if no row names it."""
    row = _BY_OPERATION.get(operation)
    return None if row is None else _load_dialect(row.module).codecs[operation]


def find_stream_end_codec(operation: str) -> Codec | None:
    """Return how streams of an operation end, None if nobody knows."""
    above = None if (found := find_operation_codec(operation)) else find_operation_codec(operation.partition("/")[0])
    return found or (above if above and above.below else None)


def get_operation_codec(operation: str) -> Codec:
    """Return how bodies of an operation are read; of one with ids in it as of what stands before them."""
    found = find_operation_codec(operation) or find_operation_codec(operation.partition("/")[0])
    return found or _load_dialect(ROWS[0].module).codecs[ROWS[0].operations[0]]


def get_dialect(family: Family) -> Dialect:
    """Return the dialect of a provider's errors."""
    return _load_dialect(_BY_FAMILY[family].module)


def get_miss_status(family: Family, operation: str = "", headers: Headers = ()) -> int:
    """Return the status of a miss that the client who sent these fields takes best, else the clients of its dialect."""
    for each in _CLIENTS:
        if each.family == family and each.matches_headers(headers):
            return each.status
    return (_BY_OPERATION.get(operation) or _BY_FAMILY[family]).miss_status


def find_degrading_client(headers: Headers) -> str | None:
    """Return by which value of a field a client is told that drops options and asks on; None for any other."""
    return next((each.begins for each in _CLIENTS if each.degrades and each.matches_headers(headers)), None)


def get_model_speaker(model: str) -> Composer:
    """Return the dialect of whoever makes this model; the first one where that is not known."""
    row = next((row for row in ROWS if row.models and model.startswith(row.models)), ROWS[0])
    if (speaker := _load_dialect(row.module).speaker) is None:
        raise LookupError(row.module)
    return speaker


# -- errors -----------------------------------------------------------------------------------------------------------

ERROR_HEADER = "x-llmproxy-error"
"""Names the error's code, for programs that do not want to read a provider's envelope."""
PREFIX = "llmproxy:"
"""Every text starts with it: provider-fallback routers and people must see at once whose 404 this is."""


def write_error(family: Family, status: int, code: str, message: str) -> tuple[Headers, bytes]:
    """Return headers and JSON body (UTF-8) in which `family` reports an ``LLMProxyError.code``; no content-length."""
    text = message if message.startswith(PREFIX) else f"{PREFIX} {message}"
    # A lone surrogate (from a damaged body that is quoted in the message) has no UTF-8 form.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    extra, value = get_dialect(family).error(status, code, text)
    headers = (*_JSON, ("x-should-retry", "false"), (ERROR_HEADER, code), *extra)
    return headers, json.dumps(value, ensure_ascii=False).encode()


REASONS = {
    400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway",
    503: "Service Unavailable", 529: "Overloaded",
}  # fmt: skip
_JSON: Headers = (("content-type", "application/json"),)
_HTML: Headers = (("content-type", "text/html; charset=UTF-8"),)
GATEWAY = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n"
    b"<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
)
"""What stands before a provider says 502, whoever it is: no JSON."""


def write_failure(family: Family, status: int, asked: FailedCall) -> tuple[Headers, bytes]:
    """Return header fields and body in which a provider of this family says `status`: 429, 500, 502, 503 or 529."""
    if status == 502:
        return _HTML, GATEWAY
    value, headers = get_dialect(family).failure(status, asked)
    wait: Headers = (("retry-after", str(math.ceil(asked.retry_after))),) if status == 429 else ()
    return (*_JSON, *headers, *wait), json.dumps(value).encode()
