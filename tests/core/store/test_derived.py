"""A store that version 1 recorded replays unasked, and by itself never changes; `fixtures/stores/v1.db` is a real one."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.cassettes.adopt import adopt
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.core.engine.engine import Engine
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import Config, Exchange
from llmproxy.core.sessions.outcomes.journal import Journal
from llmproxy.core.store.file.store import FileStore
from llmproxy.core.store.rederive import rekey, rekey_store
from llmproxy.core.traffic.interaction import Headers
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import answered
from tests.support.chats import NOW, fill

V1 = Path(__file__).resolve().parents[3] / "fixtures/stores/v1.db"
BEARER: Headers = (("authorization", "Bearer of-somebody-else-1"), ("content-type", "application/json"))
GEMINI = {"contents": [{"parts": [{"text": "hi"}]}]}
Asked = tuple[str, str, Headers, object]


def chat(text: str) -> Asked:
    """Ask what the store's agent asked."""
    return "POST", "/v1/chat/completions", BEARER, {"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}


ASKED: dict[int, Asked] = {
    1: chat("How are you?"),
    2: chat("How are you?"),
    3: ("POST", "/v1/responses", BEARER, {"model": "gpt-4o", "input": "hi"}),
    4: ("POST", "/v1/responses", BEARER, {"model": "gpt-4o", "input": "and?", "previous_response_id": "resp_a1"}),
    5: ("GET", "/v1/files/file-abc/content", (*BEARER, ("Range", "bytes=0-4")), b""),
    6: ("POST", "/v1beta/models/g:generateContent?key=dummy", (), GEMINI),
    7: ("POST", "/v1/models/g:generateContent?key=dummy", (), GEMINI),
    8: (
        "POST", "/v1/messages", (("anthropic-version", "2023-06-01"),),
        {"model": "c", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    ),
    9: ("GET", "/openai/v1/strange?token=any-other-12345678&page=1", BEARER, b""),
}  # fmt: skip
"""By interaction: the request that it answers, from another client with another key."""
NEVER: list[Asked] = [
    ("GET", "/v1/files/file-abc/content", BEARER, b""),
    ("POST", "/v1alpha/models/g:generateContent", (), GEMINI),
    ("POST", "/v1/responses", BEARER, {"model": "gpt-4o", "input": "and?", "previous_response_id": "resp_a2"}),
    ("GET", "/openai/v1/strange?token=any-other-12345678&page=2", BEARER, b""),
]


@contextmanager
def engine(store: Path, mode: Mode = Mode.REPLAY, rules: Rules | None = None) -> Iterator[Engine]:
    """Run an engine over a store."""
    config = Config(mode=mode, store=store, allow_live=True, rules=rules or Rules())
    made = Engine(
        config, redactor=Redactor(), journal=Journal(None, lambda: NOW, ""), now=lambda: NOW, clock=lambda: NOW
    )
    with closing(made):
        yield made


def ask(made: Engine, asked: Asked) -> Exchange:
    """Send a request."""
    method, target, headers, body = asked
    exchange = made.arrive(method, target, None, headers)
    made.identify(exchange, body if isinstance(body, bytes) else json.dumps(body).encode())
    return exchange


def played(made: Engine, asked: Asked) -> int | None:
    """Return the interaction that answers a request; None if nothing does."""
    slot = ask(made, asked).slot
    return slot.id if slot else None


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Copy the store of version 1."""
    return Path(shutil.copy(V1, tmp_path / "v1.db"))


def keys(path: Path) -> dict[int, str]:
    """Return the tags of the keys in a store, by interaction."""
    with FileStore.open(path, writable=False, now=lambda: NOW) as store:
        return {row.id: row.key[:3] for row in store.summaries(superseded=True)}


def test_a_store_of_version_1_replays_unasked(store: Path) -> None:
    """Each request finds its own recording, repeats in their order, and the file is not touched."""
    before = store.read_bytes()
    with engine(store) as made:
        assert {number: played(made, asked) for number, asked in ASKED.items()} == {n: n for n in ASKED}
        assert [played(made, asked) for asked in NEVER] == [None] * len(NEVER)
    assert store.read_bytes() == before
    assert [each.name for each in store.parent.iterdir()] == ["v1.db"]


def test_what_cannot_be_derived_matches_as_before_and_is_said_once(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a token that was not stored nobody knows which it was: any finds it, as version 1 had it."""
    with caplog.at_level(logging.WARNING), engine(store) as made:
        assert played(made, ASKED[9]) == 9
        assert played(made, chat("How are you?")) == 1
        made.sessions.open("default~2")
        assert played(made, ASKED[9]) == 9
    said = [record.getMessage() for record in caplog.records if "older version" in record.getMessage()]
    assert len(said) == 1
    assert "of 1 recordings" in said[0]


def test_recordings_without_headers_match_as_before(store: Path) -> None:
    """Which headers were sent is not known: with or without a range, the recording answers."""
    with FileStore.open(store, writable=True, now=lambda: NOW) as database, database.in_file() as conn:
        conn.execute("UPDATE interactions SET request_headers = '[]'")
    with engine(store) as made:
        assert played(made, NEVER[0]) == 5
        assert played(made, ASKED[5]) == 5
        assert played(made, ASKED[4]) == 4
        assert played(made, chat("How are you now?")) is None


def test_the_first_write_makes_the_keys_last(store: Path) -> None:
    """`auto` leaves a file of nothing but hits as it is; with the first recording its cassette has the keys of today, and plays on."""
    FileStore.open(store, writable=True, now=lambda: NOW).close()  # the schema may have changed since as well
    before = store.read_bytes()
    with engine(store, Mode.AUTO) as made:
        assert played(made, ASKED[1]) == 1
    assert store.read_bytes() == before
    with engine(store, Mode.AUTO) as made:
        assert played(made, ASKED[1]) == 1
        answered(made, ask(made, chat("Something new.")))
        assert {number: played(made, ASKED[number]) for number in (2, 3, 4, 5, 6, 7)} == {n: n for n in range(2, 8)}
        assert ask(made, NEVER[0]).decision is Decision.RECORD
    assert keys(store) == {**dict.fromkeys(range(1, 9), "v2:"), 9: "v1:", 10: "v2:"}
    with engine(store) as made:
        assert {number: played(made, asked) for number, asked in ASKED.items()} == {n: n for n in ASKED}
        assert played(made, chat("Something new.")) == 10


@pytest.mark.parametrize("number", [1, 5, 9])
def test_recording_anew_replaces_what_version_1_recorded(store: Path, number: int) -> None:
    """Whether its key could be derived or not: the older answer is never served again."""
    with engine(store, Mode.RECORD) as made:
        answered(made, ask(made, ASKED[number]))
    with engine(store) as made:
        assert played(made, ASKED[number]) == 10


def test_other_processes_may_settle_meanwhile(store: Path) -> None:
    """A replay that derived its keys goes on while a recorder beside it makes them last and adds its own."""
    with engine(store) as made:
        assert played(made, ASKED[1]) == 1
        with engine(store, Mode.AUTO) as other:
            answered(other, ask(other, chat("Something new.")))
        assert {n: played(made, ASKED[n]) for n in (2, 3, 4)} == {2: 2, 3: 3, 4: 4}
        assert played(made, chat("Something new.")) == 10


def test_rekeying_makes_it_last(store: Path) -> None:
    """Sound keys of version 1 are no damage; rekeying writes today's, once, and replay finds the same."""
    with FileStore.open(store, writable=True, now=lambda: NOW) as database:
        found = list(rekey_store(database, Rules(), {}))
        assert [each.damaged for each in found] == [False] * 9
        assert [each.older for each in found] == [True] * 8 + [False]
        assert rekey(database, Rules(), {}) == 8
        assert rekey(database, Rules(), {}) == 0
    assert keys(store) == {**dict.fromkeys(range(1, 9), "v2:"), 9: "v1:"}
    with engine(store) as made:
        assert {number: played(made, asked) for number, asked in ASKED.items()} == {n: n for n in ASKED}


def test_a_damaged_key_of_version_1_is_damage(store: Path) -> None:
    """What an older version's key should be is known: another one is said by `verify`, and never rekeyed."""
    with FileStore.open(store, writable=True, now=lambda: NOW) as database:
        with database.in_file() as conn:
            conn.execute("UPDATE interactions SET key = ? WHERE id = 8", ("v1:" + "0" * 64,))
        assert [each.id for each in rekey_store(database, Rules(), {}) if each.damaged] == [8]


def test_recordings_under_other_rules_of_the_user_wait_for_a_rekeying(store: Path) -> None:
    """The user's rules changed since: replay finds what the change does not concern, as before."""
    rules = Rules.from_config({"ignore": ["$.seed"]})
    with engine(store, rules=rules) as made:
        assert played(made, ASKED[1]) == 1
    with FileStore.open(store, writable=True, now=lambda: NOW) as database:
        assert rekey(database, rules, {}) == 8
    with engine(store, rules=rules) as made:
        seeded: Any = {**ASKED[1][3], "seed": 7}  # type: ignore[dict-item]
        assert played(made, ("POST", "/v1/chat/completions", BEARER, seeded)) == 1


def test_a_file_of_version_1_replays_what_it_could_not_say(tmp_path: Path) -> None:
    """A cassette file in which a member of the query was taken out: any value finds it, as before."""
    wrote = Recorded(
        "GET", "https://api.openai.com/v1/strange?token=REDACTED&page=1", BEARER, b"", 200, "OK", (), b"{}"
    )
    (adopted,) = adopt([wrote], "default", rules=Rules(), redactor=Redactor())
    assert adopted.interaction is not None
    fill(tmp_path / "a.db", adopted.interaction)
    with engine(tmp_path / "a.db") as made:
        assert played(made, ASKED[9]) == 1
        assert played(made, NEVER[3]) is None
