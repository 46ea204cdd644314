"""The dialects, one row each: the operations of a file, and the facts that are needed before it is loaded.

All code that reads or writes bodies, or errors, uses these functions and compares no names. A file is loaded on first
use. An SDK shows an error's message only at its provider's position. Injected errors have the codes by which SDKs
choose an exception and retry, measured in 19 clients; sources: the providers' error references and answers, read
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
    """OpenAI's finish reason, or ``refusal``; empty: derived from the message."""

    @property
    def why(self) -> str:
        """OpenAI's finish reason."""
        if self.finish == "refusal":
            return "stop"
        return self.finish or ("tool_calls" if self.message.tool_calls else "stop")

    @property
    def id(self) -> str:
        """Part of ids, derived from the content; names of classes and members are part of it: a new name, new ids."""
        return hashlib.sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()[:24]

    def find_token_count(self, *names: str) -> int | None:
        return next((value for name in names if isinstance(value := self.usage.get(name), int)), None)


class ParsedRequestToAnswer(NamedTuple):
    request: Json
    stream: bool
    target: str


class InjectedErrorParameters(NamedTuple):
    model: str = ""
    retry_after: float = 0
    """Seconds."""


class RequestBodyLayout(NamedTuple):
    """Members of a request that contain text of people and tools; all others are parameters."""

    turns: tuple[str, ...] = ("messages",)
    """The conversation."""
    system: tuple[str, ...] = ()
    """System text that is no message."""
    tools: tuple[str, ...] = ("tools",)
    """Definitions, or an object with `tools`."""
    results: tuple[str, ...] = ()
    """Results of tools that are no messages."""
    wrapper: str = ""
    """Member that may contain the whole body."""


_MESSAGES = RequestBodyLayout()


@dataclass(frozen=True, slots=True)
class ModelAnswerCodec:
    add: Callable[[Draft, Json], None]
    """Adds one JSON value of an answer to a draft: all of it, or the content of one event of its stream."""
    ends: Callable[[Json], bool] | None = None
    """Returns whether an event ends its stream."""
    done: bool = False
    """Whether ``data: [DONE]`` ends its stream."""
    finishes: Callable[[Json], bool] | None = None
    """For a stream that ends with HTTP: returns whether an event completes the answer."""
    below: bool = False
    """Whether streams of operations below it (``threads/t/runs``) end in the same way."""
    write: Callable[[SpokenTurn, ParsedRequestToAnswer], tuple[Headers, list[bytes]]] | None = None
    text_whole: bool = True
    """Whether tool arguments in a whole answer are text, which may be incomplete, not an object."""
    text_streamed: bool = True
    """As `text_whole`, for a stream."""
    exclusive: bool = False
    """Whether its count of input tokens excludes cached ones."""
    count_headers: Mapping[str, str] = field(default_factory=dict)
    """Header fields in which some of its models count tokens, with the counts' names."""
    makes_ids: bool = False
    """Whether an answer creates ids (of a container, of calls to be answered) that later requests name."""
    error_event: Callable[[int], tuple[str, Json]] | None = None
    """As `ProviderApiDialect.error_event`, if the operation has its own."""
    layout: RequestBodyLayout = _MESSAGES


@dataclass(frozen=True, slots=True)
class ProviderRequestAndAnswerWriter:
    ask: Callable[[str, Sequence[Message], bool], tuple[str, Json]]
    answer: Callable[[SpokenTurn], Json]
    stream: Callable[[SpokenTurn], list[tuple[str, object]]]
    """Events of (name or empty, JSON value or text)."""
    error: Callable[[Json, int], Json]


@dataclass(frozen=True, slots=True)
class ProviderApiDialect:
    codecs: Mapping[str, ModelAnswerCodec]
    error: Callable[[int, str, str], tuple[Headers, object]]
    """(status, code, message) of a proxy error -> further header fields, JSON value in the SDKs' form."""
    failure: Callable[[int, InjectedErrorParameters], tuple[Json, Headers]]
    """The provider's own error for a status: JSON body, header fields."""
    error_event: Callable[[int], tuple[str, Json]]
    """The error event in a stream, after a number of other events: name or empty, value."""
    made_names: tuple[str, ...] = ()
    """Prefixes of the names that its servers give to stored objects."""
    reasoning_apart: bool = False
    """Whether some of its servers exclude reasoning from the output tokens; their total then shows it."""
    speaker: ProviderRequestAndAnswerWriter | None = None


class LazyDialectDescription(NamedTuple):
    """The facts of a dialect that are known before its file is loaded."""

    module: str
    families: tuple[Family, ...] = ()
    """Families with this form of errors."""
    operations: tuple[str, ...] = ()
    """Operations in which a model answers a conversation."""
    others: tuple[str, ...] = ()
    miss_status: int = 404
    """Best status of a miss for its clients (`scripts/lab/miss-status`); no SDK retries ``x-should-retry: false``."""
    models: str = ""
    """Prefix of its maker's model names; its file has a `ProviderRequestAndAnswerWriter`."""


