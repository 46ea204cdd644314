"""The store, on real files: slots, superseding, and what several processes do at once."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import Ending, Interaction, Request
from llmproxy.errors import RecordingError
from tests.support.recordings import NOW, interaction, key, read_everything, reopened, start, status


def test_half_a_surrogate_pair_may_stand_in_any_name(store: Store) -> None:
    """JSON can say it: a tool of MCP is called so, and its name stands in the operation."""
    for n in range(2):
        request = Request("POST", "/", (), b"x" * 10_000 + bytes([n]))
        one = interaction(n, operation="mcp:tools/call \ud800", cassette="\udc00", request=request)
        store.add_interaction(one, supersede=False)
    assert [each.operation for each in store.iter_interactions("\udc00")] == ["mcp:tools/call \ud800"] * 2


def test_superseding_replaces_a_key_in_one_step(store: Store) -> None:
    """The new recording is the only live one; the older stay, marked with their successor; one in flight gets slot 1."""
    old = [store.add_interaction(interaction(1), supersede=False) for _ in range(3)]
    other = store.add_interaction(interaction(2), supersede=False)
    new = store.add_interaction(interaction(1, occurrence=2), supersede=True)
    assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(1))] == [new]
    assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(2))] == [other]
    marks = store.conn.execute("SELECT id, superseded_by FROM interactions WHERE superseded_at IS NOT NULL").fetchall()
    assert marks == [(id_, new) for id_ in old]
    assert store.load(old[0]).response.body == b"answer 1"
    assert [row.id for row in store.list_summaries()] == [new, other]
    assert len(store.list_summaries(superseded=True)) == 5
    first = store.add_interaction(interaction(1, occurrence=1), supersede=False)
    found = [(slot.id, slot.occurrence) for slot in store.find_keyed("default", 1, "agent", key(1))]
    assert found == [(first, 1), (new, 2)], "of two in flight the later may end first"


def test_a_cassette_is_complete_only_after_a_clean_end(store: Store) -> None:
    """Each add clears the mark, a clean end sets it, an unclean end and a begin for recording do not."""
    states = []
    for step in (
        lambda: None,
        lambda: store.begin_writing("default", 1, exclusive=True, holder="a"),
        lambda: store.add_interaction(interaction(1), supersede=True),
        lambda: store.end_writing("default", 1, "a", clean=False),
        lambda: store.end_writing("default", 1, "a", clean=True),
        lambda: store.add_interaction(interaction(2), supersede=False),
        lambda: store.end_writing("default", 1, "b", clean=True),
        lambda: store.begin_writing("default", 1, exclusive=True, holder="c"),
        lambda: store.end_writing("default", 1, "b", clean=True),
    ):
        step()
        states.append((store.has_recordings("default", 1), store.last_session_ended_cleanly("default", 1)))
    flags = (
        [(False, False)] * 2 + [(True, False)] * 2 + [(True, True), (True, False), (True, True)] + [(True, False)] * 2
    )
    assert states == flags


def test_two_processes_share_a_store(path: Path) -> None:
    """200 interactions from each, half of them of one key: all are there, and no slot is lost or given twice."""
    script = """
        for n in range(200):
            store.add_interaction(interaction(0 if n % 2 else int(sys.argv[2]) + n), supersede=False)
        store.close()
    """
    both = [start(script, str(path), first) for first in ("1000", "2000")]
    for process in both:
        process.communicate(timeout=60)
    assert [process.returncode for process in both] == [0, 0]
    with reopened(path) as store:
        assert len(store.list_summaries()) == 400
        assert [slot.occurrence for slot in store.find_keyed("default", 1, "agent", key(0))] == list(range(1, 201))
        assert sorted(row.position for row in store.list_summaries()) == list(range(1, 401))
    assert [file.name for file in path.parent.iterdir()] == ["llmproxy.db"]


def test_a_killed_recorder_loses_nothing_it_committed(path: Path) -> None:
    """Killed in the middle, the store opens and holds every interaction whose add had returned."""
    script = """
        n = 0
        while True:
            n += 1
            store.add_interaction(interaction(n), supersede=False)
            print(n, flush=True)
    """
    process = start(script, str(path))
    assert process.stdout is not None
    confirmed = 0
    for line in process.stdout:
        confirmed = int(line)
        if confirmed >= 50:
            process.send_signal(signal.SIGKILL)
            break
    confirmed = max([confirmed, *(int(line) for line in process.stdout.read().split())])
    process.wait(10)
    process.stdout.close()
    with reopened(path) as store:
        keys = [store.load(row.id).key for row in store.list_summaries()]
    assert keys[:confirmed] == [key(n) for n in range(1, confirmed + 1)]


def test_a_full_disk_loses_only_what_did_not_fit(path: Path) -> None:
    """The add says so with its cause, what was there stays readable, and a later one that fits is stored."""
    script = """
        import random
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        stored = 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        try:
            for n in range(1000):
                body = random.Random(n).randbytes(20_000)
                store.add_interaction(interaction(n, response=Response(200, "OK", (), (Chunk(1, body),))), supersede=False)
                stored += 1
        except RecordingError as error:
            assert error.__cause__ is not None
            print(error.message)
        assert len(store.list_summaries()) == stored >= 5, (len(store.list_summaries()), stored)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.add_interaction(interaction(5000), supersede=False)
        assert len(store.list_summaries()) == stored + 1
        store.close()
    """
    process = start(script, str(path))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "did not take the recording" in output
    assert read_everything(path) > 5


FAILED = [
    *(status(1, code) for code in (401, 403, 408, 409, 425, 429, 500, 503, 529)),
    *(status(1, 200, how) for how in Ending if how is not Ending.COMPLETE),
]


@pytest.mark.parametrize("failure", FAILED, ids=lambda each: f"{each.response.status}-{each.response.ending}")
def test_a_later_good_answer_takes_the_place_of_a_failure(failure: Interaction, store: Store) -> None:
    """A bad day does not poison a cassette; what one session tried again stays a retry."""
    first = store.add_interaction(failure, supersede=False)
    (good,) = store.add_interactions([InteractionToStore(interaction(1), healing=())])
    assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(1))] == [good]
    assert next(row for row in store.list_summaries(superseded=True) if row.id == first).superseded
    again = store.add_interactions([InteractionToStore(failure, healing={good})])
    (later,) = store.add_interactions([InteractionToStore(interaction(1), healing={good, *again})])
    assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(1))] == [good, *again, later]
    (third,) = store.add_interactions([InteractionToStore(failure, healing=())])
    assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(1))] == [good, *again, later, third]


@pytest.mark.parametrize("answer", [400, 404, 422, 200, 302])
def test_an_answer_is_never_replaced_by_a_later_session(answer: int, store: Store) -> None:
    """A wrong request stays wrong: it was answered."""
    first = store.add_interaction(status(1, answer), supersede=False)
    (second,) = store.add_interactions([InteractionToStore(interaction(1), healing=())])
    assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(1))] == [first, second]


def test_a_failure_of_the_same_session_or_elsewhere_stays(store: Store) -> None:
    """One transaction comes from one session: a retry. Another party's, sample's or cassette's is not healed either."""
    changes: list[dict[str, object]] = [{"party": "user"}, {"sample": 2}, {"cassette": "other"}]
    for each in [dataclasses.replace(status(1, 500), **each) for each in changes]:  # type: ignore[arg-type]
        store.add_interaction(each, supersede=False)
    made = store.add_interactions(
        [InteractionToStore(status(1, 429), healing=()), InteractionToStore(interaction(1), healing=())]
    )
    assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(1))] == made
    assert not any(row.superseded for row in store.list_summaries(superseded=True))


