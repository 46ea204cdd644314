"""What a fork does to requests and to the store; the rest of it is in test_forking."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from llmproxy.calls import Call
from llmproxy.core.engine.divergence import override_results, part
from llmproxy.core.forks.overrides import parse_overrides
from llmproxy.core.forks.table import Copy, fork_of
from llmproxy.core.providers.routing import route
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.forking import Forking
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.file.store import FileStore
from llmproxy.core.traffic.interaction import Chunk, Headers, Response
from llmproxy.protocol import Decision, Exhausted, Mode
from tests.support.chats import NOW, chat, fill

BODY = json.dumps({"messages": [{"role": "tool", "name": "t", "content": "21"}]}).encode()
ALONE = json.dumps({"input": [{"type": "function_call_output", "call_id": "c9", "output": "21"}]}).encode()


def exchange(*headers: tuple[str, str]) -> Exchange:
    """Return a request of the agent in a session `a`."""
    session = Session("a", "a", 1, Mode.REPLAY, 0.0, Exhausted.LAST)
    given: Headers = headers
    where = route("POST", "/v1/chat/completions", given, {})
    return Exchange(where, session, "agent", "POST", given, 0.0, NOW, "chat.completions", number=3, body=b"")


def forking() -> Forking:
    """Return what overrides the tool `t`."""
    given = parse_overrides(["t=5"], [])
    return Forking(overrides=given, given=given, parent=("a", 1), live=True, child="b")


def test_a_compressed_request_is_swapped_plain() -> None:
    """And says so no longer; one that cannot be unpacked, or has nothing to swap, goes on as it came."""
    sent = exchange(("content-encoding", "gzip"), ("x", "1"))
    done = override_results(forking(), sent, gzip.compress(BODY), limit=1000, told=lambda *_: None)
    assert json.loads(done)["messages"][0]["content"] == "5"
    assert (sent.headers, sent.swapped, sent.body) == ((("x", "1"),), True, done)
    for body in (gzip.compress(b"{}"), b"no gzip", gzip.compress(b" " * 5000)):
        sent = exchange(("content-encoding", "gzip"))
        assert override_results(forking(), sent, body, limit=1000, told=lambda *_: None) == body
        assert (sent.swapped, len(sent.headers)) == (False, 1)


def test_ids_are_looked_for_in_the_answers_so_far_once() -> None:
    """Only when a request has one that its history does not explain, and no answer twice."""
    call = {"id": "c9", "function": {"name": "t", "arguments": "{}"}}
    said = json.dumps({"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}).encode()
    answer = chat(response=Response(200, "OK", (("content-type", "application/json"),), (Chunk(0, said),)))
    asked: list[int] = []

    def told(_session: Session, outcome: Call) -> object:
        asked.append(outcome.seq)
        return answer

    state, sent = forking(), exchange()
    sent.session.calls.begin()
    sent.session.calls.add(Call(decision=Decision.REPLAY, method="POST", target="/", status=200, seq=1))
    for _ in range(2):
        done = override_results(state, sent, ALONE, limit=1000, told=told)  # type: ignore[arg-type]
        assert json.loads(done)["input"][0]["output"] == "5"
    assert asked == [1]


@pytest.mark.parametrize("secret", ["sk-proj-" + "a" * 40])
def test_a_fork_is_begun_in_the_store(tmp_path: Path, secret: str) -> None:
    """Copies, answers made by hand, the row with its overrides redacted; the session records the child, and keeps what it shares."""
    path = tmp_path / "x.db"
    fill(path, chat("one", cassette="a"))
    state, sent = forking(), exchange()
    state.overrides = parse_overrides([f"t={secret}"], [])
    state.shared.append(Copy(1, 1, NOW))
    state.made[2] = chat("two", "by hand", cassette="a", started_at=NOW + 1)
    sent.session.arrive(("agent", chat("one").key), 1)
    with FileStore.open(path, writable=True, now=lambda: NOW) as store:
        part(state, sent, None, store=store, hide=lambda text: text.replace(secret, "***"), now=NOW)
        assert [b"by hand" in each.response.body for each in store.interactions("b")] == [False, True]
        found = fork_of(store, "b", 1)
        assert found is not None
        assert (found.overrides.tools[0].text, found.step, found.shared) == ("***", 3, 1)
    assert (sent.session.cassette, sent.session.mode, sent.note) == ("b", Mode.RECORD, "fork: b")
    assert not sent.session.supersedes(("agent", chat("one").key))
    assert sent.session.served == {2, 3}
