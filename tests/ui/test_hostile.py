"""Recordings that want to be more than text, in a real browser: served, and as one file. Requests are counted as the browser sends them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.ui.html_file import build_viewer_page_data, find_cassettes_by_name_and_sample
from llmproxy.ui.page import render_viewer_page
from tests.support.browser import Browser, Page
from tests.support.chats import chat, fill
from tests.support.proxy import DIRECT, proxy
from tests.ui import hostile, samples
from tests.ui.conftest import viewing

TABS = ("said", "changed", "time", "bytes", "use")
LOOK = r"""
() => {
  const UNSEEN = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]/;
  const DATA = /^data:(image\/(png|jpeg|gif|webp)|audio\/)/;
  const app = document.getElementById("app");
  const active = [
    ...app.querySelectorAll("script, iframe, object, embed, link, style, base, form, meta, video, source, foreignObject"),
    ...[...app.querySelectorAll("[src]")].filter((each) => !each.matches("img, audio") || !DATA.test(each.getAttribute("src"))),
    ...[...app.querySelectorAll("[href], [action]")].filter((each) => !each.matches("a") || !each.getAttribute("href").startsWith("#")),
    ...[...app.querySelectorAll("*")].filter((each) => each.getAttributeNames().some((name) => /^on|^srcdoc$/.test(name))),
  ].map((each) => each.outerHTML.slice(0, 200));
  if (app.querySelector(".failure")) active.push(app.querySelector(".failure").innerText);
  if (window.owned || document.title === "owned") active.push("something ran");
  if (UNSEEN.test(document.body.innerText)) active.push(`unseen: ${JSON.stringify(document.body.innerText.match(UNSEEN)[0])}`);
  return active;
}
"""
"""What is more than text, on the page as it is."""
WALK = r"""
async (places, look) => {
  const app = document.getElementById("app");
  const frame = () => new Promise(requestAnimationFrame);
  const found = {};
  for (const [at, ready] of places) {
    const moved = new Promise((done) => addEventListener("hashchange", done, { once: true }));
    location.hash = at;
    await moved;
    await frame();
    for (let n = 0; n < 3000 && (app.querySelector(".pad, .late") || !app.querySelector(ready)); n++) await new Promise((done) => setTimeout(done, 5));
    await frame();
    app.querySelectorAll("details:not([open])").forEach((each) => { each.open = true; });
    await frame();
    await frame();
    const problems = look();
    if (!app.querySelector(ready)) problems.push(`not there: ${ready}: ${document.body.innerText.slice(0, 300)}`);
    if (problems.length) found[at] = problems;
  }
  return found;
}
"""
IN_SIGHT = """
[...document.querySelectorAll(".row .end")].filter((each) => each.getBoundingClientRect().right > each.closest(".row").getBoundingClientRect().right)
  .map((each) => each.innerText)
