"""Faults beside everything else that a session may be: in parallel, bound, a fork, a sample, a WebSocket, once and live."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.bindings import check_run_variable, write_run_variables
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, recorded
from tests.mitm.test_websocket_replay import ask as say, record as record_talk
from tests.mitm.wire import Received, Wire, chat
from tests.provider import Provider, Reply, Script, Step
from tests.provider.websocket import Client
from tests.support import chats, proxy

MANY = 40
HALF = {"kind": "http-500", "probability": 0.5}


def ask(port_of: Rig, text: str, **more: Any) -> Received:  # noqa: ANN401 - as `chat` takes them
    """Ask over a connection of its own."""
    with port_of.client() as c:
        return c.ask(chat(text, **more))


def injected(rig: Rig, numbers: Sequence[int], at_once: int) -> set[int]:
    """Return which of many questions met a fault, asked so many at once; each is asked again until it is answered."""

    def one(number: int) -> bool:
        first = ask(rig, f"question {number}")
        if first.status == 500:
            assert ask(rig, f"question {number}").headers["x-llmproxy-cache"] == "hit"
        return first.status == 500

    with ThreadPoolExecutor(at_once) as pool:
        return {number for number, was in zip(numbers, pool.map(one, numbers), strict=True) if was}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with many recordings."""
    store = tmp_path_factory.mktemp("many") / "x.db"
    steps = (Step(Reply("well"), times=None),)
    with Provider(Script(steps)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        for number in range(MANY):
            assert c.ask(chat(f"question {number}")).status == 200
        rig.wait_idle()
    return store


def test_the_same_seed_strikes_the_same_calls_in_parallel_and_in_another_process(questions: Path) -> None:
    """Over sockets: one after the other, backwards and eight at once, and by a process of its own; another seed, others."""
    rules = {"seed": 7, "faults": [HALF]}
    file = questions.with_name("f.yaml")
    file.write_text(json.dumps(rules))
    with Rig("replay", questions, faults=str(file)) as rig:
        found = injected(rig, range(MANY), 1)
    assert MANY // 5 < len(found) < MANY - MANY // 5
    with Rig("replay", questions, faults=str(file)) as rig:
        assert injected(rig, range(MANY)[::-1], 8) == found
    with Rig("replay", questions, faults=str(file), faults_seed=8) as rig:
        assert injected(rig, range(MANY), 4) != found
    with proxy("replay", questions, options=("--faults", str(file))) as px, ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda number: _status(px.port, number), range(MANY)))
    assert {number for number, status in enumerate(statuses) if status == 500} == found


def _status(port: int, number: int) -> int:
    with Wire(port, 30) as c:
        return c.ask(chat(f"question {number}")).status


def test_a_bound_hit_is_broken_in_this_runs_words(tmp_path: Path) -> None:
    """Half of the answer names this run's folder; its retry is the bound hit, and nothing of the recorded run is in either."""
    store = tmp_path / "x.db"
    said = write_run_variables([check_run_variable("cwd", "/tmp/recorded")])
    question, answer = "You are in /tmp/recorded.", "Look into /tmp/recorded/a and then into /tmp/recorded/b, please."
    chats.fill(store, chats.chat(question, answer, run_variables=said))
    with Rig("replay", store, faults="length") as rig:
        rig.control("sessions", {"name": "default", "run_variables": {"cwd": "/srv/now"}})
        first, second = (ask(rig, "You are in /srv/now.", model="gpt-4o") for _ in range(2))
        rig.wait_idle()
        assert first.headers["x-llmproxy-fault"] == "length"
        assert "/srv/now/a" in first.body.decode()
        assert second.headers["x-llmproxy-bound"] == "cwd"
        assert "recorded" not in (first.body + second.body).decode()
        assert [(each.decision, each.occurrence) for each in rig.outcomes] == [
            (Decision.FAULT, None),
            (Decision.REPLAY, 1),
        ]


def test_a_sample_has_its_own_first_call(questions: Path, tmp_path: Path) -> None:
    """Faults of one session are not those of another, nor of another sample of the cassette."""
    store = tmp_path / "x.db"
    store.write_bytes(questions.read_bytes())
    with Rig("replay", store) as rig:
        rig.control("sessions", {"name": "default", "faults": "http-429"})
        assert ask(rig, "question 1").status == 429
        assert ask(rig, "question 1").status == 200
        rig.control("sessions/default/faults", {"faults": []})
        assert ask(rig, "question 2").status == 200


