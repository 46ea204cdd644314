"""Where a request belongs. What a place is made of is tested through the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.core.engine.placing import Placing, at_the_head
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import Config
from llmproxy.core.sessions.sessions import SessionDefaults, Sessions
from llmproxy.errors import RefusedError
from llmproxy.protocol import Decision, Exhausted, Mode

CHAT, TELEMETRY = "/v1/chat/completions", "/v1/traces/ingest"


def placing(mode: Mode, tmp_path: Path) -> tuple[Placing, Sessions]:
    """Return what reads heads, over no store."""
    sessions = Sessions(SessionDefaults(mode, 0.0, Exhausted.LAST), lambda _mode: None, "test")
    return Placing(Config(mode=mode, store=tmp_path / "x.db"), Redactor(), sessions), sessions


@pytest.mark.parametrize(
    ("mode", "decision"),
    [
        (Mode.REPLAY, None),
        (Mode.AUTO, None),
        (Mode.ONCE, None),
        (Mode.RECORD, Decision.RECORD),
        (Mode.PASSTHROUGH, Decision.PASS),
    ],
)
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
