"""What is said when a command that was run has ended."""

from __future__ import annotations

from pathlib import Path

from llmproxy.cli.parts.run_ending import LOOKED_AT, RunEnding, explain_no_recording_used
from llmproxy.client.child_env import EnvironmentPlan
from llmproxy.client.control import Control, ControlError
from llmproxy.client.proxy_process import ProxyHandle
from llmproxy.client.session_reports import Report
from llmproxy.proxy_calls import Call
from llmproxy.settings import load


def test_refusals_that_cannot_be_told_any_more_are_no_trouble(tmp_path: Path) -> None:
    """The session is closed and summed up all the same; only its last calls are asked for."""
    asked: list[int] = []

    class Forgetful(Control):
        def report(self, name: str) -> Report:
            return Report(name, name, refused=1, arrived=30_000)

        def calls(self, session: str, after: int = 0) -> tuple[Call, ...]:
            asked.append(after)
            raise ControlError("calls that are not kept any more", status=410)

        def close_session(
            self, name: str, *, complete: bool | None = None, after: int | None = None, interrupted: bool = False
        ) -> Report:
            return Report(name, name, hits=29_999, refused=1)

    url = "http://127.0.0.1:9"
    ending = RunEnding(ProxyHandle(url, Forgetful(url), None), "s", 0.0, load({}, {}, tmp_path))
    ending.close_session()
    assert asked == [30_000 - LOOKED_AT]
    assert (ending.trouble, ending.refused) == ("", ())
    assert ending.report == Report("s", "s", hits=29_999, refused=1)


def test_a_command_that_failed_without_asking_is_told_of_interception() -> None:
    """A client with a fixed base URL fails offline; under `--intercept` that is not why."""
    assert "llmproxy run --intercept" in explain_no_recording_used(2, "c", 1, EnvironmentPlan())[-1]
    assert "`llmproxy doctor -- COMMAND`" in explain_no_recording_used(2, "c", 0, EnvironmentPlan())[1]
    assert len(explain_no_recording_used(2, "c", 1, EnvironmentPlan(others={"HTTPS_PROXY": "x"}))) == 1
