"""What a client of MCP is told where there is no recording, so that its user reads our text.

    tools/call               a result that is an error: every client shows it to its model
    any other request        a JSON-RPC error
    a notification, a reply  202: nobody waits for an answer
    a stream, an end         405: "no such stream here"; 200

HTTP's status is 200 where there is something to read: a 404 means that the session is over, and clients then begin anew (eight times).
What is no miss (`is_harmless`): messages that ask for nothing, and the stateless era's probe, after which clients of both eras go on.
"""

from __future__ import annotations

import json
from typing import Any

from llmproxy.core.keys.mcp import ANSWER, DISCOVER, END, NOTIFICATION, STREAM
from llmproxy.core.traffic.interaction import Headers

NOT_RECORDED = -32020
"""Our code, of the range that JSON-RPC leaves to servers."""
NO_METHOD = -32601
_STATELESS = "io.modelcontextprotocol/protocolVersion"
"""In `_meta` of each request of the stateless era, whose results say what they are."""


def is_harmless(operation: str) -> bool:
    """Tell whether a message that was never recorded may go unanswered: nothing of the run depends on it."""
    return operation in (STREAM, END, DISCOVER) or operation.startswith(NOTIFICATION)


def refuse(operation: str, body: bytes, text: str) -> tuple[int, Headers, bytes]:
    """Return status, fields and body in which a client is told `text`."""
    if operation == STREAM:
        return 405, (("allow", "POST"),), b""
    if operation == END:
        return 200, (), b""
    if operation == ANSWER or operation.startswith(NOTIFICATION):
        return 202, (), b""
    return 200, (("content-type", "application/json"),), json.dumps(error_message(body, text)).encode()


def error_message(body: bytes, text: str) -> dict[str, Any]:
    """Return the message that answers the request `body` with an error of ours."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = {}
    asked = asked if isinstance(asked, dict) else {}
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    params = asked.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked.get("id")}
    if asked.get("method") == "tools/call":
        kind = {"resultType": "complete"} if isinstance(meta, dict) and _STATELESS in meta else {}
        return {**said, "result": {**kind, "content": [{"type": "text", "text": text}], "isError": True}}
    code = NO_METHOD if asked.get("method") == "server/discover" else NOT_RECORDED
    return {**said, "error": {"code": code, "message": text}}
