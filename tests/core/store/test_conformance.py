"""What every kind of store promises, told once and asked of each: a file, and a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from llmproxy.core.bindings import VolatileField
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import (
    count_unused,
    find_cassettes_with_key,
    read_volatile_fields,
    save_cassette_volatile_fields,
)
from llmproxy.core.store.reader import RecordingKeyUpdate
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import Chunk, Ending, Request, Response
from llmproxy.errors import CassetteBusy, RecordingError, SettingsError, StoreReadOnly
from llmproxy.postgres_store_paths import map_postgres_store_to_copy_path
from tests.support.recordings import NOW, interaction, key, status

Opener = Callable[..., Store]


@pytest.fixture(params=["file", "server"])
def open_(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Open one and the same store, each time as another process (on a server: another machine) would."""
    numbers, seconds = count(), count()
    url = request.getfixturevalue("team_url") if request.param == "server" else ""

    def opened(*, writable: bool = True) -> Store:
        path = tmp_path / "llmproxy.db"
        if url:
            path = map_postgres_store_to_copy_path(url, {"XDG_CACHE_HOME": str(tmp_path / f"machine {next(numbers)}")})
        return open_store(path, writable=writable, now=lambda: NOW + next(seconds))

    return opened


def test_occurrences_are_given_in_order(open_: Opener) -> None:
    """A free slot is taken as asked, a taken one gives the next after the last."""
    with open_() as store:
        for n in (1, 1, 1, 5, 2, 6):
            store.add_interaction(interaction(occurrence=n), supersede=False)
        assert [slot.occurrence for slot in store.find_keyed("default", 1, "agent", key(1))] == [1, 2, 3, 5, 6, 7]


def test_slots_are_per_cassette_sample_party_and_key(open_: Opener) -> None:
    """Nothing else's recordings are among a key's slots."""
    with open_() as store:
        store.add_interaction(interaction(1), supersede=False)
        for change in ({"cassette": "other"}, {"sample": 2}, {"party": "judge"}, {"key": key(2)}):
            store.add_interaction(interaction(1, **change), supersede=False)
        assert len(store.find_keyed("default", 1, "agent", key(1))) == 1
        assert find_cassettes_with_key(store, key(1), 9) == [
            ("default", 1, "agent"), ("default", 1, "judge"), ("default", 2, "agent"), ("other", 1, "agent"),
        ]  # fmt: skip
        assert (len(find_cassettes_with_key(store, key(1), 2)), find_cassettes_with_key(store, key(9), 9)) == (2, [])


def test_of_several_all_are_stored_or_none(open_: Opener) -> None:
    """What the database refuses of one takes the others along, and says so."""
    with open_() as store:
        with pytest.raises(RecordingError):
            store.add_interactions(
                [InteractionToStore(interaction(1)), InteractionToStore(interaction(2, started_at=None))]
            )
        assert store.find_keyed("default", 1, "agent", key(1)) == ()
        stored = store.add_interaction(interaction(1), supersede=False)
        assert [row.id for row in store.list_summaries()] == [stored]


def test_several_are_stored_as_one_after_the_other(open_: Opener) -> None:
    """Occurrences, positions, superseding and shared bodies come out the same."""
    turns = ((1, False), (1, False), (2, True), (1, True))
    many = [InteractionToStore(interaction(n, cassette=name), replaced) for name in "ab" for n, replaced in turns]
    with open_() as store:
        ids = store.add_interactions(many[:4])
        contents = [store.conn.execute("SELECT count(*) FROM bodies").fetchone()]
        ids += [store.add_interaction(each.interaction, supersede=each.supersede) for each in many[4:]]
        contents.append(store.conn.execute("SELECT count(*) FROM bodies").fetchone())
        both = [store.list_summaries(name, superseded=True) for name in "ab"]
        seen = [[(row.position, row.key, row.occurrence, row.superseded) for row in rows] for rows in both]
        bodies = [(one.request.body, one.response.body) for one in map(store.load, ids)]
    assert (seen[0], bodies[:4], contents[0]) == (seen[1], bodies[4:], contents[1])
    assert sorted(position for position, *_ in seen[0]) == [1, 2, 3, 4]


def test_a_new_recording_supersedes_and_heals(open_: Opener) -> None:
    """`supersede` replaces all of the key; a good answer takes the place of failures behind the last good one, but for those of its own session."""
    with open_() as store:
        first = store.add_interaction(interaction(1), supersede=False)
        second = store.add_interaction(interaction(1), supersede=True)
        assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(1))] == [second]
        failed = [store.add_interaction(status(2, 500), supersede=False) for _ in range(2)]
        healed = store.add_interactions([InteractionToStore(interaction(2), healing={failed[1]})])[0]
        assert [slot.id for slot in store.find_keyed("default", 1, "agent", key(2))] == [healed, failed[1]]
        gone = {row.id for row in store.list_summaries(superseded=True) if row.superseded}
    assert gone == {first, failed[0]}


