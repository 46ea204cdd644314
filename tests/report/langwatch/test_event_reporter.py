"""Posting to an endpoint on loopback."""

# ruff: noqa: ANN401

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from llmproxy.errors import UpstreamError
from llmproxy.report.langwatch import EventReporter
from tests.report.langwatch.test_event_bus import event
from tests.support import free_port


class Endpoint(BaseHTTPRequestHandler):
    """Takes events."""

    seen: ClassVar[list[Any]] = []
    status: ClassVar[int] = 201

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, self.headers["X-Auth-Token"], json.loads(body)))
        self.send_response(self.status)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"taken")

    def log_message(self, *_args: Any) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Run an endpoint."""
    Endpoint.seen.clear()
    Endpoint.status = 201
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_an_event_is_posted_with_the_key(endpoint: str) -> None:
    """To /api/scenario-events, whatever the endpoint ends in."""
    asyncio.run(EventReporter(endpoint + "/", "key").post_event(event(1)))
    ((path, key, body),) = Endpoint.seen
    assert (path, key, body["scenarioRunId"]) == ("/api/scenario-events", "key", "1")


def test_the_environment_names_endpoint_and_key(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read when the reporter is made."""
    monkeypatch.setenv("LANGWATCH_ENDPOINT", endpoint)
    monkeypatch.setenv("LANGWATCH_API_KEY", "from env")
    reporter = EventReporter()
    asyncio.run(reporter.post_event(event(1)))
    assert reporter.active
    assert Endpoint.seen[0][1] == "from env"


def test_without_an_endpoint_nothing_happens() -> None:
    """No error and no connection."""
    reporter = EventReporter()
    asyncio.run(reporter.post_event(event(1)))
    assert not reporter.active


def test_an_endpoint_that_does_not_take_it_is_an_error(endpoint: str) -> None:
    """With its status and its words; the bus tries again."""
    Endpoint.status = 500
    with pytest.raises(UpstreamError, match="answered 500 to an event: taken"):
        asyncio.run(EventReporter(endpoint).post_event(event(1)))
    with pytest.raises(UpstreamError, match="did not take an event"):
        asyncio.run(EventReporter(f"http://127.0.0.1:{free_port()}").post_event(event(1)))
