"""Sessions are opened, bound, reset and closed; a real store stands behind them."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.core.sessions.session import (
    Session,
    SessionInUse,
    Sessions,
    SessionSettings,
    SessionUnknown,
    remove_redundant_sample_suffix,
)
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteBusy, LLMProxyError, RefusedError
from llmproxy.protocol import Exhausted, Mode
from tests.support.narrowing import known
from tests.support.recordings import interaction, key, reopened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with reopened(tmp_path / "x.db", writable=True) as opened:
        yield opened


def sessions(store: Store | None, mode: Mode = Mode.AUTO) -> Sessions:
    return Sessions(SessionSettings(mode, 0.0, Exhausted.LAST), lambda _: store, "me")


NAMES = [("x", "x"), ("x~1", "x"), ("x~01", "x"), ("x~2", "x~2"), ("x~002", "x~2"), ("x~0", "x~0"), ("~2", "~2"),
         ("x~2~1", "x~2~1"), ("x~2~3", "x~2~3"), ("x~0~1", "x~0"), ("a/b", "a/b"), ("..", "..")]  # fmt: skip


@pytest.mark.parametrize(("said", "meant"), NAMES)
def test_a_cassette_and_sample_has_one_name(said: str, meant: str) -> None:
    """`x` and `x~1` are one session; a name that is already canonical stays as it is."""
    assert remove_redundant_sample_suffix(said) == remove_redundant_sample_suffix(meant) == meant


def test_a_session_has_properties_of_its_own(store: Store) -> None:
    """What `open` does not say is the proxy's; the next session is not affected."""
    found = sessions(store)
    upstreams = {"openai": "http://o"}
    one = found.open_session("a", mode=Mode.REPLAY, speed=2.0, exhausted=Exhausted.MISS, upstreams=upstreams)
    seen = [(s.mode, s.speed, s.exhausted, s.upstreams) for s in (one.settings, found.open_session("b").settings)]
    assert seen == [("replay", 2.0, "miss", {"openai": "http://o"}), ("auto", 0.0, "last", {})]
    assert found.get_or_open("a") is one


def test_open_twice_is_busy_and_says_what_to_do(store: Store) -> None:
    """The hint names the very URL that closes it, the name percent-encoded."""
    found = sessions(store)
    found.open_session("a/b ü")
    with pytest.raises(SessionInUse) as error:
        found.open_session("a/b ü")
    assert "POST /_llmproxy/sessions/a%2Fb%20%C3%BC/close" in error.value.hint


def test_opening_takes_over_what_nobody_opened(store: Store) -> None:
    """A request under the name before `open` does not count for the session; what is bound to the name stays bound."""
    found = sessions(store)
    before = found.get_or_open("a")
    before.count_arrival(("agent", key(1)), 1)
    found.bind_name("worker", "a")
    after = found.open_session("a")
    assert after is not before
    assert after.count_arrival(("agent", key(1)), 1) == 1
    assert found.get_or_open("worker") is after


@pytest.mark.parametrize("name", ["", "x" * 301, "a\nb", "\0"])
def test_names_that_cannot_be(store: Store, name: str) -> None:
    """Empty, too long, unprintable: refused wherever they are said."""
    found = sessions(store)
    found.open_session("ok")
    for attempt in (found.open_session, found.get_or_open, lambda name: found.bind_name(name, "ok")):
        with pytest.raises(RefusedError):
            attempt(name)
    with pytest.raises(SessionUnknown):
        found.close_session(name)


@pytest.mark.parametrize("name", ["a/b", "ünïcode 日本", "x" * 300, "..", "x~0", "a b", "%2F", "?", "'; DROP TABLE"])
def test_odd_names_are_names(store: Store, name: str) -> None:
    """Whatever can be printed can be opened, recorded, closed and found again."""
    found = sessions(store)
    session = found.open_session(name, mode=Mode.RECORD)
    store.add_interaction(interaction(1, cassette=session.cassette), supersede=False)
    assert found.close_session(name) is session
    assert store.last_session_ended_cleanly(session.cassette, 1)


