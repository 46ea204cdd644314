"""Rates of a provider: a call that would be too many waits, before its provider hears of it; what is replayed is not counted."""

from __future__ import annotations

import asyncio
import socketserver
import threading
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import ClassVar

import pytest
from mitmproxy import http
from mitmproxy.connection import Client, ConnectionState

from llmproxy.core.sessions.exchange import Exchange
from llmproxy.mitm.build import pacing
from llmproxy.mitm.recorder import Recorder
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig
from tests.mitm.wire import chat
from tests.provider import Provider, Reply, Script, Step


class Watching(Recorder):
    """Remembers the connections of its clients."""

    clients: ClassVar[list[Client]] = []

    def requestheaders(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        self.clients.append(flow.client_conn)
        return super().requestheaders(flow)


class Gate:
    """Lets each call wait until somebody opens."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.open = threading.Event()

    async def __call__(self, exchange: Exchange) -> float:
        self.asked.release()
        await asyncio.to_thread(self.open.wait, 600)
        return 0.001


def provider() -> Provider:
    """Answer whatever is asked."""
    return Provider(Script(tuple(Step(Reply("yes")) for _ in range(9))))


def test_nothing_goes_before_its_time(tmp_path: Path) -> None:
    """Neither is one sent whose client left while it waited; a hit waits for nothing."""
    gate = Gate()
    with provider() as upstream, Rig("auto", tmp_path / "x.db", {"openai": upstream.url}, recorder=Watching) as rig:
        rig.shell.pace = gate
        with rig.client() as stays, rig.client() as leaves:
            stays.send(chat("stays"))
            leaves.send(chat("leaves"))
            for _ in range(2):
                assert gate.asked.acquire(timeout=120)
            leaves.sock.close()
            while all(each.state & ConnectionState.CAN_READ for each in Watching.clients):
                time.sleep(0.01)
            assert upstream.requests == []
            gate.open.set()
            assert stays.response().status == 200
        with rig.client() as again:
            assert again.ask(chat("stays")).status == 200
        rig.wait_idle()
        assert [one.decision for one in rig.outcomes].count(Decision.REPLAY) == 1
        assert len(upstream.requests) == 1
        assert not gate.asked.acquire(blocking=False)


def test_where_nobody_counts_nothing_goes(tmp_path: Path) -> None:
    """An error that says why, and the provider hears nothing."""
    with provider() as upstream, Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        rig.shell.pace = pacing({"*": "5/min"}, "1/secret", lambda: 0.0)
        with rig.client() as c:
            answer = c.ask(chat("hi"))
        assert answer.status >= 500
        assert b"whoever counts the calls of the cluster does not answer" in answer.body
        assert upstream.requests == []


def test_the_proxy_counts_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the option says: the third of two a second waits, and that is said once."""
    with provider() as upstream, Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        rig.shell.pace = pacing({"openai": "2/s"}, "", lambda: 5.0)
        with rig.client() as c:
            for n in range(4):
                assert c.ask(chat(f"{n}")).status == 200
        assert len(upstream.requests) == 4
    said = [each for each in caplog.messages if "further calls wait" in each]
    assert said == ["openai has 2/s by now: further calls wait, this one 1.0 s (--rate)"]


def test_another_one_may_count(tmp_path: Path) -> None:
    """For many proxies at once: asked over a port of this machine, with a secret."""
    heard: list[bytes] = []

    class Counting(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            heard.append(self.rfile.readline())
            self.wfile.write(b"0.001\n")

    with (
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), Counting) as server,
        provider() as upstream,
        Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rig.shell.pace = pacing({"openai": "1/h"}, f"{server.server_address[1]}/hush", lambda: 0.0)
        with rig.client() as c:
            assert [c.ask(chat(f"{n}")).status for n in range(2)] == [200, 200]
        server.shutdown()
    assert heard == [b"hush 1 openai\n"] * 2


def test_without_a_rate_nobody_is_asked() -> None:
    """And nothing waits in a hook."""
    assert pacing({}, "", lambda: 0.0) is None
