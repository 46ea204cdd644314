"""Messages to servers of tools become spans by the conventions' names, under the model's call that they carry out."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.core.traffic.interaction import Interaction
from llmproxy.trace import Cassette
from llmproxy.trace.export import otlp
from llmproxy.trace.reading.span_builder import build_mcp_message_span, build_spans
from llmproxy.trace.span_models import Span, SpanKind
from tests.support.messages import asks, call, result, said, user
from tests.trace.observing.test_servers import Tools


def made(chats: Tools) -> list[Interaction]:
    return [each for _, each in chats.calls if each is not None]


def plain(spans: list[Span], *, content: bool = True) -> dict[str, dict[str, Any]]:
    """Return OTLP's spans by name, with their attributes as values."""
    exported = otlp(Cassette(name="x", spans=spans), content=content)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return {
        each["name"]: each | {"is": {pair["key"]: next(iter(pair["value"].values())) for pair in each["attributes"]}}
        for each in exported
    }


def test_a_call_of_a_tool_stands_under_the_model_s_call() -> None:
    """Both are there: what the model asked for, counted as ever, and what its server got, with mcp.* and its own time."""
    chats = Tools()
    chats.lists("echo")
    chats.chat([user("x")], asks(call("mcp__t__echo", {"text": "a"}, "c1")), tools=("mcp__t__echo",))
    chats.serve("echo", {"text": "a"}, "echo: a", headers={"mcp-protocol-version": "2025-06-18"})
    chats.chat([user("x"), asks(call("mcp__t__echo", {"text": "a"}, "c1")), result("echo: a", "c1")], said("done"))
    spans = list(build_spans(made(chats)))
    asked, served = (
        next(each for each in spans if each.name == name) for name in ("execute_tool mcp__t__echo", "tools/call echo")
    )
    assert (asked.kind, served.kind, served.parent_id) == (SpanKind.TOOL_CALL, SpanKind.AGENT_STEP, asked.id)
    assert (served.tool_args, served.tool_result, served.duration_ms, served.error) == (
        {"text": "a"}, "echo: a", 1.0, None,
    )  # fmt: skip
    assert [each.name for each in spans if each.kind is SpanKind.TOOL_CALL] == ["execute_tool mcp__t__echo"]
    found = plain(spans)
    told = found["tools/call echo"]
    assert (told["kind"], told["parentSpanId"]) == (3, found["execute_tool mcp__t__echo"]["spanId"])
    assert told["is"] | {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "echo", "mcp.method.name": "tools/call", "jsonrpc.request.id": "7",
        "mcp.protocol.version": "2025-06-18", "network.transport": "tcp",
        "gen_ai.tool.call.arguments": '{"text": "a"}', "gen_ai.tool.call.result": "echo: a",
    } == told["is"]  # fmt: skip
    assert found["tools/list"]["is"]["mcp.method.name"] == "tools/list"
    assert "gen_ai.tool.call.result" not in plain(spans, content=False)["tools/call echo"]["is"]


def test_one_message_carries_out_one_call() -> None:
    """Of two equal calls each has its own; one with other arguments stands alone."""
    chats = Tools()
    asked = [call("echo", {"n": 1}, "c1"), call("echo", {"n": 1}, "c2")]
    chats.chat([user("x")], asks(*asked), tools=("echo",))
    for arguments in ({"n": 1}, {"n": 2}, {"n": 1}):
        chats.serve("echo", arguments)
    spans = list(build_spans(made(chats)))
    ids = [each.id for each in spans if each.kind is SpanKind.TOOL_CALL]
    assert [each.parent_id for each in spans if each.name == "tools/call echo"] == [ids[0], None, ids[1]]


@pytest.mark.parametrize(("value", "status", "kind", "said_of_it"), [
    ({"result": {"content": [{"type": "text", "text": "no"}], "isError": True}}, 200, "tool_error", "no"),
    ({"error": {"code": -32603, "message": "Internal error"}}, 200, "-32603", "Internal error"),
    ({"error": {"code": -32001, "message": "gone"}}, 404, "404", "HTTP 404"),
])  # fmt: skip
def test_what_failed_says_how(value: dict[str, Any], status: int, kind: str, said_of_it: str) -> None:
    """A tool's error, JSON-RPC's with its code, HTTP's."""
    chats = Tools()
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}
    chats.add("http", "mcp:tools/call echo", "/", body, {"jsonrpc": "2.0", "id": 7, **value}, status=status)
    span = build_mcp_message_span(made(chats)[0])
    assert span is not None
    assert (span.metadata["error.type"], span.error) == (kind, said_of_it)


def test_what_waits_for_no_answer_is_no_span() -> None:
    """Notifications, and whatever is no JSON, break nothing."""
    chats = Tools()
    chats.add(
        "http", "mcp:notifications/initialized", "/", {"jsonrpc": "2.0", "method": "notifications/initialized"}, {}
    )
    chats.add("http", "mcp:tools/call", "/", {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, ["?"])
    spans = [build_mcp_message_span(each) for each in made(chats)]
    assert [span and span.name for span in spans] == [None, "tools/call"]
