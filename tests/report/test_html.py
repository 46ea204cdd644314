"""The HTML render_html_report: everything is in it, nothing breaks out of it, nothing is loaded."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from llmproxy.report.events import Assertion, Completed, Event, Finished, Selected, Started, Status, Step
from llmproxy.report.html import load_recordings_and_trend, render_html_report
from llmproxy.report.json_report import build_json_report
from llmproxy.report.report_kinds import WholeFileReportWriter, create_report_event_handler
from llmproxy.report.run_console import SuiteConsole
from llmproxy.report.run_tree import EventsGroupedByRun
from llmproxy.report.trend import TrendRecorder
from llmproxy.ui.page import list_viewer_script_sources
from tests.report import samples
from tests.ui import samples as recordings

CHECK = Assertion(name="tools.write_file", status=Status.FAILED, where="interaction 3")


def written_data(text: str) -> Any:
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])


def told(scenario: str, cassette: str, status: Status) -> list[Event]:
    run = f"{scenario}-1"
    step = Step(run_id=run, index=0, kind="chat", status=status, assertions=(CHECK,), interactions=(1, 3))
    return [
        Started(run_id=run, scenario=scenario, name=scenario, cassette=cassette),
        step,
        Finished(run_id=run, scenario=scenario, status=status),
    ]


def story(*runs: list[Event]) -> EventsGroupedByRun:
    return samples.story([*(event for run in runs for event in run), Completed(exit_code=1, seconds=1.0)])


PASSED, FAILED = told("good", "forked", Status.PASSED), told("bad", "agent", Status.FAILED)


def test_calls_of_the_runs_are_in_it_and_of_nobody_else(tmp_path: Path) -> None:
    """Failed runs first; a cassette that no run used stays where it is."""
    found = load_recordings_and_trend(story(PASSED, FAILED), recordings.store(tmp_path / "x.db"))
    assert [each["name"] for each in found["cassettes"]] == ["agent", "forked"]
    assert found["calls"][3]["cassette"] == "agent"
    assert found["left"] == []


def test_what_there_is_no_room_for_is_counted_with_the_command_that_shows_it(tmp_path: Path) -> None:
    """The failed run has the room, the passed one's recording is named."""
    path = recordings.store(tmp_path / "x.db")
    found = load_recordings_and_trend(story(PASSED, FAILED), path, 12_000)
    (kept,) = found["cassettes"]
    assert (kept["name"], kept["live"]) == ("agent", 5)
    assert 0 < len(kept["rows"]) < 5
    assert kept["left"] == 5 - len(kept["rows"])
    assert {row["id"] for row in kept["rows"]} == set(found["calls"]) == {each[0] for each in kept["strip"]}
    assert found["left"] == [
        {"told": f"{kept['left']} of 5 calls of agent: there was no room for them.", "command": f"llmproxy ui agent --store {path}"},
        {"told": "1 recording (forked): there was no room for them.", "command": f"llmproxy ui --store {path}"},
    ]  # fmt: skip


def test_one_call_that_would_fill_it_leaves_room_for_the_others(tmp_path: Path) -> None:
    """It is left out, and what came after it is there."""
    large = recordings.call(1, [{"role": "user", "content": "word " * 20_000}], recordings.says(text="Read."), at=0)
    small = recordings.call(2, [{"role": "user", "content": "And?"}], recordings.says(text="Nothing."), at=9)
    found = load_recordings_and_trend(story(FAILED), recordings.store(tmp_path / "x.db", large, small), 100_000)
    assert [row["asked"] for row in found["cassettes"][0]["rows"]] == ["And?"]
    assert found["cassettes"][0]["left"] == 1


def test_a_key_of_the_environment_is_not_in_the_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in what was asked nor in the answer, whose stream splits it."""
    monkeypatch.setenv("MYAPI_KEY", key := "MYSECRETVALUE123")
    call = recordings.call(
        1, [{"role": "user", "content": f"Is it {key}?"}], recordings.says(text=f"It is {key}."), at=0
    )
    text = render_html_report(story(FAILED), recordings.store(tmp_path / "x.db", call))
    assert written_data(text)["calls"]
    assert key not in text + json.dumps(written_data(text))


@pytest.mark.parametrize("content", [None, b"no database at all, and longer than its head" * 40])
def test_a_report_is_not_lost_to_a_store(tmp_path: Path, content: bytes | None) -> None:
    """One that is not there says nothing, one that is damaged says so in the report."""
    path = tmp_path / "x.db"
    if content is not None:
        path.write_bytes(content)
    found = load_recordings_and_trend(story(FAILED), path)
    assert [each["told"].startswith("The recordings are not in this file") for each in found.get("left", ())] == (
        [] if content is None else [True]
    )
    assert "cassettes" not in found


def test_the_handler_asks_for_the_store_when_all_is_over(tmp_path: Path) -> None:
    """Not before a test ended, and with the tests before it; nobody's home is in the file."""
    path, file = tmp_path / "x.db", tmp_path / "report.html"
    asked: list[int] = []

    def store() -> Path:
        asked.append(len(asked))
        return path

    handler = create_report_event_handler(f"html={file}", store)
    assert asked == []
    recordings.store(path, recordings.personal())
    for at, status in ((60.0, "passed"), (120.0, "failed")):
        kept = TrendRecorder(tmp_path / "x.db.state.db", lambda why: pytest.fail(str(why)))
        kept.handle(Selected(title="t", scenarios=1, runs=1, at=at))
        rows = [{"scenario": "bad", "status": status, "runs": 1, "passed": 0}]
        kept.handle(Completed(exit_code=1, seconds=1.0, scenarios=rows))
    samples.feed(handler, [*told("bad", "personal", Status.FAILED), Completed(exit_code=1, seconds=1.0)])
    text = file.read_text("utf-8")
    data = written_data(text)
    assert asked == [0]
    assert [test["statuses"] for test in data["report"]["trend"]] == [{"bad": "passed"}, {"bad": "failed"}]
    assert data["recordings"]
    assert "gertrude" not in text


