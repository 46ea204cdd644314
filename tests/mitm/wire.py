"""A client that knows HTTP/1 only as bytes: sends what it is told, and keeps what comes back as it came."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

CHAT = "/v1/chat/completions"
BAD = b"\x00\xff this is no HTTP at all\r\n\r\n"


def body_of(text: str = "hi", **more: object) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **more}).encode()


def request(
    body: bytes = b"", target: str = CHAT, method: str = "POST", version: str = "HTTP/1.1", **headers: str
) -> bytes:
    """Format a request with its length; `_` in a header's name stands for `-`."""
    fields = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {target} {version}", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chat(text: str = "hi", target: str = CHAT, *, headers: Mapping[str, str] | None = None, **more: object) -> bytes:
    return request(body_of(text, **more), target, **{k.replace("-", "_"): v for k, v in (headers or {}).items()})


def chunked(body: bytes, size: int, target: str = CHAT, end: bytes = b"0\r\n\r\n", **headers: str) -> bytes:
    head = request(b"", target, **{"content_length": "", "transfer_encoding": "chunked", **headers})
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


@dataclass(frozen=True)
class Received:
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    frames: tuple[bytes, ...] = ()
    """HTTP chunks; empty where the body was not chunked."""
    whole: bool = True
    """Whether it ended as its framing promised."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


class Wire:
    def __init__(self, port: int, timeout: float = 10, tls: ssl.SSLContext | None = None) -> None:
        """Connect; every wait ends after `timeout` seconds with TimeoutError."""
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
        self.buffer = b""
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.sock.close()

    def send(self, data: bytes) -> Self:
        self.sock.sendall(data)
        return self

    def ask(self, data: bytes, method: str = "POST") -> Received:
        return self.send(data).response(method)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def more(self) -> bool:
        """Read what is there into the buffer; False at the end."""
        if not self.ended:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            self.buffer += data
            self.ended = not data
        return not self.ended

    def until(self, mark: bytes) -> bytes:
        """Read until `mark` came; returns everything to its end. Ends early with the connection."""
        while mark not in self.buffer and self.more():
            pass
        at = self.buffer.find(mark)
        at = len(self.buffer) if at < 0 else at + len(mark)
        taken, self.buffer = self.buffer[:at], self.buffer[at:]
        return taken

    def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size and self.more():
            pass
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def rest(self) -> bytes:
        while self.more():
            pass
        taken, self.buffer = self.buffer, b""
        return taken

    def head(self) -> tuple[int, dict[str, str]]:
        """Read a response's head: status and headers; (0, {}) if the connection ended instead."""
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        if not lines[0].startswith("HTTP/1."):
            return 0, {}
        fields = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in fields}

    def response(self, method: str = "POST") -> Received:
        status, headers = self.head()
        if not status or method == "HEAD" or status in (204, 304) or status < 200:
            return Received(status, headers, b"", whole=bool(status))
        if "chunked" in headers.get("transfer-encoding", ""):
            frames, whole = self.frames()
            return Received(status, headers, b"".join(frames), frames, whole)
        if "content-length" in headers:
            size = int(headers["content-length"])
            body = self.exactly(size)
            return Received(status, headers, body, whole=len(body) == size)
        return Received(status, headers, self.rest())

    def frames(self) -> tuple[tuple[bytes, ...], bool]:
        """Read HTTP chunks to the last one, or to the end of the connection (False)."""
        found: list[bytes] = []
        while line := self.until(b"\r\n"):
            if not line.endswith(b"\r\n"):
                return tuple(found), False
            size = int(line.split(b";")[0], 16)
            data = self.exactly(size + 2)
            if size == 0:
                return tuple(found), data == b"\r\n"
            found.append(data[:size])
            if len(data) < size + 2:
                return tuple(found), False
        return tuple(found), False
