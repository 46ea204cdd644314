"""The two ends of the stdio proxy: the real server as a child, and the client that reads our stdout.

A server ends with us, however we end. The client gets whole lines, with pauses where it needs them: a recorded answer
is available at once, with its progress notifications, and the SDK for Node drops a call's progress if the result
arrives in the same read (it handles notifications a step later than answers). So a notification that is followed by
something else is sent alone, and the rest when the client has read it.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import sleep

from llmproxy.errors import MachineError

READ = 1 << 16
LONGEST_LINE = 1 << 29
"""Maximum bytes of a line."""
PATIENCE = 2.0
"""Seconds that a server may take to exit when its input ends."""
_PR_SET_PDEATHSIG = 1
_NOTIFICATION = re.compile(rb'"method"\s*:\s*"notifications/')
LOOK = 0.0003
"""Seconds between two checks whether the client has read."""
READING = 0.5
"""Maximum seconds to wait until the client has read."""
BLIND = 0.005
"""Seconds to wait where reading cannot be observed."""


class LineTooLong(MachineError): ...


def read_lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield lines as they arrive, with their line ends; an incomplete last line too. Raises LineTooLong."""
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
        dying = _make_parent_death_hook() if sys.platform == "linux" else None
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
        """Send a line; False if the server has closed its input."""
        if self._child.stdin is None:
            return False
        view = memoryview(line)
        try:
            while view:
                view = view[self._child.stdin.write(view) or 0 :]
        except (OSError, ValueError):
            return False
        return True

    def read_lines(self) -> Iterator[bytes]:
        if self._child.stdout is None:
            return iter(())
        out = self._child.stdout.fileno()
        return read_lines(lambda size: os.read(out, size))

    def end(self, *, at_once: bool = False) -> int:
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
        if self._child.stdout is not None:
            self._child.stdout.close()

    def wait(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(seconds)
        return None


def _make_parent_death_hook() -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def die() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return die


def split_notification_runs(data: bytes) -> list[bytes]:
    """Split lines after the last of consecutive notifications that something else follows."""
    if _NOTIFICATION.search(data) is None:
        return [data]
    parts = [b""]
    was_notification = False
    for line in data.splitlines(keepends=True):
        is_notification = _NOTIFICATION.search(line) is not None
        if was_notification and not is_notification:
            parts.append(b"")
        parts[-1] += line
        was_notification = is_notification
    return parts


def make_client_line_writer(fd: int = 1, patience: float = READING) -> Callable[[bytes], None]:
    """Return a thread-safe function that writes whole lines to a descriptor; a closed client is no error."""
    guard = threading.Lock()
    last = b""

    def write(data: bytes) -> None:
        nonlocal last
        with guard:
            try:
                for part in split_notification_runs(data):
                    if _NOTIFICATION.search(last) and not _NOTIFICATION.search(part[: part.find(b"\n")]):
                        wait_until_read(fd, patience)
                    view = memoryview(part)
                    while view:
                        view = view[os.write(fd, view) :]
                    last = part[part.rfind(b"\n", 0, -1) + 1 :]
            except OSError:
                return

    return write


def wait_until_read(fd: int, patience: float) -> None:
    for _ in range(int(patience / LOOK)):
        if (left := _count_unread(fd)) is None:
            sleep(BLIND)
            return
        if not left:
            return
        sleep(LOOK)


def _count_unread(fd: int) -> int | None:
    try:
        from fcntl import ioctl
        from termios import FIONREAD, TIOCOUTQ

        kind = os.fstat(fd).st_mode
        request = FIONREAD if stat.S_ISFIFO(kind) else TIOCOUTQ if stat.S_ISSOCK(kind) else 0
        return int.from_bytes(ioctl(fd, request, bytes(4)), "little") if request else None
    except (ImportError, OSError):  # Windows; what is neither pipe nor socket
        return None
