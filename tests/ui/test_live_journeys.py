"""Journeys at a real proxy's port in a real browser: follow it live, read a miss; and what a recorded page may do there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from llmproxy.core.keys.normalize import build_key, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.interaction import Chunk, Request as Asked, Response
from llmproxy.protocol import LAST_REPORT
from llmproxy.report.events import Completed, Finished, Selected, Started, Status
from llmproxy.report.json_report import JsonLinesReport
from tests.support.browser import Browser
from tests.support.chats import NOW, chat, fill
from tests.support.proxy import DIRECT, Proxy, ask_chat, near, proxy
from tests.support.services import QuietHandler, serving
from tests.ui.samples import EVIL

LONG = "Tell me of the sea. " * 30
RECORDED_PAGE = b"""<html><head><title>recorded</title></head><body><script>
document.title = 'ran'; fetch('/_llmproxy/sessions').then((answer) => { document.title = 'read ' + answer.status; });
</script>a page that somebody recorded</body></html>"""


@pytest.fixture(scope="module")
def px(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    store = tmp_path_factory.mktemp("live") / "x.db"
    fill(store, chat(LONG, "It is wide."), chat("hi", EVIL, cassette="second"))
    with proxy("replay", store) as running:
        yield running


@contextmanager
def upstream() -> Iterator[str]:
    """Serve a page to whoever asks, as a provider never does; yields where."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - as the library names it
            self.answer(RECORDED_PAGE, "text/html")

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


def ask(px: Proxy, text: str, session: str = "") -> int:
    return ask_chat(f"{px.session_url(session) if session else px.url}/v1", text)


def test_a_run_is_followed_and_a_miss_is_read(browser: Browser, px: Proxy) -> None:
    """A browser at the proxy's address sees each call as it comes; a miss opens as words that differ, with what to type."""
    page = browser.open(px.url)
    page.see("live", "h1")
    page.see("Nothing has been asked yet")
    assert page.js("location.pathname") == "/_llmproxy/ui/"
    assert ask(px, LONG) == 200
    page.see("It is wide.", ".row .answered")
    assert ask(px, LONG + "And of ships.") == 404
    assert ask(px, "hi", "second") == 200
    page.see("<script>", ".row .answered")
    page.press("m")
    page.see("And of ships.", ".miss ins")
    page.see("llmproxy start --mode auto", ".miss .command")
    assert page.text(".change ins").strip() == "And of ships."
    page.press("Escape")
    page.see("second", ".sessions table")
    with DIRECT.open(f"{px.url}/_llmproxy/ui/data/live?after=0", timeout=10) as answer:
        (key,) = [row["key"] for row in json.load(answer)["rows"] if row["what"] == "miss"]
    page.js(f"location.hash = '#/live/{key[3:15]}'")
    page.see("And of ships.", ".miss ins")
    page.press("Escape")
    page.see("second", ".sessions table")
    page.press("p")
    assert ask(px, "while nobody looks") == 404
    page.see("go on (1 more)", "button")
    assert "while nobody looks" not in page.text(".left")
    page.press("p")
    page.see("while nobody looks", ".row")
    page.click("label", "side by side")
    page.see("second", ".column h2")
    page.click(".row", "It is wide.")
    page.see("It is wide.", ".message.assistant")
    page.click("button", "in its recording")
    page.see("default", ".head h1")
    errors = [each for each in page.errors() if "favicon" not in each]
    assert errors == []
    page.close()


