"""A provider that answers as written, and a client that asks as agents do: over sockets. Reads no code of the product."""

from __future__ import annotations

import http.client
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from http.server import ThreadingHTTPServer
from urllib.parse import quote, urlsplit

from tests.oracle.agents import Exchange
from tests.support.services import QuietHandler

NAMES = ("openai", "anthropic", "gemini", "ollama", "bedrock")
PREFIX = {"ollama": "", "gemini": "/gemini", "bedrock": "/bedrock"}
"""What stands before a path where it alone does not say whose it is."""


class Upstream(ThreadingHTTPServer):
    """Answers requests as they were written down, by their bodies, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[bytes, deque[Exchange]] = defaultdict(deque)
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Upstream

    def do_POST(self) -> None:  # noqa: N802 - as the library names it
        """Send the pieces, and break off where that is written."""
        exchange = self.server.answers[self.rfile.read(int(self.headers["content-length"]))].popleft()
        exchange.begun.set()
        exchange.may_end.wait(60)
        self.send_response(exchange.status)
        self.send_header("content-type", exchange.kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in exchange.pieces:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if not exchange.cut:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = exchange.cut


def perform(url: str, session: str, exchanges: Sequence[Exchange]) -> None:
    """Send requests in order; an answer that takes until others were asked for is held back as long."""
    going: list[tuple[Exchange, threading.Thread]] = []
    for number, exchange in enumerate(exchanges, 1):
        for flag in (exchange.begun, exchange.may_end):
            flag.clear()
        thread = threading.Thread(target=send, args=(url, session, exchange))
        thread.start()
        exchange.begun.wait(60)
        going.append((exchange, thread))
        ending = [(each, sender) for each, sender in going if each.over <= number or number == len(exchanges)]
        if any(each is not exchange for each, _ in ending):
            time.sleep(_APART)
        for each, sender in ending:
            each.may_end.set()
            sender.join()
            going.remove((each, sender))


_APART = 0.003
"""Seconds that answers go on beside each other, more than clocks may be wrong by."""


def send(url: str, session: str, exchange: Exchange) -> None:
    """Send a request as its agent does, and read as much of the answer as comes."""
    place, dialect = urlsplit(url), exchange.dialect
    path = exchange.path
    headers = {"content-type": "application/json", "authorization": "Bearer x", "anthropic-version": "2023-06-01"}
    if dialect.name != "messages":
        del headers["anthropic-version"]
    if exchange.attempt is not None:
        headers["x-stainless-retry-count"] = str(exchange.attempt)
    if exchange.party != "agent":
        headers["x-llmproxy-party"] = exchange.party
    wire = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    try:
        wire.request(
            "POST", f"/s/{quote(session, safe='')}{PREFIX.get(dialect.provider, '')}{path}", exchange.request, headers
        )
        wire.getresponse().read()
    except (http.client.HTTPException, OSError):
        assert exchange.cut
    finally:
        wire.close()
