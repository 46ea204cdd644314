"""A typed client of the control API: opens, queries, resets and closes sessions.

Calls go directly to the proxy regardless of HTTP_PROXY. Answers are parsed leniently (other versions may have more or
fewer members), errors become :class:`ControlError`. A pooled connection is reused only for a short time, and only if
the server neither closed it nor sent anything: a request is never sent twice, and never gets another one's answer.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from llmproxy.calls_and_totals import Call, Miss, RequestRefusedWithoutSession
from llmproxy.client.session_reports import Health, SessionReport
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.errors import MachineError, remove_program_prefix
from llmproxy.protocol import AGENT, CONTROL_PREFIX, SESSION_PREFIX, TOKEN_HEADER

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from llmproxy.core.bindings.volatile_learning import LearnedField


CONFLICT = 409
CREATED = 201
OK = 200
TIMEOUT = 30.0
"""Seconds that a call waits for each step."""
PAUSE = 0.1
"""Seconds between two attempts to open a session that another client has open."""


class ControlError(MachineError):
    code = "llmproxy_control"

    def __init__(self, message: str, *, hint: str = "", status: int = 0, bound_to: str = "") -> None:
        """`status` is the HTTP status, `bound_to` the session to which a name is bound."""
        super().__init__(message, hint=hint)
        self.status = status
        self.bound_to = bound_to


class ProxyUnreachable(ControlError):
    code = "llmproxy_proxy_gone"


def session_url(url: str, name: str | None) -> str:
    """Return the base URL of a session of the proxy at `url`; without a name, of the proxy's own cassette."""
    return f"{url.rstrip('/')}{SESSION_PREFIX}{quote(name, safe='')}" if name else url.rstrip("/")


