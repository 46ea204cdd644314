"""What the control API tells of a session's calls: every one with its recording, and the spans of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.bindings import check_circumstance
from llmproxy.core.cassettes.plain import from_json
from llmproxy.core.control.values import BadControl
from llmproxy.core.control.walk import number, report, spans, walk
from llmproxy.core.engine.engine import Engine
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import Config
from llmproxy.core.sessions.outcomes.journal import Journal
from llmproxy.core.sessions.session import Session
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.protocol import Decision, Mode
from tests.support.chats import NOW, chat, fill


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Return a replay engine over a cassette `a`: hi, hi, and a judge's hi."""
    path = tmp_path / "x.db"
    hi = chat("hi", "one", cassette="a")
    fill(path, hi, chat("hi", "two", cassette="a", occurrence=2), chat("hi", "verdict", cassette="a", party="judge"))
    journal = Journal.open(tmp_path / "x.state.db", lambda: NOW)
    made = Engine(
        Config(mode=Mode.REPLAY, store=path), redactor=Redactor(), journal=journal, now=lambda: NOW, clock=lambda: 0.0
    )
    yield made
    made.close()
    journal.close()


@pytest.fixture
def session(engine: Engine) -> Session:
    """Return an open session of it."""
    return engine.sessions.open("a")


def ask(engine: Engine, text: str, party: str | None = None) -> None:
    """Let somebody ask, and answer."""
    recorded = chat(text)
    headers = (*recorded.request.headers, *((("x-llmproxy-party", party),) if party else ()))
    exchange = engine.arrive("POST", "/s/a/v1/chat/completions", None, headers)
    engine.identify(exchange, recorded.request.body)
    if exchange.decision is Decision.REPLAY:
        engine.answer(exchange)
    engine.outcome(exchange, 200 if exchange.decision is Decision.REPLAY else 404)


def test_each_call_is_told_with_its_recording(engine: Engine, session: Session) -> None:
    """Hits in order, with what was played; a miss with the text its client got and no recording; who asked."""
    for text, party in (("hi", None), ("hi", "judge"), ("nothing", None), ("hi", None)):
        ask(engine, text, party)
    told = walk(engine, session, 0)
    assert (told["arrived"], told["open"]) == (4, 0)
    calls: list[dict[str, Any]] = told["calls"]
    assert [call["seq"] for call in calls] == [1, 2, 3, 4]
    assert {call["channel"] for call in calls} == {"llm"}
    assert [call["party"] for call in calls] == ["agent", "judge", "agent", "agent"]
    answers = [call["recording"] and call["recording"]["response_body"] for call in calls]
    assert ["one" in answers[0], "verdict" in answers[1], answers[2], "two" in answers[3]] == [True, True, None, True]
    assert [(call["decision"], call["miss"], call["status"]) for call in calls[2:]] == [
        ("REFUSE", True, 404),
        ("REPLAY", False, 200),
    ]
    assert "no recorded response" in calls[2]["note"]
    assert [call["seq"] for call in walk(engine, session, 3)["calls"]] == [4]


def test_a_recording_that_is_gone_is_no_recording(engine: Engine, session: Session) -> None:
    """Pruned beside us: the call stays, what was said is unknown."""
    ask(engine, "hi")
    assert engine.load_recording(1) is not None
    assert engine.load_recording(999) is None
    assert engine.load_recording(None) is None


def test_calls_go_on_over_a_reset(engine: Engine, session: Session) -> None:
    """`seq` counts since the session was opened, so nobody who asks for what is new sees a call twice."""
    ask(engine, "hi")
    engine.sessions.reset("a")
    ask(engine, "hi")
    assert [call["seq"] for call in walk(engine, session, 1)["calls"]] == [2]
    assert report(engine, session)["arrived"] == 2


def test_spans_are_of_one_party_and_of_each_call(engine: Engine, session: Session) -> None:
    """A recording that is played twice is two calls; the agent's unless another is named; nobody's are a question."""
    for party in (None, "judge", None, None):
        ask(engine, "hi", party)
    seen: list[list[Interaction]] = []

    def make(given: Sequence[Interaction]) -> list[Any]:
        seen.append(list(given))
        return [each.occurrence for each in given]

    assert spans(engine, session, "", make)["spans"] == [1, 2, 3]
    assert spans(engine, session, "judge", make)["spans"] == [1]
    assert len(spans(engine, session, "*", make)["spans"]) == 4
    with pytest.raises(BadControl, match="no spans"):
        spans(engine, session, "", None)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 40, "²"])
def test_after_is_a_number(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(BadControl, match="after is"):
        number(text)


def test_what_is_told_is_the_interaction(engine: Engine, session: Session) -> None:
    """Read back, it is what the store has."""
    ask(engine, "hi")
    recording = walk(engine, session, 0)["calls"][0]["recording"]
    assert engine.store is not None
    assert from_json(recording) == engine.store.load(1)


def test_a_circumstance_that_is_a_secret_is_told_without_it(engine: Engine) -> None:
    """Neither to who asks for the session, nor in any other form; what is none stands there."""
    secret = "sk-proj-" + "a1B2c3D4" * 6
    declared = [check_circumstance("token", secret), check_circumstance("cwd", "/srv/a")]
    found = report(engine, engine.sessions.open("a", circumstances=declared))["circumstances"]
    assert found == [{"name": "token", "value": "[REDACTED]"}, {"name": "cwd", "value": "/srv/a"}]
