"""`llmproxy ui`: the page and its data, on loopback, protected by a token.

The request must name this machine (`OriginGuard`), it must not come from another page (Origin, Sec-Fetch-Site), and
data requires the token in the printed address, which other users of this machine lack. The page itself holds no data. A
store is opened for reading for each query, and closed again.
"""

from __future__ import annotations

import hmac
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.origin_guard import HeadForOriginCheck, OriginGuard
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.protocol import TOKEN_HEADER, UI_PREFIX
from llmproxy.ui import page

_DATA = "data/"
_LABEL = "label"
_MOST = 1 << 20
Put = Callable[[dict[str, str]], Any]
"""Converts the page's input to plain values; raises LLMProxyError."""


def answer_ui_request(
    method: str, target: str, headers: page.Headers, token: str, ask: page.Ask, start: dict[str, Any],
    put: Put | None = None, body: bytes = b"",
) -> page.ViewerResponse:  # fmt: skip
    # Origin form: nothing else names what is here, and `urlsplit` raises for `http://[`.
    path, _, asked = target.partition("?")
    if path == "/":
        return page.redirect_to_page()
    try:
        OriginGuard().require_admitted(HeadForOriginCheck(headers))
    except RefusedError as error:
        return page.answer_viewer_with_error(error)
    writes = put is not None and path == UI_PREFIX + _LABEL and method == "POST"
    if method not in ("GET", "HEAD") and not writes:
        return page.build_viewer_error_response(405, "llmproxy_method", "llmproxy: this is for reading.")
    if path == UI_PREFIX:
        return page.build_viewer_page_response(start)
    if not path.startswith(UI_PREFIX + _DATA) and not writes:
        return page.build_viewer_error_response(
            404, "llmproxy_not_found", "llmproxy: there is nothing here.", UI_PREFIX
        )
    given = next((value for name, value in headers if name.lower() == TOKEN_HEADER), "")
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode()):
        told = "llmproxy: this page has no token."
        hint = "Open the address that `llmproxy ui` printed, whole."
        return page.build_viewer_error_response(403, "llmproxy_forbidden", told, hint)
    if put is not None and writes:
        return _store_page_input(put, body)
    query = dict(parse_qsl(asked, keep_blank_values=True))
    return page.answer_query_as_json(ask, path.removeprefix(UI_PREFIX + _DATA), query)


def _store_page_input(put: Put, body: bytes) -> page.ViewerResponse:
    said = parse_json_or_none(body)
    if not isinstance(said, dict) or not all(isinstance(each, str) for each in said.values()):
        told = "llmproxy: what the page sent is no JSON object of texts."
        return page.build_viewer_error_response(400, "llmproxy_question", told)
    try:
        return page.build_viewer_json_response(200, put(said))
    except LLMProxyError as error:
        return page.answer_viewer_with_error(error)


def _parse_content_length(said: str) -> int | None:
    """Return a valid length; Python refuses to parse thousands of digits."""
    plain = said.isascii() and said.isdecimal() and len(said) <= len(str(_MOST))
    return int(said) if plain and int(said) <= _MOST else None


def make_viewer_server(
    port: int, token: str, ask: page.Ask, start: dict[str, Any], put: Put | None = None
) -> ThreadingHTTPServer:
    """Return a server on loopback that is not serving yet. Raises OSError: the port is taken."""

    class PageHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            headers = tuple(self.headers.items())
            length, body = _parse_content_length(self.headers.get("content-length", "")), b""
            if self.command == "POST" and length is not None:
                body = self.rfile.read(length)
            elif self.command not in ("GET", "HEAD"):
                self.close_connection = True  # its body is not read
            answer = answer_ui_request(self.command, self.path, headers, token, ask, start, put, body)
            self.send_response_only(answer.status)
            for name, value in (*page.build_viewer_response_headers(answer), ("content-length", str(len(answer.body)))):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - as http.server calls them

        def log_message(self, *_: object) -> None:
            """Print nothing: the terminal belongs to the command."""

    class ViewerServer(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing if a browser left before its answer."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    return ViewerServer(("127.0.0.1", port), PageHandler)
