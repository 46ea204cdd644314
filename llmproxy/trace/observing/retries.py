"""Which answers were asked for again. Pure: what was sent and answered, in order of arrival -> the numbers of those that do not count.

A client sends a request again when the first answer was an error, or did not arrive whole; only that is a retry. Equal requests with
whole answers are as many calls: an agent in a loop, a user who says hi twice, a card charged three times. Two whole answers are one only
where the client's SDK says so in the request (`Sent.attempt`): the first was whole for us, and came too late for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


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
    used: bool = False
    """Whether the client ran a tool that the answer asked for."""


class Replaced(NamedTuple):
    """What does not count, by number."""

    sure: frozenset[int]
    """A later request repeats them: its answer counts, theirs do not."""
    unclear: frozenset[int]
    """One of several that are alike was repeated, and nothing tells which; one of them is in `sure`."""


def find_replaced(sent: Iterable[Sent]) -> Replaced:
    """Tell which requests a later one repeats."""
    questions: dict[str, list[Sent]] = {}
    for each in sent:
        if each.question is not None:
            questions.setdefault(each.question, []).append(each)
    sure, unclear = set[int](), set[int]()
    for group in questions.values():
        if len(group) > 1:
            _look(group, sure, unclear)
    return Replaced(frozenset(sure), frozenset(unclear))


def _look(group: Sequence[Sent], sure: set[int], unclear: set[int]) -> None:
    """Find what equal requests repeat.

    First those that say what they repeat: one with one attempt less, which failed rather than was answered, and came to nothing
    rather than was gone on with. Then the others, which can only repeat what came to nothing.
    """
    for place, again in enumerate(group):
        if again.attempt:
            before = [each for each in group[:place] if each.attempt == again.attempt - 1 and each.seq not in sure]
            chosen = [each for each in before if not each.whole] or [each for each in before if not each.used] or before
            sure.update(each.seq for each in chosen[-1:])
            if len(chosen) > 1 and chosen[-1].whole:
                unclear.update(each.seq for each in chosen)
    for place, again in enumerate(group):
        if not again.attempt:
            failed = [each for each in group[:place] if not each.whole and each.seq not in sure]
            sure.update(each.seq for each in failed[-1:])
