"""Connections of `http.client` that are used again: for callers that ask one server often, from many threads.

A connection is used again only if the server neither closed it nor said anything since, and not for long; so a request is never sent
twice, and never answered by what belongs to another. TLS is not looked into: such connections are not kept.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from http.client import HTTPConnection

FRESH = 30.0
"""Seconds without use after which one is let go: a server, or what stands before it, may close it just as the next request is sent."""
_HTTP = 80

Place = tuple[str, int]


class Wires:
    """Connections that nobody uses at the moment; for all threads of a process."""

    def __init__(self, most: int = 32, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep at most so many for each server; `clock` counts seconds."""
        self._most = most
        self._clock = clock
        self._guard = threading.Lock()
        self._idle: dict[Place, list[_Idle]] = {}
        self._process = os.getpid()

    def take(self, host: str, port: int | None, timeout: float) -> HTTPConnection:
        """Return a connection, open or still to be opened; `timeout` in seconds, for each step."""
        from http.client import HTTPConnection

        place = host, port or _HTTP
        while idle := self._pop(place):
            if self._usable(idle):
                idle.wire.timeout = timeout
                idle.wire.sock.settimeout(timeout)
                return idle.wire
            idle.wire.close()
        self._drop_dead()
        return HTTPConnection(*place, timeout=timeout)

    def give(self, wire: HTTPConnection) -> None:
        """Keep a connection whose answer was read to its end; one that the server closes is let go."""
        place = wire.host, wire.port
        with self._guard:
            idle = self._mine().setdefault(place, [])
            if wire.sock is not None and len(idle) < self._most:
                idle.append(_Idle(wire, self._clock()))
                return
        wire.close()

    def close(self) -> None:
        """Close what nobody uses."""
        with self._guard:
            idle, self._idle = self._mine(), {}
        for each in (each for found in idle.values() for each in found):
            each.wire.close()

    def _drop_dead(self) -> None:
        """Close what is of no use any more, so that servers that are gone leave nothing behind."""
        with self._guard:
            kept = self._mine()
            dead = [(place, each) for place, found in kept.items() for each in found if not self._usable(each)]
            for place, each in dead:
                kept[place].remove(each)
        for _, each in dead:
            each.wire.close()

    def _usable(self, idle: _Idle) -> bool:
        return self._clock() - idle.since < FRESH and is_quiet(idle.wire.sock)

    def _pop(self, place: Place) -> _Idle | None:
        with self._guard:
            idle = self._mine().get(place)
            return idle.pop() if idle else None

    def _mine(self) -> dict[Place, list[_Idle]]:
        """Return what this process keeps: a forked child must not speak where its parent does."""
        if self._process != os.getpid():
            self._idle, self._process = {}, os.getpid()
        return self._idle


class _Idle(NamedTuple):
    """A connection that nobody uses."""

    wire: HTTPConnection
    since: float


def is_quiet(sock: socket.socket | None) -> bool:
    """Return whether a connection is open and nothing came that nobody asked for."""
    if sock is None:
        return False
    timeout = sock.gettimeout()
    sock.settimeout(0)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        sock.settimeout(timeout)
    return False
