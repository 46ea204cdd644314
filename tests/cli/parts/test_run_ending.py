"""What is said when a command or a test that was run has ended, also of live models."""

from __future__ import annotations

import json
from pathlib import Path

from llmproxy.calls_and_totals import Call
from llmproxy.cli.parts.run_ending import (
    LOOKED_AT,
    LiveRunDifferenceReporter,
    RunFinisher,
    explain_command_used_no_recording,
)
from llmproxy.client.child_env import EnvironmentPlan
from llmproxy.client.control import ControlApiClient, ControlError
from llmproxy.client.proxy_process import ProxyHandle
from llmproxy.client.session_reports import SessionReport
from llmproxy.report.events import Completed, Finished, Status
from llmproxy.settings import load
from tests.support.live import Bench, Turn, Wish, World, scripted


def test_refusals_that_cannot_be_told_any_more_are_no_trouble(tmp_path: Path) -> None:
    """The session is closed and summed up all the same; only its last calls are asked for."""
    asked: list[int] = []

    class Forgetful(ControlApiClient):
        def report(self, name: str) -> SessionReport:
            return SessionReport(name, name, refused=1, arrived=30_000)

        def calls(self, session: str, after: int = 0) -> tuple[Call, ...]:
            asked.append(after)
            raise ControlError("calls that are not kept any more", status=410)

        def close_session(
            self, name: str, *, complete: bool | None = None, after: int | None = None, interrupted: bool = False
        ) -> SessionReport:
            return SessionReport(name, name, hits=29_999, refused=1)

    url = "http://127.0.0.1:9"
    ending = RunFinisher(ProxyHandle(url, Forgetful(url), None), "s", 0.0, load({}, {}, tmp_path))
    ending.close_session()
    assert asked == [30_000 - LOOKED_AT]
    assert (ending.trouble, ending.refused) == ("", ())
    assert ending.report == SessionReport("s", "s", hits=29_999, refused=1)


def test_a_command_that_failed_without_asking_is_told_of_interception() -> None:
    """A client with a fixed base URL fails offline; under `--intercept` that is not why."""
    assert "llmproxy run --intercept" in explain_command_used_no_recording(2, "c", 1, EnvironmentPlan())[-1]
    assert "`llmproxy doctor -- COMMAND`" in explain_command_used_no_recording(2, "c", 0, EnvironmentPlan())[1]
    assert len(explain_command_used_no_recording(2, "c", 1, EnvironmentPlan(others={"HTTPS_PROXY": "x"}))) == 1


GET, COUNT = Wish("get", {"name": "a"}), Wish("count", {})


def test_scenarios_are_compared_with_their_recordings(tmp_path: Path) -> None:
    """Two runs of another model: what it called besides, what could not be answered, how they were judged now and then."""
    store, baseline = tmp_path / "x.db", tmp_path / "base.json"
    with Bench(store, "record", model=scripted([Turn((GET,)), Turn(text="0")]), tools=World()) as bench:
        bench.run("look", "suite/one")
    told: list[tuple[list[str], dict[str, object]]] = []
    baseline.write_text(json.dumps({"summary": [{"scenario": "one", "status": "passed", "runs": 1}]}))
    loaded = load({"store": str(store)}, {}, tmp_path)
    handler = LiveRunDifferenceReporter(loaded, store, baseline, lambda lines, plain: told.append((lines, dict(plain))))
    with Bench(store, live=["llm"]) as bench:
        for status in (Status.FAILED, Status.PASSED):
            bench.model = scripted([Turn((GET, COUNT)), Turn(text="0")])
            live = bench.run("look", "suite/one").report["live"]
            handler.handle(Finished(run_id="r", scenario="one", status=status, live=live))
    handler.handle(Finished(run_id="r", scenario="two", status=Status.PASSED))
    handler.handle(Completed(exit_code=1, seconds=1.0))
    handler.close()
    ((lines, plain),) = told
    assert lines[0] == "one: gpt-4o in 2 runs against gpt-4o in cassette suite/one:"
    found = [line.strip().replace("  ", " ") for line in lines[1:3]]
    assert found == ["2 of 2 (34% to 100%) called besides: count({})", "1 of 2 (9% to 91%) verdict: passed -> failed"]
    assert lines[-1].strip() == "calls that no recording answers there: count 2x"
    assert list(plain) == ["one"]


def test_without_live_runs_nothing_is_said(tmp_path: Path) -> None:
    """Nothing was run, or every scenario was skipped."""
    told: list[object] = []
    handler = LiveRunDifferenceReporter(
        load({}, {}, tmp_path), tmp_path / "x.db", None, lambda *what: told.append(what)
    )
    handler.handle(Completed(exit_code=5, seconds=0.0))
    assert told == []