class ControlApiClient:
    def __init__(self, url: str, *, token: str = "", pool: ControlConnectionPool | None = None) -> None:
        """`url` is the proxy's address (``http://127.0.0.1:8080``)."""
        self.url = url.rstrip("/")
        self._pool = pool if self.url.startswith("http:") else None
        self._token = token

    def health(self, timeout: float = TIMEOUT) -> Health:
        """Return the proxy's health report; `timeout` in seconds. Raises ProxyUnreachable."""
        value = self._request("GET", "health", timeout=timeout)
        if value.get("status") != "ok" or "version" not in value:
            raise ProxyUnreachable(f"what answers at {self.url} is not llmproxy.")
        return Health(str(value["version"]), str(value.get("mode", "")), value.get("ca"))

    def stop(self) -> int:
        """Stop the proxy; returns its exit code. Raises ControlError if it runs inside another program."""
        return int(self._request("POST", "stop", {}).get("exit_code") or 0)

    def sessions(self) -> tuple[SessionReport, ...]:
        return tuple(SessionReport.from_json(each) for each in self._request("GET", "sessions")["sessions"])

    def open_session(
        self, name: str, *, cassette: str | None = None, under: str | None = None, mode: str | None = None,
        speed: float | None = None, exhausted: str | None = None, sample: int | None = None,
        upstreams: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None,
        fork: Mapping[str, Any] | None = None, run_variables: Sequence[Mapping[str, str]] | None = None,
        bind: str | None = None, faults: Mapping[str, Any] | None = None, mocks: Mapping[str, Any] | None = None,
        live: Mapping[str, Any] | None = None, patience: float = 0.0,
    ) -> SessionReport:  # fmt: skip
        """Open a session; None means the proxy's own value.

        `cassette` lets several sessions replay one cassette; requests under the name `under` belong to the session.
        `overrides` and `fork` are for replay: the changes, and whether calls that then differ go live (docs/replay.md).
        `run_variables` hold for this run only (docs/bindings.md), `bind` selects which of them count: all, paths, none.
        `faults` are injected faults (docs/faults.md), `mocks` replace tool results in what the agent's model reads
        (docs/suites.md). `live` has the members `live`, `unknown_tool` and `read_only` (docs/tools.md): the channels
        that use real providers or tools. `patience` is how many seconds to retry while another client has it open.

        Raises ControlError: it is open, a value is invalid, or the proxy may not go live.
        """
        given: dict[str, object] = {"cassette": cassette, "under": under, "mode": mode, "speed": speed}
        given |= {"exhausted": exhausted, "sample": sample, "upstreams": upstreams, "overrides": overrides}
        given |= {"fork": fork, "run_variables": run_variables or None, "bind": bind, "faults": faults, "mocks": mocks}
        given |= live or {}
        body = {"name": name} | {key: value for key, value in given.items() if value is not None}
        deadline = time.monotonic() + patience
        while True:
            try:
                return SessionReport.from_json(self._request("POST", "sessions", body))
            except ControlError as error:
                if error.status != CONFLICT or error.bound_to or time.monotonic() >= deadline:
                    raise
            time.sleep(PAUSE)

    def faults(self, name: str, given: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Set a session's injected faults (``{"faults": [...]}``), or only read them; returns rules and counts."""
        path = _session_path(name, "faults")
        return self._request("GET", path) if given is None else self._request("POST", path, given)

    def declare_run_variables(self, name: str, run_variables: Sequence[Mapping[str, str]]) -> SessionReport:
        """Declare run variables of an open session, from the next request on. Raises ControlError."""
        body = {"run_variables": list(run_variables)}
        return SessionReport.from_json(self._request("POST", _session_path(name, "run_variables"), body))

    def report(self, name: str) -> SessionReport:
        """Return a session's report so far. Raises ControlError if no such session is open."""
        return SessionReport.from_json(self._request("GET", _session_path(name)))

    def reset(self, name: str) -> SessionReport:
        return SessionReport.from_json(self._request("POST", _session_path(name, "reset"), {}))

    def close_session(
        self, name: str, *, complete: bool | None = None, after: int | None = None, interrupted: bool = False
    ) -> SessionReport:
        """End a session and return its report; `after`: with the calls after that one (`SessionReport.further`).

        `complete`: mode `once` adds nothing more to the cassette; None: unless something failed. `interrupted`: its run
        was stopped from outside, so it replaces nothing.
        """
        given = {"complete": complete, "after": after, "interrupted": interrupted or None}
        body = {key: value for key, value in given.items() if value is not None}
        return SessionReport.from_json(self._request("POST", _session_path(name, "close"), body))

    def bind_session_name(self, name: str, session: str, party: str = AGENT) -> None:
        """Route requests under `name` to `session`, as `party`'s. Raises ControlError if `name` is bound."""
        body = {"session": session} | ({} if party == AGENT else {"party": party})
        self._request("POST", _session_path(name, "bind"), body)

    def unbind_session_name(self, name: str) -> None:
        self._request("POST", _session_path(name, "unbind"), {})

    def misses(self, session: str | None = None) -> tuple[Miss, ...]:
        query = "misses?limit=100" + (f"&session={quote(session, safe='')}" if session is not None else "")
        rows = self._request("GET", query)["misses"]
        words = ("session", "text", "record", "unbound", "key")
        return tuple(
            Miss(
                at=float(row.get("at") or 0),
                **{word: str(row.get(word) or "") for word in words},
                starts=row.get("starts") or {},
                numbers_only=bool(row.get("numbers_only")),
                to_model=bool(row.get("to_model")),
            )
            for row in rows
        )

    def read_refused_before_session(self) -> tuple[RequestRefusedWithoutSession, ...]:
        rows = self._request("GET", "refused?limit=100")["refused"]
        return tuple(
            RequestRefusedWithoutSession(
                float(row.get("at") or 0), str(row.get("method")), str(row.get("target")), int(row.get("status") or 0),
                str(row.get("text")),
            ) for row in rows
        )  # fmt: skip

    def calls(self, session: str, after: int = 0) -> tuple[Call, ...]:
        """Return the calls of an open session after number `after`, in order; waits up to 2 s for calls in progress.
        Raises ControlError: no such session is open, or calls before the last 20,000 are requested.
        """
        told = self._request("GET", f"calls?session={quote(session, safe='')}&after={after}")
        return tuple(Call.from_json(each) for each in told.get("calls") or ())

    def start_learning_trial(self, session: str) -> None:
        """Make a replay session a trial that learns volatile fields from misses. Raises ControlError."""
        self._request("POST", _session_path(session, "lessons"), {})

    def read_learned_fields(self, session: str) -> tuple[LearnedField, ...]:
        """Return the volatile fields learned so far. Raises ControlError if the session is no trial."""
        from llmproxy.core.bindings.volatile_learning import LearnedField
        from llmproxy.core.bindings.volatile_result_fields import parse_volatile_field

        rows = self._request("GET", _session_path(session, "lessons"))["lessons"]
        names = ("recorded", "present", "path")
        return tuple(
            LearnedField(parse_volatile_field(row["field"]), *(str(row[each]) for each in names)) for row in rows
        )

    def _request(self, method: str, path: str, body: object = None, *, timeout: float = TIMEOUT) -> dict[str, Any]:
        import http.client

        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"content-type": "application/json"} | ({} if self._pool else {"connection": "close"})
        if self._token:
            headers[TOKEN_HEADER] = self._token
        try:
            host, port = parts.hostname or "", parts.port
            connection = self._pool.take(host, port, timeout) if self._pool else kind(host, port, timeout=timeout)
            try:
                text = None if body is None else json.dumps(body)
                connection.request(method, parts.path + CONTROL_PREFIX + path, text, headers)
                answer = connection.getresponse()
                status, content = answer.status, answer.read()
            except BaseException:
                connection.close()
                raise
            if self._pool:
                self._pool.give_back(connection)
            else:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "strerror", "") or str(error) or type(error).__name__
            start = f"Start one: llmproxy start --port {parts.port or 80}; LLMPROXY_URL names a running one."
            hint = f"{start}\nIf it names one that has ended, open a new shell, or type: unset LLMPROXY_URL"
            raise ProxyUnreachable(f"no llmproxy answers at {self.url}: {why}", hint=hint) from error
        return self._parse_reply(status, content)

    def _parse_reply(self, status: int, content: bytes) -> dict[str, Any]:
        value = parse_json_or_none(content)
        if not isinstance(value, dict):
            raise ProxyUnreachable(f"what answers at {self.url} is not llmproxy (HTTP {status}).")
        if status in (OK, CREATED):
            return value
        said = value.get("error")
        said = said if isinstance(said, dict) else {"message": str(said or content[:200])}
        message = remove_program_prefix(said.get("message", ""))
        hint = str(said.get("hint") or "")  # words for the user, which need none of ours around them
        text = message if hint else f"the proxy at {self.url} answered {status}: {message}"
        raise ControlError(text, hint=hint, status=status, bound_to=str(said.get("bound_to") or ""))