def test_a_fork_never_holds_a_fault(questions: Path, tmp_path: Path) -> None:
    """What a fork asks anew is struck before the provider is asked; its retry is recorded there, the parent stays as it was."""
    store = tmp_path / "x.db"
    store.write_bytes(questions.read_bytes())
    before = [row.key for row in recorded(store)]
    with (
        Provider(Script((Step(Reply("hotter"), times=None),))) as p,
        Rig("replay", store, {"openai": p.url}, faults="http-503@2", allow_live=True) as rig,
    ):
        rig.control("sessions", {"name": "default", "fork": {"live": True, "from": 2, "as": "hot"}})
        assert ask(rig, "question 1").status == 200
        assert ask(rig, "question 2").status == 503
        assert p.requests == []
        assert "hotter" in ask(rig, "question 2").body.decode()
        rig.wait_idle()
        assert len(p.requests) == 1
    rows = recorded(store)
    assert [row.key for row in rows if row.cassette == "default"] == before
    assert {row.response.status for row in rows if row.cassette == "hot"} == {200}
    assert [b"hotter" in row.response.body for row in rows if row.cassette == "hot"].count(True) == 1


@pytest.mark.parametrize("kind", ["http-503", "length"])
def test_the_request_with_which_a_run_forks_is_struck_too(questions: Path, tmp_path: Path, kind: str) -> None:
    """It was never recorded, and goes on live: its client meets the fault, its retry is what the fork begins with."""
    store = tmp_path / "x.db"
    store.write_bytes(questions.read_bytes())
    with (
        Provider(Script((Step(Reply("a rather long answer"), times=None),))) as p,
        Rig("replay", store, {"openai": p.url}, faults=f"{kind}@2", allow_live=True) as rig,
    ):
        rig.control("sessions", {"name": "default", "fork": {"live": True, "as": "new"}})
        assert ask(rig, "question 1").status == 200
        assert ask(rig, "something else").headers["x-llmproxy-fault"] == kind
        assert "rather long answer" in ask(rig, "something else").body.decode()
        assert "rather long answer" in ask(rig, "and then").body.decode()
        rig.wait_idle()
        assert len(p.requests) == 2 + (kind == "length")
    rows = [row for row in recorded(store) if row.cassette == "new"]
    assert [(row.response.status, b"rather long" in row.response.body) for row in rows][-2:] == [(200, True)] * 2


def test_a_live_session_takes_no_faults_later_either(questions: Path, tmp_path: Path) -> None:
    """They would strike nothing of what goes live: refused, as at its beginning; none is what it has."""
    store = tmp_path / "x.db"
    store.write_bytes(questions.read_bytes())
    with Rig("replay", store, allow_live=True) as rig, rig.client() as c:
        rig.control("sessions", {"name": "default", "live": ["llm"]})
        rig.control("sessions/default/faults", {"faults": []})
        data = b'{"faults": "http-429"}'
        head = b"POST /_llmproxy/sessions/default/faults HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n"
        refused = c.ask(head % len(data) + data)
        assert (refused.status, "exclude each other" in refused.message) == (400, True)


def test_once_records_what_came_after_the_fault_and_nothing_else(tmp_path: Path) -> None:
    """A first run under faults leaves what one without would have left."""
    steps = (Step(Reply("well"), times=None),)
    keys: list[list[tuple[str, int, int]]] = []
    for faults in ("", "http-500", "length"):
        store = tmp_path / f"{len(keys)}.db"
        with Provider(Script(steps)) as p, Rig("once", store, {"openai": p.url}, faults=faults) as rig:
            for text in ("one", "two"):
                while ask(rig, text).headers.get("x-llmproxy-fault"):
                    pass
            rig.wait_idle()
        keys.append([(row.key, row.occurrence, row.response.status) for row in recorded(store)])
    assert keys[0] == keys[1] == keys[2]


def test_an_upgrade_is_refused_and_the_next_one_is_played(tmp_path: Path) -> None:
    """A fault on a WebSocket is one on its upgrade; the recorded talk comes after it."""
    store = tmp_path / "x.db"
    record_talk(store, ("hello",))
    with Rig("replay", store, faults="http-429") as rig:
        struck_one = Client(rig.port)
        assert (struck_one.status, struck_one.headers["x-llmproxy-fault"]) == (429, "http-429")
        struck_one.sock.close()
        with Client(rig.port) as client:
            assert client.hear()["type"] == "session.created"
            assert len(say(client, "hello")) == 4
        rig.wait_outcomes(2)
        assert [each.fault for each in rig.outcomes] == ["http-429", None]
