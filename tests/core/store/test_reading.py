"""The reading side: what is looked up, in which order, and how quickly."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.reader import SAME
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import CassetteError
from tests.support.recordings import NOW, filled, interaction, key, reopened


def test_an_id_leads_to_the_first_live_interaction_that_made_it(store: Store) -> None:
    """Key, occurrence and ordinal are those of the maker; a superseded one counts no more; elsewhere it is unknown."""
    store.add_interaction(interaction(1, made_ids=("resp_1", "item_1")), supersede=False)
    assert store.find_id_origin("default", 1, "item_1") == (key(1), 1, 1)
    store.add_interaction(interaction(2, made_ids=("resp_1",)), supersede=False)
    assert store.find_id_origin("default", 1, "resp_1") == (key(1), 1, 0)
    store.add_interaction(interaction(1, made_ids=()), supersede=True)
    assert store.find_id_origin("default", 1, "resp_1") == (key(2), 1, 0)
    assert store.find_id_origin("other", 1, "resp_1") is None
    assert store.find_id_origin("default", 2, "resp_1") is None


def test_the_first_key_is_the_one_requested_first(store: Store) -> None:
    """Of parallel requests the first to arrive is the first, whichever was stored first."""
    assert store.find_first_key("default", 1) is None
    store.add_interaction(interaction(2), supersede=False)
    store.add_interaction(interaction(1, party="judge"), supersede=False)
    assert store.find_first_key("default", 1) == ("judge", key(1))


def test_candidates_are_the_last_of_the_operation(store: Store) -> None:
    """The nearest of a miss is looked for among live recordings of its party and operation, at most so many."""
    for n in range(1, 6):
        store.add_interaction(interaction(n), supersede=False)
    store.add_interaction(interaction(6, operation="embeddings"), supersede=False)
    store.add_interaction(interaction(5), supersede=True)
    store.add_interaction(interaction(7, party="judge"), supersede=False)
    found = store.list_candidate_ids("default", "agent", "openai", "chat.completions", 3)
    assert [store.load(id_).key for id_ in found] == [key(3), key(4), key(5)]


def test_cassettes_are_counted(store: Store) -> None:
    """The overview says per cassette and sample what is stored, live, and how it was closed."""
    store.add_interaction(interaction(1, usage=Usage(10, 5)), supersede=False)
    store.add_interaction(interaction(1, usage=Usage(20, 6)), supersede=True)
    store.add_interaction(interaction(1, cassette="b", sample=2), supersede=False)
    store.end_writing("b", 2, "me", clean=True)
    a, b = sorted(store.cassettes(), key=lambda info: info.name == "b")
    assert (a.name, a.sample, a.stored, a.live, a.closed_cleanly) == ("default", 1, 2, 1, False)
    assert (b.name, b.sample, b.stored, b.live, b.closed_cleanly) == ("b", 2, 1, 1, True)


def test_a_lookup_is_one_search_in_an_index(path: Path) -> None:
    """A key is found by its index, which has the conditions of the query."""
    with reopened(path, writable=True) as store:
        with store.sqlite_transaction():
            pass
        for n in range(300):
            store.add_interaction(interaction(n), supersede=False)
        plan = store.conn.execute(
            "EXPLAIN QUERY PLAN SELECT id FROM interactions WHERE cassette = 'a' AND sample = 1 AND party = 'b' AND key = 'c'"
            " AND superseded_at IS NULL ORDER BY occurrence"
        ).fetchall()
        assert "live_slots" in plan[0][3]
        assert len(plan) == 1
        assert len(store.find_keyed("default", 1, "agent", key(299))) == 1


def test_the_bytes_of_a_request_are_found_by_their_index(store: Store) -> None:
    """One row, in the cassette that is asked, and by the digest of the body alone: no other row is looked at."""
    store.add_interaction(interaction(1), supersede=False)
    store.add_interaction(interaction(1, cassette="other"), supersede=False)
    digest = hashlib.sha256(store.load(1).request.body).digest()
    found = store.find_same_request_bytes("default", 1, "agent", digest, "")
    assert found is not None
    assert found[2] == key(1)
    assert store.find_same_request_bytes("default", 1, "judge", digest, "") is None
    assert store.find_same_request_bytes("default", 1, "agent", b"", "") is None
    plan = store.conn.execute(f"EXPLAIN QUERY PLAN {SAME}", ("", digest, "default", 1, "agent")).fetchall()
    assert "by_request_body" in plan[0][3]


def other_store(path: Path, *, like: int) -> None:
    """Make a store with other recordings under the same ids, written by as many commits: its head looks the same."""
    with reopened(path, writable=True) as store:
        for n in range(like):
            store.add_interaction(interaction(n + 100, started_at=NOW + 5000 + n), supersede=False)


def overwrite(path: Path, by: Path) -> None:
    path.write_bytes(by.read_bytes())


def replace_it(path: Path, by: Path) -> None:
    by.replace(path)


@pytest.mark.parametrize("how", [overwrite, replace_it])
@pytest.mark.parametrize("settled", [False, True])
def test_a_store_that_is_overwritten_is_read_anew(
    how: Callable[[Path, Path], None], settled: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another store in the place of the one that is replayed: nothing of the old one is served under the new one's ids, and it is said."""
    path, by = tmp_path / "a.db", tmp_path / "b.db"
    forgot: list[int] = []
    filled(path, 3)
    other_store(by, like=3)
    for each in (path, by):
        os.utime(each, (NOW - 900_000_000, NOW - 900_000_000))
    ahead = 60 if settled else -60
    with SqliteCassetteStore.open(path, writable=False, now=lambda: time.time() + ahead) as store:
        store.reopened = lambda: forgot.append(1)
        old = [store.find_keyed("default", 1, "agent", key(n)) for n in range(3)]
        assert [store.response(slot.id).body for slots in old for slot in slots] == [b"answer %d" % n for n in range(3)]
        time.sleep(0.03)  # more than a tick of the file system's clock, which our own pretends to be far ahead of
        how(path, by)
        assert store.find_keyed("default", 1, "agent", key(1)) == ()
        assert store.response(store.find_keyed("default", 1, "agent", key(101))[0].id).body == b"answer 101"
    assert forgot == [1]
    assert "was replaced by another one" in caplog.text