def test_staged_recordings_take_their_place_at_once(open_: Opener) -> None:
    """Those that they replace are superseded, the rest stays; who recorded elsewhere sees it, and nobody else's lease breaks."""
    staged, place_ = ("default@new", 1), ("default", 1)
    with open_() as store:
        old, kept = (store.add_interaction(interaction(n), supersede=False) for n in (1, 2))
        for each in (staged, place_):
            store.begin_writing(*each, exclusive=True, holder="us")
        made = [store.add_interaction(interaction(n, cassette=staged[0]), supersede=False) for n in (1, 3)]
        store.promote_staged(staged, place_, [old], holder="us", clean=True)
        assert {row.id for row in store.list_summaries(*place_)} == {kept, *made}
        assert store.last_session_ended_cleanly(*place_)
        assert [info.name for info in store.cassettes()] == ["default"]
    with open_() as other:
        assert [slot.id for slot in other.find_keyed(*place_, "agent", key(1))] == [made[0]]
        assert {row.id for row in other.list_summaries(superseded=True)} == {old, kept, *made}
        other.begin_writing(*place_, exclusive=True, holder="them")
        with pytest.raises(CassetteBusy):
            other.promote_staged(staged, place_, [kept], holder="us", clean=True)
        assert kept in {row.id for row in other.list_summaries(*place_)}


def test_everything_of_an_interaction_comes_back(open_: Opener) -> None:
    """Byte for byte: odd texts, headers in order, borders of chunks, ids, run variables, unknown numbers."""
    odd = interaction(
        3,
        request=Request("POST", "/v1/x\udcff?a=\0", (("a", "1"), ("A", "2\udc80")), bytes(range(256))),
        response=Response(
            200, "\x01OK", (("x", "y"),), (Chunk(5, b"a\0b"), Chunk(900, b""), Chunk(901, b"\xff" * 9000)), ending=Ending.CUT, head_offset=3, chunked=True
        ),
        made_ids=("resp_1", "odd\udcff"),
        run_variables='[{"name": "cwd"}]',
        model="a\0b",
        redacted=True,
        rules="r",
    )  # fmt: skip
    with open_() as store:
        stored = store.add_interaction(odd, supersede=False)
        assert store.load(stored) == dataclasses.replace(odd, id=stored)
    with open_(writable=False) as other:
        assert other.load(stored) == dataclasses.replace(odd, id=stored)
        assert other.find_id_origin("default", 1, "odd\udcff") is not None


def add_turn(store: Store, n: int, body: bytes) -> int:
    made = interaction(n, request=Request("POST", "/v1", (), body), cassette="talk")
    return store.add_interaction(made, supersede=False)


def test_a_conversation_is_read_as_it_was_and_elsewhere(open_: Opener) -> None:
    """Each turn resends all before it; whoever opens the store reads the same, and so after more was recorded beside."""
    turns = [b"".join(b"%06d " % n * 60 for n in range(turn)) for turn in range(1, 40)]
    with open_() as store, open_(writable=False) as beside:
        for n, body in enumerate(turns):
            add_turn(store, n, body)
            if n % 13 == 0:
                beside.refresh_cassette("talk")
                assert [each.request.body for each in beside.iter_interactions("talk")] == turns[: n + 1]
        assert [each.request.body for each in store.iter_interactions("talk")] == turns
    with open_(writable=False) as later:
        assert [each.request.body for each in later.iter_interactions("talk")] == turns


def test_two_who_record_one_cassette_take_no_slot_twice(open_: Opener) -> None:
    """Four writers at once: each answer has an id and an occurrence of its own, and positions leave nothing out."""
    stores = [open_() for _ in range(4)]

    def record(store: Store) -> None:
        for _ in range(10):
            store.add_interaction(interaction(1), supersede=False)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(record, stores))
    for store in stores:
        store.close()
    with open_(writable=False) as store:
        rows = store.list_summaries()
    assert sorted(row.occurrence for row in rows) == sorted(row.position for row in rows) == list(range(1, 41))


