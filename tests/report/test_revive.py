"""Events that travelled as plain values are the same events."""

from __future__ import annotations

import json

import pytest

from llmproxy.report.events import (
    Assertion,
    Completed,
    Criterion,
    Event,
    Finished,
    Message,
    PartyUse,
    Selected,
    Started,
    Status,
    Step,
    Verdict,
)
from llmproxy.report.revive import revived
from llmproxy.report.story import plain

CRITERION = Criterion(id="c1", text="is polite", status="failed", evidence="“no”", votes=["failed", "passed"])
EVENTS: list[Event] = [
    Selected(title="t", scenarios=1, runs=2, mode="replay", at=1.5),
    Started(run_id="r", scenario="s", name="n", tags=["a"], criteria=["is polite"], rerun="pytest x"),
    Message(run_id="r", message={"role": "user", "content": "hi"}, tool_calls=[{"name": "f", "arguments": {"x": 1}}]),
    Step(
        run_id="r",
        index=0,
        kind="chat",
        status=Status.FAILED,
        assertions=[Assertion(name="tools.f", status=Status.ENVIRONMENT_ERROR, expected={"gte": 1}, actual=None)],
        interactions=[3],
    ),
    Verdict(run_id="r", judge="J", success=None, criteria=[CRITERION]),
    Finished(
        run_id="r",
        scenario="s",
        status=Status.AGENT_ERROR,
        criteria=[CRITERION],
        usage={"agent": PartyUse(calls=2, input_tokens=None, cost_usd="0.5")},
        replayed=None,
    ),
    Completed(exit_code=1, seconds=2.0, scenarios=[{"scenario": "s", "rate": 0.5}]),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_the_way_through_json(event: Event) -> None:
    """Kind, status, nested parts, and what is not known."""
    tree = json.loads(json.dumps(plain(event)))
    back = revived(tree)
    assert type(back) is type(event)
    assert plain(back) == plain(event)
    assert getattr(back, "status", None) is getattr(event, "status", None)


def test_what_is_no_event_is_refused() -> None:
    """Nothing is made up of values that mean something else."""
    with pytest.raises(KeyError):
        revived({"event": "party"})
