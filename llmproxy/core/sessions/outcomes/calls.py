"""The calls of one session, in the order in which they arrived: what `walk` of the control API tells.

A call gets its number when it arrives and is kept when it has ended: as a plain tuple of texts and numbers, which the interpreter's
garbage collector does not look into, so that a hit costs one append more and nothing later. Nothing of what was said is kept here; recordings are read from the store by whoever asks. A session that
nobody closes may see any number of calls: only the last ones are kept, and asking for those before them is an error, never a gap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from llmproxy.core.sessions.outcomes.outcome import Outcome
from llmproxy.errors import RefusedError

KEPT_CALLS = 20_000
"""Calls of one session; about 400 bytes each."""
KEPT_TEXTS = 1_000
"""Refusals of one session whose words are kept; a miss has some thousand characters."""
NOT_KEPT = (
    "llmproxy: refused; the words of the first {} refusals of a session are kept, and all of them in the journal."
)


class CallsGone(RefusedError):
    """Calls were asked for that are not kept any more."""

    code = "llmproxy_calls_gone"
    status = 410


class CallEnded(NamedTuple):
    seq: int
    at: float
    """Unix time of arrival."""
    ms: float
    first_ms: float | None
    party: str
    decision: str
    status: int
    miss: bool
    note: str
    key: str | None
    occurrence: int | None
    provider: str
    operation: str
    model: str | None
    interaction: int | None
    attempt: int | None
    """How often its client had sent the request before, as it says itself; None if it does not."""
    fault: str | None
    """Kind of the fault on purpose that struck it; None for nearly every call."""


Told = tuple[str, str, int, bool, str, str | None, str, str, str | None, int | None, int | None, str | None]
"""What calls that are alike have in common: party, decision, status, miss, note, key, provider, operation, model, interaction, attempt, fault."""
_Row = tuple[int, float, float, float | None, int | None, Told]
"""Number, arrival, milliseconds to its end and to its first byte, occurrence, and what others may have in common with it."""


def note_call(outcome: Outcome) -> Told:
    """Return what of an outcome is the same for all that are alike."""
    o = outcome
    return (
        o.party, o.decision.value, o.status, o.miss, o.note, o.key, o.provider, o.operation, o.model, o.interaction,
        o.attempt, o.fault or None,
    )  # fmt: skip


def _read_row(row: _Row) -> CallEnded:
    seq, at, ms, first_ms, occurrence, alike = row
    party, decision, status, miss, note, key, provider, operation, model, id_, attempt, fault = alike
    return CallEnded(
        seq, at, ms, first_ms, party, decision, status, miss, note, key, occurrence, provider, operation, model, id_,
        attempt, fault,
    )  # fmt: skip


@dataclass(slots=True)
class Calls:
    """What a session was asked and what became of it."""

    arrived: int = 0
    """Calls that have begun, since the session was opened; the number of the last one."""
    _ended: deque[_Row] = field(default_factory=lambda: deque(maxlen=KEPT_CALLS))
    _count: int = 0
    _texts: dict[int, str] = field(default_factory=dict)

    def begin(self) -> int:
        """Return the number of a call that has arrived, from 1."""
        self.arrived += 1
        return self.arrived

    def add(self, outcome: Outcome, text: str = "") -> None:
        """Keep a call that has ended; `text` is what a refused client was told."""
        o = outcome
        self._ended.append((o.seq, o.at, o.ms, o.first_ms, o.occurrence, note_call(o)))
        self._count += 1
        if text and len(self._texts) < KEPT_TEXTS:
            self._texts[outcome.seq] = text

    def after(self, number: int) -> list[CallEnded]:
        """Return the ended calls that arrived after the `number`-th, in the order of their arrival.

        Raises:
            CallsGone: some of them are not kept any more.

        """
        dropped = self._count - len(self._ended)
        if dropped > number:
            msg = f"llmproxy: of the {self._count} calls of this session only the last {len(self._ended)} are kept."
            raise CallsGone(msg, hint=f"Ask for those after {dropped}, ask more often, or close the session.")
        return sorted(map(_read_row, (each for each in self._ended if each[0] > number)))

    def text(self, call: CallEnded) -> str:
        """Return the note of a call; of a refused one what the client was told."""
        if (text := self._texts.get(call.seq)) is not None:
            return text
        return NOT_KEPT.format(KEPT_TEXTS) if call.miss else call.note

    @property
    def open(self) -> int:
        """How many calls have begun and not ended."""
        return self.arrived - self._count
