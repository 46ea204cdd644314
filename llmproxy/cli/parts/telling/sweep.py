"""A sweep at the terminal: progress on stderr, the table on stdout, exit code 1 if a fault breaks the agent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.errors import Exit, MachineError

if TYPE_CHECKING:
    from llmproxy.client.sweep import SweepFinding

MOST_JOBS = 4
"""Runs at once unless somebody says otherwise."""


def usual_jobs() -> int:
    """Return how many runs go on at once unless somebody says otherwise."""
    return max(1, min(MOST_JOBS, os.cpu_count() or 1))


def given_input() -> bytes | None:
    """Return what came on stdin, for each of the runs; None from a terminal."""
    with suppress(OSError, ValueError):
        if sys.stdin is not None and not sys.stdin.isatty() and _is_piped():
            return sys.stdin.buffer.read()
    return None


def _is_piped() -> bool:
    """Tell whether stdin is a pipe or a file, and not what a service manager or a test runner leaves open for ever."""
    import stat

    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def teller() -> Callable[[str], None]:
    """Return what says how far a sweep is: lines, and on a terminal a counter."""
    live = sys.stderr.isatty()

    def tell(text: str) -> None:
        if text.startswith("\r"):
            if live:
                typer.echo(f"{text} ", err=True, nl=False)
        else:
            typer.echo(f"llmproxy: {text}", err=True)

    return tell


def tell_findings(findings: Sequence[SweepFinding], typed: str, file: Path | None = None) -> int:
    """Print the table and what it comes to, and write them to `file`; returns the exit code. `typed` is a command with FAULT in it."""
    from llmproxy.client.sweep import as_json, lines_of, summary_of

    if sys.stderr.isatty():
        typer.echo("\r", err=True, nl=False)
    for line in [*lines_of(findings), "", *summary_of(findings, typed)]:
        typer.echo(line)
    if file is not None:
        write_findings(file, as_json(findings))
    return Exit.FAILED if any(each.weak for each in findings) else Exit.OK


def write_findings(file: Path, found: object) -> None:
    """Write findings for a program. Raises MachineError."""
    try:
        file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise MachineError(f"--json {file} could not be written: {error.strerror or error}") from error
