"""Client sockets: resets and closed ports of injected faults, and closing idle connections when descriptors run out."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client
from mitmproxy.proxy.mode_servers import AsyncioServerInstance

log = logging.getLogger(__name__)

AT_ONCE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""SO_LINGER value: unsent bytes are discarded, and the peer gets a reset instead of an end."""
KNOCK = 0.05
"""Seconds between two attempts to open the port again."""

AT_THE_DOOR = 4096
"""Listen backlog; the system has a limit of its own."""


def _get_descriptor_limit() -> int:
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:  # Windows has no such limit
        return sys.maxsize


def widen_backlog(server: Proxyserver) -> None:
    """Raise the listen backlog: asyncio's hundred would reset some of a thousand agents that connect at once."""
    for instance in server.servers:
        for each in getattr(instance, "_servers", ()):
            for listener in getattr(each, "sockets", ()):
                with suppress(OSError), listener.dup() as same:
                    same.listen(AT_THE_DOOR)


SPARE = 16
"""Descriptors reserved for upstreams and the store."""
TOGETHER = 8
"""Idle connections closed at once."""
_QUIET = 10.0
"""Seconds before the same warning is repeated."""


class IdleTrackingClientConnection(Protocol):
    heard: float
    """Unix time of the last bytes; 0 for never."""

    @property
    def is_idle(self) -> bool: ...

    def close(self) -> None: ...


class LowDescriptorConnectionCloser:
    def __init__(self, server: Callable[[], Proxyserver | None]) -> None:
        """`server` returns mitmproxy's server, once it exists."""
        self._server = server
        self.room = _get_descriptor_limit() - SPARE
        """Descriptor number below which new connections are accepted without check."""
        self._until = 0.0
        self._reopening: asyncio.Task[None] | None = None
        self._said = -_QUIET

    def make_room(self, clients: Collection[IdleTrackingClientConnection], descriptor: int | None = None) -> None:
        limit = _get_descriptor_limit()
        if descriptor is not None and descriptor < limit - SPARE:
            return
        gone = sorted((each for each in clients if each.is_idle), key=lambda each: each.heard or math.inf)[:TOGETHER]
        for each in gone:
            each.close()
        if (now := asyncio.get_running_loop().time()) >= self._said + _QUIET:
            self._said = now
            log.warning(
                "of %s descriptors hardly any is left: %s; raise the limit before the start: ulimit -n 4096",
                limit,
                f"{len(gone)} idle connections are closed, the longest idle first" if gone else "no connection is idle",
            )

    def make_room_on_accept_errors(
        self, loop: asyncio.AbstractEventLoop, clients: Collection[IdleTrackingClientConnection]
    ) -> None:
        """Make room when the system refuses a new connection: asyncio retries a second later."""

        def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if getattr(context.get("exception"), "errno", None) in (errno.EMFILE, errno.ENFILE):
                self.make_room(clients)
            else:
                loop.default_exception_handler(context)

        loop.set_exception_handler(on_error)

    def reset_connection(self, client: Client) -> None:
        handler = None if (server := self._server()) is None else server.connections.get(client.id)
        transport = None if handler is None else handler.transports.get(client)
        writer: Any = None if transport is None else transport.writer
        if not isinstance(writer, asyncio.StreamWriter):
            return
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        writer.transport.abort()

    def close_listeners_for_seconds(self, seconds: float) -> None:
        self._until = max(self._until, asyncio.get_running_loop().time() + seconds)
        if self._reopening is not None:
            return
        server, closed = self._server(), []
        for each in server.servers if server is not None else ():
            if isinstance(each, AsyncioServerInstance) and each.listen_addrs:
                closed.append((each, [(address[0], address[1]) for address in each.listen_addrs]))
                for listener in each._servers:  # noqa: SLF001 - its own way to stop is for good
                    listener.close()
        self._reopening = asyncio.create_task(self._reopen_listeners_when_due(closed))

    async def _reopen_listeners_when_due(
        self, closed: list[tuple[AsyncioServerInstance[Any], list[tuple[str, int]]]]
    ) -> None:
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


