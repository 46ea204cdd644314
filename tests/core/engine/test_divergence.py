"""What a fork does to requests and to the store; the rest of it is in test_forking."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.core.engine.forking import ForkFeature, ForkInterceptor, ForkState, _NumberedRequest
from llmproxy.core.forks.fork_rows import CopiedRecording, find_fork
from llmproxy.core.forks.overrides import parse_answer_override_options
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.sessions.call_interceptor import Decided, RecordingLookup
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session, SessionSettings
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Chunk, Response
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import engine
from tests.support.chats import NOW, chat, chat_exchange, fill
from tests.support.messages import answer, asks, call
from tests.support.narrowing import known

BODY = json.dumps({"messages": [{"role": "tool", "name": "t", "content": "21"}]}).encode()
ALONE = json.dumps({"input": [{"type": "function_call_output", "call_id": "c9", "output": "21"}]}).encode()


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[ForkInterceptor]:
    """Return what overrides the tool `t` in a session `a`, whose cassette has one recording."""
    fill(tmp_path / "x.db", chat("one", cassette="a"))
    with engine(tmp_path / "x.db", Mode.RECORD, max_request=1000) as made:
        session = Session("a", "a", 1, SessionSettings(Mode.REPLAY))
        given = parse_answer_override_options(["t=5"], [])
        state = ForkState(overrides=given, given=given, parent=("a", 1), live=True, child="b")
        made.sessions.add_interceptor_to_session(
            session, ForkInterceptor(made.get_feature(ForkFeature).parts, session, state)
        )
        yield known(session.find_interceptor(ForkInterceptor))


def canonical() -> Canonical:
    raise AssertionError("nobody asks")


def exchange(forks: ForkInterceptor, *headers: tuple[str, str]) -> Exchange:
    made = chat_exchange(forks._session, headers)
    made.state.put(_NumberedRequest(3))
    return made


def test_a_compressed_request_is_swapped_plain(forks: ForkInterceptor) -> None:
    """And says so no longer; one that cannot be unpacked, or has nothing to swap, goes on as it came."""
    sent = exchange(forks, ("content-encoding", "gzip"), ("x", "1"))
    done = forks.before_key(sent, gzip.compress(BODY))
    assert json.loads(done)["messages"][0]["content"] == "5"
    assert (sent.request.headers, sent.request.rewritten, sent.request.body) == ((("x", "1"),), True, done)
    for body in (gzip.compress(b"{}"), b"no gzip", gzip.compress(b" " * 5000)):
        sent = exchange(forks, ("content-encoding", "gzip"))
        assert forks.before_key(sent, body) == body
        assert (sent.request.rewritten, len(sent.request.headers)) == (False, 1)


def test_ids_are_looked_for_in_the_answers_so_far_once(forks: ForkInterceptor) -> None:
    """Only when a request has one that its history does not explain, and no answer twice."""
    said = answer(asks(call("t", "{}", "c9")))
    made = chat(response=Response(200, "OK", (("content-type", "application/json"),), (Chunk(0, said),)))
    state, sent = forks.forking, exchange(forks)
    state.made[1] = made
    sent.session.calls.begin()
    sent.session.calls.add_ended_call(Call(decision=Decision.REPLAY, method="POST", target="/", status=200, seq=1))
    for _ in range(2):
        assert json.loads(forks.before_key(sent, ALONE))["input"][0]["output"] == "5"
        assert state.scanned == 1
        state.made.clear()


def test_a_fork_is_begun_in_the_store(tmp_path: Path, forks: ForkInterceptor) -> None:
    """Copies, answers made by hand, the row with its overrides redacted; the session records the child, and keeps what it shares."""
    state, sent, secret = forks.forking, exchange(forks), "sk-proj-" + "a1B2c3D4e5" * 4
    state.overrides = parse_answer_override_options([f"t={secret}"], [])
    state.shared.append(CopiedRecording(1, 1))
    state.made[2] = chat("two", "by hand", cassette="a", started_at=NOW + 1)
    sent.session.count_arrival(("agent", chat("one").key), 1)
    hit = Decided(Decision.RECORD)
    assert forks.on_decision(sent, RecordingLookup(chat("one").key, (), canonical), hit).decision is Decision.RECORD
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=False, now=lambda: NOW) as store:
        assert [b"by hand" in each.response.body for each in store.iter_interactions("b")] == [False, True]
        found = known(find_fork(store, "b", 1))
        assert secret not in str(found.overrides)
        assert (found.step, found.shared) == (3, 1)
    assert (sent.session.cassette, sent.session.settings.mode, sent.note) == ("b", Mode.RECORD, "fork: b")
    assert not sent.session.claim_superseding(("agent", chat("one").key), good=True)
    assert sent.session.served == {2, 3}
