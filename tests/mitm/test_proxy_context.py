"""What layer and recorder share: each exchange is reported once, and a slow or failing store never holds a client up for ever."""

from __future__ import annotations

import asyncio
import socketserver
import threading
import time
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from mitmproxy import http
from mitmproxy.connection import Client, ConnectionState

from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.recording_and_accounting import RecordingStoreWriter
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import CassetteBusy, LLMProxyError, MissError, RecordingError
from llmproxy.mitm import proxy_context as module
from llmproxy.mitm.proxy_context import ProxyContext, build_own_response
from llmproxy.mitm.recorder import RecordingAddon
from llmproxy.mitm.serve import build_rate_limiter
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, connected, recorded
from tests.mitm.wire import chat
from tests.provider import Provider, Reply, Script, Step


class Slow(ProxyContext):
    gate = threading.Event()

    def _store_or_read_usage(self, exchange: Exchange, proper: bool) -> Usage:
        self.gate.wait(600)
        return super()._store_or_read_usage(exchange, proper)


class Failing(ProxyContext):
    def _store_or_read_usage(self, exchange: Exchange, proper: bool) -> Usage:
        raise CassetteBusy("the store is locked")


def test_the_end_of_an_answer_waits_for_the_store(tmp_path: Path) -> None:
    """With a length or without one: what the client holds whole is on the disk. After some seconds it gets it anyway."""
    Slow.gate.clear()
    upstream = Provider(Script((Step(Reply("one two"), times=None),)))
    with connected(upstream, "record", tmp_path / "x.db", shell=Slow) as (rig, c), rig.client() as d:
        began = time.monotonic()
        c.send(chat("a"))
        d.send(chat("b", stream=True))
        assert c.response().whole
        assert d.response().whole
        assert time.monotonic() - began > module.COMMIT_PATIENCE * 0.9
        assert rig.proxy.losses == 0
        Slow.gate.set()
        rig.wait_idle()
    assert len(recorded(tmp_path / "x.db")) == 2


def test_a_loss_is_counted_and_noted(tmp_path: Path) -> None:
    """Each once, with the store's own words."""
    upstream = Provider(Script((Step(Reply("x"), times=None),)))
    with connected(upstream, "record", tmp_path / "x.db", shell=Failing) as (rig, c):
        assert [c.ask(chat("a")).status for _ in range(3)] == [200] * 3
        rig.wait_idle()
        assert [outcome.note for outcome in rig.outcomes] == ["NOT RECORDED: the store is locked"] * 3
        assert rig.proxy.losses == 3


