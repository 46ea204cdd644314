"""The short way of a hit: it answers as the long way does and counts the same, or it leaves no trace."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.core.engine import fast_path
from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.exchange import RoutedRequestHead
from llmproxy.core.sessions.session import EndedCallLog, Session
from llmproxy.core.traffic.interaction import Key
from llmproxy.core.traffic.response_plan import ClientFramingTraits
from llmproxy.protocol import Decision, Exhausted, Mode
from tests.core.engine.test_engine import CHAT, answered, ask, body, engine
from tests.support.narrowing import known

CLIENT = ClientFramingTraits()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with two answers to "hi" and one to "other"."""
    path = tmp_path / "x.db"
    with engine(path) as made:
        for text, said in (("hi", b'{"n": 1}'), ("other", b'{"n": 3}'), ("hi", b'{"n": 2}')):
            answered(made, ask(made, text), said)
    return path


def long_way(made: Engine, text: str = "hi", **more: Any) -> tuple[bytes, Call]:
    exchange = ask(made, text, **more)
    extra = (("x-llmproxy-key", exchange.key or ""),)
    data = b"".join(piece for _, piece in made.answering.plan_recorded(exchange, CLIENT, extra=extra).pieces)
    return data, made.accounting.record_end(exchange, 200)


def short_way(made: Engine, text: str = "hi", place: RoutedRequestHead | None = None) -> tuple[bytes, Call] | None:
    hit = made.fast_path.find_answer(place or made.dispatcher.place_request("POST", CHAT, None, ()), CLIENT, body(text))
    return None if hit is None else (hit.data, made.fast_path.record_hit(hit))


def trace(session: Session) -> object:
    calls = session.calls.list_calls_after(0)
    counts = [session.position.counts[("agent", Key(key))] for key in sorted({each.key or "" for each in calls})]
    return counts, sorted(session.served), session.calls.arrived, calls, session.calls.totals.to_json()


def decisions(store: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"{store}.state.db")) as conn:
        return [row[2:] for row in conn.execute("SELECT * FROM decisions ORDER BY id")]


@pytest.mark.parametrize("mode", [Mode.REPLAY, Mode.AUTO, Mode.ONCE])
def test_both_ways_answer_and_count_alike(mode: Mode, store: Path) -> None:
    """The same requests in the same order: the same bytes, outcomes, counters, calls and journal, whichever way they go."""
    asked = ["hi", "hi", "other", *(["hi", "hi", "other", "hi"] if mode is not Mode.AUTO else [])]
    found = []
    for short in (False, True):
        Path(f"{store}.state.db").unlink(missing_ok=True)
        with engine(store, mode) as made:
            told = [(short_way(made, text) if short else None) or long_way(made, text) for text in asked]
            counted = trace(made.sessions.open_sessions["default"]), made.count_unused()
        found.append((told, counted, decisions(store)))
    assert found[0] == found[1]
    data, call = found[1][0][1]
    assert (call.decision, call.status, call.interaction, call.occurrence) == (Decision.REPLAY, 200, 3, 2)
    assert b"x-llmproxy-key: " + (call.key or "").encode() in data


def test_what_was_asked_before_goes_the_short_way(store: Path) -> None:
    """The first time a body comes its key must be derived; after that, whatever the head and the session, it is known."""
    with engine(store, Mode.REPLAY) as made:
        assert short_way(made) is None
        assert all(
            walk.calls.arrived == 0 and not walk.position.counts for walk in made.sessions.open_sessions.values()
        )
        long_way(made)
        assert [short_way(made) is not None for _ in range(3)] == [True] * 3
        assert made.sessions.open_sessions["default"].calls.arrived == 4


Change = Callable[[Engine], None]


def set_session(**settings: object) -> Change:
    def change(made: Engine) -> None:
        session = made.sessions.open_sessions["default"]
        session.settings = replace(session.settings, **settings)  # type: ignore[arg-type]

    return change


CHANGES: dict[str, Change] = {
    "refuse": set_session(exhausted=Exhausted.MISS),
    "slow": set_session(speed=1.0),
    "learn": lambda made: made.redactor.learn_request((("authorization", "Bearer 7Qm2xR9vTb4KzLw8"),), ""),
    "upstream": set_session(upstreams={"openai": "http://other"}),
    "record": set_session(mode=Mode.RECORD),
    "speaker": lambda made: made.sessions.speakers.update(default="judge"),
}


@pytest.mark.parametrize("hit_before", [False, True])
@pytest.mark.parametrize("change", [*CHANGES, "elsewhere"])
def test_whatever_is_no_plain_hit_is_left_alone(change: str, *, hit_before: bool, store: Path) -> None:
    """Nothing is counted, so that the long way can say what it is, also where the same head was answered the short way a moment ago."""
    with engine(store, Mode.REPLAY) as made:
        long_way(made)
        place = made.dispatcher.place_request("POST", CHAT, None, ())
        assert (short_way(made, place=place) if hit_before else long_way(made)) is not None
        session = made.sessions.open_sessions["default"]
        before = trace(session)
        if change == "elsewhere":
            place = place._replace(in_scope=False)
        else:
            CHANGES[change](made)
        assert short_way(made, place=place) is None
        assert trace(session) == before


