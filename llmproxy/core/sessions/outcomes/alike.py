"""Hits that are alike: of one recording, by one kind of request, in one session.

What is said of them differs in nothing but when and which, so all else is put together once and counted by the piece.
"""

from __future__ import annotations

from llmproxy.core.sessions.outcomes.calls import note_call
from llmproxy.core.sessions.outcomes.journal import build_row
from llmproxy.core.sessions.outcomes.outcome import Outcome
from llmproxy.core.traffic.interaction import Headers

_MS, _NTH, _AT = (Outcome._fields.index(name) for name in ("ms", "occurrence", "at"))


class Alike:
    """What is said of each of them. Equal only to itself: it is counted by."""

    __slots__ = ("_after", "_before", "_between", "extra", "interaction", "noted", "said", "served", "told")

    def __init__(self, said: Outcome, *, interaction: int, extra: Headers) -> None:
        """Say `said`; `interaction` is the recording, `extra` are the headers that we add to the answer."""
        self.said, self.told, self.noted = said, note_call(said), build_row(said)
        self.interaction, self.extra = interaction, extra
        self.served = False
        """Whether its session knows that the recording was played."""
        self._before, self._between, self._after = said[:_MS], said[_MS + 1 : _NTH], said[_NTH + 1 : _AT]

    def outcome(self, *, ms: float, occurrence: int, at: float, seq: int) -> Outcome:
        """Return what became of one of them; the parameters are as the outcome's fields."""
        fields = (*self._before, ms, *self._between, occurrence, *self._after, at, False, False, seq, "")
        return tuple.__new__(Outcome, fields)  # as `_make` does, which asks for their number first