def test_what_is_not_open_is_unknown(store: Store) -> None:
    """Close, reset, bind and unbind say so, and name what is open, shortened."""
    found = sessions(store)
    for n in range(12):
        found.open_session(f"s{n:02}" + "x" * 100)
    for attempt in (
        lambda: found.close_session("a"),
        lambda: found.reset_session("a"),
        lambda: found.bind_name("w", "a"),
        lambda: found.unbind_name("a"),
        lambda: found.unbind_name(""),
    ):
        with pytest.raises(SessionUnknown):
            attempt()
    with pytest.raises(SessionUnknown) as error:
        found.close_session("a")
    assert error.value.hint.startswith("Open now: 's00xxx")
    assert error.value.hint.endswith(", ...")
    assert len(error.value.hint) < 600


def test_a_binding_sends_a_name_to_a_session(store: Store) -> None:
    """Until it is unbound or the session closed; then the name is its own again."""
    found = sessions(store)
    one, two = found.open_session("one"), found.open_session("two")
    found.bind_name("worker", "one")
    assert found.get_or_open("worker") is one
    found.unbind_name("worker")
    assert found.get_or_open("worker").name == "worker"
    found.bind_name("worker", "two")
    assert found.get_or_open("worker") is two
    found.close_session("two")
    assert found.bindings == {}
    assert found.get_or_open("worker").name == "worker"


@pytest.mark.parametrize(("name", "error"), [("worker~1", SessionInUse), ("one~1", RefusedError)])
def test_binding_twice_or_to_itself_is_refused(store: Store, name: str, error: type[Exception]) -> None:
    """Twice also to the same session: two tests that share a process by mistake must not mix."""
    found = sessions(store)
    one = found.open_session("one")
    found.bind_name("worker", "one")
    with pytest.raises(error):
        found.bind_name(name, "one")
    assert found.bindings == {"worker": "one"}
    assert (found.find_open("worker"), found.find_open("one~1"), found.find_open("nobody")) == (one, one, None)
    assert list(found.open_sessions) == ["one"], "looked up without opening"


@pytest.mark.parametrize("name", ["worker", "worker~1"])
def test_bound_name_cannot_be_opened(store: Store, name: str) -> None:
    """Its requests would get the answers of the session to which they go."""
    found = sessions(store)
    found.open_session("one")
    found.bind_name("worker", "one")
    with pytest.raises(SessionInUse) as error:
        found.open_session(name)
    assert error.value.bound_to == "one"
    found.unbind_name("worker")
    assert found.open_session(name).name == "worker"


def test_bindings_do_not_chain(store: Store) -> None:
    """Where a goes to b and b to c, what arrives under a belongs to b."""
    found = sessions(store)
    b, c = found.open_session("b"), found.open_session("c")
    found.bind_name("b", "c")
    found.bind_name("a", "b")
    assert (found.get_or_open("a"), found.get_or_open("b")) == (b, c)


def test_a_reset_while_recording_replaces_what_came_before(store: Store) -> None:
    """A test that is tried again leaves the recording of its last try, not of both."""
    found = sessions(store)
    session = found.open_session("a", mode=Mode.RECORD)
    for n in (1, 1, 1):
        supersede = session.claim_superseding(("agent", key(n)), good=True)
        made = interaction(n, cassette="a", occurrence=session.count_arrival(("agent", key(n)), 0))
        store.add_interaction(made, supersede=supersede)
    found.reset_session("a")
    supersede = session.claim_superseding(("agent", key(1)), good=True)
    last = store.add_interaction(interaction(1, cassette="a"), supersede=supersede)
    assert [slot.id for slot in store.find_keyed("a", 1, "agent", key(1))] == [last]