def test_the_test_that_runs_is_told_live(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its calls: how far `llmproxy test` in this folder is, what failed, and the way to it; gone when it is over."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / LAST_REPORT).parent.mkdir()
    writer = JsonLinesReport(tmp_path / LAST_REPORT)
    with near("replay", tmp_path / "x.db") as px:
        page = browser.open(f"{px.url}/")
        page.see("None has begun", ".sessions")
        writer.handle(Selected(title="tasks", scenarios=2, runs=2, at=NOW))
        page.see("0 of 2 runs ended", ".live [role=status]")
        writer.handle(Started(run_id="one-1", scenario="one", name="one"))
        writer.handle(Finished(run_id="one-1", scenario="one", status=Status.FAILED))
        page.see("1 of 2 runs ended, 1 not passed", ".live [role=status]")
        page.click(".live button", "what it found so far")
        page.see("one", ".scenario")
        writer.handle(Completed(exit_code=1, seconds=3.0))
        writer.close()
        page.see("exit code 1", ".head")
        page.js("location.hash = '#/live'")
        page.see("None has begun", ".sessions")
        assert page.js("document.querySelectorAll('progress').length") == 0
        page.close()


@pytest.mark.parametrize(("width", "sideways"), [(400, False), (900, True)])
def test_a_narrow_column_has_model_time_and_cost(browser: Browser, tmp_path: Path, width: int, sideways: bool) -> None:
    """A telephone, or sessions side by side: no row lies over the next, nor is wider than its column."""
    said = [chat(LONG, "It is wide.", cassette=f"a-session-with-a-long-name-{n}") for n in range(2)]
    fill(tmp_path / "x.db", *said)
    with proxy("replay", tmp_path / "x.db") as px:
        page = browser.open(px.url, width)
        page.see("Nothing has been asked yet")
        for each in said:
            assert ask(px, LONG, each.cassette) == 200
        page.see("It is wide.", ".row .answered")
        if sideways:
            page.click("label", "side by side")
            page.see("a-session", ".column h2")
        page.wait("document.querySelectorAll('.one .first').length === 4")
        found = page.js("[...document.querySelectorAll('.one .model')].map((each) => each.innerText)")
        assert found == ["gpt-4o openai"] * 2
        ends = page.js("[...document.querySelectorAll('.one .end')].map((each) => each.innerText)")
        assert [bool(re.fullmatch(r"11→2 [\d.]+ m?s \$0\.000048", each)) for each in ends] == [True] * 2, ends
        fits = "[...document.querySelectorAll('.row')].every((each) => each.scrollHeight <= each.clientHeight && each.firstElementChild.scrollWidth <= each.clientWidth)"
        assert page.js(fits)
        page.close()


def test_a_recorded_page_is_nobody_s(browser: Browser, tmp_path: Path) -> None:
    """A browser shows it without its scripts: on our port they would be our own page's equals."""
    with upstream() as url, proxy("auto", tmp_path / "x.db", upstreams={"openai": url}) as px:
        page = browser.open(f"{px.url}/v1/page")
        page.see("a page that somebody recorded")
        assert page.js("document.title") == "recorded"
        page.close()


@pytest.mark.slow
def test_a_replayed_page_is_nobody_s_either(tmp_path: Path) -> None:
    """Replayed, it says so itself to a browser that shows it; for everybody else it is as it was recorded."""
    asked = Asked("GET", "/v1/models", (), b"")
    key = build_key(canonicalize_request(asked, route(asked.target, (), {}), Rules(), lambda _: None))
    shown = Response(200, "OK", (("content-type", "text/html"),), (Chunk(0, RECORDED_PAGE),))
    fill(tmp_path / "x.db", replace(chat(), request=asked, response=shown, key=key, operation="models", model=None))
    with proxy("replay", tmp_path / "x.db") as px:
        for dest, policy in (("document", "sandbox"), ("iframe", "sandbox"), ("empty", None), ("", None)) * 2:
            headers = {"sec-fetch-dest": dest, "sec-fetch-site": "none"} if dest else {}
            with DIRECT.open(Request(f"{px.url}/v1/models", headers=headers), timeout=5) as answer:
                assert (answer.headers["content-security-policy"], answer.read()) == (policy, RECORDED_PAGE)


def test_a_page_of_another_place_reads_nothing(browser: Browser, px: Proxy, tmp_path: Path) -> None:
    """Neither by fetch nor in a frame, nor with a link to the page."""
    other = tmp_path / "other.html"
    other.write_text(f"<iframe src='{px.url}/_llmproxy/ui/'></iframe><a href='{px.url}/_llmproxy/ui/'>go</a>")
    page = browser.open(other.as_uri())
    for path in ("sessions", "ui/data/live", "ui/"):
        told = page.js(
            f"fetch({json.dumps(f'{px.url}/_llmproxy/{path}')}).then((answer) => answer.text(), () => 'refused')"
        )
        assert told == "refused"
    page.close()
    for site in ("cross-site", "same-site"):
        with pytest.raises(HTTPError, match="403"):
            DIRECT.open(
                Request(f"{px.url}/_llmproxy/ui/", headers={"sec-fetch-site": site, "sec-fetch-dest": "document"})
            )


@pytest.mark.slow
def test_the_root_stays_a_program_s(px: Proxy) -> None:
    """Who is no browser gets what an unknown path gets."""
    with pytest.raises(HTTPError) as told:
        DIRECT.open(f"{px.url}/", timeout=5)
    assert json.loads(told.value.read())["error"]