class Crowded(ProxyContext):
    """A proxy whose writer begins when so many answers wait for it."""

    sizes: list[int]

    def _store_ended(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
        until = time.monotonic() + 10
        while len(self._ended) < 6 and time.monotonic() < until:
            time.sleep(0.01)
        found = super()._store_ended()
        self.sizes.append(len(found))
        return found


class Picky(RecordingStoreWriter):
    def store_answers(self, ended: Sequence[tuple[Exchange, bool]]) -> list[Usage]:
        if any(b"bad" in (exchange.request.data) for exchange, _ in ended):
            raise RecordingError("a bad one")
        return super().store_answers(ended)


class PickyEngine(Engine):
    parts = replace(Engine.parts, writer=Picky)


@pytest.mark.parametrize("bad", [0, 1])
def test_answers_that_end_together_are_stored_together(tmp_path: Path, bad: int) -> None:
    """Each is in the store before its client has its end; a bad one is lost alone."""
    Crowded.sizes = []
    names = ["bad"] * bad + [f"good {n}" for n in range(6 - bad)]
    with Provider(Script((Step(Reply("one two"), times=None),))) as p, ExitStack() as stack:
        rig = stack.enter_context(
            Rig("record", tmp_path / "x.db", {"openai": p.url}, shell=Crowded, engine=PickyEngine)
        )
        clients = [stack.enter_context(rig.client()) for _ in names]
        for client, name in zip(clients, names, strict=True):
            client.send(chat(name))
        assert all(client.response().whole for client in clients)
        assert len(recorded(tmp_path / "x.db")) == 6 - bad
        assert [outcome.note for outcome in rig.wait_outcomes(6)].count("NOT RECORDED: a bad one") == bad
        assert rig.proxy.losses == bad
    assert Crowded.sizes == [6]


def test_answers_of_ours_have_a_length() -> None:
    """HEAD gets the length without the body; close is said."""
    data = build_own_response(404, (("x", "1"),), b"body", close=True)
    assert data.startswith(b"HTTP/1.1 404 Not Found\r\nx: 1\r\ncontent-length: 4\r\nconnection: close\r\n\r\n")
    assert data.endswith(b"body")
    assert build_own_response(200, (), b"body", close=False, method="HEAD").endswith(b"content-length: 4\r\n\r\n")


def test_a_miss_has_the_status_of_its_dialect(tmp_path: Path) -> None:
    """400 where Claude Code and Codex ask, so that each asks once; 404 elsewhere; what was set counts for all."""
    with Rig("replay", tmp_path / "x.db") as rig:
        refusal = rig.proxy.build_refusal
        assert refusal(MissError("m"), "anthropic", close=False, operation="messages")[0] == 400
        assert refusal(MissError("m"), "openai", close=False, operation="responses")[0] == 400
        assert refusal(MissError("m"), "openai", close=False, operation="chat.completions")[0] == 404
    with Rig("replay", tmp_path / "x.db", miss_status=404) as rig:
        assert rig.proxy.build_refusal(MissError("m"), "anthropic", close=False, operation="messages")[0] == 404


def test_a_refusal_takes_the_miss_status_and_hides_secrets(tmp_path: Path) -> None:
    """--miss-status is for misses only; what was learned as a secret is taken out of every text."""
    with Rig("replay", tmp_path / "x.db", miss_status=501) as rig:
        assert rig.proxy.build_refusal(MissError("m"), "openai", close=False)[0] == 501
        assert rig.proxy.build_refusal(LLMProxyError("m"), "openai", close=False)[0] == 500
        rig.proxy.engine.redactor.learn_request((("authorization", "Bearer canary-0123456789abcdef"),), "/")
        assert (
            b"canary"
            not in rig.proxy.build_refusal(LLMProxyError("x canary-0123456789abcdef"), "openai", close=False)[1]
        )


class Watching(RecordingAddon):
    clients: ClassVar[list[Client]] = []

    def requestheaders(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        self.clients.append(flow.client_conn)
        return super().requestheaders(flow)


class Gate:
    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.open = threading.Event()

    async def __call__(self, exchange: Exchange) -> float:
        self.asked.release()
        await asyncio.to_thread(self.open.wait, 600)
        return 0.001


def provider() -> Provider:
    return Provider(Script(tuple(Step(Reply("yes")) for _ in range(9))))


def test_nothing_goes_before_its_time(tmp_path: Path) -> None:
    """Neither is one sent whose client left while it waited; a hit waits for nothing."""
    gate = Gate()
    with provider() as upstream, Rig("auto", tmp_path / "x.db", {"openai": upstream.url}, recorder=Watching) as rig:
        rig.proxy.pace = gate
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
        rig.proxy.pace = build_rate_limiter({"*": "5/min"}, "1/secret", lambda: 0.0)
        with rig.client() as c:
            answer = c.ask(chat("hi"))
        assert answer.status >= 500
        assert b"whoever counts the calls of the cluster does not answer" in answer.body
        assert upstream.requests == []


def test_the_proxy_counts_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the option says: the third of two a second waits, and that is said once."""
    with provider() as upstream, Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        rig.proxy.pace = build_rate_limiter({"openai": "2/s"}, "", lambda: 5.0)
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
        rig.proxy.pace = build_rate_limiter({"openai": "1/h"}, f"{server.server_address[1]}/hush", lambda: 0.0)
        with rig.client() as c:
            assert [c.ask(chat(f"{n}")).status for n in range(2)] == [200, 200]
        server.shutdown()
    assert heard == [b"hush 1 openai\n"] * 2


def test_without_a_rate_nobody_is_asked() -> None:
    assert build_rate_limiter({}, "", lambda: 0.0) is None
