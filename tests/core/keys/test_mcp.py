"""What counts of a message of MCP, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.core.keys.mcp import extract_mcp_key_parts, is_rpc_message
from llmproxy.core.keys.normalize import build_key, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.canonical_json import dump
from llmproxy.core.traffic.interaction import Headers, Key, Request

TOOLS = {"tools": "http://127.0.0.1:1"}
JSON: Headers = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))


def key(message: dict[str, Any], headers: Headers = JSON, path: str = "/tools/mcp") -> Key:
    where = route(path, headers, TOOLS)
    request = Request("POST", where.target, headers, dump({"jsonrpc": "2.0", **message}))
    return build_key(canonicalize_request(request, where, Rules(), lambda _: None))


def call(id_: object = 1, meta: object = None, **arguments: object) -> dict[str, Any]:
    params: dict[str, Any] = {"name": "echo", "arguments": arguments}
    return {"id": id_, "method": "tools/call", "params": params if meta is None else params | {"_meta": meta}}


INITIALIZE: dict[str, Any] = {"id": 0, "method": "initialize"}


@pytest.mark.parametrize(("same", "one", "other"), [
    (True, call(1, text="a"), call("7", text="a")),
    (True, call(1, text="a"), call(2, {"progressToken": 3, "claudecode/toolUseId": "toolu_1"}, text="a")),
    (True, INITIALIZE | {"params": {"protocolVersion": "2025-06-18", "clientInfo": {"name": "a"}}},
     INITIALIZE | {"id": 1, "params": {"protocolVersion": "2025-11-25", "clientInfo": {"name": "b"}}}),
    (True, *({"method": "notifications/cancelled", "params": {"requestId": n}} for n in (4, 9))),
    (True, {"id": 1, "method": "tools/list"}, {"id": 2, "method": "tools/list", "params": {"_meta": {}}}),
    (False, call(text="a"), call(text="b")),
    (False, call(text="1"), call(text=1)),
    (False, call(text="a"), {"id": 1, "method": "tools/call", "params": {"name": "echo2", "arguments": {"text": "a"}}}),
    (False, {"id": 0, "result": {"action": "accept"}}, {"id": 0, "result": {"action": "decline"}}),
    (False, {"id": 0, "result": {"action": "accept"}}, {"id": 1, "result": {"action": "accept"}}),
    (False, {"id": 0, "result": {}}, {"id": 0, "error": {"code": -1, "message": "no"}}),
    (False, INITIALIZE | {"params": {"capabilities": {}}}, INITIALIZE | {"params": {"capabilities": {"sampling": {}}}}),
])  # fmt: skip
def test_what_is_asked_and_answered_counts(same: bool, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Another argument, tool, consent, question or capability is another message; ids, tokens and versions of clients are chance."""
    assert (key(one) == key(other)) is same


def test_the_transport_does_not_count_and_the_server_does() -> None:
    """The session's id and the version are the recording's; another path or tenant is another server."""
    session = (*JSON, ("Mcp-Session-Id", "abc"), ("mcp-protocol-version", "2025-11-25"))
    assert key(call(), session) == key(call(), ())
    assert key(call(), path="/tools/other") != key(call())
    assert key(call(), (*JSON, ("x-tenant", "b"))) != key(call())


@pytest.mark.parametrize(("method", "headers", "tree", "operation"), [
    ("POST", JSON, {"jsonrpc": "2.0", **call()}, "mcp:tools/call echo"),
    ("POST", JSON, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, "mcp:tools/list"),
    ("POST", JSON, {"jsonrpc": "2.0", "id": 1, "result": {}}, "mcp:answer"),
    ("GET", (("Accept", "text/event-stream"), ("Mcp-Session-Id", "a")), None, "mcp:stream"),
    ("DELETE", (("Mcp-Session-Id", "a"),), None, "mcp:end"),
    ("GET", (("Accept", "text/event-stream"),), None, None),
    ("POST", JSON, {"jsonrpc": "1.0", "id": 1, "method": "x"}, None),
    ("POST", JSON, [{"jsonrpc": "2.0", "id": 1, "method": "x"}], None),
    ("POST", JSON, {"jsonrpc": "2.0"}, None),
])  # fmt: skip
def test_messages_are_told_from_other_bodies(
    method: str, headers: Headers, tree: object, operation: str | None
) -> None:
    """What says jsonrpc 2.0 is a message; a stream and an end are told by the transport's headers."""
    found = extract_mcp_key_parts(method, headers, tree)
    assert (found and found.operation) == operation
    assert is_rpc_message(tree) is (operation is not None and tree is not None)


@pytest.mark.parametrize("message", [
    call(1, text="a"),
    {"id": 1, "method": "tools/list"},
    {"id": 1, "method": "message/send", "params": {"message": "hi"}},
    {"method": "notifications/initialized"},
    {"method": "notifications/cancelled", "params": {"requestId": 4}},
    {"id": 1, "result": {}},
    {"id": 1, "error": {"code": 1}},
], ids=lambda each: str(each.get("method", "answer")))  # fmt: skip
def test_what_no_ordinary_message_has_counts(message: dict[str, Any]) -> None:
    """A call that wants no answer is none that wants one, nor is one with a member that JSON-RPC does not know."""
    forms = [message, message | {"tenant": "x"}, message | {"tenant": "y"}]
    if "method" in message:
        bare = {name: value for name, value in message.items() if name != "id"}
        forms += [bare | {"id": None}, bare if "id" in message else message | {"id": 1}]
    elif "result" in message:
        forms += [message | {"error": {}}]
    assert len({key(form) for form in forms}) == len(forms)
