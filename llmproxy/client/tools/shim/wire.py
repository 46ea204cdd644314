"""Calls of our own proxy's control API over one connection that stays open.

Not `http.client`: its import and its parser of heads take longer than the proxy's answer, and a client of tools waits for both.
"""

from __future__ import annotations

import re
import select
import socket

_HEAD = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[^\r]*\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,12})\r\n", re.IGNORECASE)
_USUAL = re.compile(
    rb"HTTP/1\.1 ([0-9]{3}) [A-Za-z ]{0,40}\r\ncontent-type: application/json\r\ncontent-length: ([0-9]{1,12})\r\n\r\n"
)
"""The head of nearly every answer."""
_CLOSES = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)
READ = 1 << 18
LONGEST_HEAD = 1 << 16


class ControlWire:
    """The connection; one call at a time."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        """Connect with the first call; `timeout` is in seconds."""
        self._place, self._timeout = (host, port), timeout
        self._to = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._socket: socket.socket | None = None

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send JSON and return status and body. Raises OSError, also for an answer that is none.

        A connection that was closed between two calls, as the proxy does after hours of silence, is opened again: of this call nobody has heard yet.
        """
        if self._socket is not None and _is_closed(self._socket):
            self.close()
        wire = self._socket
        if wire is None:
            wire = self._socket = socket.create_connection(self._place, self._timeout)
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {path} HTTP/1.1\r\nhost: {self._to}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        try:
            wire.sendall(head.encode("latin-1") + body)
            return self._answer(wire)
        except OSError:
            self.close()  # half an answer may still come; the next call must not take it for its own
            raise

    def _answer(self, wire: socket.socket) -> tuple[int, bytes]:
        data = self._more(wire)
        if (usual := _USUAL.match(data)) is not None and len(data) == usual.end() + int(usual[2]):
            return int(usual[1]), data[usual.end() :]
        got = bytearray(data)
        while (end := got.find(b"\r\n\r\n")) < 0:
            if len(got) > LONGEST_HEAD:
                raise OSError("it does not speak HTTP")
            got += self._more(wire)
        head = bytes(got[: end + 4])
        status, length = _HEAD.match(head), _LENGTH.search(head)
        if status is None or length is None:
            raise OSError("it does not speak HTTP")
        del got[: end + 4]
        while len(got) < int(length[1]):
            got += self._more(wire)
        if _CLOSES.search(head):
            self.close()
        return int(status[1]), bytes(got)

    def _more(self, wire: socket.socket) -> bytes:
        if not (data := wire.recv(READ)):
            raise OSError("it closed the connection")
        return data

    def close(self) -> None:
        """Close it; a call after that opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_closed(wire: socket.socket) -> bool:
    """Tell whether the other side has closed a connection on which nothing is awaited."""
    try:
        return bool(select.select([wire], (), (), 0)[0]) and not wire.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True
