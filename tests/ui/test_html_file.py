"""One file that holds everything the page asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.core.store.store import Store
from llmproxy.ui.html_file import build_viewer_page_data, find_cassettes_by_name_and_sample
from llmproxy.ui.queries import answer_viewer_query
from tests.support.browser import Browser
from tests.support.chats import run
from tests.support.recordings import reopened
from tests.ui import samples


def test_a_message_stands_once(store: Store) -> None:
    """However often it is sent again; and a request is what it adds."""
    data = build_viewer_page_data(store, list(find_cassettes_by_name_and_sample(store, "agent", None)), "agent")
    assert sum("The sum in calc.py" in each["text"] for each in data["messages"]) == 1
    assert [("of" in each["request"]) for each in data["bodies"].values()] == [False, True, True, False, True]


def test_rows_are_those_of_the_store(store: Store) -> None:
    """A file and the server say the same of a call."""
    for name in ("agent", "picture", "hostile"):
        data = build_viewer_page_data(store, list(find_cassettes_by_name_and_sample(store, name, None)), name)
        assert data["cassettes"][0]["rows"] == answer_viewer_query(store, "calls", {"cassette": name})["rows"]


def test_who_recorded_it_is_not_in_the_file(tmp_path: Path) -> None:
    """What names a person has a stand-in, in bodies, texts and rows alike."""
    with reopened(samples.store(tmp_path / "x.db", samples.personal())) as store:
        data = build_viewer_page_data(store, list(find_cassettes_by_name_and_sample(store, None, None)), "x")
    assert "gertrude" not in json.dumps(data)
    assert "/home/user/notes.txt" in data["cassettes"][0]["rows"][0]["asked"]


@pytest.mark.parametrize("width", [1400, 400])
def test_the_file_is_read_offline(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    """Opened from the disk without a network: the same views with the same bytes, and not one request."""
    path = samples.store(tmp_path / "x.db")
    file = tmp_path / "out" / "agent.html"
    code, said = run(capsys, path, "export", str(file), "--cassette", "agent")
    assert (code, "it makes no network requests" in said) == (0, True)
    page = browser.open(file.as_uri(), width, 800, offline=True)
    page.see("all 14 tests pass", ".step.answer")
    page.click(".step .to", "#3")
    page.see("14 passed in 0.3 s", ".toolcall .result")
    with reopened(path) as store:
        for id_ in (1, 2, 3, 5):
            page.js(f"location.hash = '#/c/agent/{id_}/bytes'")
            page.see(f"call #{id_}", ".facts h2")
            page.wait("document.querySelector('.panel .text')")
            page.js("(() => { let more; while ((more = document.querySelector('.panel .more'))) more.click(); })()")
            body = store.load(id_).request.body.decode()
            page.wait(f"document.querySelector('.panel .text').textContent.startsWith({json.dumps(body[:3000])})")
    assert page.requests() == [file.as_uri()]
    assert page.errors() == []
    page.close()


def test_a_hostile_file_stays_text(browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and texts that close the script, or want to be one."""
    path = samples.store(tmp_path / "x.db")
    file = tmp_path / "all.html"
    assert run(capsys, path, "export", str(file), "--all")[0] == 0
    page = browser.open(file.as_uri(), offline=True)
    page.see("4 recordings")
    for at in ("", "/13", "/13/changed", "/13/bytes", "/13/use"):
        page.js(f"location.hash = '#/c/hostile{at}'")
        page.see("hostile", ".head")
        page.wait("!document.querySelector('.pad')")
        assert page.js("document.querySelectorAll('#app script, #app img').length") == 0
    assert page.js("document.title") == "hostile · llmproxy"
    assert page.requests() == [file.as_uri()]
    page.close()


def test_another_s_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours is; anybody else's only with --force."""
    path = samples.store(tmp_path / "x.db")
    file = tmp_path / "index.html"
    file.write_text("<h1>mine</h1>")
    code, said = run(capsys, path, "export", str(file), "--all")
    assert (code, "Not overwritten" in said) == (3, True)
    assert file.read_text() == "<h1>mine</h1>"
    assert run(capsys, path, "export", str(file), "--all", "--force")[0] == 0
    assert run(capsys, path, "export", str(file), "--cassette", "agent")[0] == 0
    code, said = run(capsys, path, "export", str(file), "--cassette", "nothing")
    assert (code, "there is no cassette nothing" in said) == (3, True)
