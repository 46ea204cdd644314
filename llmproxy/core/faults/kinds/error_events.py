"""How each provider says in the middle of a stream that it failed. Sources: the providers' references of their streams, read 2026-07."""

from __future__ import annotations

from typing import Any

from llmproxy.core.dialects.aws_eventstream import write_frame
from llmproxy.core.dialects.speak import sse, write_json
from llmproxy.core.dialects.streams import framing
from llmproxy.core.faults.pieces import kind_of
from llmproxy.core.faults.values import FaultTarget
from llmproxy.core.traffic.interaction import Response

_FAILED = "The server had an error while processing your request. Sorry about that!"


def write_error_event(call: FaultTarget, answer: Response, number: int) -> bytes:
    """Return the event, in the framing of `answer`; `number` events came before it."""
    kind = framing(kind_of(answer), answer.body)
    if kind == "aws":
        about = {":exception-type": "modelStreamErrorException", ":content-type": "application/json"}
        body = {"message": "The model stream was interrupted.", "originalStatusCode": 500}
        return write_frame({**about, ":message-type": "exception"}, write_json(body))
    name, value = _build_event(call, number)
    return write_json(value) + b"\n" if kind == "ndjson" else sse([(name, value)])


def _build_event(call: FaultTarget, number: int) -> tuple[str, dict[str, Any]]:
    """Return the event's name, empty for none, and what it holds."""
    if call.operation == "responses":
        return "error", {
            "type": "error",
            "code": "server_error",
            "message": _FAILED,
            "param": None,
            "sequence_number": number,
        }
    if call.family == "anthropic":
        return "error", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    if call.operation == "v2.chat":
        delta = {"finish_reason": "ERROR", "error": "internal server error"}
        return "message-end", {"type": "message-end", "delta": delta}
    if call.operation == "v1.chat":
        return "", {"event_type": "stream-end", "is_finished": True, "finish_reason": "ERROR"}
    if call.family == "ollama":
        return "", {"error": "an error was encountered while running the model: unexpected EOF"}
    if call.family == "gemini":
        error = {"code": 503, "message": "The model is overloaded. Please try again later.", "status": "UNAVAILABLE"}
        return "", {"error": error}
    return "", {"error": {"message": _FAILED, "type": "server_error", "param": None, "code": None}}
