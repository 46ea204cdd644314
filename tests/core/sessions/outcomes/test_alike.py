"""Hits that are alike."""

from __future__ import annotations

from decimal import Decimal

from llmproxy.core.sessions.outcomes.alike import Alike
from llmproxy.core.sessions.outcomes.outcome import Outcome
from llmproxy.core.traffic.interaction import Key, Usage
from llmproxy.protocol import Decision

SAID = Outcome(
    decision=Decision.REPLAY,
    method="POST",
    target="/v1/chat/completions",
    status=200,
    session="s",
    party="user",
    provider="openai",
    operation="chat.completions",
    model="gpt-4o",
    usage=Usage(10, 2),
    cost=Decimal("0.10"),
    key=Key("v1:0"),
    interaction=7,
)


def test_an_outcome_of_one_of_them_is_what_would_be_said_of_it_alone() -> None:
    """When and which are its own, all else is what was put together once."""
    alike = Alike(SAID, interaction=1, extra=())
    one = alike.outcome(ms=1.5, occurrence=3, at=1_800_000_000.0, seq=9)
    assert isinstance(one, Outcome)
    assert one == SAID._replace(ms=1.5, occurrence=3, at=1_800_000_000.0, seq=9)


def test_two_that_say_the_same_are_still_two() -> None:
    """They are counted by, and belong to a session each."""
    one, other = (Alike(SAID, interaction=1, extra=()) for _ in range(2))
    assert len({one, other}) == 2
