"""Canonical content of Model Context Protocol messages: the parts that count in a key.

A message is recognised by ``"jsonrpc": "2.0"`` in a body on an unknown path, over any transport. Members that only
correlate messages or identify the client (`_LEFT_OUT`, ``params._meta``) and the transport's headers do not count. The
client's answers to the server's requests keep the id, which is the recording's. A member unknown to JSON-RPC counts.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from llmproxy.core.providers.provider_table import MCP_PREFIX
from llmproxy.core.traffic.interaction import Headers, header, remove_headers

ANSWER = f"{MCP_PREFIX}answer"
"""The client's answer to a request of the server's."""
STREAM = f"{MCP_PREFIX}stream"
"""A GET, which receives messages that the server sends without a request."""
END = f"{MCP_PREFIX}end"
"""A DELETE: the client ends its session."""
NOTIFICATION = f"{MCP_PREFIX}notifications/"
_CALL = f"{MCP_PREFIX}tools/call"
DISCOVER = f"{MCP_PREFIX}server/discover"

_LEFT_OUT = {
    "initialize": frozenset({"protocolVersion", "clientInfo"}),
    "notifications/cancelled": frozenset({"requestId", "reason"}),
    "notifications/progress": frozenset({"progressToken"}),
}
"""Parameters that do not count, by method; `_meta` never counts."""
_OF_QUESTIONS = frozenset({"jsonrpc", "id", "method", "params"})
_OF_RESULTS = frozenset({"jsonrpc", "id", "result"})
_OF_ANSWERS = frozenset({"jsonrpc", "id", "error"})
"""Members of messages (JSON-RPC 2.0, 4 and 5)."""
_OF_TRANSPORT = ("accept", "content-type", "last-event-id")
_NAME = re.compile(r"[\w./:-]{1,128}")


class McpRequestKeyParts(NamedTuple):
    operation: str
    """``mcp:initialize``, ``mcp:tools/call echo``."""
    tree: dict[str, Any] | None
    headers: Headers


def is_mcp_tool_call(operation: str) -> bool:
    """Return whether an operation is a tool call; it includes the tool's name if that is a valid name."""
    return operation == _CALL or operation.startswith(f"{_CALL} ")


def is_rpc_message(tree: object) -> bool:
    if not isinstance(tree, dict) or tree.get("jsonrpc") != "2.0":
        return False
    return isinstance(tree.get("method"), str) or ("id" in tree and ("result" in tree or "error" in tree))


def extract_mcp_key_parts(method: str, headers: Headers, tree: object) -> McpRequestKeyParts | None:
    """Return the parts of a request that count; None if it is not MCP. `method` is the HTTP method."""
    kept = tuple(each for each in remove_headers(headers, *_OF_TRANSPORT) if not each[0].lower().startswith("mcp-"))
    if isinstance(tree, dict) and is_rpc_message(tree):
        canonicalize = _canonicalize_request if isinstance(tree.get("method"), str) else _canonicalize_answer
        return McpRequestKeyParts(_name_operation(tree), {**canonicalize(tree), **_collect_odd_members(tree)}, kept)
    if not any(name.lower() in ("mcp-session-id", "mcp-protocol-version") for name, _ in headers):
        return None
    if method == "GET" and "text/event-stream" in (header(headers, "accept") or ""):
        last = header(headers, "last-event-id")
        return McpRequestKeyParts(STREAM, {"lastEventId": last} if last else None, kept)
    return McpRequestKeyParts(END, None, kept) if method == "DELETE" else None


def _name_operation(message: dict[str, Any]) -> str:
    said, params = message.get("method"), message.get("params")
    if not isinstance(said, str):
        return ANSWER
    tool = params.get("name") if said == "tools/call" and isinstance(params, dict) else None
    named = f" {tool}" if isinstance(tool, str) and _NAME.fullmatch(tool) else ""
    return f"{MCP_PREFIX}{said}{named}"


def _canonicalize_request(tree: dict[str, Any]) -> dict[str, Any]:
    method, params = tree["method"], tree.get("params")
    if not isinstance(params, dict):
        return {"method": method} if params is None else {"method": method, "params": params}
    gone = _LEFT_OUT.get(method, frozenset())
    kept = {name: value for name, value in params.items() if name != "_meta" and name not in gone}
    return {"method": method, "params": kept} if kept else {"method": method}


def _canonicalize_answer(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the client's answer; of an error only its code, because clients choose the text."""
    if "result" not in tree:
        error = tree.get("error")
        return {"answers": tree["id"], "error": error.get("code") if isinstance(error, dict) else None}
    result = tree["result"]
    kept = {name: value for name, value in result.items() if name != "_meta"} if isinstance(result, dict) else result
    return {"answers": tree["id"], "result": kept}


def _collect_odd_members(tree: dict[str, Any]) -> dict[str, Any]:
    """Return members that messages of this kind do not have, and an unusual presence of the id; usually nothing."""
    said = tree.get("method")
    known = _OF_QUESTIONS if isinstance(said, str) else _OF_ANSWERS if "result" not in tree else _OF_RESULTS
    odd = {name: value for name, value in tree.items() if name not in known}
    if isinstance(said, str):
        usual = "absent" if said.startswith(NOTIFICATION.removeprefix(MCP_PREFIX)) else "given"
        id_ = "absent" if "id" not in tree else "null" if tree["id"] is None else "given"
        odd |= {"id": id_} if id_ != usual else {}
    return {"odd": odd} if odd else {}
