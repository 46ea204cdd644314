"""A store that was recorded under other rules replays under today's at once, and by itself never changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.engine.engine import Engine
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig, Exchange
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import iter_recordings_with_new_keys, rewrite_keys_under_current_rules
from llmproxy.core.traffic.interaction import Headers
from llmproxy.protocol import Decision, Exhausted, Mode
from tests.core.engine.test_engine import answered, send
from tests.support.chats import NOW

JSON: Headers = (("content-type", "application/json"),)
IGNORING = Rules(ignore=("$.seed",))
Asked = tuple[str, dict[str, Any]]


def chat(text: str, **more: object) -> Asked:
    return "/v1/chat/completions", {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **more}


def turn(text: str, before: str | None = None) -> Asked:
    """Ask for the next turn of a conversation that the server keeps."""
    return "/v1/responses", {"model": "gpt-4o", "input": text} | ({"previous_response_id": before} if before else {})


@contextmanager
def engine(store: Path, mode: Mode = Mode.REPLAY, rules: Rules | None = None) -> Iterator[Engine]:
    config = EngineConfig(mode=mode, store=store, allow_live=True, rules=rules or Rules(), exhausted=Exhausted.MISS)
    journal = CallDecisionJournalWriter(None, lambda: NOW, "")
    with closing(Engine(config, redactor=Redactor(), journal=journal, now=lambda: NOW, clock=lambda: NOW)) as made:
        yield made


def ask(made: Engine, asked: Asked) -> Exchange:
    return send(made, json.dumps(asked[1]).encode(), asked[0], JSON)


def played(made: Engine, asked: Asked) -> int | None:
    """Return the interaction that answers a request; None if nothing does."""
    slot = ask(made, asked).slot
    return slot.id if slot else None


RECORDED = [
    chat("one", seed=1), chat("one", seed=2), chat("two"), turn("hi"), turn("and?", "resp_0000000000000004"),
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Record a store under no rules of the user's; the fifth names the answer of the fourth."""
    path = tmp_path / "a.db"
    with engine(path, Mode.RECORD) as made:
        for n, asked in enumerate(RECORDED, 1):
            answered(made, ask(made, asked), b'{"id": "resp_%016d", "object": "response"}' % n)
    return path


def keys(path: Path) -> dict[int, tuple[str, int]]:
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        return {row.id: (row.key, row.occurrence) for row in store.list_summaries()}


def test_a_change_of_rules_holds_at_once(store: Path) -> None:
    """Recordings that are one request under today's rules answer each other's in their order; the file is not touched."""
    before = store.read_bytes()
    with engine(store, rules=IGNORING) as made:
        assert [played(made, chat("one", seed=n)) for n in (7, 8, 9)] == [1, 2, None]
        assert [played(made, asked) for asked in RECORDED[2:]] == [3, 4, 5]
    assert store.read_bytes() == before
    assert [each.name for each in store.parent.iterdir()] == ["a.db"]


def test_what_was_one_request_is_two_under_stricter_rules(store: Path) -> None:
    """A key that was stored under looser rules finds nothing any more, also where a question of today has that very key."""
    with SqliteCassetteStore.open(store, writable=True, now=lambda: NOW) as database:
        assert rewrite_keys_under_current_rules(database, IGNORING, {}) == 2
    with engine(store) as made:
        assert played(made, chat("one")) is None
        assert [played(made, asked) for asked in RECORDED] == [1, 2, 3, 4, 5]


def test_the_first_write_makes_the_keys_last(store: Path) -> None:
    """`auto` leaves a file of nothing but hits as it is; with the first recording its cassette has today's keys, and plays on."""
    before = store.read_bytes()
    with engine(store, Mode.AUTO, IGNORING) as made:
        assert played(made, chat("one", seed=7)) == 1
    assert store.read_bytes() == before
    with engine(store, Mode.AUTO, IGNORING) as made:
        assert played(made, chat("one", seed=7)) == 1
        answered(made, ask(made, chat("Something new.", seed=3)))
        assert played(made, chat("one", seed=8)) == 2
        assert ask(made, chat("never")).decision is Decision.RECORD
    there = keys(store)
    assert there[1][0] == there[2][0]
    assert [there[n][1] for n in (1, 2)] == [1, 2]
    with engine(store, rules=IGNORING) as made:
        assert [played(made, asked) for asked in RECORDED] == [1, 2, 3, 4, 5]
        assert played(made, chat("Something new.")) == 6


def test_recording_anew_replaces_what_has_the_key_of_today(store: Path) -> None:
    """What was recorded under other rules is superseded like any other: its answer is never served again."""
    with engine(store, Mode.RECORD, IGNORING) as made:
        answered(made, ask(made, chat("one", seed=9)))
    assert {1, 2}.isdisjoint(keys(store))
    with engine(store, rules=IGNORING) as made:
        assert played(made, chat("one", seed=1)) == 6


def test_other_processes_may_settle_meanwhile(store: Path) -> None:
    """A replay that derived its keys goes on while a recorder beside it makes them last and adds its own."""
    with engine(store, rules=IGNORING) as made:
        assert played(made, chat("one")) == 1
        with engine(store, Mode.AUTO, IGNORING) as other:
            answered(other, ask(other, chat("Something new.")))
        assert [played(made, asked) for asked in (chat("one"), *RECORDED[2:])] == [2, 3, 4, 5]
        assert played(made, chat("Something new.")) == 6


def test_rekeying_makes_it_last(store: Path) -> None:
    """A change of rules is no damage; rekeying writes today's keys, once, and replay finds the same."""
    with SqliteCassetteStore.open(store, writable=True, now=lambda: NOW) as database:
        found = list(iter_recordings_with_new_keys(database, IGNORING, {}))
        assert not any(each.has_unexplained_key for each in found)
        assert [each.id for each in found if each.old != each.new] == [1, 2]
        assert [rewrite_keys_under_current_rules(database, IGNORING, {}) for _ in "12"] == [2, 0]
        assert not any(each.other_rules for each in iter_recordings_with_new_keys(database, IGNORING, {}))
    with engine(store, rules=IGNORING) as made:
        assert [played(made, asked) for asked in RECORDED] == [1, 2, 3, 4, 5]
