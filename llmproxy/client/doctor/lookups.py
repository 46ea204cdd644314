"""Who asked for a host by name? Told by the programs themselves and, on Linux, by the kernel, so that it is known where no name can be resolved.

On a machine without DNS (a build container, a train) a client that goes past the proxy never gets as far as a connection, so nothing of
it is to be seen in /proc. `data/watch_lookups.*` run inside a child in Python or Node, and write a line for each host that it asks for;
`data/trace_lookups.py` runs around it, and reads the system calls of all others (curl, Go, Java).
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from llmproxy.client.doctor.witness import WEB, Address

VARIABLE = "LLMPROXY_DOCTOR"
NAME_SERVER = 53
"""Its port."""
_DATA = Path(str(files("llmproxy"))) / "data"
TRACER = _DATA / "trace_lookups.py"


@dataclass(frozen=True, slots=True)
class HostLookup:
    """One host that a process asked for."""

    pid: int
    program: str
    host: str
    port: int
    """0 where it is not known."""


def watching(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables that make a child of `env` tell what it asks for; `folder` takes what they name."""
    path = folder / "python"
    path.mkdir(exist_ok=True)
    shutil.copy(_DATA / "watch_lookups.py", path / "sitecustomize.py")
    required = f"--require {json.dumps(str(_DATA / 'watch_lookups.cjs'))}"  # Node unquotes as JSON does
    return {
        VARIABLE: str(log_in(folder)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(path), env.get("PYTHONPATH", "")])),
        "NODE_OPTIONS": " ".join(filter(None, [env.get("NODE_OPTIONS", ""), required])),
    }


def trace_command(command: Sequence[str], folder: Path, system: str = sys.platform) -> tuple[str, ...]:
    """Return the command that runs `command` and tells into the log of `folder` what it asks for; itself where nothing can."""
    if system != "linux":
        return tuple(command)
    return (sys.executable, "-I", str(TRACER), str(log_in(folder)), *command)


def log_in(folder: Path) -> Path:
    """Return the file that children write to."""
    return folder / "lookups"


def read_lookups(folder: Path) -> Iterator[HostLookup]:
    """Yield what was told; half a line is left out."""
    log = log_in(folder)
    for line in log.read_text("utf-8", "replace").splitlines() if log.is_file() else ():
        pid, host, port, program, *_ = [*line.split("\t"), "", "", ""]
        if pid.isdecimal() and host:
            yield HostLookup(int(pid), program, host, int(port) if port.isdecimal() else 0)


@dataclass(slots=True)
class _Asked:
    program: str
    names: dict[str, int] = field(default_factory=dict)
    """Hosts, and the port where somebody told it."""
    addresses: list[Address] = field(default_factory=list)
    """What it connected to."""


def past_by_name(lookups: Iterable[HostLookup], machine: str = "") -> dict[int, tuple[str, list[Address]]]:
    """Return, by process, its program and the web hosts, or providers' hosts, that it asked for itself; `machine` is our own name.

    Port 0: a name that was looked up by a process that then connected nowhere. Who has no name for where it went is told by addresses;
    who has neither, since its name server cannot be reached, by that (port 53).
    """
    found: dict[int, _Asked] = {}
    for each in lookups:
        asked = found.setdefault(each.pid, _Asked(each.program))
        at = (each.host, each.port)
        if _local(each.host):
            continue
        if _is_address(each.host):
            asked.addresses += [at] if at not in asked.addresses else []
        elif each.host.partition(".")[0] != machine:
            asked.names[each.host] = asked.names.get(each.host) or each.port
    return {pid: (asked.program, past) for pid, asked in found.items() if (past := _past(asked))}


def _past(asked: _Asked) -> list[Address]:
    from llmproxy.core.providers.hosts import provider_of_host

    past: list[Address] = []
    for host, port in asked.names.items():
        if port in WEB or provider_of_host(host, None) is not None:
            past.append((host, port or 443))
        elif not port and all(at[1] == NAME_SERVER for at in asked.addresses):
            past.append((host, 0))
    went = [at for at in asked.addresses if at[1] in WEB]
    servers = [] if asked.names else [at for at in asked.addresses if at[1] == NAME_SERVER]
    return past or went or servers


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _local(host: str) -> bool:
    if _is_address(host):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")
