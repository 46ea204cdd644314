"""A client that has said all it will say: does it still wait for its answer, or is it gone?

On the wire both are the same FIN. Whoever is gone is noticed when something is sent to it; a provider that thinks for minutes sends nothing
meanwhile. For a client on this machine Linux knows at once: a socket that was closed belongs to no process any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_TABLES = tuple(Path("/proc/net") / name for name in ("tcp", "tcp6"))
_LOCAL, _REMOTE, _INODE = 1, 2, 9
"""Columns of these tables (proc(5))."""


def has_gone(peer: Any, here: Any) -> bool:  # noqa: ANN401 - addresses, as the system gives them: (host, port, ...)
    """Tell whether nobody holds the other end of a connection from `peer` to `here`; False also where that cannot be known."""
    try:
        ends = f":{peer[1]:04X}", f":{here[1]:04X}"
    except (TypeError, IndexError, ValueError):
        return False
    for table in _TABLES:
        try:
            lines = table.read_text("ascii", "replace").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > _INODE and columns[_LOCAL].endswith(ends[0]) and columns[_REMOTE].endswith(ends[1]):
                return columns[_INODE] == "0"
    return False