@pytest.mark.parametrize("failure", FAILED, ids=lambda each: f"{each.response.status}-{each.response.ending}")
def test_a_cassette_with_a_failure_stays_open_unless_it_is_sealed(failure: Interaction, store: Store) -> None:
    """Nothing said: complete only if no failure is left without a good answer behind it. Said: as it was said."""
    store.add_interaction(interaction(2), supersede=False)
    store.end_writing("default", 1, "a", clean=None)
    assert store.last_session_ended_cleanly("default", 1)
    store.add_interaction(failure, supersede=False)
    for clean, complete in ((None, False), (False, False), (True, True)):
        store.end_writing("default", 1, "a", clean=clean)
        assert store.last_session_ended_cleanly("default", 1) is complete
    store.add_interaction(interaction(1), supersede=False)
    store.end_writing("default", 1, "a", clean=None)
    assert store.last_session_ended_cleanly("default", 1)


def test_an_answer_that_is_left_again_is_recorded(store: Store) -> None:
    """By a later session, it takes the place of the one left before, the cassette is whole; read on, it is replaced."""
    left = status(1, 200, Ending.LEFT)

    def add(made: Interaction, *own: int) -> tuple[int, bool, list[int]]:
        (stored,) = store.add_interactions([InteractionToStore(made, healing=own)])
        store.end_writing("default", 1, "a", clean=None)
        ids = [slot.id for slot in store.find_keyed("default", 1, "agent", key(1))]
        return stored, store.last_session_ended_cleanly("default", 1), ids

    first, whole, ids = add(left)
    assert (whole, ids) == (False, [first])
    beside, whole, ids = add(dataclasses.replace(left, occurrence=2), first)
    assert (whole, ids) == (False, [first, beside]), "of one session"
    again, whole, ids = add(dataclasses.replace(left, occurrence=3))
    assert (whole, ids) == (True, [beside, again])
    more, whole, ids = add(dataclasses.replace(left, occurrence=4))
    assert (whole, ids) == (True, [beside, again, more]), "each further one is recorded at once"
    good, whole, ids = add(interaction(1))
    assert (whole, ids) == (True, [good])


