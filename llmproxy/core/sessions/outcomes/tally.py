"""What a session comes to: calls, tokens and money, by party and by whether they were spent.

A price or a usage that nobody knows is counted as unknown, never as 0. A call that went to the provider counts as live even if nothing
came of it (the client left, the answer could not be stored); as recorded it counts only when it is in the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from llmproxy.core.sessions.outcomes.alike import Alike
from llmproxy.core.sessions.outcomes.outcome import SERVED_FAILURE, Outcome, was_paid_for
from llmproxy.protocol import Decision

KEPT_MISSES = 20
"""Texts of misses that a session keeps; the journal has them all."""
KEPT_APART = 1_000
"""Kinds of hits that are counted one by one before they are added up."""


@dataclass(slots=True)
class Sum:
    calls: int = 0
    input: int = 0
    output: int = 0
    cost: Decimal | None = None
    """US dollars; None while no price is known."""
    unpriced: int = 0
    """Calls whose price or usage is unknown: `cost` lacks them. What is free (listing models, failures) is not among them."""

    def add(self, outcome: Outcome, times: int = 1) -> None:
        """Count one call, or so many that are alike."""
        self.calls += times
        self.input += (outcome.usage.input or 0) * times
        self.output += (outcome.usage.output or 0) * times
        if outcome.cost is not None:
            cost = outcome.cost * times
            self.cost = cost if self.cost is None else self.cost + cost
        elif was_paid_for(outcome):
            self.unpriced += times

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
    _hits: dict[Alike, int] = field(default_factory=dict)
    """Counted, and added up when somebody asks."""

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

    def hit(self, alike: Alike) -> None:
        self._hits[alike] = self._hits.get(alike, 0) + 1
        if len(self._hits) > KEPT_APART:
            self._add_up()

    def _add_up(self) -> None:
        """Add up the hits that were only counted."""
        for alike, times in self._hits.items():
            self.decisions[Decision.REPLAY] = self.decisions.get(Decision.REPLAY, 0) + times
            self.saved.add(alike.said, times)
            self.served_failures += times * alike.said.note.startswith(SERVED_FAILURE)
            self.parties.setdefault(alike.said.party, Sum()).add(alike.said, times)
        self._hits.clear()

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        self._add_up()
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