def test_an_id_of_another_store_is_never_read(tmp_path: Path) -> None:
    """Replaced between the look for a recording and the reading of its answer: an error, not another question's answer."""
    path, by = tmp_path / "a.db", tmp_path / "b.db"
    filled(path, 3)
    other_store(by, like=3)
    with reopened(path) as store:
        (slot,) = store.find_keyed("default", 1, "agent", key(1))
        overwrite(path, by)
        with pytest.raises(CassetteError):
            store.response(slot.id)
        assert store.response(store.find_keyed("default", 1, "agent", key(101))[0].id).body == b"answer 101"


def test_a_store_that_is_half_copied_is_an_error_until_it_is_whole(tmp_path: Path) -> None:
    """While somebody copies over it: an error each time, no answer; afterwards it is read."""
    path, by = tmp_path / "a.db", tmp_path / "b.db"
    filled(path, 30)
    other_store(by, like=30)
    whole = by.read_bytes()
    with reopened(path) as store:
        store.find_keyed("default", 1, "agent", key(1))
        path.write_bytes(whole[: len(whole) // 2])
        for _ in range(2):
            with pytest.raises(CassetteError):
                store.find_keyed("default", 1, "agent", key(1))
        path.write_bytes(whole)
        assert store.find_keyed("default", 1, "agent", key(1)) == ()
        assert store.find_keyed("default", 1, "agent", key(101))


def test_what_is_latest_is_found_without_reading_all(tmp_path: Path) -> None:
    """The last interactions and the cassettes recorded last are those that a look at everything would give."""
    chance = random.Random(7)
    with reopened(tmp_path / "s.db", writable=True) as store:
        for n in range(120):
            one = interaction(
                n % 9, cassette=f"c{chance.randrange(12)}", sample=chance.choice((1, 1, 2)),
                started_at=NOW + chance.randrange(40),
            )  # fmt: skip
            store.add_interaction(one, supersede=chance.random() < 0.4)
        live = store.list_summaries()
        for limit in (1, 5, 30, 500):
            assert store.list_summaries(limit=limit) == live[-limit:]
        last = {(row.cassette, row.sample): row.started_at for row in live}
        everything = store.cassettes()
        for latest in (1, 3, 100):
            some = store.cassettes(latest=latest)
            assert [info for info in everything if info in some] == some
            assert len(some) == min(latest, len(everything))
            least = min(last[info.name, info.sample] for info in some if info.live)
            assert sum(at > least for at in last.values()) < latest
        assert store.list_cassette_names() == sorted({row.cassette for row in live})
        assert store.count_interactions(None) == len(live)
        assert store.count_interactions("c1", superseded=True) == len(store.list_summaries("c1", superseded=True))
