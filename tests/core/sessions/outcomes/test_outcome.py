"""What all outcomes of a run come to."""

from __future__ import annotations

from decimal import Decimal

from llmproxy.core.sessions.outcomes.outcome import Outcome, Totals
from llmproxy.core.traffic.interaction import Usage
from llmproxy.protocol import Decision


def outcome(decision: Decision, **more: object) -> Outcome:
    """Make an outcome of a chat call."""
    given: dict[str, object] = {"method": "POST", "target": "/v1/chat/completions", "status": 200, "model": "m"}
    return Outcome(decision=decision, **(given | more))  # type: ignore[arg-type]


def test_each_decision_is_counted_once() -> None:
    """A miss is a refusal that was looked up; only what stands in the store counts as recorded."""
    totals = Totals()
    for one in (
        outcome(Decision.REPLAY, usage=Usage(10, 5), cost=Decimal("0.1")),
        outcome(Decision.RECORD, miss=True, interaction=1),
        outcome(Decision.RECORD, lost=True),
        outcome(Decision.PASS, session="other"),
        outcome(Decision.REFUSE, miss=True, status=404),
        outcome(Decision.REFUSE, status=413),
    ):
        totals.add(one)
    summary = totals.summary(duration=1.5, unused=3)
    counts = (summary.hits, summary.misses, summary.recorded, summary.passed, summary.refused, summary.failed)
    assert counts == (1, 1, 1, 1, 1, 1)
    assert (summary.sessions, summary.unused, summary.duration) == (2, 3, 1.5)


def test_only_what_was_replayed_is_not_spent() -> None:
    """A recorded call was paid for."""
    totals = Totals()
    totals.add(outcome(Decision.REPLAY, usage=Usage(10, 5), cost=Decimal("0.1")))
    totals.add(outcome(Decision.RECORD, usage=Usage(99, 99), cost=Decimal(9)))
    summary = totals.summary(duration=0)
    assert (summary.tokens_in, summary.tokens_out, summary.cost_not_spent) == (10, 5, Decimal("0.1"))


def test_an_unknown_price_is_counted_as_unknown() -> None:
    """Free calls (a list of models, a failure) are not of unknown price."""
    totals = Totals()
    totals.add(outcome(Decision.REPLAY, usage=Usage(10, None)))
    totals.add(outcome(Decision.REPLAY))
    totals.add(outcome(Decision.REPLAY, method="GET"))
    totals.add(outcome(Decision.REPLAY, status=429))
    summary = totals.summary(duration=0)
    assert (summary.cost_not_spent, summary.unpriced) == (None, 2)
