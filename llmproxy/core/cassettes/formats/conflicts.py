"""A cassette file that git left with conflict markers: both branches recorded something, and both recordings are wanted.

    text with <<<<<<< ======= >>>>>>> -> the text of each side, whole -> one list of exchanges -> text

The lines between the markers are no interactions: git aligns what both sides have in common, in the middle of each. But what each side
had can be put together again from it, and two cassettes can be united: what both have stays once, what one has is kept. Two different
answers to the same request at the same place are an error that names them: nobody but a person knows which one is right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llmproxy.core.cassettes.formats import Source, review
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.core.cassettes.formats.vcr_yaml import lines_of
from llmproxy.errors import CassetteCorrupt
from llmproxy.protocol import AGENT

_BEGIN = re.compile(r"^<{7}( |$)", re.MULTILINE)
_OURS, _BASE, _THEIRS = "<" * 7, "|" * 7, ">" * 7
_MIDDLE = "=" * 7


def is_conflicted(source: Source) -> bool:
    """Tell whether git's markers stand in a file of ours."""
    return review.recognises(source) and bool(_BEGIN.search(source.text))


class Side(NamedTuple):
    """The file as one branch had it."""

    source: Source
    lines: list[int]
    """Of each of its lines: which line of the conflicted file that is, from 1."""

    def place(self, number: int) -> str:
        """Return where its interaction of this number stands in the conflicted file."""
        at = lines_of(self.source.text).get(number)
        return f"line {self.lines[at - 1]}" if at else f"interaction {number}"


def split_sides(source: Source) -> tuple[Side, Side]:
    """Return the file as each side had it. Raises CassetteCorrupt for markers that do not fit together."""
    sides: tuple[list[tuple[int, str]], list[tuple[int, str]]] = ([], [])
    into: tuple[int, ...] = (0, 1)
    for number, line in enumerate(source.text.splitlines(keepends=True), 1):
        marker, state = line[:7], into
        if marker == _OURS and line[7:8] in (" ", "\n"):
            state = (0,)
        elif marker == _BASE and line[7:8] in (" ", "\n"):
            state = ()
        elif line.rstrip("\r\n") == _MIDDLE:
            state = (1,)
        elif marker == _THEIRS and line[7:8] in (" ", "\n"):
            state = (0, 1)
        else:
            for side in into:
                sides[side].append((number, line))
            continue
        if state not in _NEXT[into]:
            raise CassetteCorrupt(f"{source.name}, line {number}: this conflict marker does not belong here.")
        into = state
    if into != (0, 1):
        raise CassetteCorrupt(f"{source.name}: its last merge conflict has no end.")
    ours, theirs = (
        Side(Source("".join(line for _, line in side).encode(), f"{source.name} ({name})"), [n for n, _ in side])
        for side, name in zip(sides, ("ours", "theirs"), strict=True)
    )
    return ours, theirs


_NEXT: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
    (0, 1): ((0,),),
    (0,): ((), (1,)),
    (): ((1,),),
    (1,): ((0, 1),),
}
"""Which part of a conflict may follow which."""


def keep_both(source: Source) -> str:
    """Return the text of a file that holds what either side holds. Raises CassetteCorrupt."""
    ours, theirs = split_sides(source)
    sides = (ours.source, theirs.source)
    return review.dumps(
        unite(ours, theirs, source.name),
        review.name_of(ours.source),
        review.fork_in(ours.source) or review.fork_in(theirs.source),
        unfinished=any(review.is_open(side) for side in sides),
    )


def unite(ours: Side, theirs: Side, name: str) -> list[Recorded]:
    """Return what either side recorded, once what both have. A request that comes again is told by which time it is, on its side.

    Raises:
        CassetteCorrupt: they have different answers to one request, both the first, or both the second, ... time.

    """
    kept = review.read(ours.source)
    known = dict(places(kept))
    for place, each in places(review.read(theirs.source)):
        mine = known.get(place)
        if mine is None:
            kept.append(each)
        elif (mine.status, mine.response_body) != (each.status, each.response_body):
            raise CassetteCorrupt(
                f"{name}: both sides recorded an answer to the same request, and not the same one:"
                f" {ours.place(mine.number)} (ours) and {theirs.place(each.number)} (theirs), {each.method} {each.uri}.",
                hint="Take one side of this file (git checkout --ours FILE, or --theirs) and record what is missing: --mode auto",
            )
    return kept


def places(recorded: Sequence[Recorded]) -> Iterator[tuple[object, Recorded]]:
    """Yield each with what tells it from the others of its side: who asked what, in which sample, for which time."""
    times = Counter[object]()
    for each in recorded:
        asked = each.method, each.uri, each.body, each.extra.get("party", AGENT), each.extra.get("sample", 1)
        times[asked] += 1
        yield (*asked, times[asked]), each