@pytest.mark.parametrize("exhausted", list(Exhausted))
def test_each_arrival_gets_what_the_long_way_gives_it(exhausted: Exhausted, store: Path) -> None:
    """By the same head: in turn, after the last one, and in turn once more when the agent begins again."""
    found = []
    for short in (False, True):
        with engine(store, Mode.REPLAY, exhausted=exhausted) as made:
            place, more = made.dispatcher.place_request("POST", CHAT, None, ()), 0 if exhausted is Exhausted.MISS else 5
            told = [
                (text, *((short_way(made, text, place) if short else None) or long_way(made, text)))
                for text in ["hi", "hi", *["hi"] * more, "other", "hi", "hi"]
            ]
            found.append((told, trace(made.sessions.open_sessions["default"]), made.count_unused()))
    assert found[0] == found[1]
    assert [data[-8:] for text, data, _ in found[1][0] if text == "hi"][-2:] == [b'{"n": 1}', b'{"n": 2}']


def test_of_very_many_requests_the_short_way_remembers_some(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts the same when it forgets all of them now and then, as it does by every fourth head here."""
    monkeypatch.setattr(fast_path, "REMEMBERED", 8)
    with engine(store, Mode.REPLAY) as made:
        long_way(made)
        places = [made.dispatcher.place_request("POST", CHAT, None, ()) for _ in range(20)]
        found = [short_way(made, place=place) for place in places]
        gc.collect()
        kept = [each for each in gc.get_objects() if type(each) is fast_path.CachedRequest]
        assert 0 < sum(any(each.place is place for place in places) for each in kept) <= 4
        assert [each and each[1].occurrence for each in found] == list(range(2, 22))
        assert made.sessions.open_sessions["default"].calls.totals.to_json()["hits"] == 21


def test_an_unknown_session_and_an_empty_place_are_for_the_long_way(store: Path) -> None:
    with engine(store, Mode.REPLAY) as made:
        long_way(made)
        assert short_way(made, place=made.dispatcher.place_request("POST", f"/s/a{CHAT}", None, ())) is None
        assert list(made.sessions.open_sessions) == ["default"]
    with engine(store.with_name("none.db"), Mode.REPLAY) as made:
        assert short_way(made) is None


def test_what_another_process_records_counts_from_the_next_request_on(store: Path) -> None:
    """The store is looked at for each request; no answer is remembered under what was asked."""
    with engine(store, Mode.REPLAY) as made:
        long_way(made, "other")
        place = made.dispatcher.place_request("POST", CHAT, None, ())
        found = known(short_way(made, "other", place))
        assert b'{"n": 3}' in found[0]
        with engine(store, Mode.RECORD, holder="another") as recorder:
            answered(recorder, ask(recorder, "other"), b'{"n": 4}')
        found = known(short_way(made, "other", place))
        assert b'{"n": 4}' in found[0]


def test_a_session_of_the_same_name_is_another_session(store: Path) -> None:
    """What is said of its hits is its own: closed and opened again it begins at nothing."""
    with engine(store, Mode.REPLAY) as made:
        place = made.dispatcher.place_request("POST", f"/s/default{CHAT}", None, ())
        long_way(made)
        assert short_way(made, place=place) is not None
        made.sessions.close_session("default")
        made.sessions.open_session("default")
        found = known(short_way(made, place=place))
        assert (found[1].seq, found[1].occurrence) == (1, 1)
        assert made.sessions.open_sessions["default"].calls.totals.to_json()["hits"] == 1
        short_way(made, place=place)
        assert sorted(made.sessions.open_sessions["default"].served) == [1, 3]


def test_another_file_under_the_name_of_the_store_is_another_store(tmp_path: Path) -> None:
    """When the store is opened again, its ids mean other recordings: nothing that was remembered by id is said any more."""
    one, other = tmp_path / "x.db", tmp_path / "y.db"
    for path, said in ((one, b'{"n": 1}'), (other, b'{"n": 2, "usage": {"prompt_tokens": 7}}')):
        with engine(path) as made:
            answered(made, ask(made), said)
    with engine(one, Mode.REPLAY, allow_live=True) as made:
        assert b'{"n": 1}' in long_way(made)[0]
        assert short_way(made) is not None
        other.replace(one)
        made.sessions.open_session("live", mode=Mode.RECORD)
        for data, outcome in (long_way(made), short_way(made) or (b"", None)):
            assert b'{"n": 2' in data
            assert outcome is not None
            assert outcome.input == 7


def test_a_recording_that_was_given_another_key_is_said_with_that(store: Path) -> None:
    """As another process does when the rules have changed: the key that was asked for is told, not the one it had before."""
    with engine(store, Mode.REPLAY) as made:
        long_way(made, "other")
        assert short_way(made, "other") is not None
        key = ask(made, "new").key  # a miss
        with closing(sqlite3.connect(store)) as conn, conn:
            conn.execute("UPDATE interactions SET key = ? WHERE id = 2", (key,))
        found = known(short_way(made, "new"))
        assert found[1].key == key
        assert f"x-llmproxy-key: {key}".encode() in found[0]


def test_a_session_that_was_closed_is_let_go(store: Path) -> None:
    """What is remembered of its hits does not keep it and its calls."""
    with engine(store, Mode.REPLAY) as made:
        long_way(made)
        assert short_way(made) is not None
        calls = id(made.sessions.open_sessions["default"].calls)
        made.sessions.close_session("default")
        gc.collect()
        assert calls not in [id(each) for each in gc.get_objects() if type(each) is EndedCallLog]
