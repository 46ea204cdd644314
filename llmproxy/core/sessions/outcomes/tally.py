"""What a session comes to: calls, tokens and money, by party and by whether they were spent.

A price or a usage that nobody knows is counted as unknown, never as 0. A call that went to the provider counts as live even if nothing
came of it (the client left, the answer could not be stored); as recorded it counts only when it is in the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from llmproxy.core.sessions.outcomes.outcome import SERVED_FAILURE, Outcome, was_paid_for
from llmproxy.protocol import Decision

KEPT_MISSES = 20
"""Texts of misses that a session keeps; the journal has them all."""


@dataclass(slots=True)
class Sum:
    calls: int = 0
    input: int = 0
    output: int = 0
    cost: Decimal | None = None
    """US dollars; None while no price is known."""
    unpriced: int = 0
    """Calls whose price or usage is unknown: `cost` lacks them. What is free (listing models, failures) is not among them."""

    def add(self, outcome: Outcome) -> None:
        self.calls += 1
        self.input += outcome.usage.input or 0
        self.output += outcome.usage.output or 0
        if outcome.cost is not None:
            self.cost = outcome.cost if self.cost is None else self.cost + outcome.cost
        elif was_paid_for(outcome):
            self.unpriced += 1

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values; money is a number, as every client compares it."""
        cost = None if self.cost is None else float(self.cost)
        return {
            "calls": self.calls,
            "input": self.input,
            "output": self.output,
            "cost": cost,
            "unpriced": self.unpriced,
        }


@dataclass(slots=True)
class Tally:
    """What became of a session's requests."""

    decisions: dict[Decision, int] = field(default_factory=dict)
    bound: int = 0
    """Hits of which something was bound."""
    bound_names: set[str] = field(default_factory=set)
    misses: int = 0
    """Requests that were refused because they were never recorded."""
    recorded: int = 0
    failed: int = 0
    """Answers that should have been recorded and were lost."""
    served_failures: int = 0
    """Hits whose answer had failed, or was cut, when it was recorded."""
    faults: int = 0
    """Calls that a fault on purpose struck."""
    broken: int = 0
    """Those of them that went to the provider first."""
    saved: Sum = field(default_factory=Sum)
    """Calls answered from recordings."""
    spent: Sum = field(default_factory=Sum)
    """Calls that went to the provider."""
    parties: dict[str, Sum] = field(default_factory=dict)
    miss_texts: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome, miss_text: str = "") -> None:
        self.decisions[outcome.decision] = self.decisions.get(outcome.decision, 0) + 1
        self.failed += outcome.lost
        self.bound += bool(outcome.bound)
        self.bound_names.update(outcome.bound)
        self.recorded += outcome.decision is Decision.RECORD and outcome.interaction is not None and not outcome.lost
        if outcome.decision is Decision.REFUSE:
            self.misses += outcome.miss
            if miss_text and len(self.miss_texts) < KEPT_MISSES:
                self.miss_texts.append(miss_text)
            return
        self.faults += bool(outcome.fault)
        self.broken += bool(outcome.fault) and outcome.decision is Decision.PASS
        if outcome.decision is Decision.FAULT:
            return
        self.served_failures += outcome.decision is Decision.REPLAY and outcome.note.startswith(SERVED_FAILURE)
        (self.saved if outcome.decision is Decision.REPLAY else self.spent).add(outcome)
        self.parties.setdefault(outcome.party, Sum()).add(outcome)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        refused = self.decisions.get(Decision.REFUSE, 0)
        passed = self.decisions.get(Decision.PASS, 0)
        return {
            "hits": self.decisions.get(Decision.REPLAY, 0),
            "misses": self.misses,
            "bound": self.bound,
            "bound_names": sorted(self.bound_names),
            "recorded": self.recorded,
            "passed": passed - self.broken,
            "refused": refused - self.misses,
            "failed": self.failed,
            **({"served_failures": self.served_failures} if self.served_failures else {}),
            **({"struck": self.faults} if self.faults else {}),
            "live_calls": self.decisions.get(Decision.RECORD, 0) + passed,
            "tokens": {"input": self.saved.input + self.spent.input, "output": self.saved.output + self.spent.output},
            "cost_not_spent": self.saved.to_json()["cost"],
            "cost_spent": self.spent.to_json()["cost"],
            "unpriced": self.saved.unpriced + self.spent.unpriced,
            "parties": {name: self.parties[name].to_json() for name in sorted(self.parties)},
            "miss_texts": list(self.miss_texts),
        }
