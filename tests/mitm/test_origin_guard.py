"""Web pages on a running proxy: every way in which a browser asks, in every mode and form, reaches nothing and leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from llmproxy.protocol import Decision, Mode
from tests.mitm.rig import Rig, recorded
from tests.mitm.test_control_api import tape
from tests.mitm.wire import CHAT, Received, body_of, chat, request
from tests.provider import Provider, Script, Step, json_answer

SECRET_TEXT = "the merger is called Heliotrope"
"""What is recorded; no page may read a word of it."""
ENDLESS = Script((Step(json_answer({"choices": []}), times=None),))

PAGES: dict[str, dict[str, str]] = {
    "rebinding, GET": {"host": "evil.example:{port}", "sec_fetch_site": "same-origin"},
    "rebinding, old browser": {"host": "evil.example"},
    "rebinding, POST": {"host": "evil.example:{port}", "origin": "http://evil.example:{port}"},
    "rebinding, a name that looks like ours": {"host": "localhost.evil.example"},
    "rebinding, no dots": {"host": "evil"},
    "rebinding, user part": {"host": "localhost@evil.example"},
    "cross-site POST": {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
    "form": {"origin": "https://evil.example", "content_type": "text/plain"},
    "sandboxed frame": {"origin": "null"},
    "picture, link": {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
    "another port here": {"origin": "http://127.0.0.1:3000", "sec_fetch_site": "same-site"},
    "another port here, link": {"sec_fetch_site": "same-site"},
    "our port, other scheme": {"origin": "https://127.0.0.1:{port}"},
    "our port, other name": {"origin": "http://localhost:{port}"},
    "our name in front": {"origin": "http://127.0.0.1:{port}.evil.example"},
    "extension": {"origin": "chrome-extension://abcdefgh"},
    "no origin at all": {"origin": "%00<script>\x7f"},
    "preflight": {"origin": "https://evil.example", "access_control_request_method": "POST", "METHOD": "OPTIONS"},
    "socket": {
        "origin": "https://evil.example",
        "METHOD": "GET",
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec_websocket_version": "13",
        "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
    },
}
"""Header fields as a browser sends them when somebody else's page asks."""

ASKED = (
    (CHAT, body_of(SECRET_TEXT)),
    (CHAT, body_of(SECRET_TEXT + "!")),
    (f"/s/opened-by-a-page{CHAT}", b""),
    ("/anthropic/v1/messages", body_of(SECRET_TEXT)),
    ("/gemini/v1beta/models/g:generateContent", b""),
)
"""What is recorded, what is near it (a miss would quote it), what opens a session, other dialects."""


def asked(rig: Rig, page: dict[str, str], target: str, method: str, body: bytes) -> bytes:
    fields = {name: value.replace("{port}", str(rig.port)) for name, value in page.items() if name != "METHOD"}
    return request(body, target, page.get("METHOD", method), **fields)


def every(rig: Rig) -> Iterator[tuple[str, bytes]]:
    for (name, page), (target, body) in product(PAGES.items(), ASKED):
        method = page.get("METHOD", "POST" if body else "GET")
        yield f"{name}: {method} {target}", asked(rig, page, target, method, body)


@pytest.mark.parametrize("mode", [*Mode])
def test_no_page_is_served_in_any_mode(tmp_path: Path, mode: Mode) -> None:
    """Nothing goes upstream, no session opens, no occurrence is used, no recorded word is said; and the next client is served as ever."""
    store = tape(tmp_path / "x.db", ("default", SECRET_TEXT, "one"), ("default", SECRET_TEXT, "two"))
    with Provider(ENDLESS) as p, Rig(mode, store, dict.fromkeys(("openai", "anthropic", "gemini"), p.url)) as rig:
        for what, data in every(rig):
            with rig.client() as c:
                answer = c.ask(data, data.partition(b" ")[0].decode())
            assert answer.status == 403, what
            assert b"Heliotrope" not in answer.body, what
            assert b"--allow-origin" in answer.body or b"--answer-to" in answer.body, what
            assert "access-control-allow-origin" not in answer.headers, what
        assert p.requests == []
        assert not rig.proxy.engine.sessions.open_sessions, "a page opened a session"
        if mode is Mode.REPLAY:
            with rig.client() as c:
                found = [c.ask(chat(SECRET_TEXT)).json["choices"][0]["message"]["content"] for _ in "12"]
                assert found == ["one", "two"]
    assert len(recorded(store)) == 2
    assert all(outcome.decision is Decision.REFUSE for outcome in rig.outcomes[: len(PAGES) * len(ASKED)])


@pytest.mark.parametrize("path", ["gemini", "anthropic", "openai"])
def test_the_refusal_speaks_the_providers_language(tmp_path: Path, path: str) -> None:
    """A developer whose own page is refused reads it in the SDK's exception."""
    target = {"gemini": "/v1beta/models/g:generateContent", "anthropic": "/v1/messages", "openai": CHAT}[path]
    with Rig("replay", tmp_path / "x.db") as rig, rig.client() as c:
        said = c.ask(request(b"{}", f"/{path}{target}", origin="http://localhost:5173")).json
    shape = {"gemini": ("code", "message", "status"), "anthropic": ("type", "message"), "openai": ("message", "type")}
    assert set(shape[path]) <= set(said["error"])
    assert "--allow-origin 'http://localhost:5173'" in said["error"]["message"]


