"""Journeys through a report of tests in a real browser: as a file that asks nobody, and served, where a person labels what a judge said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from llmproxy.cli.ui import find_or_import_store_for_viewer, make_label_file_writer, make_viewer_query_function
from llmproxy.protocol import UI_PREFIX
from llmproxy.report import json_report
from llmproxy.report.events import (
    Assertion,
    Completed,
    Event,
    Finished,
    JudgedCriterion,
    Message,
    Selected,
    Started,
    Status,
    Step,
)
from llmproxy.report.html import render_html_report as written
from llmproxy.report.json_report import JsonLinesReport
from llmproxy.report.run_tree import EventsGroupedByRun
from llmproxy.report.trend import TrendRecorder
from llmproxy.scenario.lab.human_labels import read_human_labels
from llmproxy.ui.serve import make_viewer_server
from tests.report import samples as report_samples
from tests.support.browser import Browser, Page
from tests.support.services import serving
from tests.ui import samples
from tests.ui.conftest import fits
from tests.ui.samples import EVIL

QUOTED = "all 14 tests pass"


def story() -> EventsGroupedByRun:
    """Return a report: the stream of the other reports' tests, a matrix, and a run that stands on recorded calls."""
    told = report_samples.story()
    judged = JudgedCriterion(
        id="c", text="It says that the tests pass", status="failed", evidence=QUOTED, reason="it lies"
    )
    check = Assertion(
        name="tools.write_file", status=Status.FAILED, expected=2, actual=1, message="once", where="interaction 3"
    )
    events: list[Event] = [
        Started(run_id="on-calls-1", scenario="on-calls", name="on calls", cassette="agent", description="Mend it."),
        Message(run_id="on-calls-1", message={"role": "assistant", "content": f"It is mended, and {QUOTED}. {EVIL}"}),
        Step(run_id="on-calls-1", index=0, kind="chat", status=Status.FAILED, assertions=(check,), interactions=(1, 3)),
        Finished(run_id="on-calls-1", scenario="on-calls", status=Status.FAILED, criteria=(judged,)),
    ]
    for cell, status in (("gpt-4o", "passed"), ("gpt-4o-mini", "failed")):
        name = f"refund[{cell}]"
        events += [
            Started(run_id=name, scenario=name, name=name),
            Finished(run_id=name, scenario=name, status=Status(status)),
        ]
    for event in events:
        told.add_event(event)
    told.completed = Completed(exit_code=1, seconds=12.5)
    return told


MOVE = """new Promise((done) => {{
  addEventListener("hashchange", () => requestAnimationFrame(() => requestAnimationFrame(done)), {{ once: true }});
  location.hash = "{}";
}})"""
"""Goes to a view, and waits until what was shown before is gone."""


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    file = tmp_path / "report.html"
    file.write_text(written(story()), "utf-8")
    opened = browser.open(file.as_uri(), offline=True)
    yield opened
    assert opened.errors() == []
    assert {each for each in opened.requests() if each.startswith("http")} == set()
    opened.close()


def test_an_assertion_leads_to_the_call_inside_the_one_file(browser: Browser, tmp_path: Path) -> None:
    """From the check that failed to what was asked and answered there, and back; a call of no recording stays a number."""
    file = tmp_path / "report.html"
    file.write_text(written(story(), samples.store(tmp_path / "x.db")), "utf-8")
    opened = browser.open(file.as_uri(), offline=True)
    opened.click(".scenario", "on calls")
    opened.click(".checked .link", "#3")
    opened.see("call #3", ".facts h2")
    opened.see("return a + b", ".panel")
    opened.click(".nav", "tests")
    opened.see("need a look", "main")
    assert opened.errors() == []
    assert {each for each in opened.requests() if each.startswith("http")} == set()
    opened.close()


def names(page: Page) -> list[str]:
    found: list[str] = page.js("[...document.querySelectorAll('.scenario .name')].map((each) => each.innerText)")
    return found


def test_failures_come_first_and_each_says_why(page: Page) -> None:
    """The list leads to the check that failed, with what was expected and seen; passed runs of many are closed."""
    page.see("wrong", ".facts h2")
    page.click(".switch button", "all")
    page.see("need a look", "main")
    assert names(page)[0] == "Scenario wrong"
    assert names(page)[-1] == "refund[gpt-4o]"
    page.press("j")
    page.see("'Review PRs', not 'Review PR'", ".checks")
    page.see("expected", ".checks dl")
    assert page.js(
        "document.querySelectorAll('.fold.run').length === document.querySelectorAll('.fold.run[open]').length"
    )
    page.click(".scenario", "Scenario flaky")
    page.see("run 5 of 5", ".fold.run")
    assert page.js("document.querySelectorAll('.fold.run').length") == 5
    assert page.js("document.querySelectorAll('.fold.run[open]').length") == 2


