"""Opening a store wherever it is: a file, or a server's under the path of its copy (`llmproxy.store_server`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmproxy.core.store.file.store import FileStore
from llmproxy.core.store.store import Store
from llmproxy.store_server import server_of


def open_store(path: Path | str, *, writable: bool, now: Callable[[], float], whole: bool = True) -> Store:
    """Open the store at `path`, as `FileStore.open` does and with its errors; `now` gives Unix time.

    `whole`: all of a server's store is read at once, for commands that look at everything. Without, a cassette is read when
    `Store.refresh` names it.

    Raises:
        MachineError: the server cannot be reached, or the extra `postgres` is missing.

    """
    server = server_of(path)
    if server is None:
        return FileStore.open(path, writable=writable, now=now)
    from llmproxy.core.store.server.store import ServerStore

    return ServerStore.connect(server, writable=writable, now=now, whole=whole)
