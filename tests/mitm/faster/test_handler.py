"""Our handler of connections: hooks are called as mitmproxy calls them, and nobody who is slow makes us hold his answer."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import exceptions, master, options
from mitmproxy.connection import Client
from mitmproxy.proxy.server_hooks import ClientConnectedHook

from llmproxy.mitm.faster.handler import ConnectionHooks
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import chat
from tests.provider import Provider, Script, Step
from tests.provider.answer import Answer, Piece

BIG = 8 << 20
SSE = (("content-type", "text/event-stream"),)


class Heard:
    """An addon that notes a hook's call, and then does something."""

    def __init__(self, name: str, calls: list[str], what: str = "") -> None:
        self.name, self._calls, self._what = name, calls, what

    def client_connected(self, client: Client) -> Any:  # noqa: ANN401 - nothing, or something to wait for
        assert isinstance(client, Client)
        self._calls.append(self.name)
        if self._what == "wait":
            return self._wait()
        if self._what == "raise":
            raise ValueError(self.name)
        if self._what == "halt":
            raise exceptions.AddonHalt
        return None

    async def _wait(self) -> None:
        await asyncio.sleep(0)
        self._calls.append(f"{self.name} waited")


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        (("", "", ""), ["0", "1", "2"]),
        (("", "wait", ""), ["0", "1", "1 waited", "2"]),
        (("wait", "wait", "raise"), ["0", "0 waited", "1", "1 waited", "2"]),
        (("raise", "", ""), ["0", "1", "2"]),
        (("", "halt", ""), ["0", "1"]),
    ],
)
def test_a_hook_is_called_as_mitmproxy_calls_it(
    does: tuple[str, ...], expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In the addons' order, each after the one before is done; what one raises is logged; one that halts is the last."""

    async def both() -> tuple[list[str], list[str]]:
        ours, theirs = list[str](), list[str]()
        made = master.Master(options.Options())
        for calls in (ours, theirs):
            made.addons.clear()  # type: ignore[no-untyped-call]
            made.addons.add(*(Heard(str(n), calls, what) for n, what in enumerate(does)))  # type: ignore[no-untyped-call]
            hook = ClientConnectedHook(Client(peername=("a", 1), sockname=("b", 2)))
            if calls is theirs:
                await made.addons.trigger_event(hook)
            elif (waiting := ConnectionHooks(made.addons).call(hook)) is not None:
                await waiting
        return ours, theirs

    with caplog.at_level(logging.ERROR):
        ours, theirs = asyncio.run(both())
    assert ours == theirs == expected
    assert len(caplog.records) == 2 * does.count("raise")


def test_who_does_not_read_is_not_read_for(tmp_path: Path) -> None:
    """An upstream is read as fast as the client takes it, on a connection's first answer and on later ones; then all of it arrives."""
    pieces = tuple(Piece(b"x" * 65_536) for _ in range(BIG // 65_536))
    steps = (Step(Answer(200, SSE, pieces, "chunked"), times=None),)
    store = tmp_path / "x.db"
    with Provider(Script(steps)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client(60) as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        for number in range(2):
            c.send(chat(f"{number}", stream=True)).head()
            (exchange,) = rig.shell.open.values()
            seen = [-1, 0]
            while seen[-1] != seen[-2]:
                time.sleep(0.3)
                seen.append(sum(exchange.recording._lengths))
            assert seen[-1] < BIG
            frames, whole = c.frames()
            assert (sum(map(len, frames)), whole) == (BIG, True)
            rig.wait_idle(30)
    assert [len(made.response.body) for made in recorded(store)] == [BIG, BIG]
