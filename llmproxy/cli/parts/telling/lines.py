"""Lines on stderr: what a command says beside what it prints."""

from __future__ import annotations

import sys

import typer


def tell_lines(*lines: str) -> None:
    """Write lines to stderr, each whole."""
    text = "".join(f"{line}\n" for line in lines if line)
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, err=True)