def test_a_cassette_has_one_recorder(open_: Opener) -> None:
    """A lease names its holder, who alone renews it, and is free at the end; another sample and who adds never wait."""
    with open_() as one, open_() as other:
        one.begin_writing("default", 1, exclusive=True, holder="one on port 8080")
        with pytest.raises(CassetteBusy, match="recorded by one on port 8080"):
            other.begin_writing("default", 1, exclusive=True, holder="other")
        other.begin_writing("default", 2, exclusive=True, holder="other")
        other.begin_writing("default", 1, exclusive=False, holder="other")
        assert one.renew_lease("default", 1, "one on port 8080")
        assert not other.renew_lease("default", 1, "other")
        one.add_interaction(interaction(1), supersede=True)
        one.end_writing("default", 1, "one on port 8080", clean=None)
        other.begin_writing("default", 1, exclusive=True, holder="other", anew=False)
        other.end_writing("default", 1, "other", clean=False)


@pytest.mark.parametrize("clean", [True, False, None])
@pytest.mark.parametrize("good", [True, False])
def test_a_cassette_is_complete_if_its_last_session_says_so(open_: Opener, *, clean: bool | None, good: bool) -> None:
    """None: if nothing in it failed. What is added opens it again."""
    with open_() as store:
        store.begin_writing("default", 1, exclusive=True, holder="h")
        store.add_interaction(interaction(1) if good else status(1, 500), supersede=True)
        store.end_writing("default", 1, "h", clean=clean)
    with open_() as store:
        assert store.last_session_ended_cleanly("default", 1) is (good if clean is None else clean)
        store.add_interaction(interaction(2), supersede=False)
    with open_(writable=False) as store:
        assert not store.last_session_ended_cleanly("default", 1)


def test_a_session_that_wrote_nothing_says_nothing(open_: Opener) -> None:
    """One that was left open stays so when it was only replayed."""
    with open_() as store:
        store.add_interaction(interaction(1), supersede=False)
    with open_() as store:
        store.refresh_cassette("default")
        store.begin_writing("default", 1, exclusive=False, holder="h")
        store.end_writing("default", 1, "h", clean=None)
    with open_(writable=False) as store:
        assert not store.last_session_ended_cleanly("default", 1)


def test_a_recording_anew_starts_where_it_began(open_: Opener) -> None:
    """The first key is that of the latest recording; of one that adds, that of the first."""
    with open_() as store:
        for n in (1, 2, 3):
            store.begin_writing("default", 1, exclusive=True, holder="h", anew=n < 3)
            store.refresh_cassette("default")
            assert store.find_first_key("default", 1) == (None, ("agent", key(1)), ("agent", key(2)))[n - 1]
            store.add_interaction(interaction(n, started_at=NOW + n), supersede=False)
            store.end_writing("default", 1, "h", clean=True)
        store.refresh_cassette("default")
        assert store.find_first_key("default", 1) == ("agent", key(2))


def test_questions_count_what_is_there(open_: Opener) -> None:
    """Cassettes with their numbers, unused recordings, slots in their order."""
    with open_() as store:
        ids = [store.add_interaction(interaction(n, cassette="ü"), supersede=False) for n in (1, 2, 3)]
        save_cassette_volatile_fields(store, "ü", [VolatileField("chunk", "hex", "run", before="Chunk ID: ")])
        assert (store.count_interactions("ü", 1), count_unused(store, "ü", 1, ids[:1])) == (3, 2)
        assert store.has_recordings("ü", 1)
        assert not store.has_recordings("ü", 2)
    with open_(writable=False) as store:
        assert [(info.name, info.live, info.holder) for info in store.cassettes()] == [("ü", 3, None)]
        assert len(read_volatile_fields(store, "ü")) == 1


def test_what_is_deleted_is_gone_for_everybody(open_: Opener) -> None:
    """What stays reads as before, though it was stored as what differs from what went; who looked before does not keep it."""
    turns = [b"".join(b"%06d " % n * 60 for n in range(turn)) for turn in range(1, 9)]
    with open_() as store, open_(writable=False) as beside:
        ids = [add_turn(store, n, body) for n, body in enumerate(turns)]
        other = store.add_interaction(interaction(1, cassette="other"), supersede=False)
        beside.refresh_cassette("talk")
        done = store.delete_interactions([*ids[:5], *ids[6:], 10_000])
        assert (done.interactions, done.bodies) == (7, 13)  # the answer to 1 is the other cassette's as well
        for each in (store, beside):
            each.refresh_cassette("talk")
            each.refresh_cassette("other")
            assert [row.id for row in each.list_summaries("talk")] == [ids[5]]
            assert each.load(ids[5]).request.body == turns[5]
            assert each.conn.execute("SELECT count(*) FROM bodies").fetchone() == (4,)
        again = add_turn(store, 9, turns[7])
        assert store.load(again).request.body == turns[7]
    with open_(writable=False) as later:
        assert sorted(row.id for row in later.list_summaries()) == [ids[5], other, again]


