"""Backends of the shim: a running proxy by its control API, or an engine in this process on the store.

Both take the lines of one client and record the server's answers; `core.control.stdio_tool_host` defines the calls.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from llmproxy.client.control import is_socket_idle
from llmproxy.errors import MachineError
from llmproxy.protocol import CONTROL_PREFIX, Decision, ToolLineReply

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from llmproxy.core.control.stdio_tool_host import ConnectedStdioClient
    from llmproxy.core.engine.engine import Engine
    from llmproxy.core.sessions.exchange import Exchange
    from llmproxy.settings import Settings

TIMEOUT = 60.0
"""Seconds."""


class ShimBackend(Protocol):
    def on_line(self, line: bytes) -> ToolLineReply:
        """Decide about a line from the client. Raises LLMProxyError."""

    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        """Record the answer to a forwarded message, as cancelled if `left`. Raises LLMProxyError: not kept."""

    def on_server_loss(self, number: int, why: str) -> None:
        """Handle a server that did not answer."""

    def end(self, unasked: Sequence[tuple[int, bytes]]) -> None:
        """Handle the client's end, and unrequested messages of the server."""


class ProxyShimBackend:
    """A running proxy. One call at a time, on one open connection, whose end ends the session."""

    def __init__(self, url: str, session: str, server: str, connection: str, secrets: Sequence[str] = ()) -> None:
        """Serve one client of `server`; `secrets` are values that must not be stored."""
        parts = urlsplit(url)
        self._url = url
        self._place = parts.hostname or "127.0.0.1", parts.port or 80
        self._http: HTTPConnection | None = None
        self._path = f"{CONTROL_PREFIX}sessions/{quote(session, safe='')}/tools"
        self._about: dict[str, Any] = {"connection": connection, "server": server}
        self._first: dict[str, Any] = {"secrets": list(secrets)} if secrets else {}

    def on_line(self, line: bytes) -> ToolLineReply:
        what = {"line": line.decode("utf-8", "surrogatepass"), "held": True}
        told = self._post_event(what | self._first)
        # Another proxy that was started in its place must not take us for a new client.
        self._first = {"known": True}
        out = str(told["out"]).encode("utf-8", "surrogatepass")
        return ToolLineReply(out, told["forward"], told.get("late", 0), told.get("gone") is True, told.get("again", 0))

    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        self._post_event({"number": number, "lines": _lines_to_json(lines)} | ({"left": True} if left else {}))

    def on_server_loss(self, number: int, why: str) -> None:
        self._post_event({"number": number, "lost": why})

    def end(self, unasked: Sequence[tuple[int, bytes]]) -> None:
        self._post_event({"end": True, "lines": _lines_to_json(unasked)})
        self._get_connection().close()

    def _get_connection(self) -> HTTPConnection:
        """Return the connection; http.client reopens it if the proxy closed it after hours without a call."""
        from http.client import HTTPConnection

        connection = self._http = self._http or HTTPConnection(*self._place, timeout=TIMEOUT)
        if not is_socket_idle(connection.sock):
            connection.close()
        return connection

    def _post_event(self, what: Mapping[str, object]) -> dict[str, Any]:
        """Send one call, without retry: half an answer is an error. Raises MachineError."""
        from http.client import HTTPException

        connection = self._get_connection()
        try:
            connection.request(
                "POST", self._path, json.dumps({**self._about, **what}), {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            value = json.loads(answer.read())
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            why = str(error) or type(error).__name__
            raise MachineError(f"the proxy at {self._url} does not answer: {why}") from error
        if answer.status != 200:
            said = value.get("error", {}) if isinstance(value, dict) else {}
            raise MachineError(str(said.get("message", f"the proxy at {self._url} says {answer.status}")))
        return dict(value)


def _lines_to_json(lines: Sequence[tuple[int, bytes]]) -> list[tuple[int, str]]:
    return [(number, line.decode("utf-8", "surrogatepass")) for number, line in lines]


class _InProcessContext:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record_begin(self, exchange: Exchange) -> None:
        """Do nothing: no other client can wait for it."""

    def report_exchange_end(self, exchange: Exchange, status: int) -> None:
        self._engine.accounting.record_end(exchange, status)

    def store_later(self, exchange: Exchange, *, proper: bool = True) -> None:
        """Store an answer and report it. Raises LLMProxyError."""
        if exchange.decision is Decision.RECORD:
            self._engine.writer.store_answer(exchange, proper=proper)
        self._engine.accounting.record_end(exchange, exchange.recording.status)


class EngineShimBackend:
    """An engine in this process, for one client of one server, without a proxy."""

    def __init__(self, settings: Settings, server: str, env: Mapping[str, str], secrets: Sequence[str]) -> None:
        """Open store and session; `secrets` are values that must not be stored. Raises LLMProxyError."""
        from llmproxy.advice import StartCommand
        from llmproxy.client.gather_run_variables import gather_run_variables
        from llmproxy.core.bindings import parse_run_variable
        from llmproxy.core.control.stdio_tool_host import ConnectedStdioClient
        from llmproxy.core.engine.engine import Engine
        from llmproxy.core.faults.parsing import load_faults
        from llmproxy.core.keys.user_rules import Rules
        from llmproxy.core.secrets.redact import Redactor
        from llmproxy.core.sessions.exchange import Config
        from llmproxy.core.sessions.journal import Journal
        from llmproxy.settings import shown_path

        config = Config(
            mode=settings.mode, cassette=settings.cassette, exhausted=settings.exhausted, bind=settings.bind,
            store=settings.store, shown=shown_path(settings.store), again=StartCommand("llmproxy mcp", " -- SERVER"),
            rules=Rules.from_settings(settings.normalize),
            faults=load_faults(settings.faults, Path.cwd(), seed=settings.faults_seed) if settings.faults else None,
        )  # fmt: skip
        self._journal = Journal.open(Path(f"{config.store}.state.db"), time.time)
        holder = f"llmproxy mcp {os.getpid()} on {platform.node()}"
        self._engine = Engine(
            config, redactor=Redactor(), journal=self._journal, now=time.time, clock=time.monotonic, holder=holder
        )
        found = [parse_run_variable(**each) for each in gather_run_variables(env, Path.cwd(), git=False)]
        session = self._engine.sessions.open_session(settings.cassette, mode=settings.mode, run_variables=found)
        self._line: ConnectedStdioClient = ConnectedStdioClient(
            self._engine, _InProcessContext(self._engine), session.name, server
        )
        for value in secrets:
            self._engine.redactor.learn_declared_secret(value)

    def on_line(self, line: bytes) -> ToolLineReply:
        return self._line.on_line(line)

    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        self._line.on_server_answer(number, lines, left=left)

    def on_server_loss(self, number: int, why: str) -> None:
        self._line.on_server_loss(number, why)

    def end(self, unasked: Sequence[tuple[int, bytes]]) -> None:
        try:
            self._line.on_client_end(unasked)
        finally:
            self._engine.close()
            self._journal.close()
