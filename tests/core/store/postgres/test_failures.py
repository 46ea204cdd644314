"""A server that dies, a network that breaks, a role that may not: nothing acknowledged is lost, nothing is there twice, every error says what to do."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies

from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.postgres import connection, local_copy
from llmproxy.core.store.postgres.connection import (
    CassetteServerLost,
    ReopeningPostgresConnection,
    _build_lost_error,
    decode_pg_value,
    encode_pg_text,
)
from llmproxy.core.store.postgres.local_copy import AT_ONCE
from llmproxy.core.store.postgres.store import PostgresCassetteStore
from llmproxy.core.store.reader import RecordingKeyUpdate
from llmproxy.core.store.row_conversion import decode_sql_text, to_sql
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import Chunk, Request, Response
from llmproxy.errors import (
    CassetteBusy,
    CassetteCorrupt,
    CassetteError,
    CassetteNewer,
    CassetteNotFound,
    LLMProxyError,
    RecordingError,
    StoreReadOnly,
)  # fmt: skip
from llmproxy.postgres_store_paths import ServerStoreAddress, map_postgres_store_to_copy_path
from tests.mitm.rig import Rig
from tests.mitm.wire import chat
from tests.provider import Provider, Reply, Script, Step
from tests.support.cut_network import CutNetwork, cut_network
from tests.support.postgres import GUARDED, Postgres
from tests.support.recordings import NOW, interaction, key

_machines = count()


def opened(url: str, folder: Path, *, writable: bool = True, whole: bool = True) -> Store:
    """Open a server's store as a machine of its own."""
    path = map_postgres_store_to_copy_path(url, {"XDG_CACHE_HOME": str(folder / f"machine {next(_machines)}")})
    return open_store(path, writable=writable, now=lambda: NOW, whole=whole)


def through(network: CutNetwork, url: str) -> str:
    return f"postgresql://tester@127.0.0.1:{network.port}/{url.partition('?')[0].rpartition('/')[2]}"


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Return what the last one finds."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        done = [connection.execute(each.encode()) for each in statements][-1]
        return done.fetchall() if done.description else []


def answer(recorder: int, n: int) -> bytes:
    return b"%d of recorder %d; " % (n, recorder) * 30


def test_what_is_acknowledged_is_there_once_whatever_breaks(server: Postgres, team_url: str, tmp_path: Path) -> None:
    """Three recorders of one cassette, the network cut and the server killed under them, three times each."""
    acknowledged: list[tuple[int, bytes]] = []
    more = threading.Condition()

    def record(number: int, store: Store) -> None:
        for n in range(24):
            said = answer(number, n)
            made = interaction(n % 5, response=Response(200, "OK", (), (Chunk(1, said),)), cassette="team")
            try:
                stored = store.add_interaction(made, supersede=False)
            except LLMProxyError:
                continue  # not acknowledged
            with more:
                acknowledged.append((stored, said))
                more.notify()

    with cut_network(server.socket) as network:
        stores = [opened(through(network, team_url), tmp_path) for _ in range(3)]
        threads = [threading.Thread(target=record, args=pair) for pair in enumerate(stores)]
        for thread in threads:
            thread.start()
        for number in range(1, 6):
            with more:
                more.wait_for(lambda: len(acknowledged) >= 10 * number, 120)  # noqa: B023 - asked for here
            if number % 2:
                network.cut()
                network.mend()
            else:
                server.crash()
        for thread in threads:
            thread.join(120)
        for store in stores:
            store.close()
    with opened(team_url, tmp_path, writable=False) as store:
        there = {row.id: store.load(row.id).response.body for row in store.list_summaries()}
        slots = Counter((row.key, row.occurrence) for row in store.list_summaries())
        assert {id_: there.get(id_) for id_, _ in acknowledged} == dict(acknowledged)
        assert len(acknowledged) >= 50
        assert set(Counter(there.values()).values()) == {1}
        assert set(slots.values()) == {1}
        assert sorted(row.position for row in store.list_summaries()) == list(range(1, len(there) + 1))


