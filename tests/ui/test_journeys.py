"""Journeys through the viewer in a real browser, asserted on what is shown."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, Page
from tests.support.forked import program
from tests.ui.conftest import fits, viewing
from tests.ui.samples import agent, call, picture, says, store


@pytest.fixture
def page(browser: Browser, viewer: str) -> Iterator[Page]:
    """Open the viewer; whatever is done, the page must not complain."""
    opened = browser.open(viewer)
    yield opened
    assert opened.errors() == []
    opened.close()


def test_a_recording_is_read_from_the_first_screen_to_a_tool_s_result(page: Page) -> None:
    """What was asked, done and answered is seen without a click; a step leads to its call, and that to the next."""
    page.see("The sum in calc.py is wrong", ".cassettes tr")
    page.click(".cassettes a", "agent")
    page.see("The sum in calc.py is wrong", ".step.user")
    page.see("write_file", ".step.tool")
    page.see("all 14 tests pass", ".step.answer")
    page.see("5 calls · 1 failed", ".head")
    page.see("35.2 s", ".strip .pause")
    page.see("The sum in calc.py", ".one.failed .asked")
    page.click(".step .to", "#3")
    page.see("call #3", ".facts h2")
    page.see("asked again after #2 failed", ".facts")
    page.see("14 passed in 0.3 s", ".toolcall .result")
    assert "Rules follow, one a line.\nRules" not in page.text(".right"), "the system prompt is folded"
    page.click(".toolcall .link", "in the next call")
    page.see("call #5", ".facts h2")
    assert "#token" not in page.js("location.href")


def test_recordings_are_a_table_by_file(browser: Browser, tmp_path: Path) -> None:
    """Sorted by a column, found by a word, walked by keys; of tests, each file stands above its own; one alone opens itself."""
    rain, sun = "test_weather.test_rain-0a1b2c3d", "test_weather.test_sun-1a1b2c3d"
    path = store(tmp_path / "x.db", *agent(rain), picture(), *agent(sun)[:1])
    with viewing(path) as url:
        page = browser.open(url)
        page.see("test_weather", ".cassettes .file")
        page.see("test_rain", ".cassettes td a")
        names = "[...document.querySelectorAll('.cassettes td a')].map((each) => each.innerText).join()"
        assert page.js(names) == "picture,test_rain,test_sun"
        page.click("thead button", "calls")
        assert page.js(names) == "picture,test_sun,test_rain"
        page.press("/")
        page.type("calc.py")
        page.wait(f"{names} === 'test_sun,test_rain'")
        page.press("Escape")
        page.press("j")
        page.press("j")
        page.press("Enter")
        page.wait(f"location.hash === '#/c/{sun}'")
        page.close()
    with viewing(store(tmp_path / "one.db", *agent())) as url:
        page = browser.open(url)
        page.see("5 calls", ".head")
        page.close()


def test_time_has_an_axis_and_the_list_is_limited_to_a_tool(page: Page) -> None:
    """Bars say who asked which model; the axis leaves pauses out; of a tool only the calls that called it are listed."""
    page.js("location.hash = '#/c/agent'")
    page.see("40.0 s", ".axis")
    assert page.js("document.querySelector('.strip .span.by-agent').title").startswith(
        "call 1, #1\nagent\nclaude-sonnet"
    )
    page.see("sub-agent", ".fold.inside")
    page.js(
        "(() => { const at = document.querySelector('.tools select'); at.value = 'run_tests'; at.dispatchEvent(new Event('change')); })()"
    )
    page.wait("document.querySelectorAll('.row').length === 1")
    page.see("#3", ".row")


def test_the_user_s_words_stand_without_what_its_client_wrote(browser: Browser, tmp_path: Path) -> None:
    """Reminders of a coding agent are folded in the conversation, and left out of what happened."""
    said = "<system-reminder>\nToday is Friday.\n</system-reminder>\nMend the sum."
    one = call(1, [{"role": "user", "content": said}], says(text="Done."), at=0)
    with viewing(store(tmp_path / "x.db", one)) as url:
        page = browser.open(url)
        page.see("Mend the sum.", ".step.user")
        assert "Friday" not in page.text(".step.user")
        page.click(".step .to", "#1")
        page.see("with what the client wrote around it", ".message summary")
        page.wait(  # it may be drawn anew meanwhile, and is folded then
            "(() => { const one = document.querySelector('.message details'); one.open = true;"
            " return one.innerText.includes('Friday'); })()"
        )
        page.close()


def test_the_keyboard_steps_through(page: Page) -> None:
    """No mouse: the list, the calls, their views, what failed, what is found."""
    page.js("location.hash = '#/c/agent'")
    page.see("5 calls", ".head")
    for _ in range(3):
        page.press("j")
    page.see("call #3", ".facts h2")
    page.press("2")
    page.see("0 new messages", ".panel")
    page.press("k")
    page.see("call #2", ".facts h2")
    page.press("3")
    page.see("last byte", ".times")
    page.press("Escape")
    page.see("asked", ".steps")
    page.press("f")
    page.wait("document.querySelectorAll('.row').length === 1")
    page.press("f")
    page.press("/")
    page.type("sign was the only")
    page.wait("document.querySelectorAll('.row').length === 1")
    page.see("Looks right", ".row")


def test_what_changed_is_shown_word_by_word(page: Page) -> None:
    """A new system prompt, beside what was added to the conversation; a result is of a tool with a name."""
    page.js("location.hash = '#/c/agent/5/changed'")
    page.see("tool result of write_file", ".panel")
    page.js("location.hash = '#/c/hostile/13/changed'")
    page.see("$.system", ".change")
    assert page.text(".change ins").endswith("2")
    assert "\\u202e" in page.text(".panel"), "what is invisible is written out"
    assert page.js("document.title") == "hostile · llmproxy"


def test_two_recordings_stand_side_by_side(page: Page) -> None:
    """From a fork to its parent, which is offered first; the first difference is in sight, and what is equal folded."""
    page.js("location.hash = '#/c/forked'")
    page.see("agent (its parent)", ".head select")
    page.click(".head button", "side by side")
    page.see("3 differences; the first: the tool write_file was called otherwise", ".head")
    assert page.js("location.hash") == "#/d/agent/forked"
    page.wait("document.activeElement.matches('.pair.differs.chosen')")
    assert "return a + b" in page.text(".pair.chosen .side")
    assert page.text(".pair.chosen ins") == "sum(("
    page.see("3 equal steps", ".fold.equal")
    page.click(".pair.chosen .link", "how the requests differ")
    page.see("The requests are equal", ".pair.chosen")
    page.press("j")
    page.see("2 of 3", ".head")
    page.click(".pair.chosen .link", "how the requests differ")
    page.see("$.messages[", ".pair.chosen .change")
    page.press("s")
    page.see("forked and agent", ".head h1")
    page.press("Escape")
    page.wait("location.hash === '#/c/agent'")


def test_bytes_are_those_of_the_recording(page: Page) -> None:
    """Headers, bodies and the chunks' times; and commands that say what they do."""
    page.js("location.hash = '#/c/agent/1/bytes'")
    page.see("message_start", ".panel")
    page.click(".panel summary", "header field")
    page.see("anthropic-version", ".panel")
    page.js("location.hash = '#/c/agent/1/time'")
    page.see("first token", ".times")
    page.wait("document.querySelectorAll('.chunks .tick').length > 5")
    page.js("location.hash = '#/c/agent/1/use'")
    page.see("llmproxy show 1", ".command")
    page.see("curl -N -X POST https://api.anthropic.com/v1/messages", ".command")
    page.see('- chat: "The sum in calc.py', ".command")


