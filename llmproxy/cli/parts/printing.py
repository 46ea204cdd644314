"""Safe printing of recorded text on a terminal.

Every unprintable character is shown escaped. Tables are cut to the width of a terminal, and complete in a pipe or file.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import TracebackType
from typing import Self, TextIO

import typer

from llmproxy.amount_formatting import format_count, format_milliseconds
from llmproxy.errors import printable
from llmproxy.report.proxy_console import (
    clip_to_terminal_cells,
    count_terminal_cells,
    pad_to_terminal_cells,
    wrap_to_terminal_cells,
)

_LEAST = 24
_NARROWEST = 8
_NOWHERE: Mapping[str, int] = {}


def to_safe_line(text: str) -> str:
    """Return `text` on one line without any effect on a terminal."""
    return printable(" ".join(text.split()))


def escape_all_but_line_breaks(text: str) -> str:
    """Return `text` with its line breaks, and all other unprintable characters escaped."""
    return "\n".join(printable(row.replace("\t", "    ")) for row in text.replace("\r\n", "\n").split("\n"))


def format_body_for_reading(content: bytes) -> str:
    """Return a body for reading: JSON indented, other text as it is, binary as its size and start."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"({len(content)} bytes of binary: {content[:32]!r}{'...' if len(content) > 32 else ''})"
    try:
        return escape_all_but_line_breaks(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return escape_all_but_line_breaks(text)


def print_line(text: str = "") -> None:
    """Print a line; characters outside the output's encoding are escaped, never an error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def get_terminal_width_or_none() -> int | None:
    """Return the terminal's width; None for a pipe or a file, where nothing is cut or broken."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrap_text(text: str, room: int | None, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a text, wrapped for a terminal `room` columns wide of which `indent` are taken."""
    for row in text.split("\n"):
        if room is None or room - indent < _LEAST:
            yield row
        else:
            yield from (each.rstrip() for each in wrap_to_terminal_cells(row, room - indent, " "))


def print_json(value: object) -> None:
    """Print JSON in ASCII, safe for any terminal and reader."""
    typer.echo(json.dumps(value, indent=2, default=str))


def format_table_lines(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    room: int | None,
    alike: Collection[str] = (),
    measures: Collection[str] = (),
    breaks: Mapping[str, int] = _NOWHERE,
) -> Iterator[str]:
    """Yield the lines of a table for a terminal `room` columns wide; None: a pipe.

    Columns are dropped in this order: those of `alike` with equal values in all rows, then those of `measures`. If the
    last column still lacks space it gets lines of its own if it is long, and the widest of the others are folded (a
    long name of a cassette); before that, columns of `breaks` are narrowed to the given width at a space. Columns that
    distinguish rows are always complete; only the last column is cut.
    """
    cells = [[to_safe_line(cell) or "-" for cell in row] for row in rows]
    widths = [max(map(count_terminal_cells, column)) for column in zip(head, *cells, strict=True)]
    last = len(head) - 1
    kept = list(range(last))
    least = min(widths[last], _LEAST)
    equal = [n for n in kept if head[n] in alike and len(rows) > 1 and len({row[n] for row in cells}) == 1]
    for n in (*equal, *(n for n in reversed(kept) if head[n] in measures)):
        if room is None or sum(widths[m] + 2 for m in kept) + least <= room:
            break
        kept.remove(n)
    narrow = {n: breaks[head[n]] for n in kept if head[n] in breaks}
    if room is not None and least == widths[last]:
        _shrink_columns(widths, kept, room - least - 2, narrow)
    below = room is not None and sum(widths[m] + 2 for m in kept) + least > room
    if below:
        _shrink_columns(widths, kept, room or 0, narrow)
    for row in (head, *cells):
        first, *more = zip_longest(*(wrap_to_terminal_cells(row[n], widths[n]) for n in kept), fillvalue="")
        front = _align_cells(first, widths, kept)
        if not below:
            end = (
                row[last] if room is None else clip_to_terminal_cells(row[last], room - count_terminal_cells(front) - 2)
            )
            yield f"{front}  {end}".rstrip()
        else:
            yield front.rstrip()
        yield from (_align_cells(each, widths, kept).rstrip() for each in more)
        if below:
            yield "    " + clip_to_terminal_cells(row[last], (room or 0) - 4)


def _align_cells(cells: Sequence[str], widths: Sequence[int], kept: Sequence[int]) -> str:
    return "  ".join(pad_to_terminal_cells(cell, widths[n]) for n, cell in zip(kept, cells, strict=True))


def _shrink_columns(widths: list[int], kept: Collection[int], room: int, narrow: Mapping[int, int]) -> None:
    """Narrow the columns of `narrow`, then the widest ones, until all fit in `room`, as far as possible."""
    if sum(widths[n] + 2 for n in kept) - 2 > room:
        for n, cells in narrow.items():
            widths[n] = min(widths[n], cells)
    while kept and sum(widths[n] + 2 for n in kept) - 2 > room:
        widest = max(kept, key=lambda n: widths[n])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def format_size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "KB", "MB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def write_stderr_lines(*lines: str) -> None:
    text = "".join(f"{line}\n" for line in lines if line)
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, err=True)


_PATIENCE = 1.0
_MINUTE = 60
_OFTEN = 0.25


class LongTaskProgressLine:
    """Shows the current work, its progress and duration; nothing in a pipe.

    with LongTaskProgressLine("verifying llmproxy.db", "interaction") as working:
        for row in working.iterate(rows): ...
    """

    def __init__(
        self, what: str, unit: str = "", *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._unit, self._clock = what, unit, clock
        self._stream = stream or sys.stderr
        self._began = clock()
        self._done = self._total = 0
        self._shown = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._thread = threading.Thread(target=self._refresh_periodically, name="llmproxy-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._overwrite_line("")

    def iterate[Thing](self, things: Iterable[Thing], total: int = 0) -> Iterator[Thing]:
        self._done, self._total = 0, total
        for each in things:
            yield each
            self._done += 1

    def format_line(self) -> str:
        """Return the current line; empty in the first second."""
        if (since := self._clock() - self._began) < _PATIENCE:
            return ""
        far = f": {format_count(self._done, self._unit)}" if self._done else ""
        if self._total:
            far = f": {self._done:,} of {self._total:,} {self._unit}s"
        long = f"{since:.0f} s" if since < _MINUTE else format_milliseconds(since * 1000)
        return f"{self._what}{far}, {long}"

    def _refresh_periodically(self) -> None:
        while not self._over.wait(_OFTEN):
            self._overwrite_line(self.format_line())

    def _overwrite_line(self, text: str) -> None:
        text = clip_to_terminal_cells(text, shutil.get_terminal_size().columns - 1)
        if text or self._shown:
            self._stream.write(f"\r{text}{' ' * (self._shown - count_terminal_cells(text))}" + ("" if text else "\r"))
            self._stream.flush()
        self._shown = count_terminal_cells(text)
