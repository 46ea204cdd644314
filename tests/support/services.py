"""Small HTTP services: what each begins with, and one that counts what it is asked and has a state: each POST makes the next number."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def answer(self, data: bytes, kind: str = "application/json", status: int = 200, **more: str) -> None:
        """Answer with this body and no header but what it needs, and those of `more`."""
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(data)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(server: HTTPServer) -> Iterator[str]:
    """Serve for the block; yields the address."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def one_connection(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """Accept one connection at a free port of loopback, and let `talk` have it on a thread; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError), server.accept()[0] as peer:
                talk(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.close()
        thread.join(20)


class CountingService:
    """Answers on a free port of loopback; `asked` is every request, (method, path, body)."""

    def __init__(self) -> None:
        """Listen; it serves from `__enter__` on."""
        self.asked: list[tuple[str, str, str]] = []
        service = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
                service.asked.append((self.command, self.path, body))
                made = {"number": len(service.asked), "path": self.path, "heard": body}
                self.answer(json.dumps(made).encode(), status=201 if self.command == "POST" else 200)

            do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - names of the library

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    @property
    def host(self) -> str:
        """Address as a path or a proxy's client names it, with its port."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
