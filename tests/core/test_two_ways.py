"""The short way of a hit beside the long one: whatever is asked and done in between, both answer and count the same."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.engine.engine import Engine
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig, RoutedRequestHead
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Headers, Key
from llmproxy.core.traffic.response_plan import ClientFramingTraits
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import KEY_HEADER, PARTY_HEADER, Decision, Exhausted, Mode
from tests.core.engine.test_engine import CHAT, answered, ask, body, engine

SESSIONS = ["default", "a", "w"]
SECRET = "sk-credential-{}-0123456789"


class Way:
    """An engine over a store of its own, which is asked the short way first, or only the long one. Its clock is set by hand."""

    def __init__(self, store: Path, mode: Mode, exhausted: Exhausted, *, short: bool) -> None:
        self.store, self.short = store, short
        self.seconds, self.asked, self.hits = 1_800_000_000.0, 0, 0
        self.journal = CallDecisionJournalWriter.open(Path(f"{store}.state.db"), self.now)
        config = EngineConfig(mode=mode, store=store, exhausted=exhausted, allow_live=True)
        self.made = Engine(config, redactor=Redactor(), journal=self.journal, now=self.now, clock=self.now)
        self.places: dict[tuple[str, Headers], RoutedRequestHead] = {}

    def now(self) -> float:
        return self.seconds

    def ask(
        self, name: str | None, party: str | None, credential: str | None, client: ClientFramingTraits, text: str
    ) -> object:
        """Ask as the front does; returns all that is said about it."""
        target = f"/s/{name}{CHAT}" if name else CHAT
        headers: Headers = ((PARTY_HEADER, party),) if party else ()
        headers += (("authorization", f"Bearer {SECRET.format(credential)}"),) if credential else ()
        self.asked += 1
        place = self.places.get((target, headers))
        if (
            self.short
            and place is not None
            and (hit := self.made.fast_path.find_answer(place, client, body(text))) is not None
        ):
            self.hits += 1
            return hit.data, hit.close, self.made.fast_path.record_hit(hit)
        if place is None or not self.made.dispatcher.is_still_valid(place):
            place = self.places[target, headers] = self.made.dispatcher.place_request("POST", target, None, headers)
        exchange = self.made.stages.begin_exchange(place)
        self.made.stages.identify_and_decide(exchange, body(text))
        if exchange.decision is Decision.REPLAY:
            laid = self.made.answering.plan_recorded(exchange, client, extra=((KEY_HEADER, exchange.key or ""),))
            data = b"".join(piece for _, piece in laid.pieces)
            return data, laid.close, self.made.accounting.record_end(exchange, exchange.replayed_status or 0)
        if exchange.decision is Decision.RECORD:
            answered(self.made, exchange, b'{"n": %d}' % self.asked, 200 if self.asked % 5 else 500)
        return exchange.decision, self.made.accounting.record_end(exchange, 0)

    def open(self, name: str, mode: Mode, exhausted: Exhausted, speed: float, upstream: str) -> object:
        upstreams = {"openai": upstream} if upstream else {}
        opened = self.made.sessions.open_session(name, mode=mode, exhausted=exhausted, speed=speed, upstreams=upstreams)
        return opened.name

    def close(self, name: str) -> object:
        return self.made.sessions.close_session(name).name

    def reset(self, name: str) -> object:
        return self.made.sessions.reset_session(name).name

    def bind(self, name: str, session: str) -> object:
        self.made.sessions.bind_name(name, session)
        return name

    def recorded_elsewhere(self, text: str) -> None:
        with engine(self.store, Mode.RECORD, holder="another") as other:
            answered(other, ask(other, text), b'{"elsewhere": %d}' % self.asked)

    def pruned_elsewhere(self) -> None:
        with SqliteCassetteStore.open(self.store, writable=True, now=self.now) as other:
            other.delete_interactions([row.id for row in other.list_summaries(superseded=True) if row.id % 3 == 0])

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def counted(self) -> object:
        """Return all that is counted of every session; the texts of misses name the store."""
        found = {}
        for name, walk in self.made.sessions.open_sessions.items():
            tally = {**walk.calls.totals.to_json(), "miss_texts": len(walk.calls.totals.miss_texts)}
            calls = walk.calls.list_calls_after(0)
            counts = {
                (each.party, each.key or ""): walk.position.counts[(each.party, Key(each.key or ""))] for each in calls
            }
            found[name] = (counts, list(walk.served), calls, tally)
        return found, self.made.count_unused()

    def noted(self) -> list[tuple[object, ...]]:
        """Return what the journal holds, less its ids; only after the end."""
        with closing(sqlite3.connect(f"{self.store}.state.db")) as conn:
            return [row[2:] for row in conn.execute("SELECT * FROM decisions ORDER BY id")]


def said(way: Way, what: str, values: tuple[object, ...]) -> str:
    """Do one thing; returns what came of it, or why not, as text without the store's own path."""
    try:
        found = getattr(way, what)(*values)
    except LLMProxyError as error:
        found = error
    return repr(found).replace(str(way.store), "STORE")


