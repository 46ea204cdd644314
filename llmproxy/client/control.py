"""A typed client of the control API: sessions are opened, bound, asked, reset and closed.

One short connection for each call, or one of a `ConnectionPool`, straight to the proxy whatever HTTP_PROXY says.
Answers are read leniently (a newer proxy may say more, an older one less), errors become :class:`ControlError` with the
proxy's own words. Nothing heavier than `http.client` is imported, and that when the first call is made.

A pool is for callers that ask often, from many threads. A connection is used again only if the server neither closed it
nor said anything since, and not for long; so a request is never sent twice, and never answered by what belongs to
another. TLS is not looked into: such connections are not kept.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from llmproxy.client.session_reports import Health, Miss, RefusedRequest, Report
from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.errors import MachineError, remove_prefix
from llmproxy.protocol import AGENT, CONTROL_PREFIX, SESSION_PREFIX, TOKEN_HEADER
from llmproxy.proxy_calls import Call

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
    """The proxy refused a control request."""

    code = "llmproxy_control"

    def __init__(self, message: str, *, hint: str = "", status: int = 0, bound_to: str = "") -> None:
        """Hold what the proxy said; `status` is its HTTP status, `bound_to` the session that a name is bound to."""
        super().__init__(message, hint=hint)
        self.status = status
        self.bound_to = bound_to


class ProxyUnreachable(ControlError):
    """Nothing that is llmproxy answers at the address."""

    code = "llmproxy_proxy_gone"


def session_url(url: str, name: str | None) -> str:
    """Return the base URL of a session of the proxy at `url`; of the proxy's own cassette if there is no name."""
    return f"{url.rstrip('/')}{SESSION_PREFIX}{quote(name, safe='')}" if name else url.rstrip("/")


