"""Frames: the text that a client itself writes into its requests, around the text of people and tools.

A line is recognised by its whole text, never by a tag that a user could type; a line with holes by all text around
them. Text in a hole or between the lines is never the client's: an attached file, a project's instructions, a hook's
output. ``data/frames.json`` contains the results of `scripts/lab/derive-frames` for planted pairs of runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import NamedTuple

from llmproxy.core.providers.provider_table import Client
from llmproxy.files import DATA

FRAME = "frame"
"""Kind of a slot: a part of a user's message that the client wrote."""
SHORT = 24
"""Minimum characters of a line that is always the client's. A shorter one (``---``) is the client's only between its
lines, or next to one if it is a heading."""
_HEADING = 6
_LETTER = re.compile(r"[^\W\d_]")
_DIGITS = 12


class _MatchedClientLine(NamedTuple):
    text: str
    values: tuple[str, ...] = ()
    """Texts in its holes."""


class FrameSplit(NamedTuple):
    own: tuple[str, ...]
    others: tuple[str, ...]
    """The text between them, each run of lines as one text."""
    values: tuple[str, ...]
    """Texts in holes."""


class ClientFrames:
    def __init__(self, row: dict[str, list[str]]) -> None:
        self._lines = frozenset(row["lines"])
        self._holes = {text: _build_pattern(text) for text in row["holes"]}
        self.tools, self.members = frozenset(row["tools"]), frozenset(row["members"])
        """Names of its own tools, and of the members that it writes next to the parts of messages."""
        self.parameters = frozenset(row["parameters"])
        self.split = lru_cache(64)(self._split_text)

    def is_client_part(self, text: str) -> bool:
        """Return whether the client wrote a part of a user's message: its first two lines and the last one."""
        lines = [line for line in text.split("\n") if line.strip()]
        known = len(lines) > 2 and all(map(self._match_client_line, (*lines[:2], lines[-1])))
        return known and len(lines[0]) + len(lines[1]) >= SHORT

    def _match_client_line(self, line: str) -> _MatchedClientLine | None:
        """Return a client's line with the texts in its holes; None if it is not the client's."""
        if digest_stripped_line(line) in self._lines:
            return _MatchedClientLine(line.strip())
        matches = ((text, pattern.fullmatch(line.strip())) for text, pattern in self._holes.items())
        return next((_MatchedClientLine(text, found.groups()) for text, found in matches if found), None)

    def _split_text(self, text: str) -> FrameSplit:
        own, others, between = list[_MatchedClientLine](), list[str](), list[str]()
        for line, found in self._match_each_line_to_client(text.split("\n")):
            if found is None:
                between.append(line)
            else:
                own.append(found)
                others.append("\n".join(between).strip())
                between.clear()
        others.append("\n".join(between).strip())
        values = tuple(value for each in own for value in each.values)
        return FrameSplit(tuple(each.text for each in own), tuple(filter(None, others)), values)

    def _match_each_line_to_client(self, lines: Sequence[str]) -> Iterator[tuple[str, _MatchedClientLine | None]]:
        """Yield each line with its match; None if it is empty or not the client's."""
        said = [n for n, line in enumerate(lines) if line.strip()]
        found = {n: self._match_client_line(lines[n]) for n in said}
        sure = {n for n, own in found.items() if own and (own.values or len(own.text) >= SHORT)}
        numbers = range(len(said))

        def is_sure(at: int) -> bool:
            return at not in numbers or said[at] in sure

        for at in (*numbers, *reversed(numbers)):
            is_heading = len(_LETTER.findall(lines[said[at]])) >= _HEADING
            if found[said[at]] and is_heading and (is_sure(at - 1) or is_sure(at + 1)):
                sure.add(said[at])
        for is_short, group in groupby(numbers, lambda at: not is_sure(at) and bool(found[said[at]])):
            run = [*group]
            if is_short and not (is_sure(run[0] - 1) and is_sure(run[-1] + 1)):
                found.update((said[at], None) for at in run)
        yield from ((line, found.get(n)) for n, line in enumerate(lines))


def digest_stripped_line(line: str) -> str:
    return hashlib.sha256(line.strip().encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _build_pattern(text: str) -> re.Pattern[str]:
    """Return a line's pattern: ``{}`` is a compared value, ``{*}`` the client's text on a model, compared elsewhere."""
    return re.compile(re.escape(text.strip()).replace(r"\{\}", "(.+?)").replace(r"\{\*\}", ".+?"))


@cache
def _load_client_frames() -> dict[str, ClientFrames]:
    return {row["client"]: ClientFrames(row) for row in json.loads((DATA / "frames.json").read_bytes())}


def get_client_frames(client: Client | None) -> ClientFrames | None:
    return None if client is None else _load_client_frames().get(client.name)