@contextmanager
def both(tape: Path, where: Path, mode: Mode, exhausted: Exhausted) -> Iterator[tuple[Way, Way]]:
    """Run both ways over copies of one store, each closed as a proxy that ends closes it."""
    shutil.rmtree(where, ignore_errors=True)
    with ExitStack() as stack:
        ways = []
        for short in (False, True):
            (folder := where / str(short)).mkdir(parents=True)
            way = Way(Path(shutil.copy(tape, folder / "x.db")), mode, exhausted, short=short)
            stack.callback(way.journal.close)
            stack.callback(way.made.close)
            ways.append(way)
        yield ways[0], ways[1]


def some[T](*usual: T, seldom: tuple[T, ...] = ()) -> st.SearchStrategy[T]:
    return st.sampled_from([*usual * 4, *seldom])


ASK = st.tuples(
    st.just("ask"),
    st.tuples(
        some(None, seldom=("a", "a~1", "w")),
        some(None, seldom=("user", "agent")),
        some(None, seldom=("1", "2")),
        some(ClientFramingTraits(), seldom=(ClientFramingTraits(keep_alive=False),)),
        some("hi", "other", seldom=("never", f"a key: {SECRET.format(1)}")),
    ),
)
NAME = st.sampled_from(SESSIONS)
OPEN = st.tuples(NAME, some(Mode.REPLAY, seldom=tuple(Mode)), st.sampled_from(Exhausted), some(0.0, seldom=(100.0,)), some("", seldom=("http://x",)))  # fmt: skip
DO = st.one_of(
    st.tuples(st.just("open"), OPEN),
    st.tuples(st.sampled_from(["close", "reset"]), st.tuples(NAME)),
    st.tuples(st.just("bind"), st.tuples(NAME, NAME)),
    st.tuples(st.just("recorded_elsewhere"), st.tuples(st.sampled_from(["hi", "other"]))),
    st.tuples(st.just("pruned_elsewhere"), st.just(())),
    st.tuples(st.just("wait"), st.tuples(st.sampled_from([0.4, 1.0, -1.0]))),
)
STEPS = st.lists(st.tuples(st.lists(ASK, min_size=3, max_size=8), DO), min_size=2, max_size=6)


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with two answers to "hi" and one to "other", for the agent and the user, in two cassettes."""
    path = tmp_path_factory.mktemp("tape") / "x.db"
    with closing(CallDecisionJournalWriter.open(Path(f"{path}.state.db"), lambda: 0.0)):
        way = Way(path, Mode.RECORD, Exhausted.LAST, short=False)
        for name, party in ((None, None), ("a", None), (None, "user")):
            for text in ("hi", "other", "hi"):
                way.ask(name, party, None, ClientFramingTraits(), text)
        way.made.close()
        way.journal.close()
    return path


@settings(max_examples=25)
@given(mode=some(Mode.REPLAY, seldom=(Mode.AUTO, Mode.ONCE)), exhausted=st.sampled_from(Exhausted), steps=STEPS)
def test_both_ways_answer_and_count_the_same(
    mode: Mode, exhausted: Exhausted, steps: list[tuple[list[tuple[str, tuple[object, ...]]], tuple[str, tuple[object, ...]]]], tape: Path
) -> None:  # fmt: skip
    """Sessions opened, closed, reset and bound, recordings made and deleted by others, credentials learned, seconds passing."""
    with both(tape, tape.with_name("both"), mode, exhausted) as (long, short):
        for asked, done in steps:
            for what, values in [*asked, done]:
                assert said(long, what, values) == said(short, what, values), (what, values)
            assert long.counted() == short.counted()
    assert long.noted() == short.noted()


def test_the_short_way_is_taken(tape: Path) -> None:
    with both(tape, tape.with_name("taken"), Mode.REPLAY, Exhausted.LAST) as (long, short):
        for _ in range(10):
            for text in ("hi", "other"):
                long.ask(None, None, None, ClientFramingTraits(), text)
                short.ask(None, None, None, ClientFramingTraits(), text)
    assert (long.hits, long.asked) == (0, 20)
    assert short.hits > 10
