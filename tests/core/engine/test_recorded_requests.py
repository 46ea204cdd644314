"""A first hit is found by the bytes of its request where its key is the recording's for sure, and nowhere else."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, override
from urllib.parse import quote

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.engine.engine import Engine, EngineComponentClasses
from llmproxy.core.engine.request_identification import ROTATING, KeyDeriver
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.journal import read_replayed_requests
from llmproxy.core.traffic.interaction import Headers
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import CHAT, answered, body, engine, send

OURS = "Zk3q8Rw1Tt5yLm9xPv2b"
"""The credential of who replays; of no known kind."""
CALLED: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def fields(credential: str = "7Hq2mWz9Kd4sJn6c", *more: tuple[str, str]) -> Headers:
    return (("Content-Type", "application/json"), ("Authorization", f"Bearer {credential}"), *more)


RECORDER, PLAYER = fields(), fields(OURS)


class WatchedKeys(KeyDeriver):
    made = 0

    @override
    def build_canonical(self, exchange: Exchange, body: bytes) -> Canonical:
        WatchedKeys.made += 1
        return super().build_canonical(exchange, body)


class WatchedEngine(Engine):
    parts = EngineComponentClasses(keying=WatchedKeys)


class LongKeys(KeyDeriver):
    @override
    def _find_key_by_recorded_body(self, exchange: Exchange, body: bytes) -> None:
        return None


class LongEngine(Engine):
    parts = EngineComponentClasses(keying=LongKeys)


@contextmanager
def replaying(store: Path, kind: type[Engine] = WatchedEngine, **config: Any) -> Iterator[Engine]:
    """Replay with another caller's credential; the session has looked into its cassette."""
    with engine(store, **{"mode": Mode.REPLAY, **config}, kind=kind) as made:
        asked(made, body("first"))
        yield made


def asked(made: Engine, data: bytes, head: Headers = PLAYER, target: str = CHAT) -> tuple[Exchange, bool]:
    """Ask; returns also whether the key was derived."""
    WatchedKeys.made = 0
    return send(made, data, target, head), WatchedKeys.made > 0


def recorded(store: Path, data: bytes, head: Headers = RECORDER, target: str = CHAT, **config: Any) -> str | None:
    """Record an answer to a request, behind another one; returns its key."""
    key = None
    with engine(store, **config) as made:
        for each in (body("first"), data):
            exchange = send(made, each, target if each is data else CHAT, head)
            answered(made, exchange)
            key = exchange.key
    return key


def messages(*more: dict[str, Any]) -> bytes:
    """Return a chat request with these messages behind the user's."""
    return json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}, *more]}).encode()


CODE = body('def f():\n    """Read."""\n    return {"a_long_name_of_a_variable_0": 1}\n\nprint("x\\n")')
DECLARED = messages(
    {"role": "assistant", "tool_calls": [CALLED]}, {"role": "tool", "tool_call_id": "call_1", "content": ""}
)


@pytest.mark.parametrize(
    "data", [body(), CODE, body("grüße", stream=True), DECLARED], ids=["prose", "code", "stream", "calls"]
)
def test_the_same_bytes_are_found_without_deriving_a_key(tmp_path: Path, data: bytes) -> None:
    """Key, model, stream and decision are those of the long way; the second time as well."""
    key = recorded(tmp_path / "x.db", data)
    with replaying(tmp_path / "x.db") as made:
        exchange, derived = asked(made, data)
        assert (exchange.key, exchange.decision, derived) == (key, Decision.REPLAY, False)
        assert exchange.identity.model == "gpt-4o"
        assert exchange.identity.stream is (b"stream" in data)
        again, _ = asked(made, data)
        assert (again.key, again.nth) == (key, 2)


QUOTED = (
    OURS, json.dumps(f"{OURS[:11]}\r\n    {OURS[11:]}"), base64.b64encode(f"user:{OURS}".encode()).decode(), OURS.encode().hex(),
    base64.b64encode(base64.b64encode(OURS.encode())).decode(), "[REDACTED-1:credential]", "REDACTEDx0123456789ab**",
)  # fmt: skip


@pytest.mark.parametrize("text", QUOTED)
def test_what_may_hold_a_credential_or_a_placeholder_is_redacted(tmp_path: Path, text: str) -> None:
    """Its key is the one without the look-up: recorded by who has another credential, it is another question."""
    data = body(f"see {text} there")
    recorded(tmp_path / "x.db", data)
    with replaying(tmp_path / "x.db") as made:
        assert asked(made, data)[1]


WAYS: tuple[Callable[[str], str], ...] = (
    lambda text: base64.b64encode(text.encode()).decode(), lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    lambda text: text.encode().hex(), lambda text: quote(text, safe=""), json.dumps, lambda text: f"user:{text}@host",
    lambda text: "".join(f"%{byte:02X}" for byte in text.encode()), lambda text: text.replace("k", "\\u006b"),
    lambda text: html.escape(text).replace("5", "&#53;"), lambda text: f"api_key={text}", lambda text: f"{text[:7]}\n  {text[7:]}",
)  # fmt: skip
"""How a credential may be written."""


