"""Lines of JSON-RPC as the shim must know them: what is a message, which answers which."""

from __future__ import annotations

import json
from typing import Any

ENDED = -32021
"""Our code for a server that ended before it answered."""


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the message that a line is; None for anything else: a log line, half a message, bytes that are no UTF-8."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("jsonrpc") == "2.0" else None


def id_of(message: dict[str, Any]) -> str | None:
    """Return the id of a message, by which 1 and "1" differ; None without one."""
    return json.dumps(message["id"]) if message.get("id") is not None else None


def token_of(message: dict[str, Any]) -> str | None:
    """Return the progress token that a request gives, or that a progress notification is for."""
    params = message.get("params")
    if not isinstance(params, dict):
        return None
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else params.get("progressToken")
    return None if token is None else json.dumps(token)


def error(message: dict[str, Any], text: str, code: int = ENDED) -> bytes:
    """Return the line that answers a request with an error of ours; of a tool's call one that its model reads."""
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": message.get("id")}
    if message.get("method") == "tools/call":
        said["result"] = {"content": [{"type": "text", "text": text}], "isError": True}
    else:
        said["error"] = {"code": code, "message": text}
    return json.dumps(said).encode() + b"\n"