def test_a_connection_that_another_thread_uses_is_at_hand(team_url: str, tmp_path: Path) -> None:
    """Two who waited for the server are both answered: one looks whether it is there while the other asks it."""
    link, used = ReopeningPostgresConnection(ServerStoreAddress(team_url, team_url, tmp_path)), threading.Event()

    def use() -> None:
        with link.borrow_connection(writing=False) as conn:
            used.set()
            conn.execute("SELECT pg_sleep(0.05)")

    with ThreadPoolExecutor() as threads:
        using = threads.submit(use)
        assert used.wait(30)
        assert link.is_usable
        using.result()
    link.close()


def test_what_was_read_is_replayed_while_the_server_is_away(server: Postgres, team_url: str, tmp_path: Path) -> None:
    """A session that begins meanwhile has what was read of its cassette; of one that was never read nobody pretends to know."""
    with opened(team_url, tmp_path) as store:
        for name in ("read", "unread"):
            store.add_interaction(interaction(1, cassette=name), supersede=False)
    with (
        cut_network(server.socket) as network,
        opened(through(network, team_url), tmp_path, writable=False, whole=False) as replay,
    ):
        replay.refresh_cassette("read")
        network.cut()
        replay.refresh_cassette("read")
        assert replay.response(replay.find_keyed("read", 1, "agent", key(1))[0].id).body == b"answer 1"
        with pytest.raises(CassetteServerLost):
            replay.refresh_cassette("unread")
        network.mend()
        replay.refresh_cassette("unread")
        assert replay.has_recordings("unread", 1)


def test_a_miss_beside_other_recorders_asks_the_server_first(team_url: str, tmp_path: Path) -> None:
    """What another machine recorded meanwhile is a hit; while the server is away a miss is an error, and nothing goes upstream."""
    with opened(team_url, tmp_path, whole=False) as one, opened(team_url, tmp_path, whole=False) as other:
        for each in (one, other):
            each.refresh_cassette("team")
            each.begin_writing("team", 1, exclusive=False, holder="h")
        stored = one.add_interaction(interaction(1, cassette="team"), supersede=False)
        assert [slot.id for slot in other.find_keyed("team", 1, "agent", key(1))] == [stored]
        assert other.find_keyed("team", 1, "agent", key(2)) == ()


