"""A proxy that is ended while 64 clients are busy: a clean exit, nothing on stderr, nothing acknowledged that is lost."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.mitm.rig import recorded
from tests.mitm.wire import Wire, body_of, chat
from tests.provider import Provider, Reply, Script, Step
from tests.support.proxy import alone as proxy, start

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
            px = start(mode, store, upstreams=up, name=f"{mode}-{n}", alone=True)
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