def test_every_message_and_criterion_can_be_read(page: Page) -> None:
    """Whatever was said, asked for and found is shown somewhere, long texts when they are asked for."""
    page.wait("document.querySelectorAll('.scenario').length === 9")
    text = ""
    for n in range(6):
        page.js(MOVE.format(f"#/report/{n}"))
        page.wait("document.querySelector('.fold.run')")
        page.js("document.querySelectorAll('details:not([open]) > summary').forEach((each) => each.click())")
        page.wait("document.querySelectorAll('details:not([open])').length === 0")
        page.wait(
            "[...document.querySelectorAll('details')].every((each) => each.children.length > 1)"
        )  # shown a moment later
        page.js("document.querySelectorAll('button.more').forEach((each) => each.click())")
        page.wait("document.querySelectorAll('button.more').length === 0")
        text += page.text("main")
    for run in report_samples.story().runs.values():
        for message in run.messages:
            assert message.message["content"].partition("\x00")[0].rstrip() in text
        for criterion in run.criteria:
            assert criterion.text in text
            assert criterion.reason in text


def test_one_finds_and_filters(page: Page) -> None:
    """By status, and by any word of a conversation or a check."""
    page.click(".chips button", "failed")
    page.wait("document.querySelectorAll('.scenario').length === 3")
    page.click(".chips button", "failed")
    page.press("/")
    page.type("lies")
    page.wait("document.querySelectorAll('.scenario').length === 1")
    assert names(page) == ["on calls"]


def test_cells_of_a_matrix_stand_side_by_side(page: Page) -> None:
    """A row a scenario, a column a cell; each leads to its runs."""
    page.click(".switch button", "all")
    page.see("gpt-4o-mini", ".matrix thead")
    page.click(".matrix td button", "failed")
    page.see("refund[gpt-4o-mini]", ".facts h2")


def test_the_evidence_is_marked_and_hostile_words_stay_text(page: Page) -> None:
    """What the judge quoted, where it was said."""
    page.click(".scenario", "on calls")
    page.see(QUOTED, "mark")
    assert page.js("document.querySelector('mark').title") == "evidence: It says that the tests pass"
    assert page.js("document.querySelectorAll('#app img, #app script').length") == 0
    assert not {"\x1b", "\u202e"} & set(page.text())
    assert page.js("document.querySelectorAll('.label').length") == 0, "a file cannot be written to"