class Control:
    def __init__(self, url: str, *, token: str = "", pool: ConnectionPool | None = None) -> None:
        """Speak to the proxy at `url` (``http://127.0.0.1:8080``)."""
        self.url = url.rstrip("/")
        self._pool = pool if self.url.startswith("http:") else None
        self._token = token

    def health(self, timeout: float = TIMEOUT) -> Health:
        """Ask whether it is there; `timeout` in seconds. Raises ProxyUnreachable."""
        value = self._request("GET", "health", timeout=timeout)
        if value.get("status") != "ok" or "version" not in value:
            raise ProxyUnreachable(f"what answers at {self.url} is not llmproxy.")
        return Health(str(value["version"]), str(value.get("mode", "")), value.get("ca"))

    def stop(self) -> int:
        """Ask the proxy to end; returns its exit code. Raises ControlError where it is part of another program."""
        return int(self._request("POST", "stop", {}).get("exit_code") or 0)

    def sessions(self) -> tuple[Report, ...]:
        return tuple(Report.from_json(each) for each in self._request("GET", "sessions")["sessions"])

    def open_session(
        self, name: str, *, cassette: str | None = None, under: str | None = None, mode: str | None = None,
        speed: float | None = None, exhausted: str | None = None, sample: int | None = None,
        upstreams: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None,
        fork: Mapping[str, Any] | None = None, run_variables: Sequence[Mapping[str, str]] | None = None,
        bind: str | None = None, faults: Mapping[str, Any] | None = None, mocks: Mapping[str, Any] | None = None,
        live: Mapping[str, Any] | None = None, patience: float = 0.0,
    ) -> Report:  # fmt: skip
        """Open a session; what is None is the proxy's.

        `cassette` is for several sessions that replay one; what arrives under the name `under` belongs to the session.
        `overrides` and `fork` are for replay: what is to be different, and whether what then differs goes on live
        (docs/replay.md). `run_variables` are what is true of this run only (docs/bindings.md), `bind` says what of them
        counts: all, paths, none. `faults` are injected faults (docs/faults.md), `mocks` what the agent's model reads
        instead of tools' results (docs/suites.md). `live` are the members `live`, `unknown_tool` and `read_only`
        (docs/tools.md): which channels go to real providers or tools. `patience` is how many seconds to try again while
        another client has it open.

        Raises ControlError: it is open, a value makes no sense, or the proxy may not go live.
        """
        given: dict[str, object] = {
            "cassette": cassette,
            "under": under,
            "mode": mode,
            "speed": speed,
            "exhausted": exhausted,
            "sample": sample,
            "upstreams": upstreams,
        }
        given |= {"overrides": overrides, "fork": fork, "run_variables": run_variables or None, "bind": bind}
        given |= {"faults": faults, "mocks": mocks, **(live or {})}
        body = {"name": name} | {key: value for key, value in given.items() if value is not None}
        deadline = time.monotonic() + patience
        while True:
            try:
                return Report.from_json(self._request("POST", "sessions", body))
            except ControlError as error:
                if error.status != CONFLICT or error.bound_to or time.monotonic() >= deadline:
                    raise
            time.sleep(PAUSE)

    def faults(self, name: str, given: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Set a session's injected faults (``{"faults": [...]}``), or only ask; returns them and what was injected."""
        path = _session_path(name, "faults")
        return self._request("GET", path) if given is None else self._request("POST", path, given)

    def declare_run_variables(self, name: str, run_variables: Sequence[Mapping[str, str]]) -> Report:
        """Declare run variables of an open session's run, from the next request on. Raises ControlError."""
        return Report.from_json(
            self._request("POST", _session_path(name, "run_variables"), {"run_variables": list(run_variables)})
        )

    def report(self, name: str) -> Report:
        """Return what a session comes to so far. Raises ControlError if no such session is open."""
        return Report.from_json(self._request("GET", _session_path(name)))

    def reset(self, name: str) -> Report:
        """Let a session walk its cassette from the start again."""
        return Report.from_json(self._request("POST", _session_path(name, "reset"), {}))

    def close_session(
        self, name: str, *, complete: bool | None = None, after: int | None = None, interrupted: bool = False
    ) -> Report:
        """End a session and return what it came to; with `after`, also the calls that arrived after that one
        (`Report.further`).

        `complete` says whether its cassette holds all that it should, so that mode `once` adds nothing more; None:
        unless something in it failed. `interrupted`: what ran in it was ended from outside, so it replaces nothing.
        """
        given = {"complete": complete, "after": after, "interrupted": interrupted or None}
        body = {key: value for key, value in given.items() if value is not None}
        return Report.from_json(self._request("POST", _session_path(name, "close"), body))

    def bind_session_name(self, name: str, session: str, party: str = AGENT) -> None:
        """Send what arrives under `name` to `session`, as `party`'s. Raises ControlError if `name` is bound."""
        self._request(
            "POST", _session_path(name, "bind"), {"session": session} | ({} if party == AGENT else {"party": party})
        )

    def unbind_session_name(self, name: str) -> None:
        """Let what arrives under `name` be its own session again."""
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

    def read_refused(self) -> tuple[RefusedRequest, ...]:
        """Return the last requests that were refused before they belonged to a session: hosts, web pages."""
        rows = self._request("GET", "refused?limit=100")["refused"]
        words = ("method", "target", "text")
        return tuple(RefusedRequest(float(row.get("at") or 0), *(str(row.get(word)) for word in words)) for row in rows)

    def calls(self, session: str, after: int = 0) -> tuple[Call, ...]:
        """Return the calls of an open session that arrived after the `after`-th, in order; waits for those under way, 2
        s at most.

        Raises ControlError: no such session is open, or calls before the last 20,000 were asked for.
        """
        told = self._request("GET", f"calls?session={quote(session, safe='')}&after={after}")
        return tuple(Call.from_json(each) for each in told.get("calls") or ())

    def start_learning_trial(self, session: str) -> None:
        """Make a replay session a trial, in which misses teach what varies. Raises ControlError if it cannot be."""
        self._request("POST", _session_path(session, "lessons"), {})

    def read_learned_fields(self, session: str) -> tuple[LearnedField, ...]:
        """Return what a trial taught so far. Raises ControlError if the session is none."""
        from llmproxy.core.bindings.volatile_fields import parse_volatile_field
        from llmproxy.core.bindings.volatile_learning import LearnedField

        rows = self._request("GET", _session_path(session, "lessons"))["lessons"]
        return tuple(
            LearnedField(
                parse_volatile_field(row["field"]), *(str(row[name]) for name in ("recorded", "present", "path"))
            )
            for row in rows
        )

    def _request(self, method: str, path: str, body: object = None, *, timeout: float = TIMEOUT) -> dict[str, Any]:
        """Make one call and return the parsed answer."""
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
                connection.request(
                    method, parts.path + CONTROL_PREFIX + path, None if body is None else json.dumps(body), headers
                )
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
            hint = f"Start one: llmproxy start --port {parts.port or 80}; --url or LLMPROXY_URL names a running one."
            raise ProxyUnreachable(f"no llmproxy answers at {self.url}: {why}", hint=hint) from error
        return self._parse_reply(status, content)

    def _parse_reply(self, status: int, content: bytes) -> dict[str, Any]:
        value = parse_json(content)
        if not isinstance(value, dict):
            raise ProxyUnreachable(f"what answers at {self.url} is not llmproxy (HTTP {status}).")
        if status in (OK, CREATED):
            return value
        said = value.get("error")
        said = said if isinstance(said, dict) else {"message": str(said or content[:200])}
        message = remove_prefix(said.get("message", ""))
        hint = str(said.get("hint") or "")  # words for the user, which need none of ours around them
        raise ControlError(
            message if hint else f"the proxy at {self.url} answered {status}: {message}",
            hint=hint,
            status=status,
            bound_to=str(said.get("bound_to") or ""),
        )


def _session_path(name: str, verb: str = "") -> str:
    return f"sessions/{quote(name, safe='')}" + (f"/{verb}" if verb else "")


FRESH = 30.0
"""Seconds of disuse after which one is let go: the other end may close it just as the next request is sent."""


class ConnectionPool:
    """Connections that nobody uses at the moment; for all threads of a process."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[int, str, int], list[tuple[HTTPConnection, float]]] = defaultdict(list)
        """By process (a forked child must not speak where its parent does), host and port: each, idle since when."""

    def take(self, host: str, port: int | None, timeout: float) -> HTTPConnection:
        """Return a connection, open or still to be opened; `timeout` in seconds, for each step."""
        from http.client import HTTPConnection

        made = HTTPConnection(host, port, timeout=timeout)
        idle = self._idle[os.getpid(), made.host, made.port]
        with suppress(IndexError):  # another thread may take the last one
            while True:
                connection, since = idle.pop()
                if time.monotonic() - since < FRESH and is_socket_idle(connection.sock):
                    connection.timeout = timeout
                    connection.sock.settimeout(timeout)
                    return connection
                connection.close()
        return made

    def give_back(self, connection: HTTPConnection) -> None:
        """Keep a connection whose answer was read to its end, unless the server closed it."""
        if connection.sock is not None:
            self._idle[os.getpid(), connection.host, connection.port].append((connection, time.monotonic()))

    def close(self) -> None:
        for idle in list(self._idle.values()):  # other threads may still add some
            while idle:
                idle.pop()[0].close()


def is_socket_idle(sock: socket.socket | None) -> bool:
    """Return whether a connection is open and nothing came that nobody asked for."""
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
