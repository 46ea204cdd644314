"""A network that can be cut: a listener on loopback that passes bytes on to a socket, until it does not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class CutNetwork:
    """Connections between a port of this machine and a Unix socket."""

    def __init__(self, target: str) -> None:
        self._request_path = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._down = self._silent = False
        self._held: list[socket.socket] = []
        self.ways = 0
        """How often a client waited for answers (Flush, Sync): ways there and back, however the network cuts them."""
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self, *, silently: bool = False) -> None:
        """Break every connection and let no other through; `silently`: who connects anew is never answered."""
        with self._lock:
            self._down, self._silent = True, silently
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        with self._lock:
            self._down = False
            while self._held:
                self._held.pop().close()

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._down:
                    self._held.append(client)
                    if not self._silent:
                        client.close()
                    continue
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._request_path)
                except OSError:
                    client.close()
                    server.close()
                    continue
                self._open |= {client, server}
            threading.Thread(target=self._join, args=(client, server), daemon=True).start()

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=_pass, args=(server, client, lambda _: None), daemon=True)
        back.start()
        said = bytearray()
        before = 0
        begun = False

        def count_asked(data: bytes) -> None:
            """Read PostgreSQL's messages: a type of one byte (not before the client has begun), a length of four, the rest."""
            nonlocal begun, before
            said.extend(data)
            while len(said) > 4 and len(said) >= (size := begun + int.from_bytes(said[begun : begun + 4])):
                with self._lock:
                    self.ways += begun and said[0] in b"HS" and before not in b"HS"  # a Sync is followed by a Flush
                before = said[0]
                begun = begun or said[4:6] == b"\x00\x03"  # the protocol's version; else a wish to encrypt
                del said[:size]

        _pass(client, server, count_asked)
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()


def _pass(one: socket.socket, other: socket.socket, seen: Callable[[bytes], None]) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            seen(data)
            other.sendall(data)
    for each in (one, other):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_network(target: str) -> Iterator[CutNetwork]:
    network = CutNetwork(target)
    try:
        yield network
    finally:
        network.close()
