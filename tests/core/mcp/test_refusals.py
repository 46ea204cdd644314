"""A miss as MCP says errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.mcp.refusals import error_message, is_harmless, refuse


def body(method: str, meta: dict[str, Any] | None = None) -> bytes:
    """Write a request."""
    params = {"_meta": meta} if meta is not None else {}
    return json.dumps({"jsonrpc": "2.0", "id": 5, "method": method, "params": params}).encode()


def test_a_call_gets_a_result_that_is_an_error() -> None:
    """So that the model reads our text; a client of the stateless era finds the kind of result that it insists on."""
    assert error_message(body("tools/call"), "no") == {
        "jsonrpc": "2.0", "id": 5, "result": {"content": [{"type": "text", "text": "no"}], "isError": True},
    }  # fmt: skip
    stateless = body("tools/call", {"io.modelcontextprotocol/protocolVersion": "2026-07-28"})
    assert error_message(stateless, "no")["result"]["resultType"] == "complete"


@pytest.mark.parametrize(
    ("operation", "status", "harmless"),
    [
        ("mcp:tools/call echo", 200, False),
        ("mcp:initialize", 200, False),
        ("mcp:answer", 202, False),
        ("mcp:notifications/initialized", 202, True),
        ("mcp:stream", 405, True),
        ("mcp:end", 200, True),
        ("mcp:server/discover", 200, True),
    ],
)
def test_each_message_is_refused_in_its_way(operation: str, status: int, *, harmless: bool) -> None:
    """A 404 would end the session; what nobody waits for has no body, and is no miss unless something depends on it."""
    got, _, data = refuse(operation, body(operation.removeprefix("mcp:").partition(" ")[0]), "text\udc80")
    assert got == status
    assert is_harmless(operation) is harmless
    assert not data or "text" in json.dumps(json.loads(data))
