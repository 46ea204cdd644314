"""What every kind of store promises, told once and asked of each: a file, and a server."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from llmproxy.core.bindings import Slot
from llmproxy.core.store.opening import open_store
from llmproxy.core.store.questions import count as count_live, count_unused, elsewhere
from llmproxy.core.store.store import Addition, Store
from llmproxy.core.store.varying import put_slots, slots_of
from llmproxy.core.traffic.interaction import Chunk, Ending, Request, Response
from llmproxy.errors import CassetteBusy, RecordingError, StoreReadOnly
from llmproxy.store_server import place
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
            path = place(url, {"XDG_CACHE_HOME": str(tmp_path / f"machine {next(numbers)}")})
        return open_store(path, writable=writable, now=lambda: NOW + next(seconds))

    return opened


def test_occurrences_are_given_in_order(open_: Opener) -> None:
    """A free slot is taken as asked, a taken one gives the next after the last."""
    with open_() as store:
        for n in (1, 1, 1, 5, 2, 6):
            store.add(interaction(occurrence=n), supersede=False)
        assert [slot.occurrence for slot in store.slots("default", 1, "agent", key(1))] == [1, 2, 3, 5, 6, 7]


def test_slots_are_per_cassette_sample_party_and_key(open_: Opener) -> None:
    """Nothing else's recordings are among a key's slots."""
    with open_() as store:
        store.add(interaction(1), supersede=False)
        for change in ({"cassette": "other"}, {"sample": 2}, {"party": "judge"}, {"key": key(2)}):
            store.add(interaction(1, **change), supersede=False)
        assert len(store.slots("default", 1, "agent", key(1))) == 1
        assert elsewhere(store, key(1), 9) == [
            ("default", 1, "agent"),
            ("default", 1, "judge"),
            ("default", 2, "agent"),
            ("other", 1, "agent"),
        ]


def test_of_several_all_are_stored_or_none(open_: Opener) -> None:
    """What the database refuses of one takes the others along, and says so."""
    with open_() as store:
        with pytest.raises(RecordingError):
            store.add_all([Addition(interaction(1)), Addition(interaction(2, started_at=None))])
        assert store.slots("default", 1, "agent", key(1)) == ()
        stored = store.add(interaction(1), supersede=False)
        assert [row.id for row in store.summaries()] == [stored]


def test_several_are_stored_as_one_after_the_other(open_: Opener) -> None:
    """Occurrences, positions and superseding come out the same."""
    many = [
        Addition(interaction(n, cassette=name), replaced)
        for name in "ab"
        for n, replaced in ((1, False), (1, False), (2, True), (1, True))
    ]
    with open_() as store:
        store.add_all(many[:4])
        for each in many[4:]:
            store.add(each.interaction, supersede=each.supersede)
        seen = [
            [(row.position, row.key, row.occurrence, row.superseded) for row in store.summaries(name, superseded=True)]
            for name in "ab"
        ]
    assert seen[0] == seen[1]
    assert sorted(position for position, *_ in seen[0]) == [1, 2, 3, 4]


def test_a_new_recording_supersedes_and_heals(open_: Opener) -> None:
    """`supersede` replaces all of the key; a good answer takes the place of failures behind the last good one, but for those of its own session."""
    with open_() as store:
        first = store.add(interaction(1), supersede=False)
        second = store.add(interaction(1), supersede=True)
        assert [slot.id for slot in store.slots("default", 1, "agent", key(1))] == [second]
        failed = [store.add(status(2, 500), supersede=False) for _ in range(2)]
        healed = store.add_all([Addition(interaction(2), healing={failed[1]})])[0]
        assert [slot.id for slot in store.slots("default", 1, "agent", key(2))] == [healed, failed[1]]
        gone = {row.id for row in store.summaries(superseded=True) if row.superseded}
    assert gone == {first, failed[0]}


def test_everything_of_an_interaction_comes_back(open_: Opener) -> None:
    """Byte for byte: odd texts, headers in order, borders of chunks, ids, circumstances, unknown numbers."""
    odd = interaction(
        3,
        request=Request("POST", "/v1/x\udcff?a=\0", (("a", "1"), ("A", "2\udc80")), bytes(range(256))),
        response=Response(
            200, "\x01OK", (("x", "y"),), (Chunk(5, b"a\0b"), Chunk(900, b""), Chunk(901, b"\xff" * 9000)), ending=Ending.CUT, head_offset=3, chunked=True
        ),
        made_ids=("resp_1", "odd\udcff"),
        circumstances='[{"name": "cwd"}]',
        model="a\0b",
        redacted=True,
        rules="r",
    )  # fmt: skip
    with open_() as store:
        stored = store.add(odd, supersede=False)
        assert store.load(stored) == dataclasses.replace(odd, id=stored)
    with open_(writable=False) as other:
        assert other.load(stored) == dataclasses.replace(odd, id=stored)
        assert other.made_by("default", 1, "odd\udcff") is not None


def test_a_conversation_is_read_as_it_was_and_elsewhere(open_: Opener) -> None:
    """Each turn resends all before it; whoever opens the store reads the same, and so after more was recorded beside."""
    turns = [b"".join(b"%06d " % n * 60 for n in range(turn)) for turn in range(1, 40)]
    with open_() as store, open_(writable=False) as beside:
        for n, body in enumerate(turns):
            store.add(interaction(n, request=Request("POST", "/v1", (), body), cassette="talk"), supersede=False)
            if n % 13 == 0:
                beside.refresh("talk")
                assert [each.request.body for each in beside.interactions("talk")] == turns[: n + 1]
        assert [each.request.body for each in store.interactions("talk")] == turns
    with open_(writable=False) as later:
        assert [each.request.body for each in later.interactions("talk")] == turns


def test_two_who_record_one_cassette_take_no_slot_twice(open_: Opener) -> None:
    """Four writers at once: each answer has an id and an occurrence of its own, and positions leave nothing out."""
    stores = [open_() for _ in range(4)]

    def record(store: Store) -> None:
        for _ in range(10):
            store.add(interaction(1), supersede=False)

    threads = [threading.Thread(target=record, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    with open_(writable=False) as store:
        rows = store.summaries()
    assert sorted(row.occurrence for row in rows) == sorted(row.position for row in rows) == list(range(1, 41))


def test_a_cassette_has_one_recorder(open_: Opener) -> None:
    """A lease names its holder to the second one, is renewed by its holder only, and is free again at the end."""
    with open_() as one, open_() as other:
        one.begin("default", 1, exclusive=True, holder="one")
        with pytest.raises(CassetteBusy, match="recorded by one"):
            other.begin("default", 1, exclusive=True, holder="other")
        assert one.heartbeat("default", 1, "one")
        assert not other.heartbeat("default", 1, "other")
        one.add(interaction(1), supersede=True)
        one.end("default", 1, "one", clean=None)
        other.begin("default", 1, exclusive=True, holder="other", anew=False)
        other.end("default", 1, "other", clean=False)


@pytest.mark.parametrize("clean", [True, False, None])
@pytest.mark.parametrize("good", [True, False])
def test_a_cassette_is_complete_if_its_last_session_says_so(open_: Opener, *, clean: bool | None, good: bool) -> None:
    """None: if nothing in it failed. What is added opens it again."""
    with open_() as store:
        store.begin("default", 1, exclusive=True, holder="h")
        store.add(interaction(1) if good else status(1, 500), supersede=True)
        store.end("default", 1, "h", clean=clean)
    with open_() as store:
        assert store.closed_cleanly("default", 1) is (good if clean is None else clean)
        store.add(interaction(2), supersede=False)
    with open_(writable=False) as store:
        assert not store.closed_cleanly("default", 1)


def test_a_session_that_wrote_nothing_says_nothing(open_: Opener) -> None:
    """One that was left open stays so when it was only replayed."""
    with open_() as store:
        store.add(interaction(1), supersede=False)
    with open_() as store:
        store.refresh("default")
        store.begin("default", 1, exclusive=False, holder="h")
        store.end("default", 1, "h", clean=None)
    with open_(writable=False) as store:
        assert not store.closed_cleanly("default", 1)


def test_a_recording_anew_starts_where_it_began(open_: Opener) -> None:
    """The first key is that of the latest recording; of one that adds, that of the first."""
    with open_() as store:
        for n in (1, 2, 3):
            store.begin("default", 1, exclusive=True, holder="h", anew=n < 3)
            store.add(interaction(n, started_at=NOW + n), supersede=False)
            store.end("default", 1, "h", clean=True)
        store.refresh("default")
        assert store.first_key("default", 1) == ("agent", key(2))


def test_questions_count_what_is_there(open_: Opener) -> None:
    """Cassettes with their numbers, unused recordings, slots in their order."""
    with open_() as store:
        ids = [store.add(interaction(n, cassette="ü"), supersede=False) for n in (1, 2, 3)]
        put_slots(store, "ü", [Slot("chunk", "hex", "run", before="Chunk ID: ")])
        assert (count_live(store, "ü", 1), count_unused(store, "ü", 1, ids[:1])) == (3, 2)
        assert store.has("ü", 1)
        assert not store.has("ü", 2)
    with open_(writable=False) as store:
        assert [(info.name, info.live, info.holder) for info in store.cassettes()] == [("ü", 3, None)]
        assert len(slots_of(store, "ü")) == 1


def test_what_is_open_for_replay_is_not_written(open_: Opener) -> None:
    """Nobody records through it by mistake."""
    open_().close()
    with open_(writable=False) as store:
        with pytest.raises(StoreReadOnly):
            store.add(interaction(1), supersede=False)
        with pytest.raises(StoreReadOnly):
            store.begin("default", 1, exclusive=True, holder="h")
