"""Who went past the proxy? Watches a process and its descendants, on Linux, through /proc.

While they run it notes what they are, the base URLs in their environment and the addresses they connect to. Needs no privilege, but
sees only samples: a connection shorter than the pause between two can be missed. What it reports happened; that it reports nothing
proves nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PAUSE = 0.02
"""Seconds between two looks."""
WEB = frozenset({80, 443})
_OPEN = frozenset({"01", "02"})
"""TCP states of /proc/net/tcp: established, and SYN sent."""
Address = tuple[str, int]


@dataclass(slots=True)
class WitnessedCall:
    """What was seen of one process."""

    pid: int
    program: str
    env: dict[str, str] | None = None
    """Its environment when it was first seen; None if we may not read it."""
    connected: set[Address] = field(default_factory=set)
    looks: int = 0
    """Samples in which it was there: what was seen but once may have been half made."""


class Witness:
    """Watches a process until it is told to stop."""

    def __init__(self, proc: Path = Path("/proc"), helper: Path | None = None) -> None:
        """Look into `proc`; processes that run the script `helper` are ours, and nobody's business."""
        self.seen: dict[int, WitnessedCall] = {}
        self._proc = proc
        self._helper = None if helper is None else str(helper).encode()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def able(self) -> bool:
        """Whether this machine lets us look."""
        return (self._proc / "self" / "net" / "tcp").exists()

    def start(self, pid: int) -> None:
        """Begin to watch `pid` and what it starts."""
        self._thread = threading.Thread(target=self._watch, args=(pid,), name="witness", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def went_past(self, proxy: Address, upstreams: frozenset[Address] = frozenset()) -> dict[int, list[Address]]:
        """Return, by process, the web addresses (or upstreams) that it connected to and that are not the proxy."""
        found = {}
        for pid, seen in self.seen.items():
            past = sorted(
                at for at in seen.connected if at != proxy and (at in upstreams or (at[1] in WEB and not _local(at[0])))
            )
            if past:
                found[pid] = past
        return found

    def _watch(self, pid: int) -> None:
        while not self._stop.is_set():
            self.look(pid)
            self._stop.wait(PAUSE)

    def look(self, pid: int) -> None:
        for each in [pid, *self._descendants(pid)]:
            with contextlib.suppress(OSError, ValueError):  # it ended while we looked, or is another user's
                self._note(each)

    def _note(self, pid: int) -> None:
        folder = self._proc / str(pid)
        words = (folder / "cmdline").read_bytes().split(b"\0")
        program = words[0].decode(errors="replace")
        if not program or self._helper in words[1:4]:  # it has ended, and nobody waited for it yet; or is ours
            return
        seen = self.seen.get(pid)
        if seen is None or seen.program != program:  # a shell became what it executes
            before = seen.connected if seen else set()
            seen = self.seen[pid] = WitnessedCall(pid, program, None, before)
        seen.looks += 1
        seen.env = seen.env or _environ(folder)
        seen.connected |= set(self._connections(folder))

    def _connections(self, folder: Path) -> Iterator[Address]:
        """Yield the remote ends of the process's TCP connections."""
        inodes = set()
        for link in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = link.readlink().name
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        if not inodes:
            return
        for name in ("tcp", "tcp6"):
            with contextlib.suppress(FileNotFoundError):
                for line in (folder / "net" / name).read_text("ascii").splitlines()[1:]:
                    words = line.split()
                    if words[9] in inodes and words[3] in _OPEN:
                        yield _address(words[2])

    def _descendants(self, pid: int) -> list[int]:
        """Return all processes below `pid`, from the tree of parents as it is now."""
        children: dict[int, list[int]] = {}
        for folder in self._proc.iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    parent = int((folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(folder.name))
        found: list[int] = []
        todo = [pid]
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return found


def _environ(folder: Path) -> dict[str, str] | None:
    try:
        text = (folder / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


def _address(text: str) -> Address:
    """Read ``0100007F:1F90``: words of four bytes in the machine's order, which is little-endian wherever this runs."""
    number, _, port = text.partition(":")
    raw = bytes.fromhex(number)
    packed = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)


def _local(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
