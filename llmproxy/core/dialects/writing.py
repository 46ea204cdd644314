"""What is written in the words of the provider that was asked: answers made by hand, and errors.

    operation, request, what is said   -> Response         an answer, whole or as the stream that the client wants
    family, status, code, message      -> head and body    an error of ours, where that provider's SDKs look for one
    family, status                     -> head and body    the provider's own error, for injected faults

An answer made by hand used no tokens, and says so where the dialect must say something. Ids are made from what is said
and from the call's number, so that the same override gives the same bytes: nine letters and digits, which every
provider takes when the client sends them back.

An SDK shows a message only where its provider puts one, and every family puts it elsewhere; a provider's own errors
have the codes by which SDKs choose an exception and decide to try again. Shapes were measured in 19 clients; sources:
the providers' error references and recorded answers, read 2026-07.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from llmproxy.core.dialects.messages import Message, as_dict
from llmproxy.core.dialects.streams import parse_json
from llmproxy.core.dialects.table import Json, codec_of, dialect_of, find_codec
from llmproxy.core.traffic.interaction import Chunk, Headers, Response

if TYPE_CHECKING:
    from llmproxy.core.providers.table import Family

SSE: Headers = (("content-type", "text/event-stream; charset=utf-8"),)
WHOLE: Headers = (("content-type", "application/json"),)
LINES: Headers = (("content-type", "application/x-ndjson"),)
AWS: Headers = (("content-type", "application/vnd.amazon.eventstream"),)
_NONE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


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

    def tokens(self, *names: str) -> int | None:
        """Return the first of these counts."""
        return next((value for name in names if isinstance(value := self.usage.get(name), int)), None)


class WantedForm(NamedTuple):
    """In which form the client wants an answer."""

    request: Json
    """Its body."""
    stream: bool
    target: str


# -- an answer


def can_write(operation: str) -> bool:
    """Return whether an answer of this operation can be written."""
    codec = find_codec(operation)
    return codec is not None and codec.write is not None


def writes_text_arguments(operation: str, *, stream: bool) -> bool:
    """Return whether the arguments of a tool call stand there as text, which may break off, and not as an object."""
    codec = codec_of(operation)
    return codec.text_streamed if stream else codec.text_whole


def write(
    operation: str,
    body: bytes,
    target: str,
    model: str | None,
    said: Message,
    *,
    stream: bool,
    call: int,
    finish: str = "",
    usage: Mapping[str, int] | None = None,
) -> Response:
    """Return the answer to a request, for the agent's `call`-th call of a model.

    `finish` is why it ended, as `SpokenTurn` has it; `usage` is told by the dialects that do not always say 0.
    Raises LookupError for an operation that `can_write` denies.
    """
    if (writer := codec_of(operation).write) is None:
        raise LookupError(operation)
    seed = f"{call}\0{said!r}".encode("utf-8", "surrogatepass")
    calls = tuple(
        replace(each, id=each.id or hashlib.sha256(seed + bytes([n % 256, n // 256])).hexdigest()[:9])
        for n, each in enumerate(said.tool_calls)
    )
    answer = SpokenTurn(model or "", replace(said, tool_calls=calls), usage or _NONE, finish)
    headers, pieces = writer(answer, WantedForm(as_dict(parse_json(body)), stream, target))
    return Response(200, "OK", headers, tuple(Chunk(0, piece) for piece in pieces if piece), chunked=stream)


def write_json(value: object) -> bytes:
    """Write JSON in one line; half a surrogate pair has no UTF-8, but JSON can escape it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def sse(events: Sequence[tuple[str, object]]) -> bytes:
    """Write a stream of server-sent events."""
    return b"".join(
        (f"event: {name}\n".encode() if name else b"")
        + b"data: "
        + (value.encode() if isinstance(value, str) else write_json(value))
        + b"\n\n"
        for name, value in events
    )


def parse_arguments(text: str) -> object:
    """Return a call's arguments as a value; what is no JSON as the model wrote it."""
    value = parse_json(text or "{}")
    return text if value is None else value


def drop_none(**values: object) -> Json:
    """Return the members that have a value."""
    return {name: value for name, value in values.items() if value is not None}


def has_type(*types: str) -> Callable[[Json], bool]:
    """Return what knows an event of one of these types."""
    return lambda value: value.get("type") in types


# -- an error

ERROR_HEADER = "x-llmproxy-error"
"""Names the error's code, for programs that do not want to read a provider's envelope."""
PREFIX = "llmproxy:"
"""Every text starts with it: provider-fallback routers and people must see at once whose 404 this is."""


def name_by_status(table: Mapping[int, str], status: int, client: str, server: str) -> str:
    """Return a provider's name for a status; `client` and `server` for one that it has no name for."""
    return table.get(status, server if status >= 500 else client)


def envelope(family: Family, status: int, code: str, message: str) -> tuple[Headers, bytes]:
    """Return the headers and the JSON body (UTF-8) in which `family` reports an error of ours.

    `code` is an ``LLMProxyError.code``. The body's length is known to the caller: no content-length is added.
    """
    text = message if message.startswith(PREFIX) else f"{PREFIX} {message}"
    # A lone surrogate (from a damaged body that is quoted in the message) has no UTF-8 form.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    extra, value = dialect_of(family).error(status, code, text)
    headers = (*WHOLE, ("x-should-retry", "false"), (ERROR_HEADER, code), *extra)
    return headers, json.dumps(value, ensure_ascii=False).encode()


REASONS = {
    400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway",
    503: "Service Unavailable", 529: "Overloaded",
}  # fmt: skip
_HTML: Headers = (("content-type", "text/html; charset=UTF-8"),)
GATEWAY = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n"
    b"<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
)
"""What stands before a provider says 502, whoever it is: no JSON."""


class RepeatedRequest(NamedTuple):
    """Of the request, what an error's text repeats."""

    model: str = ""
    retry_after: float = 0
    """Seconds."""


def write_failure(family: Family, status: int, asked: RepeatedRequest) -> tuple[Headers, bytes]:
    """Return header fields and body in which a provider of this family says `status`: 429, 500, 502, 503 or 529."""
    if status == 502:
        return _HTML, GATEWAY
    value, headers = dialect_of(family).failure(status, asked)
    wait: Headers = (("retry-after", str(math.ceil(asked.retry_after))),) if status == 429 else ()
    return (*WHOLE, *headers, *wait), json.dumps(value).encode()