def test_pictures_are_shown_and_documents_are_not(page: Page) -> None:
    """A PNG that stands in the recording; SVG is none."""
    page.js("location.hash = '#/c/picture/11'")
    page.wait("document.querySelector('.media img').naturalWidth === 10")
    assert page.js("document.querySelectorAll('.media img').length") == 1


def test_without_the_token_nothing_is_read(browser: Browser, viewer: str) -> None:
    """The page says what to do; no name of a cassette reaches it."""
    opened = browser.open(viewer.partition("#")[0])
    opened.see("Open the address that `llmproxy ui` printed", ".failure")
    assert "agent" not in opened.text()
    opened.close()


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_it_fits(browser: Browser, viewer: str, tmp_path: Path, width: int, dark: bool) -> None:
    """No view is wider than its window, be it a phone's; names are there for who hears instead of seeing."""
    opened = browser.open(viewer, width, 800, dark=dark)
    for at in (
        "",
        "#/c/agent",
        "#/c/agent/5",
        "#/c/agent/5/changed",
        "#/c/agent/3/time",
        "#/c/agent/3/bytes",
        "#/c/agent/5/use",
        "#/d/agent/forked",
    ):
        opened.js(f"location.hash = '{at}'")
        opened.wait("!document.querySelector('.pad') && document.querySelector('main')")
        fits(opened, width, at)
    assert opened.js("getComputedStyle(document.body).backgroundColor") == (
        "rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)"
    )
    opened.close()


def test_the_command_opens_a_store_and_ends_at_once(tmp_path: Path, browser: Browser) -> None:
    """It says one address; with Ctrl-C it is gone."""
    path = store(tmp_path / "x.db")
    command = [*program("llmproxy"), "ui", "agent", "--store", str(path), "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        opened = browser.open(process.stdout.readline().strip())
        opened.see("all 14 tests pass", ".step.answer")
        process.send_signal(2)
        assert process.wait(5) == 0
        opened.close()