_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
"""Constants of netlink(7) and sock_diag(7): the protocol, its message, and the request flag."""
_HEAD, _ASKED, _FOUND = map(struct.Struct, ("=IHHII", "=BBBBI", "=56xIIII"))
"""Formats of sock_diag(7); the last is `inet_diag_msg`: bytes not read, bytes not acknowledged, user, inode."""


def is_peer_process_gone(peer: Any, here: Any) -> bool:
    """Return whether no process holds the other end of `peer`'s connection to `here`; False if unknown."""
    found = _query_peer_socket_state(peer, here)
    return found is not None and not found[1]


def is_client_process_idle(ends: Any) -> bool:
    """Return whether the client has read all that its system received, and its process is idle; True if unknown."""
    found = None if ends is None else _query_peer_socket_state(*ends)
    return found is None or not (found[0] or _PROCESSES.is_running(found[1]))


RESTLESS, LOOKS, FAILURES = 1.0, 0.1, 5
"""Seconds of continuous running after which a process is not waited for; largest gap between two checks of one stretch;
failed owner searches per socket."""


@dataclass(slots=True)
class ClientCpuActivityDetector:
    """Running processes, found by a socket: on a busy machine a client reads an answer long before it processes it."""

    proc: Path = Path("/proc")
    clock: Callable[[], float] = time.monotonic
    _owners: dict[int, int] = field(default_factory=dict)
    """Process by inode of a socket; 0 if none is visible to us."""
    _running: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Start of a process's current stretch of running, and its last check."""
    _restless: set[int] = field(default_factory=lambda: {0, os.getpid()})
    """Processes that are not waited for any more."""
    _failures: int = 0

    def is_running(self, inode: int) -> bool:
        pid = self._owners.get(inode) if inode else 0
        if pid is None:
            if len(self._owners) > AT_THE_DOOR:
                self._owners.clear()
            pid = self._find_owner(Path(f"socket:[{inode}]")) if self._failures < FAILURES else 0
            self._owners[inode], self._failures = pid, self._failures + (not pid)
        if pid in self._restless or not self._has_running_thread(pid):
            self._running.pop(pid, None)
            return False
        now = self.clock()
        since, last = self._running.get(pid, (now, now))
        since = since if now - last < LOOKS else now
        self._running[pid] = since, now
        if now - since > RESTLESS:
            self._restless.add(pid)
        return True

    def _find_owner(self, link: Path) -> int:
        known = filter(None, reversed(self._owners.values()))
        newest = sorted((int(each.name) for each in self.proc.iterdir() if each.name.isdecimal()), reverse=True)
        for pid in dict.fromkeys((*known, *newest)):
            with suppress(OSError):  # it has ended, or is another user's
                if any(each.readlink() == link for each in (self.proc / str(pid) / "fd").iterdir()):
                    return pid
        return 0

    def _has_running_thread(self, pid: int) -> bool:
        with suppress(OSError):
            for each in (self.proc / str(pid) / "task").iterdir():
                with suppress(OSError):  # a thread that has ended
                    if (each / "stat").read_bytes().rpartition(b") ")[2].startswith((b"R", b"D")):
                        return True
        return False


_PROCESSES = ClientCpuActivityDetector()


def _query_peer_socket_state(peer: Any, here: Any) -> tuple[int, int] | None:
    """Return (received unread bytes, inode or 0 without process) of a connection's other end; None if unknown.

    The kernel is asked for the one connection: 20 us, where reading `/proc/net/tcp` takes 10 ms among thousands.
    """
    try:
        family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
        ends = b"".join(socket.inet_pton(family, each[0]).ljust(16, b"\0") for each in (peer, here))
        asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
        asked += struct.pack("!HH", peer[1], here[1]) + ends + bytes(4) + b"\xff" * 8
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.send(_HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked)
            said = kernel.recv(4096)
    except (OSError, AttributeError, TypeError, IndexError, ValueError, struct.error):  # not Linux, or no address
        return None
    if _HEAD.unpack_from(said)[1] != _BY_FAMILY:
        return None
    unread, _, _, inode = _FOUND.unpack_from(said, _HEAD.size)
    return unread, inode
