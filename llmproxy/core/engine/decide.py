"""Hit or miss, and what becomes of it: the modes as one pure function.

    mode         hit                 miss
    replay       recorded answer     refused; nothing leaves the machine
    auto         recorded answer     forwarded and recorded
    record       forwarded           forwarded and recorded, older recordings of the key replaced
    once         as `replay` if the cassette was complete when the session opened, else as `auto`
    passthrough  forwarded           forwarded, never recorded

The n-th request of a key in a session gets the n-th recording of it. What counts as a recording depends on the mode: `replay`
plays everything in its turn, failures and cut answers too; `auto`, and `once` while its cassette is open, take only good and complete
answers, so that a bad day is not frozen. What they forward then replaces the failure (`core.store.reading.failures_behind`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from llmproxy.core.providers.channels import SAFE
from llmproxy.core.sessions.outcome import SERVED_FAILURE
from llmproxy.core.traffic.interaction import Ending
from llmproxy.protocol import Channel, Decision, Exhausted, Mode, is_good


class RecordedSlot(Protocol):
    """What must be known of a recording to choose it."""

    @property
    def status(self) -> int:
        """HTTP status of the answer."""

    @property
    def ending(self) -> Ending:
        """How the answer ended."""


class MissReason(StrEnum):
    """Why a request is refused."""

    NEVER = "never recorded"
    EXHAUSTED = "every recording was already played"
    UNBOUND = "its answer cannot be told in this run's words"


class Situation[R: RecordedSlot](NamedTuple):
    """Everything that the decision depends on. One is made for every request: a tuple costs a quarter of a frozen dataclass."""

    mode: Mode
    recordings: Sequence[R]
    """Live recordings of the key in the session's cassette, in order of occurrence."""
    nth: int
    """This is the n-th arrival of the key in the session, counted from 1."""
    exhausted: Exhausted = Exhausted.LAST
    complete: bool = False
    """`once`: the cassette was complete when the session opened."""
    recorded_here: bool = False
    """`auto`: the key was first recorded in this very session, so that a first run equals `record`."""


class Decided[R: RecordedSlot](NamedTuple):
    """The decision; which recording answers; why not."""

    decision: Decision
    recording: R | None = None
    reason: MissReason | None = None


def decide[R: RecordedSlot](situation: Situation[R]) -> Decided[R]:
    """Say what becomes of a request."""
    match situation.mode:
        case Mode.REPLAY:
            return _play(situation, situation.recordings)
        case Mode.PASSTHROUGH:
            return Decided(Decision.PASS)
        case Mode.RECORD:
            return Decided(Decision.RECORD)
        case Mode.ONCE if situation.complete:
            return _play(situation, situation.recordings)
        case Mode.AUTO | Mode.ONCE:
            good = playable(situation.mode, situation.recordings, complete=situation.complete)
            if situation.recorded_here or situation.nth > len(good):
                return Decided(Decision.RECORD)
            return Decided(Decision.REPLAY, good[situation.nth - 1])


def playable[R: RecordedSlot](mode: Mode, recordings: Sequence[R], *, complete: bool) -> Sequence[R]:
    """Return the recordings that this mode may play; `complete`: the cassette was, when the session opened."""
    if mode is Mode.AUTO or (mode is Mode.ONCE and not complete):
        return [each for each in recordings if is_perfect(each)]
    return recordings


def exhausted_of(chosen: Exhausted, channel: Channel, method: str) -> Exhausted:
    """Return what answers a request that comes more often than it was recorded; `chosen` is the session's.

    What tells a service to do something is not answered with what it said the last time: a second invoice would have the first one's number.
    """
    return Exhausted.MISS if channel is Channel.HTTP and method not in SAFE and chosen is Exhausted.LAST else chosen


_SAID: dict[Ending, str] = {
    Ending.LEFT: "the client left it",
    Ending.CUT: "it broke off",
    Ending.UNTERMINATED: "it has no end",
}


def describe_failure(recording: RecordedSlot) -> str:
    """Return in a few words what is wrong with an answer that is served all the same; empty for a good one."""
    if recording.ending is not Ending.COMPLETE:
        return f"{SERVED_FAILURE}: {_SAID[recording.ending]}"
    return "" if is_good(recording.status) else f"{SERVED_FAILURE}: {recording.status}"


def is_perfect(recording: RecordedSlot) -> bool:
    """Tell whether this answer is whole, and not one that might be different a moment later."""
    return recording.ending is Ending.COMPLETE and is_good(recording.status)


def _play[R: RecordedSlot](situation: Situation[R], tape: Sequence[R]) -> Decided[R]:
    if not tape:
        return Decided(Decision.REFUSE, reason=MissReason.NEVER)
    if situation.nth <= len(tape):
        return Decided(Decision.REPLAY, tape[situation.nth - 1])
    match situation.exhausted:
        case Exhausted.MISS:
            return Decided(Decision.REFUSE, reason=MissReason.EXHAUSTED)
        case Exhausted.CYCLE:
            return Decided(Decision.REPLAY, tape[(situation.nth - 1) % len(tape)])
        case Exhausted.LAST:
            for each in reversed(tape):
                if is_perfect(each):
                    return Decided(Decision.REPLAY, each)
            return Decided(Decision.REPLAY, tape[-1])
