"""Concurrent requests over real sockets: they end as they were recorded, and what never comes is not waited for for ever."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import pytest

from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.file.store import FileStore
from llmproxy.core.store.queries import list_times
from llmproxy.mitm.proxy_context import ProxyContext, Turns
from tests.mitm.rig import Rig
from tests.mitm.wire import chat
from tests.provider import Provider, step
from tests.support.concurrent_runs import echo

QUESTIONS = [f"q{n} wait={0.05 * (4 - n)}" for n in range(4)]
"""The last one ends first."""


def ask(rig: Rig, text: str, *, stream: bool = False) -> str:
    """Ask over a connection of its own; return the body."""
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
    """Record the questions at once."""
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
    with FileStore.open(tmp_path / "x.db", writable=False, now=time.time) as kept:
        ends = sorted((end, each) for each, _, end, *_ in list_times(kept, "default", 1))
        asked = [kept.load(each).request.body.decode() for _, each in ends]
    assert [re.findall(r"q\d+", body)[0] for body in asked] == heard


class WaitingTurns(Turns):
    """Lets no piece of an answer go on."""

    waits = threading.Event()

    async def wait(self, exchange: Exchange) -> None:
        """Wait for ever."""
        self.waits.set()
        await asyncio.Event().wait()


class WaitingContext(ProxyContext):
    """A proxy in which each piece waits for its turn."""

    def __post_init__(self) -> None:
        """Make it as it is, but for the turns."""
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
