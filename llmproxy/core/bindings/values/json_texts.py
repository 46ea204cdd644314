"""JSON inside of texts: a tool's result often is JSON, or says some words and then JSON. Its keys may come in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmproxy.core.traffic.json_bytes import NotLossless, parse


def read_json(text: str) -> object | None:
    """Return the array or object that a text is; None for anything else."""
    if text[:1] not in ("{", "[") and text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        tree = parse(text)
    except NotLossless:
        return None
    return tree if isinstance(tree, (dict, list)) else None


_MOST_PIECES = 2_000


def split_json(text: str) -> list[object]:
    """Return a text as its parts: strings, and (parsed) the arrays and objects that begin at the beginning of a line."""
    whole = read_json(text)
    if whole is not None:
        return [whole]
    parts: list[object] = []
    prose: list[str] = []
    lines = text.splitlines(keepends=True)
    n = 0
    while n < len(lines):
        taken = _read_lines(lines, n) if lines[n][:1] in ("{", "[") and len(parts) < _MOST_PIECES else None
        if taken is None:
            prose.append(lines[n])
            n += 1
            continue
        if prose:
            parts.append("".join(prose))
            prose = []
        parts.append(taken[0])
        n = taken[1]
    return [*parts, "".join(prose)] if prose else parts


def _read_lines(lines: Sequence[str], start: int) -> tuple[object, int] | None:
    """Return the value that begins with a line, and the line behind it: one line, or up to one that closes at the beginning of a line."""
    if (value := read_json(lines[start])) is not None:
        return value, start + 1
    closing = "}" if lines[start][0] == "{" else "]"
    for end in range(start + 1, len(lines)):
        if lines[end][:1] == closing:
            value = read_json("".join(lines[start : end + 1]))
            return None if value is None else (value, end + 1)
    return None


def pair_json(recorded: str, present: str) -> Iterator[tuple[object, object]]:
    """Yield the parts of two texts side by side; nothing where they are not the same in number."""
    mine, theirs = split_json(recorded), split_json(present)
    if len(mine) == len(theirs):
        yield from zip(mine, theirs, strict=True)
