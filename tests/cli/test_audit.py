"""``llmproxy audit``: what counts as one, what was served for what, and why."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from llmproxy.core.engine.engine import Engine
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import Config
from llmproxy.core.sessions.journal import Journal
from llmproxy.core.traffic.interaction import Headers
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import answered
from tests.support.chats import chat, fill, run

CHAT = "/v1/chat/completions"
HI: dict[str, object] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
Asked = tuple[dict[str, object], Headers]


def perform(store: Path, mode: Mode, *asked: Asked) -> None:
    """Ask through an engine with a journal, as a proxy has it."""
    journal = Journal.open(Path(f"{store}.state.db"), time.time)
    made = Engine(
        Config(mode=mode, store=store), redactor=Redactor(), journal=journal, now=time.time, clock=time.monotonic
    )
    for body, headers in asked:
        exchange = made.begin_exchange("POST", CHAT, None, headers)
        made.stages.identify_and_decide(exchange, json.dumps(body).encode())
        if exchange.decision is Decision.RECORD:
            answered(made, exchange)
        assert exchange.error is None
    made.close()
    journal.close()


def test_what_was_served_is_compared_with_what_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A question that differs where it does not count, and one in the very same words."""
    store = tmp_path / "a.db"
    perform(store, Mode.RECORD, (HI, (("user-agent", "one"),)), ({**HI, "seed": 1}, ()))
    perform(store, Mode.REPLAY, ({**HI, "user": "u"}, (("user-agent", "two"),)), ({**HI, "seed": 1}, ()))
    code, said = run(capsys, store, "audit")
    assert (code, "0 unexplained" in said) == (0, True), said
    assert "2 questions that the journal kept were served; 1 differed" in said
    assert "$.user: end-user id for abuse detection" in said
    assert "header user-agent: identifies the client and its version" in said
    code, said = run(capsys, store, "audit", "--json")
    assert [len(each["differences"]) for each in json.loads(said)["served"]] == [2, 0]


def test_recordings_of_one_key_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second recording of a request that was asked twice, in other words."""
    store = tmp_path / "a.db"
    perform(store, Mode.RECORD, (HI, ()), ({**HI, "metadata": {"run": "2"}}, (("traceparent", "00-1"),)))
    code, said = run(capsys, store, "audit")
    assert code == 0
    assert "1 of them have the key of an earlier one and differ from it:" in said
    assert "$.metadata: labels for the provider's dashboard" in said


def test_what_nobody_can_explain_is_said_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A field that no table knows, at an operation where unknown ones do not count."""
    store = tmp_path / "a.db"
    perform(store, Mode.RECORD, (HI, (("x-brand-new", "\x1b[2J"),)), (HI, ()))
    code, said = run(capsys, store, "audit")
    assert code == 1
    assert "header x-brand-new" in said
    assert "1 unexplained." in said
    assert "\x1b" not in said


def test_a_key_that_is_equal_by_a_fault_of_ours_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two recordings under one key whose requests differ where it counts."""
    one, other = chat("one"), chat("two")
    fill(tmp_path / "a.db", one, other)
    with closing(sqlite3.connect(tmp_path / "a.db")) as conn:
        conn.execute("UPDATE interactions SET key = (SELECT key FROM interactions WHERE id = 1), occurrence = id")
        conn.commit()
    code, said = run(capsys, tmp_path / "a.db", "audit")
    assert code == 1
    assert '$.messages[0].content: "one" -> "two"' in said


def test_without_a_journal_the_recordings_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "a.db", chat())
    code, said = run(capsys, tmp_path / "a.db", "audit")
    assert (code, "0 questions" in said) == (0, True)
