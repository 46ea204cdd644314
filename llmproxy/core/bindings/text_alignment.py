"""Alignment of a recorded text, in which certain places may differ, with a present text.

Text between gaps must be equal, character by character. At a gap with several options each is tried. Every state (gap,
position) is visited once, so the work is bounded by gaps times options for any input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from llmproxy.core.traffic.json_diff import count_common_prefix

Border = Callable[[str, int, int], bool]
"""Returns whether a value that occupies text[start:end] begins and ends there."""


class GapOption(NamedTuple):
    text: str
    border: Border
    name: str
    unchanged: bool = False
    leaks: bool = False
    """Whether it must not occur: it is searched for only to report it."""
    same: bool = False
    """Whether recorded and present value have the same spelling: ``November 2026`` on two of its days."""
    readings: frozenset[tuple[str, int]] = frozenset()
    """Names and ways for which it can stand, if that must be the same at all places; see `ValueForm.way`."""


class VariableSpan(NamedTuple):
    start: int
    end: int
    options: tuple[GapOption, ...] = ()
    free: re.Pattern[str] | None = None
    name: str = ""
    in_answers: bool = True
    label: str = ""
    """Label of a short value in the comparison, since another name may have the same value."""


class FilledGap(NamedTuple):
    gap: VariableSpan
    option: GapOption | None
    text: str


class TextDivergence(NamedTuple):
    recorded: int
    present: int
    leaked: bool = False
    """Whether a recorded value that must not occur is there."""


def fill_text_gaps(recorded: str, gaps: Sequence[VariableSpan], present: str) -> list[FilledGap] | TextDivergence:
    """Align two texts; `gaps` are in order and do not overlap."""
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


def _list_gap_fillings(gap: VariableSpan, present: str, at: int) -> Iterable[tuple[int, GapOption | None]]:
    if gap.free is not None:
        if (found := gap.free.match(present, at)) is not None:
            yield found.end() - at, None
        return
    for option in gap.options:
        end = at + len(option.text)
        if present.startswith(option.text, at) and (option.unchanged or option.border(present, at, end)):
            yield len(option.text), option


def splice(text: str, changes: Iterable[tuple[int, int, str, *tuple[object, ...]]]) -> str:
    """Return a text with some parts replaced: (start, end, new, ...), in order and without overlap."""
    parts, last = [], 0
    for start, end, new, *_ in changes:
        parts += [text[last:start], new]
        last = end
    return "".join([*parts, text[last:]])


def splice_present_values(text: str, gaps: Iterable[VariableSpan]) -> str:
    return splice(text, ((gap.start, gap.end, gap.options[0].text) for gap in gaps))