@pytest.mark.parametrize(
    "host",
    ["", "127.0.0.1", "127.0.0.1:9999", "localhost:1", "LOCALHOST", "localhost.", "[::1]:8080", "192.168.1.7:80", "app.localhost",
     "host.docker.internal:8080", "host.containers.internal", "proxy.lan", "PROXY.lan:8080"],
)  # fmt: skip
def test_clients_that_name_us_are_served(tmp_path: Path, host: str) -> None:
    """Loopback names, addresses, a container's name for its host, and what --answer-to adds."""
    store = tape(tmp_path / "x.db", ("default", "hi", "one"))
    with Rig("replay", store, answer_to=("proxy.lan",)) as rig, rig.client() as c:
        answers = [c.ask(request(body_of("hi"), host=host)) for _ in range(3)]  # the second by the short way
    assert [answer.status for answer in answers] == [200, 200, 200]


def test_a_port_for_others_takes_any_name(tmp_path: Path) -> None:
    """Bound beyond loopback a proxy is known by names that it cannot know, but pages stay out."""
    with Rig("replay", tape(tmp_path / "x.db", ("default", "hi", "one")), host="0.0.0.0") as rig, rig.client() as c:
        assert c.ask(request(body_of("hi"), host="llmproxy:8080")).status == 200
        assert c.ask(request(body_of("hi"), host="llmproxy:8080", origin="http://llmproxy:8080")).status == 403


ALLOWED = ("http://localhost:5173", "null", "vscode-webview://*", "https://*.example.org")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [("http://localhost:5173", True), ("null", True), ("vscode-webview://1f2e", True), ("https://app.example.org", True),
     ("http://localhost:51733", False), ("http://app.example.org", False), ("https://app.example.org.evil.com", False), ("https://example.org", False)],
)  # fmt: skip
def test_allowed_pages_are_served_and_may_read_the_answer(tmp_path: Path, origin: str, *, allowed: bool) -> None:
    """--allow-origin: preflight, hit, miss and recorded answer all say that the page may read them; other pages stay out."""
    store = tape(tmp_path / "x.db", ("default", "hi", "one"))
    with Provider(ENDLESS) as p:
        with Rig("auto", store, {"openai": p.url}, allow_origin=ALLOWED) as rig, rig.client() as c:
            ask = {
                "access_control_request_method": "POST",
                "access_control_request_headers": "authorization,x-stainless-os",
            }
            before = c.ask(request(b"", CHAT, "OPTIONS", origin=origin, **ask))
            hit = c.ask(chat("hi", headers={"origin": origin}))
            new = c.ask(chat("new", headers={"origin": origin, "sec-fetch-site": "cross-site"}))
        with Rig("replay", store, allow_origin=ALLOWED) as rig, rig.client() as c:
            missed = c.ask(chat("never", headers={"origin": origin}))
        assert len(p.requests) == (1 if allowed else 0)
    assert [before.status, hit.status, new.status, missed.status] == ([200, 200, 200, 404] if allowed else [403] * 4)
    for answer in (before, hit, new, missed):
        assert answer.headers.get("access-control-allow-origin") == (origin if allowed else None)
    if allowed:
        assert before.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        assert before.headers["access-control-allow-methods"] == "POST"


def test_our_own_page_may_ask(tmp_path: Path) -> None:
    """An Origin that is the very place asked for: what a browser sends with a POST of a page of ours."""
    with Rig("replay", tape(tmp_path / "x.db", ("default", "hi", "one"))) as rig, rig.client() as c:
        own = {
            "host": f"localhost:{rig.port}", "origin": f"http://localhost:{rig.port}", "sec-fetch-site": "same-origin",
        }  # fmt: skip
        assert c.ask(chat("hi", headers=own)).status == 200


def absolute(c_target: str, **headers: str) -> bytes:
    return request(b"", c_target, "GET", **({"host": "internal.corp"} | headers))


def forwarded(rig: Rig, data: bytes) -> Received:
    with rig.client() as c:
        return c.ask(data, "GET")


@pytest.mark.parametrize("mode", [*Mode])
def test_absolute_form_to_other_hosts_needs_forward(tmp_path: Path, mode: Mode) -> None:
    """Without --forward this is no proxy into somebody's network, in no mode; with it, only for those who are no pages."""
    with Provider(ENDLESS) as p:
        target = f"http://127.0.0.1:{p.port}{CHAT}"
        with Rig(mode, tmp_path / "a.db", allow_host=("127.0.0.1",)) as rig:
            answer = forwarded(rig, absolute(target))
            assert (answer.status, "--forward" in answer.message) == (403, True)
            assert forwarded(rig, absolute(target, origin="https://evil.example")).status == 403
        assert p.requests == []
        with Rig(mode, tmp_path / "b.db", allow_host=("127.0.0.1",), forward=True) as rig:
            assert forwarded(rig, absolute(target, origin="https://evil.example")).status == 403
            assert p.requests == []
            assert forwarded(rig, absolute(target)).status == 200
            assert forwarded(rig, absolute(target, origin=f"http://127.0.0.1:{p.port}")).status == 200
        assert len(p.requests) == 2


def test_a_refused_page_leaves_a_keep_alive_connection_usable(tmp_path: Path) -> None:
    """A refusal is an answer: what follows on the connection is framed and served as ever, and a stranger in the middle uses up nothing."""
    store = tape(tmp_path / "x.db", ("default", "hi", "one"), ("default", "hi", "two"))
    with Rig("replay", store) as rig, rig.client() as c:
        c.send(chat("hi") + chat("hi", headers={"origin": "https://evil.example"}) + chat("hi"))
        one, refused, two = (c.response() for _ in range(3))
    said = [each.json["choices"][0]["message"]["content"] for each in (one, two)]
    assert (said, refused.status) == (["one", "two"], 403)
