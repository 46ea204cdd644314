"""What a session comes to."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from llmproxy.core.sessions.outcomes.outcome import Outcome
from llmproxy.core.sessions.outcomes.tally import KEPT_MISSES, Tally
from llmproxy.core.traffic.interaction import Usage
from llmproxy.protocol import Decision

HIT = Outcome(
    decision=Decision.REPLAY,
    method="POST",
    target="/v1/chat/completions",
    status=200,
    model="gpt-4o",
    usage=Usage(10, 2),
    cost=Decimal("0.10"),
    interaction=1,
)


def outcome(**changes: Any) -> Outcome:  # noqa: ANN401 - any field
    """Return a priced hit, changed."""
    return HIT._replace(**changes)


def test_what_was_saved_is_not_what_was_spent() -> None:
    """Money and tokens of replayed and of live calls are kept apart; tokens are given as one sum."""
    tally = Tally()
    tally.add(HIT)
    tally.add(HIT)
    tally.add(outcome(decision=Decision.RECORD, cost=Decimal("0.30")))
    tally.add(outcome(decision=Decision.PASS, cost=Decimal("0.05"), interaction=None))
    said = tally.to_json()
    assert (said["hits"], said["recorded"], said["passed"], said["live_calls"]) == (2, 1, 1, 2)
    assert (said["cost_not_spent"], said["cost_spent"]) == (0.2, 0.35)
    assert said["tokens"] == {"input": 40, "output": 8}


def test_an_unknown_price_is_unknown() -> None:
    """A call of a model that nobody can price is counted as unpriced and makes no sum; one that is known counts alone."""
    tally = Tally()
    tally.add(outcome(cost=None))
    assert (tally.to_json()["cost_not_spent"], tally.to_json()["unpriced"]) == (None, 1)
    tally.add(HIT)
    assert (tally.to_json()["cost_not_spent"], tally.to_json()["unpriced"]) == (0.1, 1)


def test_what_costs_nothing_is_not_unpriced() -> None:
    """Listing models and a throttled call have no price because they are free."""
    tally = Tally()
    tally.add(outcome(method="GET", target="/v1/models", model=None, usage=Usage(), cost=None))
    tally.add(outcome(status=429, usage=Usage(), cost=None))
    assert tally.to_json()["unpriced"] == 0


def test_recorded_is_what_is_in_the_store() -> None:
    """An answer that was lost, and one that never came, were calls but no recordings; nothing is ever negative."""
    tally = Tally()
    tally.add(outcome(decision=Decision.RECORD, interaction=None, lost=True))
    tally.add(outcome(decision=Decision.RECORD, interaction=None, status=0, cost=None))  # the client left
    tally.add(outcome(decision=Decision.PASS, interaction=None, lost=True))  # its usage could not be read
    said = tally.to_json()
    assert (said["recorded"], said["failed"], said["live_calls"], said["passed"]) == (0, 2, 3, 1)


def test_a_miss_is_not_any_refusal() -> None:
    """Only what was looked up and not found is a miss; refusals cost nothing and belong to no party."""
    tally = Tally()
    refused = outcome(decision=Decision.REFUSE, status=404, interaction=None, cost=None)
    tally.add(refused._replace(miss=True), "no recorded response")
    tally.add(refused._replace(status=413))
    said = tally.to_json()
    assert (said["misses"], said["refused"], said["miss_texts"], said["parties"]) == (
        1,
        1,
        ["no recorded response"],
        {},
    )


def test_parties_are_counted_apart() -> None:
    """The judge's calls are not the agent's."""
    tally = Tally()
    tally.add(HIT)
    tally.add(outcome(party="judge.2", usage=Usage(7, 1), cost=None))
    tally.add(outcome(party="judge.2", usage=Usage(7, 1), decision=Decision.RECORD))
    assert tally.to_json()["parties"] == {
        "agent": {"calls": 1, "input": 10, "output": 2, "cost": 0.1, "unpriced": 0},
        "judge.2": {"calls": 2, "input": 14, "output": 2, "cost": 0.1, "unpriced": 1},
    }


def test_texts_of_misses_are_bounded() -> None:
    """An agent in a loop of misses does not fill the memory; each is still counted."""
    tally = Tally()
    for n in range(100):
        tally.add(outcome(decision=Decision.REFUSE, miss=True), f"miss {n}")
    assert tally.misses == 100
    assert tally.miss_texts == [f"miss {n}" for n in range(KEPT_MISSES)]


def test_parties_have_an_order_of_their_own() -> None:
    """A report does not depend on who asked first."""
    one, other = Tally(), Tally()
    one.add(outcome(party="agent"))
    one.add(outcome(party="user"))
    other.add(outcome(party="user"))
    other.add(outcome(party="agent"))
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
