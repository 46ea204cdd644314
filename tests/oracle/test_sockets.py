"""The same agents over sockets: a provider that answers as written, a real proxy that records, the walk that it tells."""

from __future__ import annotations

import http.client
import os
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest

from llmproxy.client.control.client import Control
from llmproxy.report.events import Status
from llmproxy.trace.observing.wire import Wire
from tests.oracle.agents import Exchange, World
from tests.oracle.product import judge
from tests.oracle.truth import holds, in_sight, think_of
from tests.support import proxy

RUNS = int(os.environ.get("ORACLE_SOCKET_RUNS", "12"))
"""How many agents; `scripts/lab/oracle` asks for hundreds."""
ASSERTIONS = 12
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_POST(self) -> None:
        """Send the pieces, and break off where that is written."""
        exchange = self.server.answers[self.rfile.read(int(self.headers["content-length"]))].popleft()
        self.send_response(exchange.status)
        self.send_header("content-type", exchange.kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in exchange.pieces:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if not exchange.cut:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = exchange.cut

    def log_message(self, *args: Any) -> None:  # noqa: ANN401
        """Say nothing."""


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Upstream]]:
    """Share a proxy that records, and the provider behind it."""
    upstream = Upstream()
    store: Path = tmp_path_factory.mktemp("oracle") / "x.db"
    names = ("openai", "anthropic", "gemini", "ollama", "bedrock")
    with proxy("record", store, upstreams=dict.fromkeys(names, upstream.url)) as px:
        yield px.url, upstream
    upstream.shutdown()
    upstream.server_close()


def send(url: str, session: str, exchange: Exchange) -> None:
    """Send a request as its agent does, and read as much of the answer as comes."""
    place, dialect = urlsplit(url), exchange.dialect
    path = dialect.path
    if dialect.name == "gemini" and exchange.kind == dialect.kind:
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    headers = {"content-type": "application/json", "authorization": "Bearer x", "anthropic-version": "2023-06-01"}
    if dialect.name != "messages":
        del headers["anthropic-version"]
    if exchange.attempt is not None:
        headers["x-stainless-retry-count"] = str(exchange.attempt)
    if exchange.party != "agent":
        headers["x-llmproxy-party"] = exchange.party
    wire = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    try:
        wire.request("POST", f"/s/{session}{PREFIX.get(dialect.provider, '')}{path}", exchange.request, headers)
        wire.getresponse().read()
    except (http.client.HTTPException, OSError):
        assert exchange.cut
    finally:
        wire.close()


def test_what_a_real_proxy_tells_is_judged_as_truly(wires: tuple[str, Upstream]) -> None:
    """Framing, streams, cuts and retries as they arrive: nothing passes that is not true, nothing fails that is."""
    url, upstream = wires
    control, tally, found = Control(url), Counter[str](), list[str]()
    for seed in range(RUNS):
        run, random, name = World(seed).play(), Random(seed), f"oracle-{seed}"
        control.open(name)
        for exchange in run.exchanges:
            upstream.answers[exchange.request].append(exchange)
            send(url, name, exchange)
        calls = control.walk(name)
        assert [call.attempt for call in calls] == [each.attempt for each in run.exchanges]
        wire = Wire()
        wire.read(calls)
        for step in run.steps:
            measured = wire.step(step.after, step.until)
            for _ in range(ASSERTIONS):
                said = think_of(random)
                true, status = holds(said, step), judge(said, measured)
                tally[f"{true} {status.value}"] += 1
                decided = status is not Status.ENVIRONMENT_ERROR or true is None or not in_sight(said, step)
                if (status is Status.PASSED and true is False) or (status is Status.FAILED and true) or not decided:
                    found.append(
                        f"seed {seed}, calls {step.after} to {step.until}: {said} is {true}, and {status.value}"
                    )
        control.close(name)
    print(dict(tally))
    assert not found, "\n".join(found[:20])
    assert tally["True passed"] > RUNS
    assert tally["False failed"] > RUNS