def test_a_cassette_that_was_deleted_can_be_recorded_again(open_: Opener) -> None:
    """Nobody takes what he read of the former for the new one."""
    with open_() as store, open_(writable=False) as beside:
        for n in (1, 2, 3):
            store.add_interaction(interaction(n), supersede=False)
        beside.refresh_cassette("default")
        store.delete_interactions([row.id for row in store.list_summaries()])
        assert store.cassettes() == []
        new = store.add_interaction(interaction(7), supersede=False)
        beside.refresh_cassette("default")
        assert [row.id for row in beside.list_summaries()] == [new]
        assert beside.find_keyed("default", 1, "agent", key(1)) == ()


def test_a_renamed_cassette_keeps_all_else(open_: Opener) -> None:
    """Recordings, slots, whether it is complete; a name that is taken and a cassette that is being recorded are refused."""
    with open_() as store, open_(writable=False) as beside:
        store.begin_writing("old", 1, exclusive=True, holder="h")
        ids = [store.add_interaction(interaction(n, cassette="old"), supersede=False) for n in (1, 2)]
        with pytest.raises(CassetteBusy, match="being recorded by h"):
            store.rename_cassette("old", "new")
        store.end_writing("old", 1, "h", clean=True)
        store.add_interaction(interaction(1, cassette="there"), supersede=False)
        save_cassette_volatile_fields(store, "old", [VolatileField("chunk", "hex", "run", before="Chunk ID: ")])
        beside.refresh_cassette("old")
        with pytest.raises(SettingsError, match="there is a cassette there already"):
            store.rename_cassette("old", "there")
        store.rename_cassette("old", "new")
        for each in (store, beside):
            each.refresh_cassette("new")
            each.refresh_cassette("old")
            assert [row.id for row in each.list_summaries("new")] == ids
            assert each.list_summaries("old") == []
            assert each.last_session_ended_cleanly("new", 1)
            assert len(read_volatile_fields(each, "new")) == 1


def test_other_keys_are_found_and_the_former_are_not(open_: Opener) -> None:
    """Also where two recordings change places, or meet in one slot."""
    with open_() as store, open_(writable=False) as beside:
        one, two, three = (store.add_interaction(interaction(n), supersede=False) for n in (1, 2, 3))
        beside.refresh_cassette("default")
        store.rekey_recordings([
            RecordingKeyUpdate(one, key(1), key(2), 1, "r"),
            RecordingKeyUpdate(two, key(2), key(1), 1, "r"),
            RecordingKeyUpdate(three, key(3), key(1), 2, "r"),
        ])  # fmt: skip
        # Somebody else gave it another key: nothing is done.
        store.rekey_recordings([RecordingKeyUpdate(one, key(1), key(7), 1, "r")])
        for each in (store, beside):
            each.refresh_cassette("default")
            assert [slot.id for slot in each.find_keyed("default", 1, "agent", key(1))] == [two, three]
            assert [slot.id for slot in each.find_keyed("default", 1, "agent", key(2))] == [one]
            assert each.find_keyed("default", 1, "agent", key(3)) == ()
            assert {each.load(id_).rules for id_ in (one, two, three)} == {"r"}


def test_one_recording_takes_the_place_of_one(open_: Opener) -> None:
    """And leaves the others of its key alone."""
    with open_() as store:
        first, second = (store.add_interaction(interaction(1), supersede=False) for _ in range(2))
        new = store.add_interactions([InteractionToStore(interaction(1, occurrence=1), instead=first)])[0]
        slots = store.find_keyed("default", 1, "agent", key(1))
        assert [(slot.id, slot.occurrence) for slot in slots] == [(new, 1), (second, 2)]
        assert [row.id for row in store.list_summaries(superseded=True) if row.superseded] == [first]


CHANGES: dict[str, Callable[[Store, int], object]] = {
    "add": lambda store, _: store.add_interaction(interaction(1), supersede=False),
    "begin": lambda store, _: store.begin_writing("default", 1, exclusive=True, holder="h"),
    "end": lambda store, _: store.end_writing("default", 1, "h", clean=True),
    "delete": lambda store, id_: store.delete_interactions([id_]),
    "rename": lambda store, _: store.rename_cassette("default", "other"),
    "rekey": lambda store, id_: store.rekey_recordings([RecordingKeyUpdate(id_, key(1), key(2), 1, "")]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_open_for_replay_changes_nothing(open_: Opener, change: str) -> None:
    with open_() as store:
        stored = store.add_interaction(interaction(1), supersede=False)
    with open_(writable=False) as store:
        with pytest.raises(StoreReadOnly):
            CHANGES[change](store, stored)
        assert [row.id for row in store.list_summaries()] == [stored]