def test_a_new_question_waits_for_the_server(
    server: Postgres, team_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In `auto`: while it is away hits are served; who asks something new waits as writes do, then is told so with a 503."""
    with cut_network(server.socket) as network, Provider(Script((Step(Reply("yes"), times=None),))) as p:
        store = map_postgres_store_to_copy_path(through(network, team_url), {"XDG_CACHE_HOME": str(tmp_path)})
        store.parent.mkdir(parents=True)
        with Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
            assert {c.ask(chat(each)).status for each in ("old", *"12345")} == {200}
        with Rig("auto", store, {"openai": p.url}) as rig, ThreadPoolExecutor() as threads:

            def ask(text: str) -> tuple[int, str]:
                with rig.client() as c:
                    got = c.ask(chat(text))
                    return got.status, got.body.decode()

            assert ask("first")[0] == 200
            network.cut()
            waiting = threads.submit(ask, "new")
            time.sleep(0.3)
            assert ask("old")[0] == 200, "nobody else waits"
            assert not waiting.done()
            network.mend()
            assert waiting.result(30)[0] == 200
            network.cut(silently=True)
            began = time.monotonic()
            silent = [threads.submit(ask, each) for each in ("newest", "newest of all")]
            time.sleep(0.3)
            served, took = [ask(each)[0] for each in "12345"], time.monotonic() - began
            network.mend()
            assert (set(served), took < 4) == ({200}, True), "nobody else waits while a connection is tried"
            assert [each.result(60)[0] for each in silent] == [200, 200]
            network.cut()
            refused, began = threads.submit(ask, "newer"), time.monotonic()
            status, said = refused.result(60)
            assert status == 503
            assert "cannot be reached" in said
            assert "internal error" not in said
            assert time.monotonic() - began < 30
            assert len(p.requests) == 10
            network.mend()
            assert ask("newer")[0] == 200
    assert not [each for each in caplog.records if each.exc_info]


def test_what_was_pruned_elsewhere_is_gone_here(team_url: str, tmp_path: Path) -> None:
    """A body that ours would build on may be gone from the server: it is sent whole then."""
    long = b"a long conversation " * 100
    *before, after = (interaction(n, cassette="team", request=Request("POST", "/", (), long * n)) for n in (1, 2, 3))
    with opened(team_url, tmp_path) as store:
        for each in before:
            store.add_interaction(each, supersede=False)
        execute(
            team_url,
            "DELETE FROM llmproxy.interactions",
            "DELETE FROM llmproxy.bodies",
            "UPDATE llmproxy.cassettes SET version = version + 1, epoch = epoch + 1",
        )
        kept = store.add_interaction(after, supersede=False)
        assert [row.id for row in store.list_summaries("team")] == [kept]
    with opened(team_url, tmp_path, writable=False) as store:
        assert store.load(kept).request.body == long * 3


def test_a_recording_costs_three_round_trips(server: Postgres, team_url: str, tmp_path: Path) -> None:
    """One that locks and asks, one that writes and commits, one that reads what changed; a fourth for the contents of another recorder."""
    with (
        cut_network(server.socket) as network,
        opened(through(network, team_url), tmp_path) as store,
        opened(team_url, tmp_path) as other,
    ):
        numbers = count()

        def ways(*, beside: bool) -> int:
            for _ in range(10):  # until the server has all statements prepared
                store.add_interaction(interaction(next(numbers)), supersede=False)
            before = network.ways
            for _ in range(10):
                store.add_interaction(interaction(next(numbers)), supersede=False)
                if beside:
                    other.add_interaction(interaction(next(numbers)), supersede=False)
            return network.ways - before

        assert ways(beside=False) <= 30
        assert ways(beside=True) <= 40
        assert ways(beside=False) <= 30
        assert [row.position for row in store.list_summaries()] == list(range(1, 71))


def test_processes_of_one_machine_share_a_copy(team_url: str, tmp_path: Path) -> None:
    """Each finds what it recorded as soon as that is acknowledged, whoever brought the copy up to date meanwhile."""
    path = map_postgres_store_to_copy_path(team_url, {"XDG_CACHE_HOME": str(tmp_path)})
    stores = [open_store(path, writable=True, now=lambda: NOW) for _ in range(3)]

    def record(number: int, store: Store) -> None:
        for n in range(20):
            made = interaction(n % 4, cassette=("team", f"of {number}")[n % 2])
            stored = store.add_interaction(made, supersede=False)
            assert stored in {each.id for each in store.find_keyed(made.cassette, 1, "agent", made.key)}

    with ThreadPoolExecutor() as threads:
        list(threads.map(record, range(3), stores))
    there = [(row.id, row.position) for row in stores[0].list_summaries()]
    for store in stores:
        store.close()
    with opened(team_url, tmp_path, writable=False) as elsewhere:
        assert [(row.id, row.position) for row in elsewhere.list_summaries()] == there
        assert len(there) == 60


def test_what_could_not_be_copied_is_asked_for(team_url: str, tmp_path: Path) -> None:
    """The recording is acknowledged; its recorder, alone in the cassette, finds it once the copy can be written again."""
    path = map_postgres_store_to_copy_path(team_url, {"XDG_CACHE_HOME": str(tmp_path)})
    with open_store(path, writable=True, now=lambda: NOW) as store, closing(sqlite3.connect(path)) as copy:
        store.begin_writing("held", 1, exclusive=True, holder="we")
        copy.execute("ALTER TABLE server_copies RENAME TO away")
        stored = store.add_interaction(interaction(1, cassette="held"), supersede=False)
        assert store.list_summaries("held") == []
        copy.execute("ALTER TABLE away RENAME TO server_copies")
        assert [slot.id for slot in store.find_keyed("held", 1, "agent", key(1))] == [stored]


def test_a_long_cassette_comes_in_pieces(team_url: str, tmp_path: Path) -> None:
    """Whole, also where the last piece is full, and what was superseded before it came."""
    with opened(team_url, tmp_path) as store, opened(team_url, tmp_path) as beside:
        many = [InteractionToStore(interaction(n)) for n in range(2 * AT_ONCE)]
        first = store.add_interactions([*many, InteractionToStore(interaction(0), supersede=True)])[0]
        beside.refresh_cassette("default")
        assert beside.list_summaries(superseded=True) == store.list_summaries(superseded=True)
        assert [row.id for row in beside.list_summaries(superseded=True) if row.superseded] == [first]
        store.delete_interactions([first])
        beside.refresh_cassette("default")
        assert beside.list_summaries(superseded=True) == store.list_summaries(superseded=True)
        assert len(beside.list_summaries()) == 2 * AT_ONCE


def test_what_the_copy_does_not_know_is_not_overwritten(team_url: str, tmp_path: Path) -> None:
    """Another one took the slot that is free by our copy, or holds the cassette by now: the next slot, or an error, never the same one."""
    with opened(team_url, tmp_path) as store, opened(team_url, tmp_path) as other:
        store.add_interaction(interaction(1), supersede=False)
        other.refresh_cassette(interaction(1).cassette)
        for each in (other, store, other):
            each.add_interaction(interaction(1), supersede=False)
        store.refresh_cassette(interaction(1).cassette)
        assert sorted(row.occurrence for row in store.list_summaries()) == [1, 2, 3, 4]
        store.begin_writing("held", 1, exclusive=True, holder="we")
        for n in (1, 2):
            store.add_interaction(interaction(n, cassette="held"), supersede=False)
        for holder, told in (("'somebody else'", "somebody else"), ("NULL", "another session")):
            execute(team_url, f"UPDATE llmproxy.cassettes SET holder = {holder} WHERE name = 'held'")
            with pytest.raises(CassetteBusy, match=f"taken over by {told}"):
                store.add_interaction(interaction(3, cassette="held"), supersede=False)
        assert len(store.list_summaries("held")) == 2


@contextmanager
def waiting(url: str, work: Callable[[], object], *statements: str) -> Iterator[None]:
    """Let `work` begin beside a transaction of these statements, the block run while it waits for that, and both end."""
    import psycopg

    with ThreadPoolExecutor() as threads:
        with psycopg.connect(url) as open_transaction:
            for each in statements:
                open_transaction.execute(each.encode())
            working = threads.submit(work)
            while not execute(url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                time.sleep(0.01)
            yield
        working.result(30)


RENAMED = (
    "UPDATE llmproxy.cassettes SET name = '{0}', version = {1}, epoch = {1}",
    "UPDATE llmproxy.interactions SET cassette = '{0}'",
)
CHANGES: dict[str, Callable[[Store, int], object]] = {
    "rekey": lambda store, id_: store.rekey_recordings([RecordingKeyUpdate(id_, key(1), key(2), 1, "")]),
    "delete": lambda store, id_: store.delete_interactions([id_]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_renamed_meanwhile_is_changed_under_its_new_name(change: str, team_url: str, tmp_path: Path) -> None:
    """Whoever copied it between both reads it anew, as its epoch says."""
    with opened(team_url, tmp_path) as store:
        stored, _ = (store.add_interaction(interaction(n, cassette="old"), supersede=False) for n in (1, 3))
        renaming = [each.format("new", 7) for each in RENAMED]
        with waiting(team_url, lambda: CHANGES[change](store, stored), *renaming):
            pass
    assert execute(team_url, "SELECT name, epoch FROM llmproxy.cassettes") == [("new", 8)]


def test_a_copy_that_lost_rows_to_an_older_name_is_read_anew(team_url: str, tmp_path: Path) -> None:
    """A process that had read a cassette before it was renamed may write it into the copy after another one wrote the new name."""
    with opened(team_url, tmp_path) as store:
        stored = store.add_interaction(interaction(1, cassette="new"), supersede=False)
        for name, epoch in (("new", 7), ("old", 8), ("new", 7)):
            execute(team_url, *(each.format(name, epoch) for each in RENAMED))
            store.refresh_cassette(name)
        assert [row.id for row in store.list_summaries("new")] == [stored]


def test_two_machines_delete_at_once(team_url: str, tmp_path: Path) -> None:
    """What was to be stored anew, since what it builds on goes, is gone as well: the rest is looked for again."""
    with opened(team_url, tmp_path) as store:
        bodies = [f"{name}: {'a long conversation ' * 100 * n}".encode() for name in "ab" for n in (1, 2)]
        asked = [Request("POST", "/", (), body) for body in bodies]
        many = [interaction(n, request=each, cassette="aabb"[n]) for n, each in enumerate(asked)]
        ids = [store.add_interaction(each, supersede=False) for each in many]
        with waiting(
            team_url,
            lambda: store.delete_interactions(ids[::2]),
            f"DELETE FROM llmproxy.interactions WHERE id IN ({ids[1]}, {ids[3]})",
            "DELETE FROM llmproxy.bodies WHERE base IS NOT NULL",
        ):
            pass
    assert execute(team_url, "SELECT sha256 FROM llmproxy.bodies") == []


@pytest.mark.parametrize("step", ["_copy_bodies", "BodyRow"])
def test_what_is_deleted_between_two_reads_is_no_damage(
    step: str, team_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine deletes after the rows were read, or replaces what a body builds on after that body was read."""
    long, original = b"a long conversation " * 100, getattr(local_copy, step)
    with opened(team_url, tmp_path) as store, opened(team_url, tmp_path, whole=False) as other:
        asked = [interaction(n, cassette="team", request=Request("POST", "/", (), long * n)) for n in (1, 2)]
        gone, kept = (store.add_interaction(each, supersede=False) for each in asked)
        assert execute(team_url, "SELECT count(*) FROM llmproxy.bodies WHERE base IS NOT NULL") == [(1,)]
        if step == "BodyRow":
            execute(team_url, f"DELETE FROM llmproxy.interactions WHERE id = {gone}")

        def delete_first(*args: Any) -> Any:
            monkeypatch.undo()
            store.delete_interactions([gone])
            return original(*args)

        monkeypatch.setattr(local_copy, step, delete_first)
        other.refresh_cassette("team")
        assert [row.id for row in other.list_summaries()] == [kept]
        assert other.load(kept).request.body == long * 2


def test_a_missing_body_is_damage(team_url: str, tmp_path: Path) -> None:
    with opened(team_url, tmp_path) as store, opened(team_url, tmp_path, whole=False) as other:
        store.add_interaction(interaction(1, cassette="team"), supersede=False)
        execute(team_url, "SET session_replication_role = replica", "DELETE FROM llmproxy.bodies")
        with pytest.raises(CassetteCorrupt, match="has no row"):
            other.refresh_cassette("team")


def test_a_miss_does_not_wait_for_a_recorder(team_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder waits for the server while it updates the copy: the event loop goes on, and a thread waits."""
    updating, go_on, original = threading.Event(), threading.Event(), local_copy.update_local_copy_from_server

    def update_late(*args: Any) -> bool:
        monkeypatch.undo()
        updating.set()
        go_on.wait(5)
        return original(*args)

    with opened(team_url, tmp_path) as store, ThreadPoolExecutor() as threads:
        store.begin_writing("team", 1, exclusive=False, holder="h")
        assert store.find_keyed("team", 1, "agent", key(1)) == ()
        monkeypatch.setattr(local_copy, "update_local_copy_from_server", update_late)
        recording = threads.submit(store.add_interaction, interaction(1, cassette="team"), supersede=False)
        assert updating.wait(30)
        with pytest.raises(CassetteServerLost, match="another request waits"):
            store.find_keyed("team", 1, "agent", key(1))
        waiting = threads.submit(store.wait_for_server)
        time.sleep(0.2)
        assert not waiting.done()
        go_on.set()
        waiting.result(30)
        assert [slot.id for slot in store.find_keyed("team", 1, "agent", key(1))] == [recording.result(30)]


def test_a_statement_without_an_answer_ends_its_connection(
    team_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the commit, where the recording is acknowledged: the next one does not begin with an error."""

    def hang(_local: object, conn: connection.Conn, *_: object) -> None:
        monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.1)
        conn.execute("SELECT pg_sleep(3)")

    with opened(team_url, tmp_path) as store:
        assert isinstance(store, PostgresCassetteStore)
        monkeypatch.setattr(local_copy, "update_local_copy_from_server", hang)
        store.add_interaction(interaction(1), supersede=False)
        assert not store._writes.is_usable
        monkeypatch.undo()
        store.add_interaction(interaction(2), supersede=False)
        assert len(store.list_summaries()) == 2


def test_an_end_that_failed_leaves_the_next_one_its_retries(server: Postgres, team_url: str, tmp_path: Path) -> None:
    """Only a server that stayed away is not waited for again."""
    with cut_network(server.socket) as network, opened(through(network, team_url), tmp_path) as store:
        for name in "ab":
            store.begin_writing(name, 1, exclusive=True, holder="we")
        execute(team_url, "ALTER TABLE llmproxy.cassettes RENAME TO away")
        with pytest.raises(RecordingError):
            store.end_writing("a", 1, "we", clean=True)
        execute(team_url, "ALTER TABLE llmproxy.away RENAME TO cassettes")
        network.cut()
        mending = threading.Timer(0.3, network.mend)
        mending.start()
        store.end_writing("b", 1, "we", clean=True)
        mending.join()
    assert execute(team_url, "SELECT name FROM llmproxy.cassettes WHERE holder IS NULL") == [("b",)]


CASES: dict[str, tuple[Callable[[Store], object], list[tuple[str, int, str]]]] = {
    "rename": (lambda store: store.rename_cassette("old", "new"), [("new", 1, key(1)), ("old", 2, key(2))]),
    "replace": (
        lambda store: store.add_interactions([InteractionToStore(interaction(3, cassette="old"))], instead_of="old"),
        [("old", 1, key(3))],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sample_that_is_begun_meanwhile_is_the_same_everywhere(case: str, team_url: str, tmp_path: Path) -> None:
    """One that is renamed later keeps its name; one that is replaced at once is so for who copied it before."""
    work, expected = CASES[case]
    with opened(team_url, tmp_path) as store, opened(team_url, tmp_path) as other:
        store.add_interaction(interaction(1, cassette="old"), supersede=False)
        with waiting(team_url, lambda: work(store), "SELECT 1 FROM llmproxy.cassettes FOR UPDATE"):
            other.add_interaction(interaction(2, cassette="old", sample=2), supersede=False)
        for each in (store, other):
            each.refresh_cassette("old")
            each.refresh_cassette("new")
            assert sorted((row.cassette, row.sample, row.key) for row in each.list_summaries()) == expected


def test_a_copy_of_another_store_is_not_believed(team_url: str, tmp_path: Path) -> None:
    """The database was made anew under the same URL: what was read of the old one is thrown away."""
    path = map_postgres_store_to_copy_path(team_url, {"XDG_CACHE_HOME": str(tmp_path)})
    with open_store(path, writable=True, now=lambda: NOW) as store:
        store.add_interaction(interaction(1), supersede=False)
    execute(team_url, "DROP SCHEMA llmproxy CASCADE")
    with open_store(path, writable=True, now=lambda: NOW) as store:
        assert store.list_summaries() == []


def _newer(url: str, _server: Postgres) -> str:
    execute(url, "INSERT INTO llmproxy.migrations (version) VALUES (99)")
    return url


def _reader(url: str, _server: Postgres) -> str:
    execute(
        url,
        "DROP OWNED BY reader" if _exists(url, "reader") else "CREATE ROLE reader LOGIN",
        "GRANT USAGE ON SCHEMA llmproxy TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA llmproxy TO reader",
    )
    return url.replace("tester@", "reader@")


def _stranger(url: str, _server: Postgres) -> str:
    if not _exists(url, GUARDED):
        execute(url, f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'right'")
    return url.replace("tester@", f"{GUARDED}:s3cret%21@")


def _new_role(url: str, _server: Postgres) -> str:
    if not _exists(url, "newcomer"):
        execute(url, "CREATE ROLE newcomer LOGIN")
    return url.replace("tester@", "newcomer@")


def _exists(url: str, role: str) -> bool:
    return bool(execute(url, f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"))


BAD: dict[str, tuple[Callable[[str, Postgres], str], bool, type[LLMProxyError], str]] = {
    "wrong password": (_stranger, False, CassetteServerLost, "password authentication failed"),
    "no such database": (lambda url, _: url.replace("/team?", "/nosuch?"), False, CassetteServerLost, "createdb"),
    "nobody listens": (
        lambda url, _: "postgresql://me:s3cret!@127.0.0.1:9/team",
        False,
        CassetteServerLost,
        "refused",
    ),
    "newer schema": (_newer, False, CassetteNewer, "its schema is 99"),
    "newer schema, to record": (_newer, True, CassetteNewer, "its schema is 99"),
    "a role without rights": (_new_role, False, CassetteError, "permission denied for schema llmproxy"),
    "a reader that records": (_reader, True, StoreReadOnly, "role may only read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_to_do(case: str, server: Postgres, team_url: str, tmp_path: Path) -> None:
    """In one of our errors, with a hint, and without the password."""
    spoil, writable, kind, said = BAD[case]
    opened(team_url, tmp_path).close()
    with pytest.raises(kind, match=said) as caught:
        opened(spoil(team_url, server), tmp_path, writable=writable)
    assert caught.value.hint
    assert "s3cret" not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize(("said", "advice"), [
    ('database "team" does not exist', "createdb"),
    ('root certificate file "/nonexistent" does not exist', "sslmode"),
    ('no pg_hba.conf entry for host "127.0.0.1", user "me", database "team", no encryption', "sslmode"),
    ('password authentication failed for user "me"', "PGPASSWORD"),
    ("Connection refused", "can be reached from here"),
])  # fmt: skip
def test_what_is_advised_fits_what_was_said(said: str, advice: str, tmp_path: Path) -> None:
    """In the words of PostgreSQL 15 over TCP and TLS, which the wheel's has not."""
    server = ServerStoreAddress("postgresql://me@h/team", "postgresql://me@h/team", tmp_path)
    assert advice in _build_lost_error(server, Exception(said)).hint


def test_a_reader_replays(server: Postgres, team_url: str, tmp_path: Path) -> None:
    """A role that may only read needs nothing else."""
    with opened(team_url, tmp_path) as store:
        store.add_interaction(interaction(1), supersede=False)
    with opened(_reader(team_url, server), tmp_path, writable=False) as store:
        assert len(store.list_summaries()) == 1


def test_an_empty_database_is_no_store_to_replay(team_url: str, tmp_path: Path) -> None:
    with pytest.raises(CassetteNotFound, match="no tables"):
        opened(team_url, tmp_path, writable=False)


def test_the_tables_are_made_once(team_url: str, tmp_path: Path) -> None:
    """Eight who come at once wait for each other."""
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: opened(team_url, tmp_path), range(8)))
    for each in made:
        each.close()


@given(strategies.text(strategies.characters(codec=None) | strategies.sampled_from("\0\x01\udcff")))
def test_every_text_comes_back(text: str) -> None:
    """And what stands in the column is text without a NUL."""
    said = encode_pg_text(text)
    assert "\0" not in said
    said.encode()
    back = decode_pg_value(said)
    assert isinstance(back, str | bytes)
    assert decode_sql_text(back) == text
    assert back == to_sql(text)
