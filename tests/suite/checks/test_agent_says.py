"""What an agent says about its history counts where the wire cannot tell, and never against what the wire shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmproxy.suite.checks.chat_step_assertions import (
    merge_observed_and_declared_edits,
    read_history_edits_in_agent_answer,
)
from llmproxy.trace.observing.history_edits import HistoryEditFindings, HistoryProcessing

UNSEEN = HistoryProcessing(activated=None, evidence="unobservable", reason="the provider keeps the history")
IDLE = HistoryProcessing(activated=False, evidence="proven", reason="every request carried its whole history")
INFERRED = HistoryProcessing(
    activated=True, evidence="inferred", reason="a text stands there", values={"condensedMessages": 3}
)
PROVEN = replace(INFERRED, evidence="proven")


def condenser(seen: HistoryProcessing, said: object) -> HistoryProcessing:
    return merge_observed_and_declared_edits(
        HistoryEditFindings(seen, UNSEEN, UNSEEN), read_history_edits_in_agent_answer([said])
    ).condenser


@pytest.mark.parametrize(("seen", "said", "activated", "evidence"), [
    (UNSEEN, True, True, "declared"),
    (UNSEEN, False, False, "declared"),
    (UNSEEN, "yes", None, "unobservable"),
    (INFERRED, True, True, "declared"),
    (PROVEN, True, True, "proven"),
    (PROVEN, False, True, "proven"),
    (INFERRED, False, None, "unobservable"),
    (IDLE, True, None, "unobservable"),
    (IDLE, False, False, "proven"),
])  # fmt: skip
def test_the_wire_decides_where_it_can(
    seen: HistoryProcessing, said: object, activated: bool | None, evidence: str
) -> None:
    """The agent fills in what cannot be seen; a contradiction is unknown, and so an error."""
    found = condenser(seen, {"processors": {"condenser": {"activated": said}}})
    assert (found.activated, found.evidence) == (activated, evidence)


def test_silence_and_nonsense_say_nothing() -> None:
    nonsense: list[object] = [None, 5, "x", [], {}, {"condenser": 7}, {"processors": {"pruner": True}}]
    for said in nonsense:
        assert condenser(UNSEEN, said).activated is None


def test_numbers_and_summary() -> None:
    """What the wire counted stays; the agent's own numbers stand beside it; a truth value is no number."""
    said: dict[str, Any] = {
        "condenser": {
            "activated": True, "condensedMessages": 9, "recentMessages": 2, "totalMessages": True, "summary": "Milk.",
        }
    }  # fmt: skip
    found = condenser(PROVEN, said)
    assert found.values == {"condensedMessages": 3, "recentMessages": 2}
    assert found.summaries == ["Milk."]


def test_of_several_answers_one_that_says_yes_is_enough() -> None:
    """A simulated conversation is one step with many answers."""
    said = read_history_edits_in_agent_answer(
        [{"pruner": False}, {"pruner": {"activated": True, "partsRemoved": 2}}, {"pruner": False}]
    )
    assert (said["pruner"].activated, said["pruner"].values) == (True, {"partsRemoved": 2})
