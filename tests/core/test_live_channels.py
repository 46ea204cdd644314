"""Recorded tools under another model, as pure values: a result is told in its own state, or not at all."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from llmproxy.core.mixed_live_replay import (
    LiveChannelSettings,
    SessionWithLiveChannels,
    count_state_changes_before_calls,
    format_call_display_name,
    is_model_request,
    is_same_call_as_mcp_request,
    may_change_tool_state,
    may_depend_on_tool_state,
    split_tools_by_read_only,
)
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.core.traffic.interaction import Ending, Key
from llmproxy.protocol import Channel
from tests.support.live import Wish, World

WISHES = [
    Wish("set", {"name": "a", "to": 1}), Wish("set", {"name": "a", "to": 2}), Wish("set", {"name": "b", "to": 1}),
    Wish("get", {"name": "a"}), Wish("get", {"name": "b"}), Wish("toggle", {}), Wish("count", {}), Wish("look", {}),
]  # fmt: skip
READING = frozenset({"get", "look"})


class Recorded(NamedTuple):
    """A recorded call at a real server."""

    row: StoredCallSummary
    wish: Wish
    said: str


def summarize(number: int, operation: str, started_at: float) -> StoredCallSummary:
    """Return the row of a call that took half a second."""
    head = (number, "x", 1, "agent", number, 1, Key(f"v2:{number}"), "tools", operation, None, False, "POST", "/mcp")
    return StoredCallSummary(
        *head, 200, Ending.COMPLETE, started_at, 1.0, 500.0, None, None, None, False, False, None, None, "", 0.0
    )


def recorded(wishes: Sequence[Wish], *, apart: float = 1.0) -> list[Recorded]:
    """Record calls at a real server, `apart` seconds between their beginnings."""
    world = World()
    return [
        Recorded(summarize(n, f"mcp:tools/call {wish.tool}", n * apart), wish, world.call(*wish))
        for n, wish in enumerate(wishes)
    ]


class Walk:
    def __init__(self, calls: Sequence[Recorded], announced: frozenset[int] = frozenset()) -> None:
        self.calls, self.announced = {each.row.id: each for each in calls}, announced
        self.live = SessionWithLiveChannels(LiveChannelSettings(frozenset({Channel.LLM})), ("x", 1), "x@live-1")
        rows = (each.row for each in calls)
        self.path = count_state_changes_before_calls(rows, {"tools": READING}, lambda _name: False)

    def ask(self, wish: Wish) -> str | None:
        """Ask; None where nothing may be told."""
        slots = [RecordingHead(id_, 1, 200, Ending.COMPLETE) for id_, each in self.calls.items() if each.wish == wish]
        chosen = self.live.choose_recording(
            self.path,
            Key(repr(wish)),
            slots,
            alike=lambda some: len({self.calls[each.id].said for each in some}) <= 1,
            announced=self.announced.issuperset,
        )
        assert chosen.recording is not None or bool(chosen.why) == bool(slots)
        return None if chosen.recording is None else self.calls[chosen.recording.id].said


@pytest.mark.parametrize("seed", range(20))
def test_no_walk_is_ever_told_a_wrong_state(seed: int) -> None:
    """A hundred walks each: what is served is what a real server says after the calls that were served before, in any order of calls."""
    chance = random.Random(seed)
    served = 0
    for _ in range(100):
        old = [chance.choice(WISHES) for _ in range(chance.randint(1, 14))]
        new = [each for each in old if chance.random() < 0.8] + [chance.choice(WISHES) for _ in range(3)]
        if chance.random() < 0.7:
            chance.shuffle(new)
        walk, truth = Walk(recorded(old)), World()
        for wish in new:
            if (said := walk.ask(wish)) is not None:
                assert said == truth.call(*wish)
                served += 1
    assert served > 200


def test_the_recorded_order_is_served_whole() -> None:
    """The same calls as recorded, whatever they are."""
    chance = random.Random(1)
    for _ in range(100):
        rows = recorded([chance.choice(WISHES) for _ in range(20)])
        walk = Walk(rows)
        assert [walk.ask(row.wish) for row in rows] == [row.said for row in rows]


def test_what_ran_at_once_is_served_only_at_once() -> None:
    """Two changes that overlapped: in any order if the model asks for both again, else never, since nobody knows which came first."""
    rows = recorded([Wish("count", {}), Wish("toggle", {}), Wish("look", {})], apart=0.1)
    alone = Walk(rows)
    assert [alone.ask(row.wish) for row in rows] == [None, None, None]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        together = Walk(rows, frozenset({0, 1, 2}))
        assert [together.ask(rows[n].wish) for n in order] == [rows[n].said for n in order]


def test_after_a_real_call_no_recorded_state_holds() -> None:
    """What was changed at the real tool is in no recording."""
    rows = recorded([Wish("get", {"name": "a"})])
    walk = Walk(rows)
    walk.live.parted = "set"
    assert walk.ask(rows[0].wish) is None


def test_a_restart_begins_in_the_first_state() -> None:
    """The second run of the same agent gets the same answers."""
    rows = recorded([Wish("toggle", {}), Wish("toggle", {})])
    walk = Walk(rows)
    first = [walk.ask(row.wish) for row in rows]
    walk.live.restart()
    assert [walk.ask(row.wish) for row in rows] == first == ["started", "stopped"]


@pytest.mark.parametrize(("operation", "dependent", "changing"), [
    ("mcp:tools/call get", True, True),
    ("mcp:resources/read", True, False),
    ("mcp:tasks/get", True, False),
    ("mcp:tasks/cancel", True, True),
    ("mcp:vendor/whatever", True, True),
    ("mcp:initialize", False, False),
    ("mcp:ping", False, False),
    ("mcp:answer", False, False),
    ("mcp:stream", False, False),
    ("mcp:notifications/cancelled", False, False),
    ("mcp:tools/list", False, False),
])  # fmt: skip
def test_a_method_that_nobody_knows_may_change_something(operation: str, dependent: bool, changing: bool) -> None:
    """What sets a connection up depends on no state; all else does."""
    assert may_depend_on_tool_state(Channel.MCP, operation) is dependent
    assert may_change_tool_state(Channel.MCP, "POST", operation) is changing


def test_only_a_hint_that_never_wavers_counts() -> None:
    """A tool that is called read-only in one list and not in the next may change something."""
    lists = [
        {"result": {"tools": [{"name": "a", "annotations": {"readOnlyHint": True}}, {"name": "b"}, {"name": 3}, None]}},
        {"result": {"tools": [{"name": "b", "annotations": {"readOnlyHint": True}}, {"name": "c", "annotations": []}]}},
        {"error": {}},
        "no message",
    ]
    assert split_tools_by_read_only(lists) == ({"a"}, {"b", "c"})


@pytest.mark.parametrize(("provider", "operation", "body", "live"), [
    ("openai", "/some/new/path", b"", True),
    ("mine", "chat.completions", b'{"messages": []}', True),
    ("mine", "models", b"", True),
    ("mine", "files", b"{}", False),
    ("mine", "/invoices", b"{}", False),
    ("mine", "messages", b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}', False),
    ("mine", "messages", b"no json", True),
])  # fmt: skip
def test_under_a_name_of_ones_own_only_models_are_asked(provider: str, operation: str, body: bytes, live: bool) -> None:
    """There may be a server of tools, or any service, which must not run."""
    assert is_model_request(provider, operation, body) is live


def test_calls_have_names_that_can_be_typed() -> None:
    assert format_call_display_name("mcp:tools/call get", "tools", "POST", "/mcp") == "get"
    assert format_call_display_name("mcp:resources/read", "tools", "POST", "/mcp") == "resources/read"
    assert format_call_display_name("/x", "http:api.x.com", "POST", "/search?q=1") == "POST api.x.com/search"
    channels = LiveChannelSettings(frozenset(), read_only=("POST api.x.com/s*",))
    assert channels.is_user_declared_read_only("POST api.x.com/search")


def test_a_model_names_tools_behind_their_server() -> None:
    """Agents put the server's name before a tool's; arguments are compared as values."""
    asked = json.dumps({"params": {"name": "get", "arguments": {"a": 1, "b": 2}}}).encode()
    assert is_same_call_as_mcp_request(asked, "mcp__tools__get", '{"b": 2, "a": 1}')
    assert is_same_call_as_mcp_request(asked, "get", '{"a": 1, "b": 2}')
    assert not is_same_call_as_mcp_request(asked, "forget", '{"a": 1, "b": 2}')
    assert not is_same_call_as_mcp_request(asked, "get", '{"a": 1}')
    assert not is_same_call_as_mcp_request(b"[]", "get", "{}")