"""
"""What became of a call, where it stands outside of its row."""
PASTED = ("\x1b", "\x00", "\x9b", "\u202e")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples.store(tmp_path_factory.mktemp("hostile") / "x.db", *hostile.interactions())


def places(path: Path, tabs: Sequence[str] = TABS) -> list[tuple[str, str]]:
    """Return each view of each call, and the others, with what is there when it is shown."""
    with SqliteCassetteStore.open(path, writable=False, now=lambda: samples.NOW) as opened:
        rows = [row for info in opened.cassettes() for row in opened.list_summaries(info.name, info.sample)]
    names = list(dict.fromkeys(quote(row.cassette, safe="") for row in rows))
    calls = [
        (f"#/c/{quote(row.cassette, safe='')}/{row.id}/{tab}", f"#panel[aria-labelledby=tab-{tab}]")
        for row in rows
        for tab in tabs
    ]
    return [
        *calls,
        ("#/home", ".home"),
        *((f"#/c/{name}", ".steps") for name in names),
        (f"#/d/{'/'.join(names)}", ".compare"),
    ]


def walk(page: Page, path: Path, tabs: Sequence[str] = TABS) -> Any:
    """Return what is more than text, by the views in which it is."""
    return page.js(f"({WALK})({json.dumps(places(path, tabs))}, {LOOK})")


def test_served_it_stays_text(browser: Browser, store: Path) -> None:
    """Every view of every call; the browser asks nobody but us, and what is copied moves no terminal."""
    with viewing(store) as url:
        page = browser.open(url)
        page.see("recording", "main")
        assert walk(page, store) == {}
        own = page.js("location.origin")
        assert {each for each in page.requests() if not each.startswith((own + "/", "data:", "about:"))} == set()
        assert page.errors() == []
        page.js("location.hash = '#/c/nothing%E0%A4%A/1'")
        page.see("recordings", ".home")
        page.close()


def test_a_command_that_is_pasted_is_one_command(browser: Browser, store: Path, tmp_path: Path) -> None:
    """No line of a recorded body ends it early, and nothing in it ends the pasting."""
    with viewing(store) as url:
        page = browser.open(url)
        page.see("recording", "main")
        with SqliteCassetteStore.open(store, writable=False, now=lambda: samples.NOW) as opened:
            (shell,) = [row.id for row in opened.list_summaries("agent") if row.answer_text == "paste me"]
        page.js("navigator.clipboard.writeText = async (text) => { window.pasted = text; }")
        page.js(f"location.hash = '#/c/agent/{shell}/use'")
        page.see("curl ", ".command pre")
        text = ""
        for n in range(page.js("document.querySelectorAll('.copy').length")):
            page.js(f"document.querySelectorAll('.copy')[{n}].click()")
            text = page.js("window.pasted")
            assert not [each for each in PASTED if each in text]
        page.close()
    (tmp_path / "curl").write_text("#!/bin/sh\ncat > asked\n")
    (tmp_path / "curl").chmod(0o755)
    subprocess.run(
        ["/bin/sh", "-c", text], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, timeout=60
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["asked", "curl"]
    assert (tmp_path / "asked").read_text() == hostile.SHELL.decode().replace("\x1b", "\\u001b") + "\n"


@pytest.mark.slow
def test_in_a_file_it_stays_text(browser: Browser, store: Path, tmp_path: Path) -> None:
    """The same from the disk, with a network that would answer: not one request."""
    with SqliteCassetteStore.open(store, writable=False, now=lambda: samples.NOW) as opened:
        file = tmp_path / "shared.html"
        file.write_text(
            render_viewer_page(
                build_viewer_page_data(
                    opened, list(find_cassettes_by_name_and_sample(opened, None, None)), hostile.EVIL
                )
            ),
            "utf-8",
        )
    page = browser.open(file.as_uri())
    page.see("recording", "main")
    assert walk(page, store, ("said", "bytes")) == {}
    assert {each for each in page.requests() if each.startswith("http")} == set()
    assert page.errors() == []
    page.close()


def test_live_it_stays_text(browser: Browser, tmp_path: Path) -> None:
    """At a proxy's port, as it comes: a hit, misses near and far, what is refused, names of a session, a model and a party."""
    fill(tmp_path / "x.db", chat(hostile.EVIL, hostile.EVIL), chat("hi", hostile.EVIL, cassette="<b>two"))
    with proxy("replay", tmp_path / "x.db") as px:
        page = browser.open(px.url)
        page.see("Nothing has been asked yet")
        for text, session, party in (
            (hostile.EVIL, "", ""),
            (f"{hostile.EVIL} and more", "", ""),
            ("of whom?", "", "<i>judge"),
            ("hi", quote("<b>two", safe=""), ""),
            (hostile.MARKUP, quote("<b>three", safe=""), ""),
            ("hi", f"{'of-a-long-name-' * 6}the-end", ""),
        ):
            body = json.loads(chat(text).request.body) | ({} if text != hostile.MARKUP else {"model": hostile.EVIL})
            url = f"{px.url}{f'/s/{session}' if session else ''}/v1/chat/completions"
            headers = {"content-type": "application/json"} | ({"x-llmproxy-party": party} if party else {})
            with (
                suppress(HTTPError),
                DIRECT.open(Request(url, json.dumps(body).encode(), headers), timeout=10) as answer,
            ):
                answer.read()
        page.wait("document.querySelectorAll('.row').length === 6")
        assert page.js(IN_SIGHT) == []
        page.see("the-end", ".row .tail")
        for n, there in enumerate((".message", ".miss ins", ".facts .bad", ".message", ".miss", ".miss")):
            page.js(f"document.querySelectorAll('.row')[{n}].click()")
            page.wait(f"document.querySelector('{there}')")
            page.js("document.querySelectorAll('details:not([open])').forEach((each) => { each.open = true; })")
            assert page.js(f"({LOOK})()") == []
            page.press("Escape")
        page.click("label", "side by side")
        page.see("<b>three", ".column h2")
        assert page.js(f"({LOOK})()") == []
        own = (f"{px.url}/", "data:", "about:")
        assert [each for each in page.requests() if not each.startswith(own)] == []
        assert [each for each in page.errors() if "favicon" not in each] == []
        page.close()
