"""A small HTTP service that counts what it is asked, and has a state: each POST makes the next number."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class CountingService:
    """Answers on a free port of loopback; `asked` is every request, (method, path, body)."""

    def __init__(self) -> None:
        """Listen; it serves from `__enter__` on."""
        self.asked: list[tuple[str, str, str]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
                service.asked.append((self.command, self.path, body))
                made = {"number": len(service.asked), "path": self.path, "heard": body}
                data = json.dumps(made).encode()
                self.send_response(201 if self.command == "POST" else 200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - names of the library

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    @property
    def host(self) -> str:
        """Address as a path or a proxy's client names it, with its port."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Serve."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()
