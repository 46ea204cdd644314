"""Who records a cassette: one at a time, and never a dead one."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.core.store.file.store import FileStore
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteBusy
from tests.support.recordings import NOW, reopened, run


def test_two_recorders_of_one_cassette_exclude_each_other(store: Store, path: Path) -> None:
    """The second is refused with the holder's name, another cassette is free, and the end frees it."""
    with reopened(path, writable=True) as other:
        store.begin("c", 1, exclusive=True, holder="first on port 8080")
        with pytest.raises(CassetteBusy, match="first on port 8080"):
            other.begin("c", 1, exclusive=True, holder="second")
        other.begin("c", 2, exclusive=True, holder="second")
        other.begin("c", 1, exclusive=False, holder="second")
        store.end("c", 1, "first on port 8080", clean=True)
        other.begin("c", 1, exclusive=True, holder="second")


def test_a_stale_lease_is_taken_over(path: Path) -> None:
    """A holder silent for 15 s has lost it, and hears so at its next heartbeat."""
    clock = [NOW]
    with FileStore.open(path, writable=True, now=lambda: clock[0]) as store:
        store.begin("c", 1, exclusive=True, holder="a")
        clock[0] += 14
        with pytest.raises(CassetteBusy):
            store.begin("c", 1, exclusive=True, holder="b")
        assert store.heartbeat("c", 1, "a")
        clock[0] += 14
        with pytest.raises(CassetteBusy):
            store.begin("c", 1, exclusive=True, holder="b")
        clock[0] += 2
        store.begin("c", 1, exclusive=True, holder="b")
        assert not store.heartbeat("c", 1, "a")


def test_a_dead_process_holds_nothing(store: Store, path: Path) -> None:
    """A recorder that was killed does not block the next one, fresh though its heartbeat is."""
    script = f"""
        from llmproxy.core.store.file.store import FileStore
        import os
        FileStore.open({str(path)!r}, writable=True, now=lambda: {NOW + 1}).begin("c", 1, exclusive=True, holder="dead")
        os._exit(9)
    """
    assert run(script).returncode == 9
    store.begin("c", 1, exclusive=True, holder="b")