def test_once_is_complete_after_a_close(store: Store) -> None:
    """A cassette that was closed replays; one that was not is recorded to its end, by one session at a time."""
    found = sessions(store)
    assert found.open_session("a", mode=Mode.ONCE).policy.alone
    store.add_interaction(interaction(1, cassette="a"), supersede=False)
    found.close_session("a")
    assert not found.open_session("a", mode=Mode.ONCE).policy.alone
    store.add_interaction(interaction(1, cassette="b"), supersede=False)  # somebody crashed
    assert found.open_session("b", mode=Mode.ONCE).policy.alone


def test_what_its_opener_did_not_close_is_incomplete_at_the_end_of_the_proxy(store: Store) -> None:
    """Its opener may have been killed, so `once` must record the rest; a session of requests alone has no other end."""
    found = sessions(store, Mode.ONCE)
    found.open_session("opened")
    found.get_or_open("requested")
    for name in ("opened", "requested"):
        store.add_interaction(interaction(1, cassette=name), supersede=False)
    found.close_sessions()
    assert [store.last_session_ended_cleanly(name, 1) for name in ("opened", "requested")] == [False, True]


def test_a_lost_answer_leaves_its_cassette_incomplete(store: Store) -> None:
    """Whatever its opener says of the end: `once` must record it."""
    found = sessions(store)
    session = found.open_session("a", mode=Mode.ONCE)
    store.add_interaction(interaction(1, cassette="a"), supersede=False)
    session.calls.totals.failed = 1
    found.close_session("a", complete=True)
    assert not store.last_session_ended_cleanly("a", 1)


@pytest.mark.parametrize("again", [None, Mode.REPLAY])
def test_what_is_stored_after_the_close_leaves_the_cassette_complete(store: Store, again: Mode | None) -> None:
    """The answer of a call that was still open at the close is kept, and counted as served in the end."""
    found = sessions(store)
    session = found.open_session("a", mode=Mode.ONCE)
    found.close_session("a")
    if again is not None:
        found.open_session("a", mode=again)
    late = store.add_interaction(interaction(1, cassette="a"), supersede=False)
    session.served.add(late)
    found.mark_complete_after_late_recording(session)
    assert store.last_session_ended_cleanly("a", 1)
    assert {place: list(ids) for place, ids in found.served_before.items()} == {("a", 1): [late]}


def test_what_is_stored_late_does_not_end_another_recording(store: Store) -> None:
    """While a session records the cassette, only its own end makes it complete; its lease stays its own."""
    found = sessions(store)
    session = found.open_session("a", mode=Mode.RECORD)
    store.add_interaction(interaction(1, cassette="a"), supersede=False)
    found.mark_complete_after_late_recording(session)
    assert (store.last_session_ended_cleanly("a", 1), found.served_before) == (False, {})
    found.close_session("a")
    found.open_session("a", mode=Mode.RECORD)
    store.add_interaction(interaction(1, cassette="a"), supersede=False)
    found.mark_complete_after_late_recording(session)
    assert not store.last_session_ended_cleanly("a", 1)
    assert store.renew_lease("a", 1, "me")
    found.close_session("a")
    assert store.last_session_ended_cleanly("a", 1)


