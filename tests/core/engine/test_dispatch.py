"""Where a request belongs. What a place is made of is tested through the engine."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from llmproxy.core.engine.decide import at_the_head
from llmproxy.core.engine.identity import Dispatcher, fingerprint_caller, read_store_secret
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import Config
from llmproxy.core.sessions.session import SessionDefaults, Sessions
from llmproxy.errors import MachineError, RefusedError
from llmproxy.protocol import Decision, Exhausted, Mode

SECRET = b"0" * 32
CHAT, TELEMETRY = "/v1/chat/completions", "/v1/traces/ingest"


def placing(mode: Mode, tmp_path: Path) -> tuple[Dispatcher, Sessions]:
    """Return what reads heads, over no store."""
    sessions = Sessions(SessionDefaults(mode, 0.0, Exhausted.LAST), lambda _mode: None, "test")
    return Dispatcher(Config(mode=mode, store=tmp_path / "x.db"), Redactor(), sessions), sessions


@pytest.mark.parametrize(("mode", "decision"), [
    (Mode.REPLAY, None), (Mode.AUTO, None), (Mode.ONCE, None), (Mode.RECORD, Decision.RECORD),
    (Mode.PASSTHROUGH, Decision.PASS),
])  # fmt: skip
def test_a_head_settles_what_need_not_be_looked_up(mode: Mode, decision: Decision | None, tmp_path: Path) -> None:
    """What is recorded or passed may stream through at once; what may be a hit waits for its body."""
    made, sessions = placing(mode, tmp_path)
    place = made.place("POST", CHAT, None, ())
    assert at_the_head(place, sessions.get(place.name)) is decision
    assert at_the_head(place._replace(in_scope=False), sessions.get(place.name)) is Decision.PASS


def test_a_stranger_is_let_through_only_where_the_network_is(tmp_path: Path) -> None:
    """In replay nothing leaves the machine but to hosts that were named."""
    host = ("https", "example.org", 443)
    with pytest.raises(RefusedError):
        placing(Mode.REPLAY, tmp_path)[0].place("GET", "/x", host, ())
    assert not placing(Mode.RECORD, tmp_path)[0].place("GET", "/x", host, ()).in_scope


def test_a_head_opens_no_session(tmp_path: Path) -> None:
    """Reading where a request belongs leaves no trace."""
    made, sessions = placing(Mode.REPLAY, tmp_path)
    made.place("POST", f"/s/a{CHAT}", None, ())
    assert sessions.walks == {}


@pytest.mark.parametrize(("headers", "target"), [
    ((("Authorization", "Bearer sk-right"),), "/v1/models"),
    ((("x-api-key", "sk-right"),), "/v1/models"),
    ((("api-key", "sk-right"),), "/v1/models"),
    ((("X-Goog-Api-Key", "sk-right"),), "/v1/models"),
    ((), "/v1/models?key=sk-right"),
])  # fmt: skip
def test_the_same_key_is_the_same_caller_wherever_it_stands(headers: tuple[tuple[str, str], ...], target: str) -> None:
    """SDK generations send one key in different headers."""
    assert fingerprint_caller(headers, target, SECRET) == fingerprint_caller((("x-api-key", "sk-right"),), "/", SECRET)


def test_another_key_or_none_is_another_caller() -> None:
    """A wrong key, no key, and the same key under another secret all differ; the key itself is not in it."""
    right = fingerprint_caller((("x-api-key", "sk-right"),), "/", SECRET)
    others = {
        fingerprint_caller((("x-api-key", "sk-wrong"),), "/", SECRET),
        fingerprint_caller((), "/", SECRET),
        fingerprint_caller((("x-api-key", "sk-right"),), "/", b"1" * 32),
    }
    assert len(others) == 3
    assert right not in others
    assert "sk-right" not in right


def test_a_signed_request_is_its_access_key() -> None:
    """SigV4 signs anew each time; who signs stays."""
    signed = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{}/us-east-1/bedrock/aws4_request, Signature={}"
    both = [
        fingerprint_caller((("authorization", signed.format(day, day)),), "/", SECRET)
        for day in ("20260101", "20260102")
    ]
    assert both[0] == both[1]


def test_the_secret_is_made_once_and_is_the_owners(tmp_path: Path) -> None:
    """It lies beside the store with mode 600; a damaged one is an error."""
    store = tmp_path / "a.db"
    first = read_store_secret(store)
    assert read_store_secret(store) == first
    path = tmp_path / "a.db.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(MachineError, match="5 bytes"):
        read_store_secret(store)
