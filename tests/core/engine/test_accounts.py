"""What an exchange came to."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from llmproxy.calls import Call
from llmproxy.core.engine.accounts import Priced, Prices, call_of
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session, SessionSettings
from llmproxy.core.store.file.store import FileStore
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import MissError, RefusedError
from llmproxy.protocol import Decision, Mode
from tests.support.chats import NOW, chat, chat_exchange, fill


def exchange(decision: Decision) -> Exchange:
    """Return a chat that was decided."""
    made = chat_exchange(Session("s", "s", 1, SessionSettings(Mode.REPLAY)), ())
    made.decision, made.identity = decision, replace(made.identity, model="gpt-4o")
    return made


def came_to(made: Exchange, priced: Priced | None = None, usage: Usage | None = None) -> Call:
    """Sum it up."""
    return call_of(made, 200, target="/t", seconds=0.25, priced=priced, usage=usage, lost=False)


def test_a_replay_is_priced_by_its_recording() -> None:
    """Its usage and cost are those of the row."""
    found = came_to(exchange(Decision.REPLAY), Priced(10, 2, Decimal("0.5"), "gpt-4o"))
    assert (found.input, found.output, found.cost, found.ms, found.target) == (10, 2, Decimal("0.5"), 250.0, "/t")


def test_a_live_call_is_priced_by_the_table_and_unknown_is_not_zero() -> None:
    """Unknown usage or price stays None."""
    assert came_to(exchange(Decision.RECORD), usage=Usage(1_000_000, 0)).cost == Decimal("2.5")
    assert came_to(exchange(Decision.RECORD), usage=Usage()).cost is None
    assert came_to(exchange(Decision.REFUSE)).cost is None


def test_only_a_miss_is_a_miss() -> None:
    """Another refusal is counted apart."""
    missed, refused = exchange(Decision.REFUSE), exchange(Decision.REFUSE)
    missed.error, refused.error = MissError("x"), RefusedError("x")
    assert (came_to(missed).miss, came_to(refused).miss) == (True, False)


def test_prices_are_read_once(tmp_path: Path) -> None:
    """A row never changes, so the second time needs no open store."""
    fill(tmp_path / "a.db", chat())
    prices = Prices()
    with FileStore.open(tmp_path / "a.db", writable=False, now=lambda: NOW) as store:
        first = prices.of(store, 1)
    assert (first.input, first.output, first.model) == (11, 2, "gpt-4o")
    assert first.cost is not None
    assert prices.of(store, 1) is first
    assert prices.of(None, 2) == Priced(None, None, None, None)
