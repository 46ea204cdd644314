"""The state: what was said last, which tools were called, also on the wire."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llmproxy.errors import MachineError
from llmproxy.scenario import ScenarioConfig, ScenarioState
from llmproxy.scenario.scenario_state import ToolCalls, merge_message_and_wire_calls, render_message
from llmproxy.trace.observing.tool_calls import ToolCallsAtMcpServers, ToolUse
from tests.scenario.people import Agent, executor


def call(name: str, number: int = 1) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": f'{{"n": {number}}}'}}


def unbound(*messages: dict[str, Any]) -> ScenarioState:
    return ScenarioState(
        description="d", messages=list(messages), thread_id="t", current_turn=0, config=ScenarioConfig()
    )


def state(*messages: dict[str, Any], wire: Any = None, served: Any = None, unattributed: int = 0) -> ScenarioState:
    """Return a state with messages, and an executor that saw something on the wire."""
    running = SimpleNamespace(wire_calls=wire, unattributed=unattributed, wire_unread="", wire_served=served)
    return unbound(*messages).bind(cast("Any", running))


def seen(name: str) -> ToolUse:
    return ToolUse(name, '{"n": 9}', "w1", 1, 1, executed=True, output="found")


def test_the_last_message() -> None:
    """Of all, or of the user; none is an error with the literals that users test."""
    one, two = ({"role": "user", "content": text} for text in "12")
    found = state(one, two, {"role": "assistant", "content": "3"})
    assert found.last_message()["content"] == "3"
    assert found.last_user_message()["content"] == "2"
    with pytest.raises(ValueError, match=r"^No messages found$"):
        state().last_message()
    with pytest.raises(ValueError, match=r"^No user messages found$"):
        state({"role": "assistant", "content": "x"}).last_user_message()


def test_the_last_tool_call_is_the_newest_message_and_its_first() -> None:
    found = state(
        {"role": "assistant", "tool_calls": [call("look", 1)]},
        {"role": "assistant", "tool_calls": [call("other", 2), call("look", 3), call("look", 4)]},
        {"role": "assistant", "content": "done", "tool_calls": None},
        {"role": "user", "tool_calls": [call("look", 5)]},
    )
    assert found.last_tool_call("look") == call("look", 3)
    assert (found.has_tool_call("look"), found.has_tool_call("delete")) == (True, False)


def test_tool_calls_on_the_wire_are_seen_too() -> None:
    """What the agent does not report; what it reports comes first."""
    found = state(wire=[seen("look")])
    assert found.last_tool_call("look") == call("look", 9) | {"id": "w1"}
    assert not found.has_tool_call("delete")
    found = state({"role": "assistant", "tool_calls": [call("look")]}, wire=[seen("look")])
    assert found.last_tool_call("look") == call("look")


def test_what_cannot_be_known_is_an_error() -> None:
    """Calls that belong to nobody may be the one, and so may those of an answer that nobody could read."""
    found = state(wire=[seen("look")], unattributed=2)
    assert found.has_tool_call("look")
    with pytest.raises(MachineError, match="nobody can tell whether 'delete' was called: 2 calls"):
        found.has_tool_call("delete")
    found.executor.wire_unread = "call 2 broke off"
    with pytest.raises(MachineError, match="nobody can tell what 'look' was called with: the answer of call 2 broke"):
        found.tool_calls("look")


def test_adding_a_message_lets_all_hear_it() -> None:
    """Through the executor; a state of its own has none."""
    agent = Agent()
    made = executor(agent)
    made._state.add_message({"role": "system", "content": "hurry"})
    asyncio.run(made.agent())
    assert agent.inputs[0].new_messages == [{"role": "system", "content": "hurry"}]
    lonely = unbound()
    with pytest.raises(ValueError, match="belongs to no running scenario"):
        lonely.add_message({"role": "user", "content": "x"})
    assert not lonely.has_tool_call("x")


def test_a_dump_holds_what_is_documented() -> None:
    dump = state().model_dump(exclude={"thread_id"})
    assert set(dump) == {"description", "messages", "current_turn", "config"}


def test_what_servers_of_tools_got() -> None:
    """By the server's name, with arguments and result; differences to what the model asked for are told."""
    got = ToolUse("look", '{"n": 9}', None, 2, 2, executed=True, output='{"found": 1}')
    served = ToolCallsAtMcpServers([got], frozenset({"look"}), frozenset({"look"}), seen=True)
    found = state(wire=[ToolUse("mcp__shop__look", '{"n": 8}', "w1", 1, 1)], served=served)
    assert (found.server_calls("look").inputs, found.server_calls().outputs) == ([{"n": 9}], [{"found": 1}])
    assert not found.server_calls("send").first
    assert found.server_calls().first.source == "server"
    assert found.server_differences() == [
        'a model asked for mcp__shop__look({"n": 8}), and its server got look({"n": 9})'
    ]


