"""Whole lines to the client, each when it can be heard.

A recorded answer is there at once, its progress too; a real server's last progress may come a moment before the result. The SDK for Node drops what it is told of a call's progress if the call's result comes in the same
read: it hears notifications a step later than answers. So a notification that is followed by something else goes out alone, and the rest when the client
has read it.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable
from time import sleep

_NOTIFICATION = re.compile(rb'"method"\s*:\s*"notifications/')
LOOK = 0.0003
"""Seconds between two looks."""
PATIENCE = 0.5
"""Seconds that a client may take to read, before it gets the rest all the same."""
BLIND = 0.005
"""Seconds that are waited where nobody can look."""


def cut(data: bytes) -> list[bytes]:
    """Cut lines behind the last notification of a row that something else follows."""
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


def to_stdout(fd: int = 1, patience: float = PATIENCE) -> Callable[[bytes], None]:
    """Return what writes whole lines to a descriptor from any thread; a client that is gone is no error."""
    guard = threading.Lock()
    last = b""

    def write(data: bytes) -> None:
        nonlocal last
        with guard:
            try:
                for part in cut(data):
                    if _NOTIFICATION.search(last) and not _NOTIFICATION.search(part[: part.find(b"\n")]):
                        wait_until_read(fd, patience)
                    _write(fd, part)
                    last = part[part.rfind(b"\n", 0, -1) + 1 :]
            except OSError:
                return

    return write


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def wait_until_read(fd: int, patience: float) -> None:
    """Wait until the other side has read what was written, or has had its time."""
    for _ in range(int(patience / LOOK)):
        if (left := _unread(fd)) is None:
            sleep(BLIND)
            return
        if not left:
            return
        sleep(LOOK)


def _unread(fd: int) -> int | None:
    """Return how much waits to be read; None where nobody can tell."""
    try:
        from fcntl import ioctl
        from termios import FIONREAD, TIOCOUTQ

        kind = os.fstat(fd).st_mode
        request = FIONREAD if stat.S_ISFIFO(kind) else TIOCOUTQ if stat.S_ISSOCK(kind) else 0
        return int.from_bytes(ioctl(fd, request, bytes(4)), "little") if request else None
    except (ImportError, OSError):  # Windows; what is neither pipe nor socket
        return None
