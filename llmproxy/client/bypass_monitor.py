"""Detection of traffic that bypasses the proxy: watches a process and its descendants on Linux through /proc, and host
lookups of Python and Node (`data/watch_host_lookups.*`), which need no DNS.

It samples, without privileges, so a short connection can be missed: each report is a fact, no report proves nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from llmproxy.core.providers.upstreams_and_rates import provider_of_host

PAUSE = 0.02
"""Sampling interval in seconds."""
WEB = frozenset({80, 443})
_OPEN = frozenset({"01", "02"})
"""TCP states of /proc/net/tcp: established, and SYN sent."""
Address = tuple[str, int]
VARIABLE = "LLMPROXY_DOCTOR"
_DATA = Path(str(files("llmproxy"))) / "data"


@dataclass(slots=True)
class MonitoredProcess:
    pid: int
    program: str
    env: dict[str, str] | None = None
    """Its environment when first seen; None if not readable."""
    connected: set[Address] = field(default_factory=set)
    looks: int = 0
    """Samples that include it: after only one, the process may still have been starting."""


class ProcessMonitor:
    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.seen: dict[int, MonitoredProcess] = {}
        self._proc = proc
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_supported(self) -> bool:
        return (self._proc / "self" / "net" / "tcp").exists()

    def start(self, pid: int) -> None:
        self._thread = threading.Thread(target=self._watch, args=(pid,), name="process monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def find_bypasses(self, proxy: Address, upstreams: frozenset[Address] = frozenset()) -> dict[int, list[Address]]:
        def is_past(at: Address) -> bool:
            return at != proxy and (at in upstreams or (at[1] in WEB and not _is_local(at[0])))

        found = {pid: sorted(filter(is_past, seen.connected)) for pid, seen in self.seen.items()}
        return {pid: past for pid, past in found.items() if past}

    def _watch(self, pid: int) -> None:
        while not self._stop.is_set():
            self.poll(pid)
            self._stop.wait(PAUSE)

    def poll(self, pid: int) -> None:
        for each in [pid, *self._list_descendants(pid)]:
            with contextlib.suppress(OSError, ValueError):  # it ended while we looked, or is another user's
                self._record_process(each)

    def _record_process(self, pid: int) -> None:
        folder = self._proc / str(pid)
        program = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
        if not program:  # it has ended, and nobody waited for it yet
            return
        seen = self.seen.get(pid)
        if seen is None or seen.program != program:  # a shell became what it executes
            before = seen.connected if seen else set()
            seen = self.seen[pid] = MonitoredProcess(pid, program, None, before)
        seen.looks += 1
        seen.env = seen.env or _read_environ(folder)
        seen.connected |= set(self._list_connections(folder))

    def _list_connections(self, folder: Path) -> Iterator[Address]:
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
                        yield _parse_address(words[2])

    def _list_descendants(self, pid: int) -> list[int]:
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


def _read_environ(folder: Path) -> dict[str, str] | None:
    try:
        text = (folder / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


def _parse_address(text: str) -> Address:
    """Parse ``0100007F:1F90``: words of four bytes in the machine's order, little-endian on all our platforms."""
    number, _, port = text.partition(":")
    raw = bytes.fromhex(number)
    packed = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)


def _is_local(host: str) -> bool:
    if _is_address(host):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# --- what Python and Node say ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObservedLookup:
    pid: int
    program: str
    host: str
    port: int
    """0 if unknown."""


def make_lookup_reporting_env(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    path = folder / "python"
    path.mkdir(exist_ok=True)
    shutil.copy(_DATA / "watch_host_lookups.py", path / "sitecustomize.py")
    required = f"--require {json.dumps(str(_DATA / 'watch_host_lookups.cjs'))}"  # Node unquotes as JSON does
    return {
        VARIABLE: str(lookup_log_path(folder)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(path), env.get("PYTHONPATH", "")])),
        "NODE_OPTIONS": " ".join(filter(None, [env.get("NODE_OPTIONS", ""), required])),
    }


def lookup_log_path(folder: Path) -> Path:
    return folder / "lookups"


def read_lookups(folder: Path) -> Iterator[ObservedLookup]:
    log = lookup_log_path(folder)
    for line in log.read_text("utf-8", "replace").splitlines() if log.is_file() else ():
        pid, host, port, program, *_ = [*line.split("\t"), "", "", ""]
        if pid.isdecimal() and host:
            yield ObservedLookup(int(pid), program, host, int(port) if port.isdecimal() else 0)


def find_lookup_bypasses(lookups: Iterable[ObservedLookup], machine: str = "") -> dict[int, tuple[str, list[Address]]]:
    """Return program and looked-up hosts by process; port 0: only resolved. `machine` is our host name."""
    found: dict[int, tuple[str, dict[str, int]]] = {}
    for each in lookups:
        _, ports = found.setdefault(each.pid, (each.program, {}))
        if not _is_local(each.host) and each.host.partition(".")[0] != machine:
            ports[each.host] = ports.get(each.host) or each.port
    return {pid: (program, past) for pid, (program, ports) in found.items() if (past := _list_bypassed_hosts(ports))}


def _list_bypassed_hosts(ports: Mapping[str, int]) -> list[Address]:
    past = []
    for host, port in ports.items():
        if port in WEB or provider_of_host(host, None) is not None:
            past.append((host, port or 443))
        elif not port and not _is_address(host):
            past.append((host, 0))
    return past
