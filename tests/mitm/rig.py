"""One proxy inside the test's own process, with the real mitmproxy and the real store, but parts of it exchangeable.

with Rig("record", store, {"openai": p.url}) as rig:
    with rig.client() as c:
        c.post(chat("hi"))

It runs an event loop in a thread of its own; `rig.outcomes` is what it reported, `rig.proxy` its inside (to prove that
nothing leaked), `rig.stop()` ends it as SIGTERM would. mitmproxy keeps its master and options in a global, so the rig
that began last serves; its end leaves the one around it as it was.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mitmproxy import ctx

from llmproxy.calls_and_totals import Call
from llmproxy.core.engine.engine import Engine
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.mitm.client_layers import NextLayerChooser
from llmproxy.mitm.http1.fast_path import FastPathAsyncioProtocol
from llmproxy.mitm.http1.replay_layer import RecordReplayLayer
from llmproxy.mitm.interception import HttpConnectHandler
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.recorder import RecordingAddon
from llmproxy.mitm.serve import MitmproxyServerInProxyEventLoop, build_engine_config, build_origin_guard
from llmproxy.settings import Settings
from tests.mitm.wire import Received, Wire, request
from tests.provider import Provider


class Rig:
    """A running proxy. `options` are those of `Settings`."""

    def __init__(
        self,
        mode: str,
        store: Path,
        upstreams: Mapping[str, str] | None = None,
        *,
        engine: type[Engine] = Engine,
        layer: type[RecordReplayLayer] = RecordReplayLayer,
        choice: type[NextLayerChooser] = NextLayerChooser,
        recorder: type[RecordingAddon] = RecordingAddon,
        intercept: type[HttpConnectHandler] = HttpConnectHandler,
        shell: type[ProxyContext] = ProxyContext,
        front: type[FastPathAsyncioProtocol] = FastPathAsyncioProtocol,
        **options: Any,
    ) -> None:
        self.settings = Settings(
            **{"mode": mode, "store": store, "upstream": dict(upstreams or {}), "port": 0, **options}
        )
        self.store = store
        self.outcomes: list[Call] = []
        self.port = 0
        self.proxy: ProxyContext
        self._parts = engine, layer, choice, recorder, shell, intercept
        self._front = front
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rig")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, timeout: float = 120) -> Wire:
        return Wire(self.port, timeout)

    def ask(self, asked: bytes) -> Received:
        with self.client() as c:
            return c.ask(asked)

    def control(self, path: str, body: object) -> Any:
        """POST to the control API what must succeed."""
        got = self.ask(request(json.dumps(body).encode(), f"/_llmproxy/{path}", host="127.0.0.1"))
        assert got.status in (200, 201), got.body
        return got.json

    def wait_idle(self, seconds: float = 120) -> None:
        """Wait until nothing is open or released; AssertionError if that never comes."""
        until = time.monotonic() + seconds
        while self.proxy.open or self.proxy.released:
            assert time.monotonic() < until, f"leaked: {self.proxy.open} {self.proxy.released}"
            time.sleep(0.01)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(seconds)  # what it was just doing is done

    def wait_outcomes(self, number: int, seconds: float = 120) -> list[Call]:
        until = time.monotonic() + seconds
        while len(self.outcomes) < number:
            assert time.monotonic() < until, f"{number} outcomes expected, got {self.outcomes}"
            time.sleep(0.01)
        return self.outcomes

    def start(self) -> Self:
        self._thread.start()
        assert self._ready.wait(120), "the proxy did not start"
        if self._failure is not None:
            self._thread.join(120)
            raise self._failure
        return self

    def stop(self) -> None:
        """End it as a signal would; what it could not do is raised."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(120)
        assert not self._thread.is_alive(), "the proxy did not end"
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:  # noqa: BLE001 - raised again in the test's thread
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        engine, layer, choice, recorder, shell, intercept = self._parts
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        journal = CallDecisionJournalWriter.open(Path(f"{self.store}.state.db"), time.time)
        config = build_engine_config(self.settings, frozenset(self.settings.upstream))
        made = engine(config, redactor=Redactor(), journal=journal, now=time.time, clock=time.monotonic)
        guard = build_origin_guard(self.settings, self.settings.host)
        self.proxy = shell(made, self.outcomes.append, guard=guard, forward=self.settings.forward)
        ours = choice(self.proxy, layer), intercept(self.proxy, forward=self.settings.forward), recorder(self.proxy)
        before = {name: getattr(ctx, name, None) for name in ("master", "options")}
        proxy = MitmproxyServerInProxyEventLoop(self.proxy, self.settings, ours, self._front)
        self.port = await proxy.start_listening()
        self._ready.set()
        await self._end.wait()
        await asyncio.sleep(0.02)  # who has just connected gets a handler, which can be ended
        await proxy.stop_serving()
        await self.proxy.close()
        journal.close()
        vars(ctx).update(before)


@contextmanager
def connected(provider: Provider, mode: str, store: Path, **options: Any) -> Iterator[tuple[Rig, Wire]]:
    with provider as p, Rig(mode, store, {"openai": p.url}, **options) as rig, rig.client() as c:
        yield rig, c


def recorded(store: Path) -> list[Interaction]:
    with SqliteCassetteStore.open(store, writable=False, now=time.time) as opened:
        ids = opened.conn.execute("SELECT id FROM interactions WHERE superseded_at IS NULL ORDER BY id").fetchall()
        return [opened.load(row[0]) for row in ids]
