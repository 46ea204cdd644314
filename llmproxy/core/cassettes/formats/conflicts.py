"""A cassette file that git left with conflict markers: both branches recorded something, and both recordings are wanted.

    text with <<<<<<< ======= >>>>>>> -> the text of each side, whole -> one list of exchanges -> text

The lines between the markers are no interactions: git aligns what both sides have in common, in the middle of each. But what each side
had can be put together again from it, and two cassettes can be united: what both have stays once, what one has is kept. Two different
answers to the same request at the same place are an error that names them: nobody but a person knows which one is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmproxy.core.cassettes.formats import Source, review
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.errors import CassetteCorrupt
from llmproxy.protocol import AGENT

_BEGIN = re.compile(r"^<{7}( |$)", re.MULTILINE)
_OURS, _BASE, _THEIRS = "<" * 7, "|" * 7, ">" * 7
_MIDDLE = "=" * 7


def is_conflicted(source: Source) -> bool:
    """Tell whether git's markers stand in a file of ours."""
    return review.recognises(source) and bool(_BEGIN.search(source.text))


def split_sides(source: Source) -> tuple[Source, Source]:
    """Return the file as each side had it. Raises CassetteCorrupt for markers that do not fit together."""
    sides: tuple[list[str], list[str]] = ([], [])
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
                sides[side].append(line)
            continue
        if state not in _NEXT[into]:
            raise CassetteCorrupt(f"{source.name}, line {number}: this conflict marker does not belong here.")
        into = state
    if into != (0, 1):
        raise CassetteCorrupt(f"{source.name}: its last merge conflict has no end.")
    ours, theirs = ("".join(side).encode() for side in sides)
    return Source(ours, f"{source.name} (ours)"), Source(theirs, f"{source.name} (theirs)")


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
    mine = review.read(ours)
    united = drop_repeated([*mine, *review.read(theirs)], source.name, len(mine))
    unfinished = review.is_open(ours) or review.is_open(theirs)
    return review.dumps(
        united, review.name_of(ours), review.fork_in(ours) or review.fork_in(theirs), unfinished=unfinished
    )


def drop_repeated(recorded: Sequence[Recorded], name: str, ours: int) -> list[Recorded]:
    """Return exchanges without those that stand there twice; the first `ours` are of one side, whose numbers begin anew after that.

    Raises:
        CassetteCorrupt: two of them are different answers to one request, both the first, or both the second, ... of them.

    """
    seen: dict[object, tuple[int, Recorded]] = {}
    kept: list[Recorded] = []
    for index, each in enumerate(recorded):
        extra = each.extra
        asked = each.method, each.uri, each.body
        place = (*asked, extra.get("party", AGENT), extra.get("sample", 1), extra.get("occurrence", 1))
        if place not in seen:
            seen[place] = index, each
            kept.append(each)
            continue
        before, known = seen[place]
        if (known.status, known.response_body) != (each.status, each.response_body):
            sides = [
                f"interaction {one.number} of {'ours' if at < ours else 'theirs'}"
                for at, one in ((before, known), (index, each))
            ]
            raise CassetteCorrupt(
                f"{name}: both sides recorded an answer to the same request, and not the same one: {' and '.join(sides)} "
                f"({each.method} {each.uri}).",
                hint="Take one side of this file (git checkout --ours FILE, or --theirs) and record what is missing: --mode auto",
            )
    return kept