ROWS = (
    LazyDialectDescription(
        "openai", ("openai", "generic"),
        ("chat.completions", "completions", "fim.completions", "agents.completions", "writer.chat",
         "writer.completions", "generate"),
        ("images.generations", "images.edits", "audio.transcriptions", "realtime", "threads", "threads.runs"),
    ),
    # A tool would take 404 for a missing object, and retries a gateway's 5xx.
    LazyDialectDescription("openai", ("http",), miss_status=501),
    # Codex sends 6 requests at 404 and 422, 30 at 501; opencode sends 7 at 404, 2 at 400 (one for a title).
    LazyDialectDescription("openai", operations=("responses",), miss_status=400),
    # Clients other than Claude Code (`_CLIENTS`) report at 404 that the model may not exist, and retry 501.
    LazyDialectDescription("anthropic", ("anthropic",), ("messages", "complete"), miss_status=400, models="claude"),
    LazyDialectDescription("gemini", ("gemini",), ("generateContent",), models="gemini"),
    LazyDialectDescription("bedrock", ("bedrock",), ("converse", "invoke")),
    LazyDialectDescription("ollama", ("ollama",), ("api.chat", "api.generate"), ("api.pull", "api.push", "api.create")),
    LazyDialectDescription("cohere", ("cohere",), ("v1.chat", "v1.generate", "v2.chat")),
)  # fmt: skip
"""All dialects. Unknown operations and models use the first one, which most other providers share."""


class ClientMissStatusOverride(NamedTuple):
    header: str
    begins: str
    """Prefix of that header field's value."""
    family: Family
    status: int
    degrades: bool = False
    """Whether it drops options and retries when it is refused."""

    def matches_headers(self, headers: Headers) -> bool:
        value = header(headers, self.header)
        return value is not None and value.startswith(self.begins)


_CLIENTS = (
    # 2.1.332 sends 6 requests at 400 and 422 (with fewer betas, then other tools), and reports at 404 that the model
    # may not exist. At 501 it sends one and shows the whole text, like 2.1.197.
    ClientMissStatusOverride("user-agent", "claude-cli/", "anthropic", 501, degrades=True),
    # GitHub Copilot CLI reports at 404 only that the model was not found. 1.0.60 sends 3 requests at 400; it and
    # 1.0.102 send one at 422 and show the whole text. 1.0.62 names only its OpenAI SDK, which accepts 422 like 404.
    ClientMissStatusOverride("x-interaction-type", "", "openai", 422),
    ClientMissStatusOverride("user-agent", "OpenAI/JS 5.20.1", "openai", 422),
    ClientMissStatusOverride("x-interaction-type", "", "anthropic", 422),
)
"""Measured with `scripts/lab/miss-status`; the first match counts."""

CHAT = frozenset(name for row in ROWS for name in row.operations)
_BY_OPERATION: Mapping[str, LazyDialectDescription] = {
    name: row for row in ROWS for name in (*row.operations, *row.others)
}
_BY_FAMILY: Mapping[str, LazyDialectDescription] = {family: row for row in ROWS for family in row.families}


@cache
def _load_dialect(module: str) -> ProviderApiDialect:
    return cast("ProviderApiDialect", importlib.import_module(f"llmproxy.core.dialects.{module}").DIALECT)


def find_dialect_codec(operation: str) -> ModelAnswerCodec | None:
    row = _BY_OPERATION.get(operation)
    return None if row is None else _load_dialect(row.module).codecs[operation]


def find_stream_end_codec(operation: str) -> ModelAnswerCodec | None:
    above = None if (found := find_dialect_codec(operation)) else find_dialect_codec(operation.partition("/")[0])
    return found or (above if above and above.below else None)


def get_dialect_codec_or_default(operation: str) -> ModelAnswerCodec:
    """Return the codec of an operation; if the operation contains ids, the codec of the part before them."""
    found = find_dialect_codec(operation) or find_dialect_codec(operation.partition("/")[0])
    return found or _load_dialect(ROWS[0].module).codecs[ROWS[0].operations[0]]


def get_provider_dialect(family: Family) -> ProviderApiDialect:
    return _load_dialect(_BY_FAMILY[family].module)


def get_miss_status(family: Family, operation: str = "", headers: Headers = ()) -> int:
    """Return the best miss status for the client with these header fields, else for its dialect's clients."""
    own = (each.status for each in _CLIENTS if each.family == family and each.matches_headers(headers))
    return next(own, (_BY_OPERATION.get(operation) or _BY_FAMILY[family]).miss_status)


def detect_retry_degrading_client(headers: Headers) -> str | None:
    return next((each.begins for each in _CLIENTS if each.degrades and each.matches_headers(headers)), None)


def get_composer_for_model(model: str) -> ProviderRequestAndAnswerWriter:
    """Return the composer of a model's maker, by default the first dialect's. Raises LookupError: it has none."""
    row = next((row for row in ROWS if row.models and model.startswith(row.models)), ROWS[0])
    if (speaker := _load_dialect(row.module).speaker) is None:
        raise LookupError(row.module)
    return speaker


ERROR_HEADER = "x-llmproxy-error"
"""Header with the error's code, for programs that do not read a provider's envelope."""
PREFIX = "llmproxy:"
"""Prefix of every error text: provider-fallback routers and people must see at once who sent this 404."""


def build_dialect_error_response(family: Family, status: int, code: str, message: str) -> tuple[Headers, bytes]:
    """Return headers and JSON body (UTF-8) in which `family` reports an ``LLMProxyError.code``; no content-length."""
    text = message if message.startswith(PREFIX) else f"{PREFIX} {message}"
    # A lone surrogate (from a damaged body that is quoted in the message) has no UTF-8 form.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    extra, value = get_provider_dialect(family).error(status, code, text)
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
"""Body of a 502 from a gateway in front of any provider: no JSON."""


def build_provider_error_response(family: Family, status: int, asked: InjectedErrorParameters) -> tuple[Headers, bytes]:
    """Return header fields and body of a provider's own error for `status`: 429, 500, 502, 503 or 529."""
    if status == 502:
        return _HTML, GATEWAY
    value, headers = get_provider_dialect(family).failure(status, asked)
    wait: Headers = (("retry-after", str(math.ceil(asked.retry_after))),) if status == 429 else ()
    return (*_JSON, *headers, *wait), json.dumps(value).encode()
