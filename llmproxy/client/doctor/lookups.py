"""Who asked for a host by name? Told by Python and Node programs themselves, so that it is known where no name can be resolved.

On a machine without DNS (a build container, a train) a client that goes past the proxy never gets as far as a connection, so nothing of
it is to be seen in /proc. `data/watch_lookups.*` run inside the child, and write a line for each host that it asks for.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from llmproxy.client.doctor.witness import WEB, Address

__all__ = ["HostLookup", "past_by_name", "read_lookups", "watching"]

VARIABLE = "LLMPROXY_DOCTOR"


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
    data = Path(str(files("llmproxy"))) / "data"
    path = folder / "python"
    path.mkdir(exist_ok=True)
    shutil.copy(data / "watch_lookups.py", path / "sitecustomize.py")
    required = f"--require {json.dumps(str(data / 'watch_lookups.cjs'))}"  # Node unquotes as JSON does
    return {
        VARIABLE: str(log_in(folder)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(path), env.get("PYTHONPATH", "")])),
        "NODE_OPTIONS": " ".join(filter(None, [env.get("NODE_OPTIONS", ""), required])),
    }


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


def past_by_name(lookups: Iterator[HostLookup]) -> dict[int, tuple[str, list[Address]]]:
    """Return, by process, its program and the web hosts, or providers' hosts, that it asked for itself."""
    from llmproxy.core.providers.hosts import provider_of_host

    found: dict[int, tuple[str, list[Address]]] = {}
    for each in lookups:
        at = (each.host, each.port or 443)
        past = not _local(each.host) and (each.port in WEB or provider_of_host(each.host, None) is not None)
        known = found.setdefault(each.pid, (each.program, []))[1]
        if past and at not in known:
            known.append(at)
    return {pid: told for pid, told in found.items() if told[1]}


def _local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
