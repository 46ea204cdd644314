"""What injected faults do to sockets: a connection is reset, the port is closed for a while."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client
from mitmproxy.proxy.mode_servers import AsyncioServerInstance

log = logging.getLogger(__name__)

AT_ONCE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""SO_LINGER: what is unsent is thrown away, and the other side gets a reset instead of an end."""
KNOCK = 0.05
"""Seconds between two attempts to open the port again."""

AT_THE_DOOR = 4096
"""Connections that may wait to be taken; the system has a limit of its own."""


def widen(server: Proxyserver) -> None:
    """Let many connect at once.

    Asyncio lets a hundred wait, and of a thousand agents that start together some would be reset.
    """
    for instance in server.servers:
        for each in getattr(instance, "_servers", ()):
            for listener in getattr(each, "sockets", ()):
                with contextlib.suppress(OSError), listener.dup() as same:
                    same.listen(AT_THE_DOOR)


class Sockets:
    def __init__(self, server: Callable[[], Proxyserver | None]) -> None:
        """`server` returns mitmproxy's, once there is one."""
        self._server = server
        self._until = 0.0
        self._reopening: asyncio.Task[None] | None = None

    def reset(self, client: Client) -> None:
        """Reset a client's connection; one that cannot be reset is left to be closed."""
        server = self._server()
        handler = None if server is None else server.connections.get(client.id)
        transport = None if handler is None else handler.transports.get(client)
        writer: Any = None if transport is None else transport.writer
        if not isinstance(writer, asyncio.StreamWriter):
            return
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        writer.transport.abort()

    def shut(self, seconds: float) -> None:
        """Refuse new connections for so many seconds from now on."""
        self._until = max(self._until, asyncio.get_running_loop().time() + seconds)
        if self._reopening is None:
            self._reopening = asyncio.create_task(self._reopen(self._close()))

    def _close(self) -> list[tuple[AsyncioServerInstance[Any], list[tuple[str, int]]]]:
        server, closed = self._server(), []
        for each in server.servers if server is not None else ():
            if isinstance(each, AsyncioServerInstance) and each.listen_addrs:
                closed.append((each, [(address[0], address[1]) for address in each.listen_addrs]))
                for listener in each._servers:  # noqa: SLF001 - its own way to stop is for good
                    listener.close()
        return closed

    async def _reopen(self, closed: list[tuple[AsyncioServerInstance[Any], list[tuple[str, int]]]]) -> None:
        loop = asyncio.get_running_loop()
        while (left := self._until - loop.time()) > 0:  # noqa: ASYNC110 - it may be put off meanwhile
            await asyncio.sleep(left)
        for instance, addresses in closed:
            while instance.is_running:  # ended meanwhile, it stays closed
                try:
                    listening = [server for at in addresses for server in await instance.listen(*at)]
                    instance._servers = listening  # noqa: SLF001 - nobody else has it
                    break
                except OSError as error:
                    log.warning("the port cannot be opened again yet: %s", error)
                    await asyncio.sleep(KNOCK)
        self._reopening = None