@st.composite
def written(draw: st.DrawFn) -> str:
    """Return a text around a credential of who replays, another one, or none, written in up to two ways."""
    text = draw(
        st.sampled_from([OURS, OURS[:-1], f"see {OURS} there", "sk-proj-" + "a1B2" * 12, "tenant-acme-7", "grüße"])
    )
    for way in draw(st.lists(st.sampled_from(WAYS), max_size=2)):
        text = way(text)
    return f"{draw(st.text(max_size=12))} {text} {draw(st.text(max_size=12))}"


@given(texts=st.lists(written(), min_size=1, max_size=6), escaped=st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_look_up_answers_as_the_derived_key_does(texts: list[str], escaped: bool) -> None:
    """Whatever is in a body, in whatever form: the same keys, decisions and recordings as without it."""
    datas = [
        json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": each}]}, ensure_ascii=escaped)
        .encode("utf-8", "surrogatepass")
        for each in texts
    ]  # fmt: skip
    with TemporaryDirectory() as folder:
        store = Path(folder) / "x.db"
        for data in datas:
            recorded(store, data)
        found = []
        for kind in (WatchedEngine, LongEngine):
            with replaying(store, kind) as made:
                exchanges = [asked(made, data)[0] for data in datas]
                found.append([(each.key, each.decision, each.slot and each.slot.id) for each in exchanges])
    assert found[0] == found[1]


HEADS: dict[str, dict[str, Any]] = {
    "another head": {"head": fields(OURS, ("OpenAI-Beta", "assistants=v2"))},
    "another target": {"target": f"{CHAT}?a=1"}, "another operation": {"target": "/v1/completions"},
}  # fmt: skip


@pytest.mark.parametrize("what", HEADS.values(), ids=HEADS)
def test_another_head_is_another_question(tmp_path: Path, what: dict[str, Any]) -> None:
    """The bytes of the body are recorded, and yet it is a miss."""
    key = recorded(tmp_path / "x.db", body())
    with replaying(tmp_path / "x.db") as made:
        exchange, derived = asked(made, body(), **what)
        assert derived
        assert exchange.key != key
        assert exchange.decision is Decision.REFUSE


@pytest.mark.parametrize(
    "config", [{"rules": Rules(ignore=("$.metadata",))}, {"match_credential": True}, {"mode": Mode.AUTO}], ids=str
)
def test_where_a_key_depends_on_more_it_is_derived(tmp_path: Path, config: dict[str, Any]) -> None:
    """Other rules than those of the recording, who asks, a mode that may record."""
    recorded(tmp_path / "x.db", body())
    with replaying(tmp_path / "x.db", **config) as made:
        assert asked(made, body())[1]


def test_where_ids_of_the_server_are_named_a_key_is_derived(tmp_path: Path) -> None:
    """A call that the request does not hold: its key depends on what the store holds."""
    data = messages({"role": "tool", "tool_call_id": "call_2", "content": ""})
    recorded(tmp_path / "x.db", data)
    with replaying(tmp_path / "x.db") as made:
        exchange, derived = asked(made, data)
        assert (exchange.decision, exchange.identity.refs, derived) == (Decision.REPLAY, ("call_2",), True)


def test_with_many_credentials_it_is_noted_what_was_searched(tmp_path: Path) -> None:
    """Then the key is derived, so that a further credential need not make it be forgotten."""
    recorded(tmp_path / "x.db", body())
    with replaying(tmp_path / "x.db") as made:
        for n in range(ROTATING + 1):
            made.redactor.learn_declared_secret(f"{OURS}{n}")
        assert asked(made, body())[1]


def test_the_journal_keeps_the_question_without_its_credentials(tmp_path: Path) -> None:
    """As of every hit, for `llmproxy audit`."""
    recorded(tmp_path / "x.db", body())
    with replaying(tmp_path / "x.db") as made:
        assert not asked(made, body(), fields(OURS, ("X-Custom", OURS)))[1]
    (_, request, same) = read_replayed_requests(tmp_path / "x.db.state.db")[-1]
    assert same
    assert OURS not in str(request.headers)


def test_a_damaged_head_leads_to_the_long_way(tmp_path: Path) -> None:
    """What is no JSON any more tells nothing; the key is derived, and the answer is there."""
    key = recorded(tmp_path / "x.db", body())
    with engine(tmp_path / "x.db") as made, made.store.sqlite_transaction() as conn:  # type: ignore[union-attr]
        conn.execute("UPDATE interactions SET request_headers = '[[1'")
    with replaying(tmp_path / "x.db") as made:
        exchange, derived = asked(made, body())
        assert (exchange.key, exchange.decision, derived) == (key, Decision.REPLAY, True)
