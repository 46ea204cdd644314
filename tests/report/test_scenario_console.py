"""A scenario on the terminal: each message as it comes."""

from __future__ import annotations

import io
from typing import Any

import pytest

from llmproxy.report.events import Finished, Message, Started, Status, Verdict
from llmproxy.report.run_console import ScenarioConsole
from tests.report.test_console import Terminal


def printed(*events: Any, verbose: int = 1, stream: io.StringIO | None = None) -> str:
    out = stream or io.StringIO()
    console = ScenarioConsole(verbose, out)
    for event in (Started(run_id="r", scenario="x", name="x"), *events):
        console.handle(event)
    console.close()
    return out.getvalue().removeprefix("\n")


def said(author: str = "Someone", **message: Any) -> Message:
    return Message(run_id="r", message=message, author=author)


CALL = {"function": {"name": "look", "arguments": '{"a":1,"b":2,"c":3,"d":4,"e":5}'}}


@pytest.mark.parametrize(
    ("event", "want"),
    [
        (said(role="user", content="hi"), "User: hi\n"),
        (said(role="assistant", content="hello"), "Agent: hello\n"),
        (said(role="assistant", content=None, tool_calls=[{"function": {"name": "f", "arguments": "no json"}}]),
         "ToolCall(f): \n\n    no json\n\n"),
        (said(role="assistant", content="one moment", tool_calls=[CALL]),
         'Agent: one moment\nToolCall(look): \n\n    {\n      "a": 1,\n      "b": 2,\n      "c": 3,\n      "d": 4,\n    ...\n\n'),
        (said(role="tool", content='{"found": 1}'), 'ToolResult: \n\n    {\n      "found": 1\n    }\n\n'),
        (said(role="system", content="hidden"), ""),
        (said("", role="system", content="scripted"), "System: scripted\n"),
        (said(role="critic", content="hm"), "Critic: hm\n"),
        (Verdict(run_id="r", judge="J", success=None), ""),
        (Finished(run_id="r", scenario="x", status=Status.AGENT_ERROR, error="ValueError: no"), "Error: ValueError: no\n"),
        (Finished(run_id="r", scenario="x", status=Status.PASSED), ""),
    ],
)  # fmt: skip
def test_what_is_printed(event: Any, want: str) -> None:
    """Tool arguments as JSON, five lines of them; what the agent's own system messages say is hidden."""
    assert printed(event) == want


@pytest.mark.parametrize(("runs", "want"), [(1, "Error: a miss\n"), (2, "[1/2] Error: a miss\n  how\n")])
def test_a_miss_is_explained_once(runs: int, want: str) -> None:
    """By the error that a run by itself raises; of several runs nothing is raised."""
    started = Started(run_id="r", scenario="x", name="x", sample=1, runs=runs)
    ended = Finished(
        run_id="r", scenario="x", status=Status.ENVIRONMENT_ERROR, error="a miss\n  how", misses=("a miss",)
    )
    out = io.StringIO()
    console = ScenarioConsole(1, out)
    for event in (started, ended):
        console.handle(event)
    assert out.getvalue().removeprefix("\n") == want


def test_every_line_names_its_scenario_from_two_on() -> None:
    assert printed(said(role="user", content="hi"), verbose=2) == "[Scenario: x] User: hi\n"
    assert printed(said(role="user", content="hi"), verbose=5) == "[Scenario: x] User: hi\n"


def test_colours_are_for_terminals() -> None:
    assert printed(said(role="user", content="hi"), stream=Terminal()).startswith("\x1b[32mUser:\x1b[0m hi")
    assert "\x1b" not in printed(said(role="user", content="hi"), verbose=2)


def test_every_line_says_which_of_several_runs_it_is_of() -> None:
    """Runs at the same time print between each other."""
    for verbose, prefix in ((1, "[2/4] "), (2, "[Scenario: x 2/4] ")):
        stream = io.StringIO()
        console = ScenarioConsole(verbose, stream)
        console.handle(Started(run_id="r", scenario="x", name="x", sample=2, runs=4))
        console.handle(said(role="user", content="hi"))
        assert stream.getvalue() == f"\n{prefix}User: hi\n"