def _session_path(name: str, verb: str = "") -> str:
    return f"sessions/{quote(name, safe='')}" + (f"/{verb}" if verb else "")


FRESH = 30.0
"""Seconds of idle time after which a connection is dropped: the server may close it during the next request."""


class ControlConnectionPool:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: defaultdict[tuple[int, str, int], list[tuple[HTTPConnection, float]]] = defaultdict(list)
        """By process (a forked child must not speak where its parent does), host and port: each, idle since when."""

    def take(self, host: str, port: int | None, timeout: float) -> HTTPConnection:
        """Return a connection, open or not yet; `timeout` in seconds, for each step."""
        from http.client import HTTPConnection

        made = HTTPConnection(host, port, timeout=timeout)
        idle = self._idle[os.getpid(), made.host, made.port]
        with suppress(IndexError):  # another thread may take the last one
            while True:
                connection, since = idle.pop()
                if self._clock() - since < FRESH and is_socket_idle(connection.sock):
                    connection.timeout = timeout
                    connection.sock.settimeout(timeout)
                    return connection
                connection.close()
        self.close(FRESH)
        return made

    def give_back(self, connection: HTTPConnection) -> None:
        if connection.sock is not None:
            self._idle[os.getpid(), connection.host, connection.port].append((connection, self._clock()))

    def close(self, seconds: float = 0.0) -> None:
        """Close the connections that were idle for so many seconds; by default all."""
        for idle in list(self._idle.values()):  # other threads may still take or add some
            with suppress(IndexError):
                while self._clock() - idle[0][1] >= seconds:
                    idle.pop(0)[0].close()


def is_socket_idle(sock: socket.socket | None) -> bool:
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
