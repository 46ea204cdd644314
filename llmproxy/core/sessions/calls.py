"""The calls of one session, in the order in which they arrived: what `walk` of the control API tells.

A call gets its number when it arrives and is kept when it has ended. Recordings are read from the store by whoever asks.
A session that nobody closes may see any number of calls: only the last ones are kept, and asking for those before them
is an error, never a gap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from llmproxy.calls import Call
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


@dataclass(slots=True)
class Calls:
    """What a session was asked and what became of it."""

    arrived: int = 0
    """Calls that have begun, since the session was opened; the number of the last one."""
    _ended: deque[Call] = field(default_factory=lambda: deque(maxlen=KEPT_CALLS))
    _count: int = 0
    _texts: dict[int, str] = field(default_factory=dict)

    def begin(self) -> int:
        """Return the number of a call that has arrived, from 1."""
        self.arrived += 1
        return self.arrived

    def add(self, call: Call, text: str = "") -> None:
        """Keep a call that has ended; `text` is what a refused client was told."""
        self._ended.append(call)
        self._count += 1
        if text and len(self._texts) < KEPT_TEXTS:
            self._texts[call.seq] = text

    def after(self, number: int) -> list[Call]:
        """Return the ended calls that arrived after the `number`-th, in the order of their arrival.

        Raises:
            CallsGone: some of them are not kept any more.

        """
        dropped = self._count - len(self._ended)
        if dropped > number:
            msg = f"llmproxy: of the {self._count} calls of this session only the last {len(self._ended)} are kept."
            raise CallsGone(msg, hint=f"Ask for those after {dropped}, ask more often, or close the session.")
        return sorted((each for each in self._ended if each.seq > number), key=lambda each: each.seq)

    def text(self, call: Call) -> str:
        """Return the note of a call; of a refused one what the client was told."""
        if (text := self._texts.get(call.seq)) is not None:
            return text
        return NOT_KEPT.format(KEPT_TEXTS) if call.miss else call.note

    @property
    def open(self) -> int:
        """How many calls have begun and not ended."""
        return self.arrived - self._count