VOID = {"meta", "br", "hr", "img", "input", "link"}
OPTIONAL = {"tr", "td", "th", "dt", "dd", "tbody", "thead", "li", "p"}


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags, self.attributes = [], []  # type: tuple[list[str], list[tuple[str, str | None]]]
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID | OPTIONAL:
            assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_every_message_criterion_and_check_is_on_the_page(tmp_path: Path) -> None:
    """Its data is the JSON report; the file is written at the end."""
    out = tmp_path / "x" / "report.html"
    samples.feed(WholeFileReportWriter(out, render_html_report))
    report = written_data(out.read_text("utf-8"))["report"]
    assert report == json.loads(json.dumps(build_json_report(samples.story()))) | {"trend": [], "left": []}


def test_what_an_agent_says_cannot_become_markup() -> None:
    """A script in an answer stays text, nothing is loaded, and the page's own policy runs nothing but the viewer's scripts."""
    text = render_html_report(samples.story())
    reader = read(text)
    assert "<script>alert('x')</script>" in json.dumps(written_data(text))
    assert reader.tags.count("script") == len(list_viewer_script_sources()) + 1
    assert set(reader.tags) <= {
        "html", "head", "meta", "title", "style", "body", "div", "noscript", "p", "script",
    }  # fmt: skip
    assert not [value for name, value in reader.attributes if name in ("src", "href")]
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in text
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    named = " ".join(map(digest, list_viewer_script_sources()))
    assert found[1] == (
        f"default-src 'none'; script-src {named}; style-src {digest(style)}; img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )
    assert text.count("<style") == 1


def digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def test_what_an_agent_says_cannot_drive_a_terminal_or_turn_text_round() -> None:
    """A render_html_report is also read with `less`, and a name that reads backwards lies: such characters are written as their numbers."""
    story = samples.story()
    controls = map(chr, [*range(9), *range(0x0B, 0x0D), *range(0x0E, 0x20), *range(0x7F, 0xA0)])
    unseen = [*controls, "\u202e", "\u2066", "\ud800"]
    story.completed = Completed(exit_code=1, seconds=1, notes=(f"<{''.join(unseen)}>",))
    text = render_html_report(story)
    assert not set(unseen) & set(text)
    assert written_data(text)["report"]["notes"] == [story.completed.notes[0].replace("\ud800", "\\ud800")]


def test_nothing_at_all_is_still_a_page() -> None:
    """No run gives a report that says so by its empty table."""
    assert written_data(render_html_report(EventsGroupedByRun()))["report"]["scenarios"] == []


def test_scenarios_are_counted_as_the_console_counts_them() -> None:
    """Not runs; and one that was to pass in half of its runs counts as what it came to, everywhere on the render_html_report."""
    events: list[Event] = []
    for name, statuses in (("often", ["passed", "failed", "passed"]), ("once", ["failed"])):
        for n, status in enumerate(statuses, 1):
            run_id = f"{name}-{n}"
            events.append(Started(run_id=run_id, scenario=name, name=name, sample=n, runs=len(statuses)))
            events.append(Finished(run_id=run_id, scenario=name, status=Status(status)))
    rows = [{"scenario": "often", "status": "passed"}, {"scenario": "once", "status": "failed"}]
    events.append(Completed(exit_code=1, seconds=1.0, scenarios=rows))
    scenarios = written_data(render_html_report(samples.story(events)))["report"]["scenarios"]
    assert [(each["name"], each["status"]) for each in scenarios] == [("often", "passed"), ("once", "failed")]
    lines: list[str] = []
    samples.feed(SuiteConsole(lines.append), events)
    assert "1 passed, 1 failed" in lines[-1]
