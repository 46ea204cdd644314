"""Which answers were asked for again. Pure: what was sent and answered, in order of arrival -> the numbers of those that do not count.

A client sends a request again when the first answer was an error, or did not arrive whole; only that is a retry. Equal requests with
whole answers are as many calls: an agent in a loop, a user who says hi twice, a card charged three times. Two whole answers are one only
where the client's SDK says so in the request (`Sent.attempt`): the first was whole for us, and came too late for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Sent", "find_replaced"]


class Sent(NamedTuple):
    """A request that was sent, as far as it matters here."""

    seq: int
    """Number in the session."""
    question: str | None
    """The same for the same request; None if nobody knows."""
    attempt: int | None
    """How often its client had sent it before, if it says so; 0 is the first time."""
    whole: bool
    """Whether a whole answer came, or the client went on with what came of it."""


def find_replaced(sent: Iterable[Sent]) -> frozenset[int]:
    """Return the numbers of the requests that a later one repeats: its answer counts, theirs do not."""
    questions: dict[str, list[Sent]] = {}
    for each in sent:
        if each.question is not None:
            questions.setdefault(each.question, []).append(each)
    return frozenset(number for group in questions.values() if len(group) > 1 for number in _replaced(group))


def _replaced(group: Sequence[Sent]) -> Iterable[int]:
    """Give each request that was sent before the one that it repeats: one that failed rather than one that was answered."""
    open_ones: list[Sent] = []
    for each in group:
        repeated = _repeated(each, open_ones)
        if repeated is not None:
            open_ones.remove(repeated)
            yield repeated.seq
        open_ones.append(each)


def _repeated(again: Sent, open_ones: Sequence[Sent]) -> Sent | None:
    failed = [each for each in open_ones if not each.whole]
    if not again.attempt:  # nothing says that it is a retry but that the one before came to nothing
        return next(reversed(failed), None)
    before = [each for each in open_ones if each.attempt == again.attempt - 1]
    candidates = [each for each in before if not each.whole] or before or failed
    return next(reversed(candidates), None)
