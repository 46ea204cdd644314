"""Recordings take the place of older ones at the end of a session, all at once, or not at all."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from llmproxy.core.engine.engine import Engine
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.errors import CassetteBusy
from llmproxy.protocol import Mode, UpdateMode
from tests.core.engine.test_engine import NOW, answered, ask, engine


def record(made: Engine, *texts: str, name: str = "t", status: int = 200, complete: bool | None = True) -> None:
    made.sessions.open_session(name)
    for text in texts:
        call = ask(made, text, f"/s/{name}/v1/chat/completions")
        answered(made, call, f'{{"choices": [], "said": "{text}"}}'.encode(), status)
        made.accounting.record_end(call, status)
    if complete is not None:
        made.sessions.close_session(name, complete=complete)


def live(store: Path, cassette: str = "t") -> list[str | None]:
    with SqliteCassetteStore.open(store, writable=False, now=lambda: NOW) as reading:
        return [row.last_user_text for row in reading.list_summaries(cassette)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with engine(tmp_path / "x.db") as made:
        record(made, "old", "both")
    return tmp_path / "x.db"


def test_old_recordings_go_when_the_session_ends_well(store: Path) -> None:
    """Until then they answer, and after it only the new ones do, also a question that both have."""
    with engine(store, update=UpdateMode.ALL) as made:
        record(made, "both", "new", complete=None)
        assert live(store) == ["old", "both"]
        assert live(store, "t@new") == ["both", "new"]
        made.sessions.close_session("t", complete=True)
        assert made.count_unused() == 0
    assert (live(store), live(store, "t@new")) == (["both", "new"], [])
    with SqliteCassetteStore.open(store, writable=False, now=lambda: NOW) as reading:
        assert reading.last_session_ended_cleanly("t", 1)
        assert [info.name for info in reading.cassettes()] == ["t"]
    with engine(store, Mode.REPLAY) as made:
        assert ask(made, "new", "/s/t/v1/chat/completions").slot is not None
        assert ask(made, "old", "/s/t/v1/chat/completions").slot is None


@pytest.mark.parametrize("how", ["failed answer", "interrupted", "nothing recorded"])
def test_old_recordings_stay_where_the_new_ones_are_not_whole(store: Path, how: str) -> None:
    """A provider's failure, a proxy that is ended and a test that asks nothing leave all as it was; the next time counts."""
    before = store.read_bytes() if how == "nothing recorded" else b""
    with engine(store, update=UpdateMode.ALL) as made:
        if how == "failed answer":
            record(made, "new", status=503)
        elif how == "interrupted":
            record(made, "new", complete=None)
        else:
            record(made)
    assert live(store) == ["old", "both"]
    with SqliteCassetteStore.open(store, writable=False, now=lambda: NOW) as reading:
        assert reading.last_session_ended_cleanly("t", 1)
    with engine(store, update=UpdateMode.ALL) as made:
        record(made, "newer")
    assert (live(store), live(store, "t@new")) == (["newer"], [])
    assert before != store.read_bytes()


def test_a_failed_test_leaves_its_new_recording_open(store: Path) -> None:
    """Its answers are good, so the next run need not pay for them; what it lacks `once` adds."""
    with engine(store, update=UpdateMode.ALL) as made:
        record(made, "new", complete=False)
    assert live(store) == ["new"]
    with SqliteCassetteStore.open(store, writable=False, now=lambda: NOW) as reading:
        assert not reading.last_session_ended_cleanly("t", 1)


def test_tests_that_share_a_cassette_add_up(store: Path) -> None:
    """The second session of one run replaces nothing of the first but its answers to the same questions."""
    with engine(store, update=UpdateMode.ALL) as made:
        record(made, "one", "both")
        record(made, "both", "two")
    assert live(store) == ["one", "both", "two"]


def test_two_that_replace_one_cassette_exclude_each_other(store: Path) -> None:
    """The second is told who does it; nothing of the first is lost."""
    with engine(store, update=UpdateMode.ALL) as made, engine(store, update=UpdateMode.ALL, holder="other") as other:
        record(made, "new", complete=None)
        with pytest.raises(CassetteBusy):
            other.sessions.open_session("t")
        made.sessions.close_session("t", complete=True)
    assert live(store) == ["new"]


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_whole(store: Path) -> None:
    """A process that replaces one recording by the next all the time is killed; what is there is one of them, whole."""
    rng, seen = random.Random(7), set[str]()
    for _ in range(8):
        if not (child := os.fork()):
            for n in range(10_000):
                with engine(store, update=UpdateMode.ALL) as made:
                    record(made, *(f"{n} {part}" for part in range(3)))
            os._exit(0)
        time.sleep(rng.uniform(0.05, 0.5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        there = live(store)
        seen.add(str(there))
        numbers = {str(text).split()[0] for text in there}
        assert there == ["old", "both"] or (len(there), len(numbers)) == (3, 1), there
    assert len(seen) > 1
