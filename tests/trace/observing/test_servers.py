"""What servers of tools got and returned, and where that is not what models asked for."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.trace.observing.agent_activity import list_model_vs_mcp_call_mismatches
from llmproxy.trace.observing.tool_calls import NO_SERVER, diff_asked_and_served_tool_calls
from tests.support.messages import asks, call, said, user
from tests.trace.observing.chats import Chats


class Tools(Chats):
    def lists(self, *names: str) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        value = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": name} for name in names]}}
        self.add("http", "mcp:tools/list", "/", body, value)

    def serve(self, name: str, arguments: dict[str, Any], text: str | None = "done", **more: Any) -> None:
        """Let a server get a call; `text` None: its answer never came."""
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        failed = more.pop("failed", False)
        result = {"content": [{"type": "text", "text": text}], "isError": failed}
        value = {"jsonrpc": "2.0", "id": 7, "result": result} if text is not None else {"jsonrpc": "2.0", "method": "x"}
        self.add("http", f"mcp:tools/call {name}", "/", body, value, **more)

    def differences(self) -> list[str]:
        return diff_asked_and_served_tool_calls(self.wire.list_tool_uses(), self.wire.read_tool_server_calls())


def asked(*calls: dict[str, Any]) -> Tools:
    """Begin with a model that asks for these calls, of a server that has echo and send."""
    chats = Tools()
    chats.lists("echo", "send")
    chats.chat([user("x")], asks(*calls), tools=("mcp__t__echo", "own"))
    return chats


def test_what_a_server_got_and_returned() -> None:
    """Name, arguments, text, error, in order; what it lists is known, what it never got is not there."""
    chats = asked()
    chats.serve("echo", {"text": "a"}, "echo: a")
    chats.serve("send", {}, "no", failed=True)
    found = chats.wire.read_tool_server_calls()
    told = [(each.name, each.arguments, each.output, each.errored) for each in found.tools]
    assert told == [("echo", {"text": "a"}, "echo: a", False), ("send", {}, "no", True)]
    assert (found.unknown_reason, found.names, found.listed) == (
        "",
        frozenset({"echo", "send"}),
        frozenset({"echo", "send"}),
    )
    assert [each.name for each in chats.wire.read_tool_server_calls(after=3).tools] == ["send"]
    assert chats.wire.list_tool_uses() == []


def test_what_no_server_got_is_left_out_and_what_nobody_recorded_is_not_known() -> None:
    """A miss and a fault reached nobody; of what was passed through nothing is kept, and what did not come whole has no output."""
    chats = asked()
    chats.serve("echo", {}, decision="REFUSE", miss=True)
    chats.serve("echo", {}, decision="FAULT", fault="mcp-error")
    chats.serve("echo", {"text": "cut"}, None)
    assert [(each.arguments, each.output, each.executed) for each in chats.wire.read_tool_server_calls().tools] == [
        ({"text": "cut"}, None, False)
    ]
    chats.serve("echo", {}, recorded=False, decision="PASS")
    assert "nothing was recorded of call 6" in chats.wire.read_tool_server_calls().unknown_reason
    assert Chats().wire.read_tool_server_calls().unknown_reason == NO_SERVER


ECHO_ARGUMENTS = {"text": "a", "n": 1}
ECHO = call("mcp__t__echo", ECHO_ARGUMENTS)


@pytest.mark.parametrize(("calls", "served", "said_of_it"), [
    ([ECHO], [("echo", {"n": 1, "text": "a"})], []),
    ([ECHO], [("echo", {"n": True, "text": "a"})], ["asked for mcp__t__echo", "its server got echo", '"n": true']),
    ([ECHO], [], ["asked for mcp__t__echo", "and no server got it"]),
    ([], [("echo", {})], ["a server got echo({}), which no model asked for"]),
    ([call("own", {})], [], []),
    ([ECHO, call("mcp__t__echo", {"text": "b"}, "c2")], [("echo", {"text": "b"}), ("echo", {"text": "a", "n": 1})], []),
    ([ECHO], [("echo", {"n": 1, "text": "a"}), ("echo", {"n": 1, "text": "a"})], ["which no model asked for"]),
])  # fmt: skip
def test_differences_are_told(calls: list[Any], served: list[Any], said_of_it: list[str]) -> None:
    """Other arguments, a call that never arrived, one that nobody asked for; order does not matter, an agent's own tools neither."""
    chats = asked(*calls)
    for name, arguments in served:
        chats.serve(name, arguments)
    told = chats.differences()
    assert len(told) == bool(said_of_it), told
    assert all(each in told[0] for each in said_of_it), told


def test_a_conversation_without_servers_has_no_differences() -> None:
    """Nothing is known of any server's tools."""
    chats = Tools()
    chats.chat([user("x")], said("hi"))
    assert chats.differences() == []


def test_a_server_alone_has_no_differences_since_nobody_knows_what_was_asked_for() -> None:
    chats = asked(call("mcp__t__echo", {"text": "b"}))
    chats.serve("echo", ECHO_ARGUMENTS)
    kept = [each for _, each in chats.calls if each is not None]
    assert list_model_vs_mcp_call_mismatches(kept) == chats.differences() != []
    assert list_model_vs_mcp_call_mismatches([each for each in kept if each.operation.startswith("mcp:")]) == []
