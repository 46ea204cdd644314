"""An error of ours, said the way each provider says its own.

An SDK shows a message only where its provider puts one, and every family puts it elsewhere. The shapes were measured in
19 clients: with ``x-should-retry: false`` and a status of MISS_STATUS each made one attempt and showed the text. The
tables below are the whole of it: family -> function(status, code, message) -> extra headers, JSON value.
This module knows no miss, no store and no socket.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmproxy.core.providers.table import Family
    from llmproxy.core.traffic.interaction import Headers

ERROR_HEADER = "x-llmproxy-error"
"""Names the error's code, for programs that do not want to read a provider's envelope."""

PREFIX = "llmproxy:"
"""Every text starts with it: provider-fallback routers and people must see at once whose 404 this is."""

MISS_STATUS: Mapping[tuple[Family, str], int] = {
    (
        "anthropic",
        "",
    ): 400,  # Claude Code: 404 makes it ask again without a stream, and say that the model may not exist
    (
        "http",
        "",
    ): 501,  # 404 would say to a tool that what it asks for does not exist, and 5xx of gateways are asked again
    ("openai", "responses"): 400,  # Codex: 404 and 422 are asked six times in 8 s, 501 thirty times in 29 s
}
"""Status of a miss by family and operation (empty: any), where one decides: measured with `scripts/lab/miss-status`.
With ``x-should-retry: false`` every SDK of the matrix makes one attempt and shows the whole text at
400 and 404 alike."""
MISS_ELSEWHERE = 404


def status_of_miss(family: Family, operation: str = "") -> int:
    """Return the status of a miss that the clients of this dialect take best."""
    return MISS_STATUS.get((family, operation)) or MISS_STATUS.get((family, ""), MISS_ELSEWHERE)


_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
# google.rpc.Code names as the Gemini API pairs them with HTTP statuses.
_GEMINI_STATUSES = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ABORTED", 429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
# None of these is in boto's list of throttling or transient codes, so the name alone never causes a retry.
_BEDROCK_TYPES = {
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    409: "ConflictException",
}

Shape = tuple[tuple[tuple[str, str], ...], object]


def _by_status(table: Mapping[int, str], status: int, client: str, server: str) -> str:
    return table.get(status, server if status >= 500 else client)


def _openai(_status: int, code: str, message: str) -> Shape:
    return (), {"error": {"message": message, "type": code, "param": None, "code": code}}


def _anthropic(status: int, code: str, message: str) -> Shape:
    kind = _by_status(_ANTHROPIC_TYPES, status, "invalid_request_error", "api_error")
    return (), {"type": "error", "error": {"type": kind, "message": message}, "request_id": code}


def _gemini(status: int, _code: str, message: str) -> Shape:
    # `code` is a number: with a string the AI SDK shows only "Not Found".
    name = _by_status(_GEMINI_STATUSES, status, "INVALID_ARGUMENT", "INTERNAL")
    return (), {"error": {"code": status, "message": message, "status": name}}


def _bedrock(status: int, _code: str, message: str) -> Shape:
    # Without the header and a top-level `message` boto prints an empty text.
    kind = _by_status(_BEDROCK_TYPES, status, "ValidationException", "InternalServerException")
    return (("x-amzn-errortype", kind),), {"message": message}


def _ollama(_status: int, _code: str, message: str) -> Shape:
    # A string: an object is shown as "[object Object]" by the JavaScript client.
    return (), {"error": message}


def _cohere(_status: int, _code: str, message: str) -> Shape:
    return (), {"message": message}


_SHAPES: Mapping[Family, Callable[[int, str, str], Shape]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
    "ollama": _ollama,
    "cohere": _cohere,
    "generic": _openai,
    "http": _openai,
}


def envelope(family: Family, status: int, code: str, message: str) -> tuple[Headers, bytes]:
    """Return the headers and the JSON body (UTF-8) in which `family` reports an error of ours.

    `code` is an ``LLMProxyError.code``. The body's length is known to the caller: no content-length is added.
    """
    text = message if message.startswith(PREFIX) else f"{PREFIX} {message}"
    # A lone surrogate (from a damaged body that is quoted in the message) has no UTF-8 form.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    extra, value = _SHAPES[family](status, code, text)
    headers = (("content-type", "application/json"), ("x-should-retry", "false"), (ERROR_HEADER, code), *extra)
    return headers, json.dumps(value, ensure_ascii=False).encode()