@pytest.mark.parametrize(("width", "dark"), [(1400, True), (400, False)])
def test_a_report_fits(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """No view is wider than its window, and everything that is pressed has a name."""
    (tmp_path / "report.html").write_text(written(story()), "utf-8")
    opened = browser.open((tmp_path / "report.html").as_uri(), width, 800, dark=dark)
    for at in ("#/report", *(f"#/report/{n}" for n in range(9))):
        opened.js(f"location.hash = '{at}'")
        opened.wait(
            f"document.querySelector('main') && document.querySelectorAll('.fold.run').length >= {'/' in at[2:]:d}"
        )
        opened.js("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        fits(opened, width, at)
        wide = "[...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)"
        assert opened.js(f"{wide}.map((each) => each.outerHTML.slice(0, 120))") == [], at

    opened.close()


def test_on_a_telephone_the_matrix_is_a_button_away(browser: Browser, tmp_path: Path) -> None:
    """It stands below a list of any length."""
    (tmp_path / "report.html").write_text(written(story()), "utf-8")
    opened = browser.open((tmp_path / "report.html").as_uri(), 400, 500)
    opened.click(".switch button", "all")
    below = "document.querySelector('.matrix').getBoundingClientRect().top > innerHeight"
    opened.wait(below)
    opened.click(".tools.narrow button", "matrix")
    opened.wait(f"!({below})")
    opened.close()


@contextmanager
def served(file: Path, store: Path, labels: Path) -> Iterator[str]:
    """Serve the viewer on a report; yields the address with its token."""
    with find_or_import_store_for_viewer(str(file), store) as seen:
        made = make_viewer_server(
            0,
            "the-token",
            make_viewer_query_function(seen.store, seen.report),
            seen.start,
            make_label_file_writer(file, labels),
        )
        with serving(made) as url:
            yield f"{url}{UI_PREFIX}#token=the-token"


def test_a_test_is_followed_while_it_runs(browser: Browser, tmp_path: Path) -> None:
    """Scenarios are there as they begin and end, with what was said last; a call of another store is not taken for its own."""
    recordings = samples.store(tmp_path / "x.db")
    file = tmp_path / "report.jsonl"
    writer = JsonLinesReport(file)
    writer.handle(Selected(title="tasks", scenarios=2, runs=2, at=time.time()))
    with served(file, recordings, tmp_path / "labels.jsonl") as url:
        opened = browser.open(url)
        opened.see("0 of 2 runs ended", "[role=status]")
        writer.handle(Started(run_id="one-1", scenario="one", name="one", cassette="agent", at=time.time()))
        writer.handle(Message(run_id="one-1", message={"role": "user", "content": "Mend it."}))
        opened.see("Mend it.", "main")
        opened.see("running", ".scenario")
        opened.click(".scenario", "one")
        writer.handle(Message(run_id="one-1", message={"role": "assistant", "content": f"It is mended. {EVIL}"}))
        opened.see("It is mended.", ".message.assistant")
        opened.see("and it goes on", "main")
        check = Assertion(name="response", status=Status.FAILED, message="not so")
        names = ("v2:" + "0" * 64 + "#1@ab", "")
        failed = partial(Step, run_id="one-1", index=0, kind="chat", status=Status.FAILED)
        writer.handle(failed(assertions=(check,), interactions=(1,), recordings=names))
        writer.handle(Finished(run_id="one-1", scenario="one", status=Status.FAILED))
        opened.see("1 of 2 runs ended, 1 not passed", "[role=status]")
        opened.see("tests (1 of 2)", ".top")
        opened.see("not so", ".checks")
        opened.click(".checked .link", "#1")
        opened.see("does not hold this call of agent", ".failure")
        writer.handle(Started(run_id="two-1", scenario="two", name="two"))
        writer.handle(Finished(run_id="two-1", scenario="two", status=Status.PASSED))
        writer.handle(Completed(exit_code=1, seconds=3.0))
        writer.close()
        opened.see("exit code 1", ".head")
        opened.see("two", ".scenario")
        assert opened.js("document.querySelectorAll('progress, #app img, #app script').length") == 0
        assert opened.errors() == []
        opened.close()


def test_a_served_report_leads_to_the_calls_and_takes_labels(browser: Browser, tmp_path: Path) -> None:
    """From an assertion to the interaction it stands on; a button says what a person thinks, as `judge calibrate` reads it."""
    recordings = samples.store(tmp_path / "x.db")
    file, labels = tmp_path / "report.json", tmp_path / "labels.jsonl"
    file.write_text(json_report.render_json_report(story()), "utf-8")
    for at, status in ((60.0, "passed"), (120.0, "failed")):
        same = {"scenario": "refund[gpt-4o]", "status": "passed", "runs": 1, "passed": 1}
        kept = TrendRecorder(tmp_path / "x.db.state.db", lambda why: pytest.fail(str(why)))
        kept.handle(Selected(title="t", scenarios=1, runs=1, at=at))
        rows = [{"scenario": "on-calls", "status": status, "runs": 1, "passed": 0}, same]
        kept.handle(Completed(exit_code=1, seconds=1.0, scenarios=rows))
    with served(file, recordings, labels) as url:
        opened = browser.open(url)
        opened.click(".switch button", "all")
        opened.see("The last 2 tests", "main")
        opened.see("worse", ".matrix")
        opened.see("1 scenario passed every time", "main")
        assert "refund[gpt-4o]" not in opened.text("#trend + .wide")
        opened.click("button", "show")
        opened.see("refund[gpt-4o]", "#trend + .wide")
        opened.click(".scenario", "on calls")
        opened.click(".label button", "passed")
        opened.see("you say", ".label")
        opened.click(".label button", "inconclusive")
        opened.wait("document.querySelector('.label [aria-pressed=true]').innerText === 'inconclusive'")
        opened.click(".checked .link", "#3")
        opened.see("call #3", ".facts h2")
        assert opened.errors() == []
        opened.close()
    (labelled,) = read_human_labels(labels)
    assert labelled.labels == {"It says that the tests pass": "inconclusive"}
    assert json.loads(labels.read_text("utf-8"))["description"] == "Mend it."
