"""Events that travelled as plain values are the same events."""

from __future__ import annotations

import json
from dataclasses import fields

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
from llmproxy.report.revive import is_of, revive_event
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
    back = revive_event(tree)
    assert type(back) is type(event)
    assert plain(back) == plain(event)
    assert getattr(back, "status", None) is getattr(event, "status", None)


def test_what_is_no_event_is_refused() -> None:
    """Nothing is made up of values that mean something else."""
    with pytest.raises(KeyError):
        revive_event({"event": "party"})


ODD: list[object] = [
    None,
    True,
    -1,
    10**400,
    1e308,
    float("nan"),
    "",
    "x",
    [],
    {},
    [None],
    {"a": None},
    [[]],
    {"": [1]},
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda each: type(each).__name__)
def test_a_field_holds_what_it_declares_or_the_report_is_none(event: Event) -> None:
    """Whatever somebody wrote into a report: no value of another kind gets behind the reader, where sums and sorting would fall over it."""
    tree = plain(event)
    declared = {each.name: str(each.type) for each in fields(event)}
    refused = 0
    for name, value in tree.items():
        for odd in ODD:
            try:
                made = revive_event({**tree, name: odd})
            except (KeyError, TypeError, ValueError, AttributeError):
                refused += 1
                continue
            kind = declared[name]
            assert is_of(odd, kind) or not kind.startswith(
                ("str", "int", "float", "bool", "Mapping[str, int]", "Sequence[str]")
            ), (name, odd, made)
        assert revive_event({**tree, name: value}) == revive_event(tree)
    assert refused > len(tree)


def test_times_and_amounts_can_be_told() -> None:
    """There are no years after 9999, and `$NaN` is no price."""
    for at in (-1.0, 1e12, float("inf")):
        with pytest.raises(TypeError, match="`at` of selected is"):
            revive_event({**plain(EVENTS[0]), "at": at})
    for cost in ("nan", "x", "1e999", "Infinity"):
        with pytest.raises(TypeError, match="`cost_usd` of partyuse is"):
            revive_event({**plain(EVENTS[5]), "usage": {"agent": {"calls": 1, "cost_usd": cost}}})