def _overwrite(path: Path) -> None:
    """Copy an older store over it, as `cp` does: into the same file."""
    older = path.with_name("older.db")
    with SqliteCassetteStore.open(older, writable=True, now=lambda: NOW) as made:
        made.add_interaction(interaction(90), supersede=False)
    path.write_bytes(older.read_bytes())


@pytest.mark.parametrize("without_log", [False, True])
@pytest.mark.parametrize("harm", [
    pytest.param(lambda path: path.write_bytes(b""), id="cut"),
    pytest.param(lambda path: os.truncate(path, path.stat().st_size // 2), id="halve"),
    pytest.param(_overwrite, id="overwrite"),
])  # fmt: skip
def test_a_store_that_is_cut_under_its_recorder_is_said(
    harm: Callable[[Path], object], without_log: bool, path: Path
) -> None:
    """Acknowledged recordings are gone: the next one is refused in words, or the end is an error, never a success."""
    store = SqliteCassetteStore.open(path, writable=True, now=lambda: NOW)
    for n in range(40):
        store.add_interaction(interaction(n), supersede=False)
    harm(path)
    if without_log:
        path.with_name(f"{path.name}-wal").unlink()
    else:
        with pytest.raises(RecordingError, match="was cut, emptied or replaced"):
            store.add_interaction(interaction(41), supersede=False)
    with pytest.raises(RecordingError, match=r"of 4[0-9] recordings"):
        store.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_store_that_is_replaced_under_its_recorder_is_said(copied: bool, path: Path) -> None:
    """Also where more is recorded in the new file than was in the old one, unless what was recorded is in it."""
    store = SqliteCassetteStore.open(path, writable=True, now=lambda: NOW)
    store.begin_writing("default", 1, exclusive=True, holder="a")
    for n in range(3):
        store.add_interaction(interaction(n), supersede=False)
    both = [path, path.with_name(f"{path.name}-wal")]
    for each in both if copied else ():  # by another process: whoever closes a file gives up all locks on it
        subprocess.run(["cp", each, each.with_name(f"copy-{each.name}")], check=True)
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    for each in both if copied else ():
        each.with_name(f"copy-{each.name}").rename(each)
    for n in range(5, 15):
        store.add_interaction(interaction(n), supersede=False)
    store.end_writing("default", 1, "a", clean=None)
    assert store.last_session_ended_cleanly("default", 1) is copied
    with nullcontext() if copied else pytest.raises(RecordingError, match=r"of 13 recordings"):
        store.close()


def test_space_that_another_process_gives_back_is_no_harm(path: Path) -> None:
    store = SqliteCassetteStore.open(path, writable=True, now=lambda: NOW)
    bodies = [bytes([n]) + b"x" * 200_000 for n in range(20)]
    many = [interaction(n, request=Request("POST", "/", (), body)) for n, body in enumerate(bodies)]
    ids = [store.add_interaction(each, supersede=False) for each in many]
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as other:
        other.delete_interactions(ids[:19])
    store.add_interaction(interaction(41), supersede=False)
    store.close()
    assert read_everything(path) == 2
