"""A proxy that is ended while 64 clients are busy: a clean exit, nothing on stderr, nothing acknowledged that is lost."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import pytest

from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.exchange import EngineConfig, Exchange
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import list_recorded_call_times
from llmproxy.mitm.proxy_context import ConcurrentAnswerEndSpacer, ProxyContext
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import Wire, body_of, chat
from tests.provider import Provider, Reply, Script, Step, step
from tests.support.concurrent_runs import echo
from tests.support.proxy import proxy, start

CLIENTS = 64


@dataclass
class Crowd:
    """Clients that ask until nobody answers: every second one over a new connection each time, the others over one."""

    port: int
    answered: set[str] = field(default_factory=set)
    """Questions whose answers came whole."""
    warm: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def run(self, number: int, *, new: bool) -> None:
        """Ask as client `number`; `new`: another question each time."""
        asked = 0
        with suppress(OSError):
            while True:
                with Wire(self.port, 20) as c:
                    for _ in range(1 if number % 2 else 1_000_000):
                        text = f"{number}-{asked}" if new else "known"
                        got = c.ask(chat(text))
                        if got.status != 200 or not got.whole:
                            return
                        self.answered.add(text)
                        asked += 1
                        self.warm.release()


@pytest.mark.parametrize("mode", ["replay", "record"])
@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_proxy_that_is_ended_under_load_ends_in_order(tmp_path: Path, mode: str, how: signal.Signals) -> None:
    """Exit code 0, nothing on stderr, and what a client has the whole answer of is in the store."""
    store = tmp_path / "x.db"
    with Provider(Script((Step(Reply("a"), times=None),))) as p:
        up = {"openai": p.url}
        with proxy("record", store, upstreams=up, name="first") as px, Wire(px.port) as c:
            assert c.ask(chat("known")).status == 200
        for n in range(2 if mode == "replay" else 1):  # connections that are accepted while the listener closes
            px = start(mode, store, upstreams=up, name=f"{mode}-{n}")
            crowd = Crowd(px.port)
            threads = [
                threading.Thread(target=crowd.run, args=(each,), kwargs={"new": mode == "record"})
                for each in range(CLIENTS)
            ]
            for thread in threads:
                thread.start()
            for _ in range(3 * CLIENTS):
                assert crowd.warm.acquire(timeout=30)
            px.popen.send_signal(how)
            code = px.popen.wait(30)
            for thread in threads:
                thread.join(30)
            assert (code, px.stderr) == (0, ""), px.stdout[-2000:]
            if mode == "record":
                asked = {made.request.body for made in recorded(store)}
                assert {body_of(text) for text in crowd.answered} <= asked


QUESTIONS = [f"q{n} wait={0.3 * (4 - n)}" for n in range(4)]
"""The last one ends first."""


def ask(rig: Rig, text: str, *, stream: bool = False) -> str:
    with rig.client() as wire:
        return wire.ask(chat(text, stream=True) if stream else chat(text)).body.decode()


def run(rig: Rig, questions: list[str], *, stream: bool = False) -> list[str]:
    """Ask all at once; return them in the order in which their answers ended."""
    ended: list[str] = []
    lock = threading.Lock()

    def one(text: str) -> None:
        ask(rig, text, stream=stream)
        with lock:
            ended.append(text)

    with ThreadPoolExecutor(len(questions)) as pool:
        for each in as_completed([pool.submit(one, text) for text in questions]):
            each.result()
    return ended


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "streamed"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    made = tmp_path_factory.mktemp("concurrent") / "x.db"
    with echo() as up, Rig("record", made, {"openai": f"{up.url}/v1"}) as rig:
        assert run(rig, QUESTIONS, stream=request.param) == QUESTIONS[::-1]
    return made, request.param


def test_answers_end_in_the_order_in_which_they_were_recorded(store: tuple[Path, bool]) -> None:
    """The last question is heard first, at full speed."""
    with Rig("replay", store[0]) as rig:
        began = time.monotonic()
        assert run(rig, QUESTIONS, stream=store[1]) == QUESTIONS[::-1]
        assert time.monotonic() - began < 5
        assert [call.note for call in rig.wait_outcomes(4)] == [""] * 4


def test_what_never_comes_is_waited_for_once(store: tuple[Path, bool]) -> None:
    """The first end waits for its predecessor as long as was said, and its line says so; then nobody waits."""
    with Rig("replay", store[0], order_wait=0.2) as rig:
        began = time.monotonic()
        assert run(rig, QUESTIONS[:2], stream=store[1]) == QUESTIONS[1::-1]
        assert 0.2 < time.monotonic() - began < 5
        quiet, told = sorted(call.note for call in rig.wait_outcomes(2))
        assert quiet == ""
        assert told.startswith("went on after 0.2 s")


def test_no_order_is_kept_where_nobody_is_to_wait(store: tuple[Path, bool]) -> None:
    """A wait of 0 answers at once what would have waited for ever."""
    with Rig("replay", store[0], order_wait=0) as rig:
        ask(rig, QUESTIONS[0], stream=store[1])
        assert [call.note for call in rig.wait_outcomes(1)] == [""]


def test_ends_that_come_together_are_recorded_in_the_order_in_which_a_client_hears_them(tmp_path: Path) -> None:
    """A client that looks at all of its connections at once gets each end alone, and where the recording has it."""
    names = [f"q{n}" for n in range(16)]
    with echo() as up, Rig("record", tmp_path / "x.db", {"openai": f"{up.url}/v1"}) as rig, ExitStack() as opened:
        heard, selector = list[str](), DefaultSelector()
        for name in names:
            wire = opened.enter_context(rig.client())
            selector.register(wire.sock, EVENT_READ, (name, wire))
            wire.send(chat(f"{name} wait=0.1"))
        while len(heard) < len(names):
            for key, _ in selector.select():
                name, wire = key.data
                wire.more()
                if wire.buffer.endswith(b"}"):
                    heard.append(name)
                    selector.unregister(wire.sock)
        rig.wait_idle()
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=False, now=time.time) as kept:
        ends = sorted((end, each) for each, _, end, *_ in list_recorded_call_times(kept, "default", 1))
        asked = [kept.load(each).request.body.decode() for _, each in ends]
    assert [re.findall(r"q\d+", body)[0] for body in asked] == heard


class LongPauses(Engine):
    """An engine whose clock goes slowly: each pause between two ends is longer than any answer takes."""

    def __init__(self, config: EngineConfig, *, clock: Callable[[], float], **given: Any) -> None:
        super().__init__(config, clock=lambda: clock() / 8, **given)


def test_who_asks_on_and_on_leaves_other_answers_their_turn(tmp_path: Path) -> None:
    """An answer is heard although later calls begin and end faster than the pause that it waits for."""
    with echo() as up, Rig("record", tmp_path / "x.db", {"openai": f"{up.url}/v1"}, engine=LongPauses) as rig:
        with rig.client() as patient, rig.client() as quick:
            patient.send(chat("once wait=0.2"))
            began, asked = time.monotonic(), 0
            while not asked or patient.sock not in select([patient.sock, quick.sock], [], [])[0]:
                assert time.monotonic() - began < 20
                if asked:
                    assert quick.response().whole
                quick.send(chat(f"q{asked}"))
                asked += 1
            assert patient.response().whole
            assert quick.response().whole
        rig.wait_idle()


class WaitingTurns(ConcurrentAnswerEndSpacer):
    waits = threading.Event()

    async def wait_for_turn(self, exchange: Exchange) -> None:
        self.waits.set()
        await asyncio.Event().wait()


class WaitingContext(ProxyContext):
    """A proxy in which each piece waits for its turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.turns = WaitingTurns(self.engine.clock, self.released)


def test_who_leaves_while_a_piece_waits_for_its_turn_leaves_nothing_open(tmp_path: Path) -> None:
    """The connection to the provider is closed with the client's: what is collected unclosed is an error of this test."""
    with Provider([step(user="hi", say="Hello.")], check=False) as provider:
        with Rig("record", tmp_path / "x.db", {"openai": f"{provider.url}/v1"}, shell=WaitingContext) as rig:
            with rig.client() as client:
                client.send(chat("hi"))
                assert WaitingTurns.waits.wait(60)
            rig.wait_idle()
        gc.collect()
