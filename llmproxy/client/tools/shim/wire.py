"""Calls of our own proxy's control API over one connection that stays open.

Not `http.client`: its import and its parser of heads take longer than the proxy's answer, and a client of tools waits for both.
"""

from __future__ import annotations

import re
import select
import socket

from llmproxy.tool_frames import HEAD, MARK, OFFERED

_HEAD = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[^\r]*\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,12})\r\n", re.IGNORECASE)
_OFFERED = re.compile(rb"\r\n%b: *1\r\n" % OFFERED.encode(), re.IGNORECASE)
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
        self.framed = False
        """Whether frames may be said on this connection."""

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send JSON and return status and body. Raises OSError, also for an answer that is none.

        A connection that was closed between two calls, as the proxy does after hours of silence, is opened again: of this call nobody has heard yet.
        """
        wire = None if self.has_ended() else self._socket
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

    def say(self, frame: bytes) -> tuple[int, bytes]:
        """Send a frame on the connection that is open, and return kind and content of its answer. Raises OSError, as `post`."""
        wire = self._socket
        if wire is None:
            raise OSError("it closed the connection")
        try:
            wire.sendall(frame)
            got = self._more(wire)
            while len(got) < HEAD.size or len(got) < HEAD.size + HEAD.unpack_from(got)[2]:
                got += self._more(wire)
        except OSError:
            self.close()
            raise
        mark, kind, length = HEAD.unpack_from(got)
        if mark != MARK or len(got) != HEAD.size + length:
            self.close()
            raise OSError("it speaks in no frames")
        return kind, got[HEAD.size :]

    def has_ended(self) -> bool:
        """Tell whether the other side has closed the connection; what was agreed upon it is gone then."""
        if self._socket is not None and _is_closed(self._socket):
            self.close()
        return self._socket is None

    def _answer(self, wire: socket.socket) -> tuple[int, bytes]:
        got = bytearray()
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
        self.framed = self.framed or _OFFERED.search(head) is not None
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
            self._socket, self.framed = None, False


def _is_closed(wire: socket.socket) -> bool:
    """Tell whether the other side has closed a connection on which nothing is awaited."""
    try:
        return bool(select.select([wire], (), (), 0)[0]) and not wire.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True
