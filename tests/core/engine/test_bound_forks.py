"""Bound hits where a cassette holds more than one run: forks, samples, overrides, and what `auto` added on another day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmproxy.core.bindings import RunVariable, VolatileField
from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.forking import ForkState
from llmproxy.core.forks.overrides import AnswerOverrides, parse_answer_override_options
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import save_cassette_volatile_fields
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_bound_hits import _text as said
from tests.core.engine.test_engine import CHAT, NOW, answered, engine, send
from tests.support.messages import answer, said as says, used, user

Json = Any
SLOTS = [VolatileField("chunk", "hex", "run", before="Chunk ID: ")]


class Run:
    """An agent in one folder, whose tool makes one id: three requests, each with the answers before it."""

    def __init__(self, cwd: str, chunk: str) -> None:
        self.cwd, self.chunk = cwd, chunk
        self.run_variables = (RunVariable("cwd", cwd),)

    def body(self, number: int, result: str = "") -> bytes:
        """Return the n-th request, from 1."""
        cwd, chunk = self.cwd, self.chunk
        turns = [
            user(f"make it in {cwd}"), *used("run", {"in": cwd}, result or f"Chunk ID: {chunk}\n{cwd}"),
            says(self.text(2)), user("and now?"),
        ]  # fmt: skip
        return json.dumps({"model": "gpt-5", "messages": turns[: 2 * number - 1]}).encode()

    def text(self, number: int) -> str:
        return ("", "I make it", f"made {self.chunk} in {self.cwd}", f"see {self.cwd}/{self.chunk}")[number]


A, B, C = Run("/tmp/a/one", "98e1ef00"), Run("/srv/ci/two", "aa01bc22"), Run("/w/three", "77770033")


def ask(made: Engine, body: bytes, session: str = "p") -> Exchange:
    return send(made, body, f"/s/{session}{CHAT}")


def record(made: Engine, exchange: Exchange, text: str) -> None:
    assert exchange.decision is Decision.RECORD, exchange.error
    answered(made, exchange, answer(says(text)))


def record_whole(store: Path, run: Run, session: str = "p") -> None:
    with engine(store) as made:
        made.sessions.open_session(session, run_variables=run.run_variables)
        for n in (1, 2, 3):
            record(made, ask(made, run.body(n), session), run.text(n))
    give_slots(store, session.partition("~")[0])


def give_slots(store: Path, cassette: str) -> None:
    with SqliteCassetteStore.open(store, writable=True, now=lambda: NOW) as opened:
        save_cassette_volatile_fields(opened, cassette, SLOTS)


def replays_whole(store: Path, run: Run, session: str = "p") -> None:
    """Assert that each request is a hit, in this run's words."""
    with engine(store, Mode.REPLAY) as made:
        made.sessions.open_session(session, run_variables=run.run_variables)
        for n in (1, 2, 3):
            assert said(made, ask(made, run.body(n), session)) == run.text(n), n


def test_a_fork_of_a_run_elsewhere_replays_in_a_third_place(store: Path) -> None:
    """The child shares what was recorded in A, holds what was recorded in B, and replays in C: each with its own run's values."""
    record_whole(store, A)
    with engine(store, Mode.REPLAY, allow_live=True) as made:
        made.sessions.open_session(
            "p", run_variables=B.run_variables, forking=ForkState(given=AnswerOverrides(), live=True, at=3), child="kid"
        )
        for n in (1, 2):
            assert said(made, ask(made, B.body(n))) == B.text(n)
        record(made, ask(made, B.body(3)), B.text(3))
        made.sessions.close_session("p")
    for run in (A, B, C):
        replays_whole(store, run, "kid")
    replays_whole(store, C, "p")


def test_what_auto_added_in_another_run_is_of_that_run(store: Path) -> None:
    """Two recorded ids stand for one of today: each in recordings of its own run."""
    with engine(store) as made:
        made.sessions.open_session("p", run_variables=A.run_variables)
        for n in (1, 2):
            record(made, ask(made, A.body(n)), A.text(n))
    give_slots(store, "p")
    with engine(store, Mode.AUTO) as made:
        made.sessions.open_session("p", run_variables=B.run_variables)
        assert said(made, ask(made, B.body(1))) == B.text(1)
        assert said(made, ask(made, B.body(2))) == B.text(2)
        record(made, ask(made, B.body(3)), B.text(3))
    for run in (B, C):
        replays_whole(store, run)


def test_samples_are_runs_of_their_own(store: Path) -> None:
    """The second sample was recorded elsewhere; both replay in a third folder, with the cassette's slots."""
    record_whole(store, A)
    record_whole(store, B, "p~2")
    for session in ("p", "p~2"):
        replays_whole(store, C, session)


@contextmanager
def overridden(store: Path, tools: list[str], answers: list[str]) -> Iterator[Engine]:
    """Record A, and replay it as B with overrides; the first request comes before them, and is a bound hit."""
    record_whole(store, A)
    with engine(store, Mode.REPLAY) as made:
        forking = ForkState(given=parse_answer_override_options(tools, answers))
        made.sessions.open_session("p", run_variables=B.run_variables, forking=forking)
        assert said(made, ask(made, B.body(1))) == B.text(1)
        yield made


def test_an_overridden_result_is_held_against_bound_recordings(store: Path) -> None:
    """The override parts from the recording in any folder, and says so."""
    with overridden(store, ["run=no such chunk"], []) as made:
        exchange = ask(made, B.body(2))
        assert exchange.decision is Decision.REFUSE
        assert "the result of run (call 1) was overridden" in str(exchange.error)


def test_an_override_that_says_what_was_recorded_is_a_bound_hit(store: Path) -> None:
    """The tool said something else this time, and the override what it said in the recorded run, in this run's words."""
    with overridden(store, [f"run=Chunk ID: {B.chunk}\n{B.cwd}"], []) as made:
        assert said(made, ask(made, B.body(2, "Chunk ID: 000000 is gone"))) == B.text(2)


def test_an_overridden_answer_counts_in_a_run_elsewhere(store: Path) -> None:
    """The second call of the model is answered by hand, the first and the third are bound hits."""
    with overridden(store, [], ["1=by hand"]) as made:
        second = ask(made, B.body(2))
        assert second.answer.made is not None
        assert b"by hand" in second.answer.made.body
        assert said(made, ask(made, B.body(3))) == B.text(3)
