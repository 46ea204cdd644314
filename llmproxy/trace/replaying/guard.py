"""No network while a recording is replayed.

The original replaces ``socket.create_connection``; asyncio and plain sockets pass by it. Here an audit hook of the
interpreter refuses: it sees every connection and every look-up of a name below all libraries, however the socket was
made. The hook stays for the life of the process (Python has no way back) and does nothing while no guard is open.
Sockets of the file system are no network and pass. Process-wide, as the original's.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Collection
from typing import Any, Self

from llmproxy.errors import RefusedError


class NetworkBlocked(RefusedError, RuntimeError):
    """Something wanted to connect while a recording was replayed."""

    code = "llmproxy_network_blocked"


_CONNECTING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKUPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
_lock = threading.Lock()
_open: list[NetworkGuard] = []
_installed = False
_own = threading.local()


class NetworkGuard:
    """Refuse connections, except to the hosts of `allowlist`, while the ``with`` block runs. May be nested: all must agree."""

    def __init__(self, allowlist: Collection[str] | None = None) -> None:
        """Allow these host names and addresses."""
        self.allowlist = frozenset(host.lower() for host in allowlist or ())
        self._addresses = set(self.allowlist)

    def __enter__(self) -> Self:
        global _installed  # noqa: PLW0603 - a hook cannot be taken out, so there is one for all
        for host in self.allowlist:
            self._look_up(host)
        with _lock:
            if not _installed:
                sys.addaudithook(_audit)
                _installed = True
            _open.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        with _lock:
            _open.remove(self)

    @property
    def is_active(self) -> bool:
        """Whether it is closed now."""
        return self in _open

    def allows(self, host: str) -> bool:
        """Tell whether this host or address may be reached."""
        return host.lower() in self._addresses

    def _look_up(self, host: str) -> None:
        """Remember the addresses of an allowed name: a connection knows nothing but addresses."""
        _own.looking = True
        try:
            self._addresses |= {str(found[4][0]).lower() for found in socket.getaddrinfo(host, None)}
        except OSError:
            pass  # unknown here: then nothing connects there either
        finally:
            _own.looking = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _open or not event.startswith("socket.") or getattr(_own, "looking", False):
        return
    if event in _CONNECTING:
        address = arguments[1]
        if isinstance(address, tuple) and address:
            _refuse(str(address[0]), address[1] if len(address) > 1 else None)
    elif event in _LOOKUPS and arguments[0]:
        host = arguments[0]
        _refuse(host.decode("ascii", "replace") if isinstance(host, bytes) else str(host), None)


def _refuse(host: str, port: object) -> None:
    if all(guard.allows(host) for guard in tuple(_open)):
        return
    where = host if port is None else f"{host}:{port}"
    raise NetworkBlocked(
        f"A replay does not use the network: something wanted to reach {where}.",
        hint="Allow it with network_allowlist=[...], or switch the guard off with block_network=False.",
    )
