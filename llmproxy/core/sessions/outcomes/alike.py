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

    __slots__ = ("_after", "_before", "_between", "extra", "learned", "noted", "said", "tally", "told")

    def __init__(self, said: Outcome, *, tally: object, learned: int, extra: Headers) -> None:
        """Say `said` while so many credentials are known; `extra` are the headers that we add to the answer.

        `tally` is the one in which they are counted, and so stands for their session: that itself, and all its calls, end with its close.
        """
        self.said, self.told, self.noted = said, note_call(said), build_row(said)
        self.tally, self.learned, self.extra = tally, learned, extra
        self._before, self._between, self._after = said[:_MS], said[_MS + 1 : _NTH], said[_NTH + 1 : _AT]

    def outcome(self, *, ms: float, occurrence: int, at: float, seq: int) -> Outcome:
        """Return what became of one of them; the parameters are as the outcome's fields."""
        fields = (*self._before, ms, *self._between, occurrence, *self._after, at, False, False, seq, "")
        return tuple.__new__(Outcome, fields)  # as `_make` does, which asks for their number first
