"""Answering of control requests: permission of the peer, row of `endpoints.TABLE`, value or error as JSON."""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from llmproxy.core.control.endpoints import COUNTED, OPEN, TABLE, TOLD, ControlledProxy, RoutedRequest
from llmproxy.core.control.parsing import BadControl, Json, parse_body
from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.session import Session, SessionInUse, canonical_name
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.core.traffic.origin_guard import ForeignHost, OriginGuard
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.protocol import CONTROL_PREFIX, TOKEN_HEADER


class ControlForbidden(RefusedError):
    code = "llmproxy_forbidden"
    status = 403


class NoSuchPath(RefusedError):
    code = "llmproxy_not_found"
    status = 404


class WrongMethod(RefusedError):
    code = "llmproxy_method"
    status = 405


@dataclass(frozen=True, slots=True)
class ControlRequest:
    method: str
    target: str
    headers: Headers
    body: bytes
    loopback: bool
    """Whether the peer is on this machine, and that is enough to trust it."""
    guard: OriginGuard = field(default_factory=OriginGuard)
    scheme: str = "http"
    connection: str = ""
    """Id of its connection: some clients end with it."""


NOBODYS = {
    "ended-test": "llmproxy: this call came after its test had ended, and was refused: await in a test what it begins.",
    "no-test": "llmproxy: this call was made outside of any test, and was refused: make it in a test, a hook or a"
    " fixture; a handler that something else calls: AsyncResource.bind(handler), of node:async_hooks.",
}
"""Errors for paths that the npm package requests for calls outside any running test (data/node/attribution.js)."""


def answer_control_request(engine: Engine, asked: ControlRequest, proxy: ControlledProxy) -> tuple[int, bytes, str]:
    """Serve one control request: (status, body, content type). Errors are JSON too."""
    try:
        status, value = _serve_request(engine, asked, proxy)
    except LLMProxyError as error:
        return format_error(error)
    if isinstance(value, bytes):
        return status, value, "application/json"
    return status, _dump_json(value), "application/json"


def format_error(error: LLMProxyError) -> tuple[int, bytes, str]:
    said: dict[str, Json] = {"code": error.code, "message": error.message, "hint": error.hint}
    if isinstance(error, SessionInUse) and error.bound_to:
        said["bound_to"] = error.bound_to
    return error.status, _dump_json({"error": said}), "application/json"


def _dump_json(value: Json) -> bytes:
    # Half a surrogate pair (recorded text may hold one) has no UTF-8; Python's backslash form of it is JSON's.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def find_session_to_await(engine: Engine, asked: ControlRequest) -> Session | None:
    """Return the session of a request for totals, whose open exchanges may end first; None: answer at once."""
    try:
        words, shape = _parse_control_path(asked.target)
        name = words[1] if shape in COUNTED else _parse_query(asked.target).get("session", "") if shape in TOLD else ""
        return engine.sessions.open_sessions.get(canonical_name(name)) if name else None
    except RefusedError:
        return None


def _parse_control_path(target: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the decoded segments of a control path, and its key in TABLE. Raises BadControl."""
    path = target.partition("?")[0].removeprefix(CONTROL_PREFIX).strip("/")
    try:
        words = tuple(unquote(word, errors="strict") for word in path.split("/"))
    except UnicodeDecodeError as error:
        raise BadControl("llmproxy: the path is not percent-encoded UTF-8.") from error
    return words, tuple("*" if at == 1 and words[0] == "sessions" else word for at, word in enumerate(words))


def _parse_query(target: str) -> dict[str, str]:
    return dict(parse_qsl(target.partition("?")[2], keep_blank_values=True))


def _serve_request(engine: Engine, asked: ControlRequest, proxy: ControlledProxy) -> tuple[int, Json]:
    words, shape = _parse_control_path(asked.target)
    path = asked.target.partition("?")[0]
    refusing = find_refusal(asked, proxy.token, proxy.page_token)
    if refusing is not None and shape not in OPEN:
        raise refusing
    endpoints = TABLE.get(shape)
    if endpoints is None:
        if (told := NOBODYS.get(shape[0])) is not None:
            raise NoSuchPath(told)
        known = ", ".join(sorted("/".join(row) for row in TABLE))
        raise NoSuchPath(f"llmproxy: there is no {path[:80]}.", hint=f"There is, under {CONTROL_PREFIX}: {known}")
    endpoint = endpoints.get("GET" if asked.method == "HEAD" else asked.method)
    if endpoint is None:
        raise WrongMethod(f"llmproxy: {path[:80]} takes {' or '.join(endpoints)}, not {asked.method[:20]}.")
    name = words[1] if len(words) > 1 else ""
    body, query = parse_body(asked.body), _parse_query(asked.target)
    call = RoutedRequest(name, body, query, proxy, trusted=refusing is None, connection=asked.connection)
    return endpoint.status, endpoint.handler(engine, call)


def find_refusal(asked: ControlRequest, token: str, page_token: str = "") -> ControlForbidden | None:
    """Return the error for a peer without permission; `token` permits all peers, `page_token` only our own page."""
    given = header(asked.headers, TOKEN_HEADER) or ""
    if _is_same_token(given, token):
        return None  # no web page has the token
    if not asked.loopback:
        return ControlForbidden(
            f"llmproxy: a proxy that other machines reach is driven only by who sends its token, as {TOKEN_HEADER}.",
            hint="Set LLMPROXY_TOKEN for it and for who asks it, or let it listen on 127.0.0.1 alone.",
        )
    page = header(asked.headers, "origin") is not None or header(asked.headers, "sec-fetch-site") not in (None, "none")
    try:
        asked.guard.require_own_host(asked.headers)
    except ForeignHost:
        page = True
    if page and _is_same_token(given, page_token) and asked.guard.is_own_page(asked.headers, asked.scheme):
        return None
    return ControlForbidden("llmproxy: the control API does not answer web pages or foreign hosts.") if page else None


def _is_same_token(given: str, token: str) -> bool:
    """Return whether the tokens are equal; an empty one never is."""
    sides = (each.encode("utf-8", "surrogateescape") for each in (given, token))
    return bool(token) and hmac.compare_digest(*sides)
