"""The real server as a child: its lines in and out, and its end, which comes with ours whatever ends us."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from llmproxy.errors import MachineError

READ = 1 << 16
LONGEST_LINE = 1 << 29
"""Bytes of a line after which nobody waits for its end."""
PATIENCE = 2.0
"""Seconds that a server may take to end by itself when its input ends."""
_PR_SET_PDEATHSIG = 1


class LineTooLong(MachineError): ...


def lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield lines as they come, each with its end; what is left at the end, without one, last. Raises TooLong."""
    parts: list[bytes] = []
    size = 0
    while data := read(READ):
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            yield b"".join([*parts, data[begin : end + 1]])
            parts, size, begin = [], 0, end + 1
        if begin < len(data):
            parts.append(data[begin:])
            size += len(data) - begin
        if size > LONGEST_LINE:
            raise LineTooLong(f"a line of over {LONGEST_LINE} bytes")
    if parts:
        yield b"".join(parts)


class ToolServer:
    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it; its stderr is ours. Raises MachineError."""
        dying = _die_with_us() if sys.platform == "linux" else None
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(env),
                bufsize=0,
                preexec_fn=dying,  # noqa: PLW1509 - one system call, before any thread of ours runs
            )
        except OSError as error:
            raise MachineError(f"{command[0]} cannot be started: {error.strerror or error}") from error

    def write(self, line: bytes) -> bool:
        """Send a line; False if nobody reads any more."""
        if self._child.stdin is None:
            return False
        view = memoryview(line)
        try:
            while view:
                view = view[self._child.stdin.write(view) or 0 :]
        except (OSError, ValueError):
            return False
        return True

    def lines(self) -> Iterator[bytes]:
        """Yield what it says until it ends."""
        if self._child.stdout is None:
            return iter(())
        out = self._child.stdout.fileno()
        return lines(lambda size: os.read(out, size))

    def end(self, *, at_once: bool = False) -> int:
        """Let it end, and see to it; return its exit code."""
        if self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()
        if at_once:
            self._child.terminate()
        for step in (self._child.terminate, self._child.kill):
            try:
                return self._child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                step()
        return self._child.wait()

    def close(self) -> None:
        """Close what it spoke through; nobody reads it any more."""
        if self._child.stdout is not None:
            self._child.stdout.close()

    def wait(self, seconds: float) -> int | None:
        """Return its exit code; None if it still runs after that time."""
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(seconds)
        return None


def _die_with_us() -> Callable[[], None]:
    """Return what a child calls so that it is ended when we are killed."""
    prctl = ctypes.CDLL(None).prctl

    def die() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return die
