"""Faults of MCP servers, over HTTP and stdio alike. None needs an answer, so no server is called.

Only requests that expect an answer are affected, not notifications or the client's answers to the server's requests.
"""

from __future__ import annotations

import json
from typing import Any

from llmproxy.core.faults.answer_pieces import MICROSECONDS
from llmproxy.core.faults.rules import Break, CandidateCall, FaultKind, FaultyAnswer, Parameter, Values
from llmproxy.core.mcp_answer_replay import build_error_message
from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.core.traffic.interaction import Chunk, Headers, Response
from llmproxy.protocol import Channel

JSON: Headers = (("content-type", "application/json"),)
INTERNAL_ERROR = -32603
SESSION_GONE = -32001
"""Code that servers of the official SDKs use for an unknown session."""


def _find_request(call: CandidateCall) -> dict[str, Any] | None:
    """Return the request, if its sender expects an answer."""
    message = parse_json(call.body)
    waits = isinstance(message, dict) and isinstance(message.get("method"), str) and message.get("id") is not None
    return message if waits else None


def _build_symptom(message: dict[str, Any], status: int = 200, reason: str = "OK", *, late: float = 0) -> FaultyAnswer:
    offset = round(late * MICROSECONDS)
    return FaultyAnswer(
        Response(status, reason, JSON, (Chunk(offset, json.dumps(message).encode()),), head_offset=offset)
    )


def _build_error(asked: dict[str, Any], code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": text}}


def _answer_rpc_error(call: CandidateCall, values: Values) -> FaultyAnswer | None:
    asked = _find_request(call)
    return None if asked is None else _build_symptom(_build_error(asked, int(values["code"]), "Internal error"))


def _answer_tool_error(call: CandidateCall, _values: Values) -> FaultyAnswer | None:
    asked = _find_request(call)
    if asked is None or asked["method"] != "tools/call":
        return None
    name = (*call.tools(), "it")[0]
    return _build_symptom(
        build_error_message(call.body, f"Error executing tool {name}: the service behind it is unavailable")
    )


def _answer_timeout_after_silence(call: CandidateCall, values: Values) -> FaultyAnswer | None:
    asked = _find_request(call)
    if asked is None:
        return None
    return _build_symptom(_build_error(asked, INTERNAL_ERROR, "Request timed out"), late=values["seconds"])


def _lose_session(call: CandidateCall, _values: Values) -> FaultyAnswer | None:
    asked = _find_request(call)
    if asked is None:
        return None
    if call.transport == "http" and call.in_session:  # as after a restart, which loses all sessions
        return _build_symptom(_build_error(asked, SESSION_GONE, "Session not found"), 404, "Not Found")
    return FaultyAnswer(None, reset=True)


_FAILS = "returns an error to the model as the tool's result, or retries if that is harmless; does not exit"


def _declare_mcp_kind(
    name: str, about: str, sound: str, do: Break, *takes: Parameter, sweep: Values | None = None
) -> FaultKind:
    return FaultKind(
        name, about, sound, do, takes, channels=(Channel.MCP,), transports=("http", "stdio"),
        sweep={} if sweep is None else sweep,
    )  # fmt: skip


ROWS = (
    _declare_mcp_kind(
        "mcp-error", "the MCP server answers with the JSON-RPC error `code`", _FAILS, _answer_rpc_error,
        Parameter("code", INTERNAL_ERROR, "the error's code", -32768, -32000, whole=True),
    ),
    _declare_mcp_kind(
        "mcp-tool-error", "the tool fails: a result with isError",
        "lets its model read the error and continue; does not exit", _answer_tool_error,
    ),
    _declare_mcp_kind(
        "mcp-silent", "the MCP server answers only after `seconds`, with a JSON-RPC error",
        "stops at its own timeout, and lets its model read that; never waits forever", _answer_timeout_after_silence,
        Parameter("seconds", 60, "seconds of silence"), sweep={"seconds": 5},
    ),
    _declare_mcp_kind(
        "mcp-gone",
        "the MCP server is gone: over stdio it exits; over HTTP the session is unknown (404), or without a session the "
        "connection is reset",
        "restarts the server or the session, and retries; or lets its model read that the tool is gone",
        _lose_session,
    ),
)  # fmt: skip
