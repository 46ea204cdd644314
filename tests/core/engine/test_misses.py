"""What is put together to explain a miss."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.recording_and_accounting import (
    CallUsageAndCost,
    RecordingUsageAndCostCache,
    build_call_record_from_exchange,
)
from llmproxy.core.forks.fork_rows import Fork, store_fork_row
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session, SessionSettings
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import MissError, RefusedError
from llmproxy.protocol import Decision, Exhausted, Mode
from tests.core.engine.test_engine import answered, ask, engine, send
from tests.support.chats import NOW, chat, chat_exchange, fill


def missed(store: Path, text: str, target: str = "/v1/chat/completions", **config: Any) -> str:
    with engine(store, Mode.REPLAY, **config) as made:
        error = ask(made, text, target).error
        assert isinstance(error, MissError)
        return error.message


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with one chat in the cassette `default` and one in `other`."""
    path = tmp_path / "x.db"
    with engine(path) as made:
        answered(made, ask(made, "hello"))
        answered(made, ask(made, "elsewhere", "/s/other/v1/chat/completions"))
    return path


def test_the_nearest_recording_is_named_with_what_differs(store: Path) -> None:
    """The path, the old and the new value stand in the text."""
    text = missed(store, "hello!")
    assert "nearest recording: #1" in text
    assert 'message 1 (user): "hello" -> "hello!"' in text


def test_a_gateway_that_no_option_names_is_named_with_the_command(tmp_path: Path) -> None:
    """Without it the key for the gateway would be sent to the public host."""
    gateway, other = {"openai": "http://gw.corp:9/v1"}, {"openai": "http://b.corp/v1"}
    with engine(tmp_path / "x.db", upstreams=gateway) as made:
        answered(made, ask(made, "hello"))
    assert "--upstream openai=http://gw.corp:9" in missed(tmp_path / "x.db", "hello!")
    assert "gw.corp" not in missed(tmp_path / "x.db", "hello!", upstreams=other)


def test_the_same_key_in_another_cassette_is_named(store: Path) -> None:
    assert '"other"' in missed(store, "elsewhere")


@pytest.mark.parametrize(("channel", "named"), [("llm", False), ("mcp", True)])
def test_a_live_run_s_cassette_is_named_for_what_was_live_in_it(store: Path, channel: str, *, named: bool) -> None:
    """Of the rest it may hold nothing but that it was refused."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pay"}}
    servers = {"tools": "http://127.0.0.1:9"}

    def called(made: Engine, session: str) -> Exchange:
        head = (("content-type", "application/json"),)
        return send(made, json.dumps(asked).encode(), f"/s/{session}/tools/mcp", head)

    with engine(store, Mode.AUTO, upstreams=servers) as made:
        answered(made, called(made, "default@live-1"), b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}')
    with SqliteCassetteStore.open(store, writable=True, now=lambda: 0.0) as opened:
        store_fork_row(opened, Fork("default@live-1", "default", 1, "because", live=channel))
    with engine(store, Mode.REPLAY, upstreams=servers) as made:
        assert ('under cassette "default@live-1"' in str(called(made, "default").error)) is named


def test_an_empty_cassette_and_a_missing_store_say_how_to_record(store: Path, tmp_path: Path) -> None:
    assert "--mode auto --cassette new" in missed(store, "something else", "/s/new/v1/chat/completions")
    assert "there is no store" in missed(tmp_path / "none.db", "hello")


def test_what_was_played_already_is_said(store: Path) -> None:
    """With --exhausted miss the second request of a key recorded once is refused, and why."""
    with engine(store, Mode.REPLAY, exhausted=Exhausted.MISS) as made:
        assert ask(made, "hello").error is None
        error = ask(made, "hello").error
    assert "already" in str(error)


def test_a_server_of_tools_that_was_not_there_is_told_from_a_call_that_differs(store: Path) -> None:
    """Where the cassette holds nothing of MCP, the agent's servers were left be when it was recorded."""

    def listed(made: Engine, cursor: str) -> Exchange:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": cursor}}
        head = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))
        return send(made, json.dumps(asked).encode(), "/tools/mcp", head)

    servers = {"tools": "http://127.0.0.1:9"}
    with engine(store, Mode.REPLAY, upstreams=servers) as made:
        assert "recorded without MCP servers" in str(listed(made, "a").error)
    with engine(store, Mode.AUTO, upstreams=servers) as made:
        answered(made, listed(made, "a"), b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}')
    with engine(store, Mode.REPLAY, upstreams=servers) as made:
        assert "nearest recording" in str(listed(made, "b").error)


def exchange(decision: Decision) -> Exchange:
    made = chat_exchange(Session("s", "s", 1, SessionSettings(Mode.REPLAY)), ())
    made.decision, made.identity = decision, replace(made.identity, model="gpt-4o")
    return made


def came_to(made: Exchange, priced: CallUsageAndCost | None = None, usage: Usage | None = None) -> Call:
    return build_call_record_from_exchange(made, 200, target="/t", seconds=0.25, priced=priced, usage=usage, lost=False)


def test_a_replay_is_priced_by_its_recording() -> None:
    """Its usage and cost are those of the row."""
    found = came_to(exchange(Decision.REPLAY), CallUsageAndCost(10, 2, Decimal("0.5"), "gpt-4o"))
    assert (found.input, found.output, found.cost, found.ms, found.target) == (10, 2, Decimal("0.5"), 250.0, "/t")


def test_a_live_call_is_priced_by_the_table_and_unknown_is_not_zero() -> None:
    """Unknown usage or price stays None."""
    assert came_to(exchange(Decision.RECORD), usage=Usage(1_000_000, 0)).cost == Decimal("2.5")
    assert came_to(exchange(Decision.RECORD), usage=Usage()).cost is None
    assert came_to(exchange(Decision.REFUSE)).cost is None


def test_only_a_miss_is_a_miss() -> None:
    missed, refused = exchange(Decision.REFUSE), exchange(Decision.REFUSE)
    missed.error, refused.error = MissError("x"), RefusedError("x")
    assert (came_to(missed).miss, came_to(refused).miss) == (True, False)


def test_prices_are_read_once(tmp_path: Path) -> None:
    """A row never changes, so the second time needs no open store."""
    fill(tmp_path / "a.db", chat())
    prices = RecordingUsageAndCostCache()
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=False, now=lambda: NOW) as store:
        first = prices.find(store, 1)
    assert (first.input, first.output, first.model) == (11, 2, "gpt-4o")
    assert first.cost is not None
    assert prices.find(store, 1) is first
    assert prices.find(None, 2) == CallUsageAndCost(None, None, None, None)
