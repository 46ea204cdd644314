"""Recorded text on a terminal: never trusted, never hidden.

Whatever was recorded may hold escape sequences or bytes that are no text; everything that does not print is shown
escaped. Tables are cut to the width of a terminal, and whole where the output goes into a pipe or file.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence

import typer

from llmproxy.core.traffic.differences import printable


def line(text: str) -> str:
    """Return `text` as one line that does nothing but stand there."""
    return printable(" ".join(text.split()))


def paragraphs(text: str) -> str:
    """Return `text` with its line breaks, and everything else that does not print escaped."""
    return "\n".join(printable(row.replace("\t", "    ")) for row in text.replace("\r\n", "\n").split("\n"))


def body_text(content: bytes) -> str:
    """Return a body for reading: JSON indented, other text as it is, binary as its size and start."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"({len(content)} bytes of binary: {content[:32]!r}{'...' if len(content) > 32 else ''})"
    try:
        return paragraphs(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return paragraphs(text)


def say(text: str = "") -> None:
    """Print a line; what the output's encoding cannot say is escaped, never an error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def dump(value: object) -> None:
    """Print JSON in plain ASCII: safe for any terminal and any reader."""
    typer.echo(json.dumps(value, indent=2, default=str))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns. The last one takes what the terminal has left; a pipe gets everything."""
    cells = [[line(cell) or "-" for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in [list(head), *cells]) for n in range(len(head) - 1)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in [list(head), *cells]:
        text = "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        say(text if room is None or len(text) <= room else text[: room - 1] + "…")


def size(count: int) -> str:
    """Return a number of bytes as people say it."""
    value = float(count)
    for unit in ("bytes", "KB", "MB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