HOLD = """
import sys, time
from pathlib import Path
from llmproxy.core.store.file.store import SqliteCassetteStore
with SqliteCassetteStore.open(Path(sys.argv[1]), writable=True, now=lambda: 1_800_000_000.0) as store:
    store.begin_writing("a", 1, exclusive=True, holder="the other")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_recorders_of_one_cassette(store: Store) -> None:
    """The second is told who holds it, and can open it as soon as the first is gone; no session is left half open."""
    command = [sys.executable, "-c", HOLD, str(store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert known(other.stdout).readline() == "held\n"
        found = sessions(store)
        with pytest.raises(CassetteBusy, match="the other"):
            found.open_session("a", mode=Mode.RECORD)
        assert found.open_sessions == {}
        known(other.stdin).close()
        other.wait(20)
    assert found.open_session("a", mode=Mode.RECORD).policy.alone


class Stuck(SqliteCassetteStore):
    """A store whose cassette `stuck` cannot be ended."""

    def end_writing(self, cassette: str, sample: int, holder: str, *, clean: bool | None) -> None:
        if cassette == "stuck":
            raise CassetteBusy("llmproxy: held by another program")
        super().end_writing(cassette, sample, holder, clean=clean)


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Sessions]:
    """Return sessions over such a store, three of them open."""
    with Stuck.open(tmp_path / "x.db", writable=True, now=lambda: 0.0) as opened:
        found = sessions(opened)
        for name in ("a", "stuck", "z"):
            found.open_session(name, mode=Mode.RECORD)
        yield found


def test_a_close_that_fails_leaves_the_session_open_and_does_not_keep_the_others(stuck: Sessions) -> None:
    """It can be tried again, nothing is unbound; at the end of the proxy every other lease is given back."""
    stuck.bind_name("w", "stuck")
    with pytest.raises(CassetteBusy):
        stuck.close_session("stuck")
    assert ("stuck" in stuck.open_sessions, stuck.bindings) == (True, {"w": "stuck"})
    with pytest.raises(LLMProxyError):
        stuck.close_sessions()
    store = known(stuck.store(Mode.RECORD))
    assert [store.renew_lease(name, 1, "me") for name in ("a", "stuck", "z")] == [False, True, False]


def test_a_mark_that_cannot_be_set_loses_no_recording(stuck: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """The late answer itself is stored; that its cassette is not marked complete is said in the log."""
    session = stuck.get_session("stuck")
    del stuck.open_sessions["stuck"]
    stuck.mark_complete_after_late_recording(session)
    assert "stuck could not be marked as complete" in caplog.text


def test_a_file_that_cannot_be_kept_loses_no_recording(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever goes wrong after an answer was stored: it is stored, and whoever stored it must not do so again."""

    def full(_session: Session) -> None:
        raise OSError("No space left on device")

    found = sessions(store)
    session = found.open_session("a", mode=Mode.RECORD)
    found.close_session("a")
    found.on_run_end = full
    found.mark_complete_after_late_recording(session)
    assert "No space left on device" in caplog.text


def test_without_a_store_there_is_nothing_to_write() -> None:
    """A replay proxy whose store was not recorded yet opens and closes all the same."""
    found = sessions(None, Mode.REPLAY)
    found.open_session("a")
    found.renew_recording_leases()
    found.close_session("a")
    found.close_sessions()
    assert [*found.served_before] == [("a", 1)]


def test_sessions_that_ended_are_merged_by_cassette(store: Store) -> None:
    """The summary of the run sees what any of them served, once."""
    found = sessions(store)
    for served in ({1, 2}, {2, 3}, set[int]()):
        session: Session = found.open_session("a", mode=Mode.REPLAY)
        session.served.update(served)
        found.close_session("a")
    found.open_session("a~2")
    found.close_session("a~2")
    assert {place: sorted(ids) for place, ids in found.served_before.items()} == {("a", 1): [1, 2, 3], ("a", 2): []}


@pytest.mark.slow
def test_thousands_of_closed_sessions_are_little(store: Store) -> None:
    """Each with a cassette of its own, twenty keys and a page of misses: 500 bytes a session are left."""
    found = sessions(store, Mode.REPLAY)

    def walk(n: int) -> None:
        session = found.open_session(f"tests-agent-{n:05}-0123abcd")
        session.calls.totals.miss_texts.extend(f"a long text {n} {i}" * 100 for i in range(3))
        for i in range(20):
            session.count_arrival(("agent", key(i)), 1)
            session.served.add(n * 20 + i)
        found.close_session(session.name)

    walk(0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(1, 3_001):
            walk(n)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.served_before) == 3_001
    assert after - before < 3_000 * 500
