"""Two texts, the recorded one with the places that may differ: does the present one say the same?

    recorded text, `TextGap`s in it, present text -> what stands at each gap now, or how far they agree

What lies between gaps must be equal, letter for letter. Where several texts may stand at a gap each is tried; every
state (gap, position) is visited once, so the work is bounded by gaps times alternatives, whatever the input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from llmproxy.core.traffic.json_diff import count_common_prefix

Border = Callable[[str, int, int], bool]
"""Whether a value that stands at text[start:end] begins and ends there."""


class GapOption(NamedTuple):
    """One text that may stand at a gap."""

    text: str
    border: Border
    name: str
    """Of the binding."""
    unchanged: bool = False
    """It is the recorded text."""
    leaks: bool = False
    """It must not stand there: it is looked for only to say so."""
    same: bool = False
    """The recorded and the present value are written alike: ``November 2026`` on two of its days."""


class TextGap(NamedTuple):
    """A place in a recorded text that may differ."""

    start: int
    end: int
    options: tuple[GapOption, ...] = ()
    free: re.Pattern[str] | None = None
    """Instead of options: what may stand there."""
    name: str = ""
    in_answers: bool = True
    """Whether answers are written with this run's value."""


class FilledGap(NamedTuple):
    """What stands at a gap now."""

    gap: TextGap
    option: GapOption | None
    text: str


class TextDivergence(NamedTuple):
    """How far two texts agree."""

    recorded: int
    """Position in the recorded text."""
    present: int
    leaked: bool = False
    """There stands a recorded value that must not."""


def align_text(recorded: str, gaps: Sequence[TextGap], present: str) -> list[FilledGap] | TextDivergence:
    """Compare; `gaps` are in order and do not overlap."""
    furthest = TextDivergence(0, 0)
    seen: set[tuple[int, int]] = set()
    todo: list[tuple[int, int, tuple[FilledGap, object] | None]] = [(0, 0, None)]
    while todo:
        n, at, path = todo.pop()
        if (n, at) in seen:
            continue
        seen.add((n, at))
        start = gaps[n - 1].end if n else 0
        end = gaps[n].start if n < len(gaps) else len(recorded)
        literal = recorded[start:end]
        if not present.startswith(literal, at) or (n == len(gaps) and at + len(literal) != len(present)):
            same = count_common_prefix(literal, present[at : at + len(literal)])
            if start + same >= furthest.recorded:
                furthest = TextDivergence(start + same, at + same, furthest.leaked)
            continue
        at += len(literal)
        if n == len(gaps):
            found: list[FilledGap] = []
            node: object = path
            while isinstance(node, tuple):
                found.append(node[0])
                node = node[1]
            return found[::-1]
        branches = list(_list_gap_fillings(gaps[n], present, at))
        if not branches and end >= furthest.recorded:
            furthest = TextDivergence(end, at)
        for length, option in reversed(branches):
            if option is not None and option.leaks:
                furthest = TextDivergence(end, at, leaked=True)
                continue
            chosen = FilledGap(gaps[n], option, present[at : at + length])
            todo.append((n + 1, at + length, (chosen, path)))
    return furthest


def _list_gap_fillings(gap: TextGap, present: str, at: int) -> Iterable[tuple[int, GapOption | None]]:
    if gap.free is not None:
        if (found := gap.free.match(present, at)) is not None:
            yield found.end() - at, None
        return
    for option in gap.options:
        end = at + len(option.text)
        if present.startswith(option.text, at) and (option.unchanged or option.border(present, at, end)):
            yield len(option.text), option


def splice(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """Return a text with others in place of its parts: (start, end, new), in order and without overlap."""
    parts, last = [], 0
    for start, end, new in changes:
        parts += [text[last:start], new]
        last = end
    return "".join([*parts, text[last:]])
