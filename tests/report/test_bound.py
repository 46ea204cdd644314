"""Every report counts the answers that were bound: recorded elsewhere, given in this run's words."""

from __future__ import annotations

import io
import json
from decimal import Decimal

import pytest

from llmproxy.calls_and_totals import Call, Totals, find_strict_violations
from llmproxy.client.session_reports import SessionReport, format_session_counts
from llmproxy.protocol import Decision
from llmproxy.report import json_report, junit
from llmproxy.report.events import Finished, Started, Status
from llmproxy.report.proxy_console import (
    describe_how_call_was_handled,
    format_console_call_line,
    format_proxy_call_totals,
)
from llmproxy.report.run_console import ScenarioConsole, SuiteConsole
from llmproxy.report.run_tree import describe_replay_match_kinds
from llmproxy.ui.mount_in_proxy import name_call_outcome
from tests.report import samples

STARTED = Started(run_id="r", scenario="s", name="s")


def _finished(**more: object) -> Finished:
    return Finished(run_id="r", scenario="s", status=Status.PASSED, **more)  # type: ignore[arg-type]


BOUND = _finished(replayed=True, bound=3, bound_names=("cwd", "date"))


@pytest.mark.parametrize(("finished", "words"), [
    (BOUND, "replayed, 3 bound: cwd, date"),
    (_finished(replayed=True, carried=2, carried_names=("system-3f2a",)), "replayed, 2 carried under system-3f2a"),
    (_finished(replayed=True, bound=0), "replayed"),
    (_finished(replayed=True, bound=None), "replayed"),
    (_finished(replayed=False, bound=1, bound_names=("cwd",)), "1 bound: cwd"),
    (_finished(), ""),
])  # fmt: skip
def test_none_bound_and_not_known_say_nothing(finished: Finished, words: str) -> None:
    """A run says that it was replayed, and what was bound if anything was."""
    assert describe_replay_match_kinds(finished) == words


def test_console_junit_and_json_say_it() -> None:
    """The same words for people, and numbers for programs in JSON, which the HTML report contains."""
    story, words = samples.story((STARTED, BOUND)), "replayed, 3 bound: cwd, date"
    assert words in junit.render_junit(story).decode()
    run = json.loads(json_report.render_json_report(story))["scenarios"][0]["runs"][0]
    assert (run["finished"]["bound"], run["finished"]["bound_names"]) == (3, ["cwd", "date"])
    out = io.StringIO()
    samples.feed(SuiteConsole(out.write), (STARTED, BOUND))
    assert words in out.getvalue()


def test_a_scenario_says_it_when_it_ends() -> None:
    out = io.StringIO()
    console = ScenarioConsole(stream=out)
    samples.feed(console, (STARTED, BOUND))
    assert "Bound: 3 replayed with this run's cwd, date" in out.getvalue()
    console.handle(_finished(carried=2, carried_names=("system-3f2a",)))
    assert "Carried: 2 under system-3f2a" in out.getvalue()


def test_lines_of_calls_summaries_and_the_viewer_say_what_is_carried() -> None:
    """A word of its own in the line, the names of the changes in the sum, and a doubt where a proof is asked for."""
    call = Call(Decision.REPLAY, status=200, bound=("date",), carried=("system-3f2a",), cost=Decimal("0.1"))
    assert "CARRIED" in format_console_call_line(call, colour=False, zone=None, room=None)
    assert "system-3f2a" in "\n".join(describe_how_call_was_handled(call))
    assert name_call_outcome(call) == "carried"
    totals = Totals()
    totals.add(call)
    said = "1 hit (1 bound: date; 1 carried under system-3f2a)"
    assert format_proxy_call_totals(totals, 0)[0].startswith(said)
    assert format_session_counts(SessionReport.from_json({**totals.to_json(), "name": "x"})).startswith(said)
    found = find_strict_violations(totals, 0, used=True, fail_on_miss=False, strict=True)
    assert "1 hit was carried under system-3f2a" in found
