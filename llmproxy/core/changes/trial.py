"""What a call of a trial came to, for who counts them over calls and cassettes: `llmproxy changes`, a review.

A call that was an exact or bound hit is none of these. One that is carried on trial has its changes, one that is
refused its reason: ``new`` where no recording stands at its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from llmproxy.core.changes.values import Change, Refusal, Why


class TrialCall(NamedTuple):
    """One call of a session on trial that had no recording of its own."""

    seq: int
    """Number of the call in its session, from 1."""
    cassette: str
    sample: int
    party: str
    operation: str
    recording: int | None = None
    """Row of the recording at its place, whether it was given or not."""
    changes: tuple[Change, ...] = ()
    """Under which its answer was given; of a refused one those that were found before the refusal."""
    refusal: Refusal | None = None
    """None: it was carried."""
    pending: tuple[str, ...] = ()
    """Names of those that nobody has accepted."""
    input: int | None = None
    """Tokens of the recording, which to record anew would cost about as many; None if unknown."""
    output: int | None = None
    cost: float | None = None
    """US dollars, likewise; None if unknown, never 0."""
    ms: float | None = None
    """Milliseconds that the recorded answer took."""

    @property
    def is_new(self) -> bool:
        return self.refusal is not None and self.refusal.why is Why.NO_PLACE

    def to_json(self) -> dict[str, Any]:
        refusal = None if self.refusal is None else {"why": self.refusal.why.value, "text": self.refusal.text}
        return self._asdict() | {"changes": [each.to_json() for each in self.changes], "refusal": refusal}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Read the JSON form."""
        said, changes = value["refusal"], tuple(map(Change.of, value["changes"]))
        refusal = None if said is None else Refusal(Why(said["why"]), said["text"])
        return cls(**{**value, "changes": changes, "refusal": refusal, "pending": tuple(value["pending"])})
