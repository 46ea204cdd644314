"""Whose fault an exception is, as a table."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from llmproxy.errors import AgentError, AgentUnreachable, MachineError, MissError, UpstreamError
from llmproxy.report.events import Status
from llmproxy.scenario import AgentInput, AgentRole, agent, run_sync, user
from llmproxy.scenario.values.fault import describe_error, shorten_traceback, status_of
from tests.scenario.people import Person, play

U, A, J = AgentRole.USER, AgentRole.AGENT, AgentRole.JUDGE
AGENT, ENVIRONMENT, FAILED = Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR, Status.FAILED


@pytest.mark.parametrize(
    ("error", "role", "want"),
    [
        (ValueError("x"), A, AGENT),
        (AssertionError("x"), A, AGENT),
        (AgentError("x"), A, AGENT),
        (AgentError("x"), None, AGENT),
        (AgentUnreachable("x"), A, ENVIRONMENT),
        (MissError("x"), A, ENVIRONMENT),
        (UpstreamError("x"), J, ENVIRONMENT),
        (MachineError("x"), None, ENVIRONMENT),
        (ValueError("x"), U, ENVIRONMENT),
        (ValueError("x"), J, ENVIRONMENT),
        (AssertionError("x"), J, ENVIRONMENT),
        (AssertionError("x"), None, FAILED),
        (ValueError("x"), None, ENVIRONMENT),
        (asyncio.CancelledError(), A, ENVIRONMENT),
        (KeyboardInterrupt(), None, ENVIRONMENT),
    ],
)
def test_whose_fault(error: BaseException, role: AgentRole | None, want: Status) -> None:
    """An agent that crashes counts against it; whatever says nothing about it does not."""
    assert status_of(error, role) is want


def test_errors_in_words() -> None:
    """Ours say it themselves; others are named by their kind."""
    assert describe_error(MissError("never recorded", hint="record it")) == "never recorded\nrecord it"
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(TimeoutError()) == "TimeoutError"
    assert (
        describe_error(asyncio.CancelledError("cancelled"))
        == describe_error(KeyboardInterrupt())
        == "interrupted: the run was cancelled before it ended"
    )


def test_a_traceback_begins_where_its_author_is() -> None:
    """Frames of the engine, of loops and threads are left out; an error of ours that nobody else raised has none."""

    class Broken(Person):
        async def call(self, input: AgentInput) -> str:  # noqa: A002 (as its users write it)
            raise KeyError(input.thread_id)

    with pytest.raises(KeyError) as broken:
        play(Broken(), script=[user("hi"), agent()])
    assert len(broken.traceback) > 5
    assert [each.name for each in traceback.extract_tb(shorten_traceback(broken.value).__traceback__)][-1] == "call"
    with pytest.raises(KeyError) as raised:
        run_sync("n", "d", [Broken()], script=[user("hi"), agent()], verbose=False)
    names = [each.name for each in traceback.extract_tb(raised.value.__traceback__)]
    assert (names[0], names[-1], len(names) <= 4) == ("test_a_traceback_begins_where_its_author_is", "call", True), (
        names
    )
    ours = AgentError("x")
    assert shorten_traceback(ours) is ours
