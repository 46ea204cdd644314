"""A whole journey by the keyboard alone: live, a miss and why, two recordings, a verdict labelled, a file shared. Each stop is seen and has a name."""

from __future__ import annotations

import shlex
from pathlib import Path

from llmproxy.cli import main
from llmproxy.report import json_report
from llmproxy.scenario.lab.human_labels import read_human_labels
from tests.support.browser import Browser, Page
from tests.support.chats import chat, fill
from tests.support.proxy import proxy
from tests.ui import samples
from tests.ui.test_live_journeys import LONG, ask
from tests.ui.test_report_journeys import QUOTED, served, story

STOP = """(() => {
  const at = document.activeElement;
  if (!at || at === document.body) return null;
  const style = getComputedStyle(at);
  const name = at.ariaLabel || [...(at.labels || [])].map((each) => each.innerText).join(" ") || at.innerText || at.title || "";
  const box = at.getBoundingClientRect();
  return { tag: at.tagName, name: name.trim(), seen: at.matches(":focus-visible") && (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 || style.boxShadow !== "none"), inside: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight };
})()"""
MOST = 60


def tab_to(page: Page, wanted: str, tag: str = "") -> None:
    """Go on with Tab until the focus is on what is called so; each stop on the way is visible, in sight, and has a name."""
    seen = []
    for _ in range(MOST):
        page.press("Tab")
        stop = page.js(STOP)
        if stop is None:  # past the last one: the browser's own frame, then from the beginning
            continue
        assert stop["name"], stop
        assert stop["seen"], f"the focus does not show: {stop}"
        assert stop["inside"], f"the focus is out of sight: {stop}"
        seen.append(stop["name"])
        if wanted in stop["name"] and tag.upper() in ("", stop["tag"]):
            return
    raise AssertionError(f"{wanted!r} is not reached by Tab: {seen}")


def test_a_journey_by_the_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    """No mouse and no script: what is pressed is what a person presses."""
    store = samples.store(tmp_path / "x.db")
    fill(store, chat(LONG, "It is wide."))
    with proxy("replay", store) as px:
        page = browser.open(f"{px.url}/", 1400, 900, dark=True)
        assert ask(px, LONG) == 200
        page.see("It is wide.", ".row .answered")  # follows
        assert ask(px, LONG + "And of ships.") == 404
        page.see("miss", ".row")
        page.press("m")
        page.see("And of ships.", ".miss ins")  # why
        tab_to(page, "copy")
        page.press("Enter")
        page.press("Escape")
        page.see("Sessions", "main")
        page.press("p")
        page.see("go on", "button")
        page.press("p")
        tab_to(page, "recordings", "a")
        page.press("Enter")
        page.see("recordings", ".home")
        tab_to(page, "forked", "a")
        page.press("Enter")
        page.see("5 calls", ".head")
        for _ in range(2):
            page.press("j")
        page.see("call #7", ".facts h2")
        page.press("2")
        page.see("Since #", ".panel")
        typed = compared_and_shared(page)
        assert page.errors() == []
        page.close()
    page = browser.open(share(typed, tmp_path).as_uri(), offline=True)
    page.see("all 14 tests pass", ".step.answer")
    tab_to(page, "5 calls")
    page.press("End")
    page.see("call #10", ".facts h2")
    page.press("Enter")
    assert page.js("document.activeElement.className") == "right"
    tab_to(page, "Conversation")
    page.press("ArrowRight")
    page.see("Since #", ".panel")
    assert {each for each in page.requests() if each.startswith("http")} == set()
    page.close()


def compared_and_shared(page: Page) -> str:
    """Go on to two recordings beside each other and back; returns the command that makes a file of one."""
    page.press("Escape")
    tab_to(page, "compare with", "select")
    tab_to(page, "side by side")
    page.press(" ")
    page.see("3 differences", ".head")
    page.wait("document.activeElement.matches('.pair.differs.chosen')")
    page.press("j")
    page.see("2 of 3", ".head")
    page.press("Escape")
    page.see("use this recording", ".steps")
    tab_to(page, "use this recording")
    page.press("Enter")
    page.see("llmproxy export forked.html", ".command")
    typed = page.js(
        "[...document.querySelectorAll('.command pre')].find((each) => each.innerText.includes('export')).innerText"
    )
    return str(typed)


def share(typed: str, folder: Path) -> Path:
    _, *words = shlex.split(typed)
    place = words.index("forked.html")
    words[place] = str(folder / "forked.html")
    assert main(words) == 0
    return folder / "forked.html"


def test_a_verdict_is_labelled_by_the_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    """From the failure that stands first to its reason, the judge's finding, what a person says of it, and the call."""
    recordings = samples.store(tmp_path / "x.db")
    file, labels = tmp_path / "report.json", tmp_path / "labels.jsonl"
    file.write_text(json_report.render_json_report(story()), "utf-8")
    with served(file, recordings, labels) as url:
        page = browser.open(url, 400, 800)
        page.see("wrong", ".facts h2")
        page.press("Escape")
        page.see("need a look", ".scenario, main")
        page.press("/")
        page.type("lies")
        page.wait("document.querySelectorAll('.scenario').length === 1")
        tab_to(page, "on calls", "button")
        page.press("Enter")
        page.see(QUOTED, "mark")
        tab_to(page, "passed", "button")
        page.press("Enter")
        page.see("you say", ".label")
        tab_to(page, "#1", "button")
        page.press("Enter")
        page.see("call #1", ".facts h2")
        assert page.errors() == []
        page.close()
    (labelled,) = read_human_labels(labels)
    assert labelled.labels == {"It says that the tests pass": "passed"}