@pytest.mark.parametrize(("given", "said"), [
    ({"served": None}, "there is no proxy"),
    ({"served": ToolCallsAtMcpServers()}, "no server of tools was seen"),
    (
        {"served": ToolCallsAtMcpServers(seen=True, unread=["call 3 of the session"])},
        "nothing was recorded of call 3",
    ),
    ({"served": ToolCallsAtMcpServers([ToolUse("look", "{}", None, 2, 2)], seen=True)}, "did not come whole"),
    ({"served": ToolCallsAtMcpServers(seen=True), "unattributed": 2}, "2 calls arrived"),
])  # fmt: skip
def test_what_servers_got_is_an_error_where_nobody_knows(given: dict[str, Any], said: str) -> None:
    """Never an empty list that looks as if nothing had been called."""
    for look in (ScenarioState.server_calls, ScenarioState.server_differences):
        with pytest.raises(MachineError, match=said):
            look(state(**given))


def wire(name: str, arguments: str = "{}", output: str | None = "seen") -> ToolUse:
    return ToolUse(name, arguments, "w", 1, 1, executed=output is not None, output=output)


def message(*names: str) -> dict[str, Any]:
    calls = [{"id": f"c{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    return {"role": "assistant", "content": "x", "tool_calls": calls}


def test_what_no_message_reports_comes_from_the_wire() -> None:
    """In order, with the turn in which it was called; also after the last message."""
    talk: list[dict[str, Any]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = merge_message_and_wire_calls(talk, [0, 0], {1: [wire("look", '{"n": 1}')], 2: [wire("late")]})
    assert [(call.name, call.input, call.output, call.turn, call.source) for call in found] == [
        ("look", {"n": 1}, "seen", 0, "wire"),
        ("late", {}, "seen", 0, "wire"),
    ]


def test_a_call_that_both_show_is_one() -> None:
    """The wire gives the result that the messages lack; a second equal call stays a second call."""
    found = merge_message_and_wire_calls([message("look", "look")], [0], {0: [wire("look"), wire("hidden")]})
    told = [(call.name, call.output, call.source) for call in found]
    assert told == [("look", "seen", "message"), ("look", None, "message"), ("hidden", "seen", "wire")]


def test_none_is_a_false_call() -> None:
    """So that `calls.last.input` needs no question first."""
    none = ToolCalls([], "look")
    assert (bool(none.last), none.first.input, none.last.name, none.inputs, len(none)) == (False, None, "look", [], 0)
    assert repr(none) == "ToolCalls([])"


def test_a_message_as_text() -> None:
    """Parts that are no text, and calls, as JSON."""
    image = {"type": "image_url", "image_url": {"url": "u"}}
    assert render_message({"role": "user", "content": [{"type": "text", "text": "see"}, image]}).startswith("see\n{")
    assert render_message({"role": "assistant", "content": None}) == ""
