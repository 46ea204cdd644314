"""Who may read what `llmproxy ui` serves."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from llmproxy.errors import SettingsError
from llmproxy.ui.serve import answer_ui_request, make_viewer_server
from tests.support.proxy import DIRECT
from tests.support.services import serving

TOKEN = "the-token"
OURS = (("host", "localhost"), ("x-llmproxy-token", TOKEN))
DATA = "/_llmproxy/ui/data/"


def ask(question: str, query: dict[str, str]) -> object:
    if question == "bad":
        raise SettingsError("no", hint="yes")
    if question == "broken":
        raise RecursionError("too deep")
    return {"question": question, **query, "half": "\ud800"}


def status(method: str, target: str, **headers: str) -> int:
    """Return with which status a request is answered; `host` is ours unless given."""
    fields = {"host": "127.0.0.1:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return answer_ui_request(method, target, tuple(fields.items()), TOKEN, ask, {}).status


def test_data_wants_the_token() -> None:
    """Other users of the machine do not have it; nothing is changed through it."""
    assert status("GET", DATA + "x", x_llmproxy_token=TOKEN) == 200
    for wrong in ("", "the-token ", "the-toke", "thé"):
        assert status("GET", DATA + "x", x_llmproxy_token=wrong) == 403
    assert status("GET", DATA + "x") == 403
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert status(method, DATA + "x", x_llmproxy_token=TOKEN) == 405
    assert status("GET", "/_llmproxy/sessions", x_llmproxy_token=TOKEN) == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8000"}, {"origin": "https://evil.example"}, {"origin": "null"},
        {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"},
    ],
)  # fmt: skip
def test_no_other_page_may_ask(headers: dict[str, str]) -> None:
    """Not even one that had the token, and not for the page itself."""
    assert status("GET", DATA + "x", x_llmproxy_token=TOKEN, **headers) == 403
    assert status("GET", "/_llmproxy/ui/", **headers) == 403


def test_what_may_be_written_is_written_by_our_own_page_only() -> None:
    """With the token, from no other page, and only what can be read; without a taker nothing is."""
    took: list[dict[str, str]] = []

    def put(said: dict[str, str]) -> object:
        took.append(said)
        return {}

    def post(body: bytes, token: str = TOKEN, **more: str) -> int:
        headers = (("host", "localhost"), ("x-llmproxy-token", token), *more.items())
        return answer_ui_request("POST", "/_llmproxy/ui/label", headers, TOKEN, ask, {}, put, body).status

    assert post(b'{"run": "1"}', token="wrong") == 403
    assert post(b'{"run": "1"}', origin="https://evil.example") == 403
    assert post(b"{") == post(b'{"run": 1}') == post(b"[]") == post(b"[" * 200_000) == 400
    assert took == []
    assert post(b'{"run": "1"}') == 200
    assert took == [{"run": "1"}]
    assert answer_ui_request("POST", "/_llmproxy/ui/label", OURS, TOKEN, ask, {}, None, b"{}").status == 405


def test_an_error_is_told_as_json() -> None:
    """What happened, and what to do; a fault of ours where the answer would stand, and the command's terminal stays quiet."""
    found = answer_ui_request("GET", DATA + "bad", OURS, TOKEN, ask, {})
    assert found.status == 400
    assert json.loads(found.body)["error"] == {"code": "llmproxy_settings", "message": "no", "hint": "yes"}
    found = answer_ui_request("GET", DATA + "broken", OURS, TOKEN, ask, {})
    assert found.status == 500
    assert json.loads(found.body)["error"]["message"] == "llmproxy: this cannot be shown: RecursionError: too deep"


@pytest.fixture
def url() -> Iterator[str]:
    with serving(make_viewer_server(0, TOKEN, ask, {"store": "x.db"})) as address:
        yield address


def test_over_a_socket(url: str) -> None:
    """The page holds no data and no token; nothing of it is kept, framed or guessed at; data is JSON whatever it holds."""
    with DIRECT.open(url, timeout=5) as answer:
        page = answer.read().decode()
        assert answer.url == url + "/_llmproxy/ui/"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert '"store":"x.db"' in page
    assert TOKEN not in page
    with DIRECT.open(Request(f"{url}{DATA}x?a=b%26", headers={"x-llmproxy-token": TOKEN}), timeout=5) as answer:
        assert json.loads(answer.read()) == {"question": "x", "a": "b&", "half": "\ud800"}
    with pytest.raises(HTTPError, match="403"):
        DIRECT.open(f"{url}{DATA}x", timeout=5)


HOSTILE = {
    b"GET http://[x HTTP/1.1\r\nHost: localhost\r\n\r\n": b"404",
    b"GET /_llmproxy/ui/data/[x?[=%ff HTTP/1.1\r\nHost: localhost\r\n\r\n": b"403",
    b"POST /_llmproxy/ui/label HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n": b"405",
    b"POST /_llmproxy/ui/label HTTP/1.1\r\nHost: localhost\r\nContent-Length: \xc2\xb2\r\n\r\n": b"405",
}


def test_no_head_ends_in_a_traceback(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever reaches the port, with a token or none, gets an answer, and the terminal of the command stays quiet."""
    for sent, expected in HOSTILE.items():
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 5) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.makefile("rb").readline().split()[1:2] == [expected], sent[:60]
    assert capfd.readouterr().err == ""
