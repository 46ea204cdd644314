"""Proxies over a team's store, each as on a machine of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .forked import program
from .process import clean_env, free_port, listening


def start(
    machine: Path, store: str, mode: str, *, upstream: str = "", more: tuple[str, ...] = (), env: Mapping[str, str] = {}
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a proxy with a cache of its own; returns it and its port, once it listens."""
    machine.mkdir(parents=True, exist_ok=True)
    port = free_port()
    words = [*program("llmproxy"), "start", "--mode", mode, "--port", str(port), "--quiet", *more]
    with (machine / "log").open("ab") as log:
        proxy = subprocess.Popen(
            words + (["--upstream", upstream] if upstream else []), cwd=machine, stdout=log, stderr=log,
            env={**clean_env(), "XDG_CACHE_HOME": str(machine), "LLMPROXY_STORE": store, **env},
        )  # fmt: skip
    try:
        listening(port, 60)
    except TimeoutError:
        proxy.kill()
        proxy.wait()
        raise RuntimeError((machine / "log").read_text()) from None
    return proxy, port


@contextmanager
def serving(machine: Path, store: str, mode: str, *, upstream: str = "", more: tuple[str, ...] = ()) -> Iterator[int]:
    """Run a proxy for the block and give its port."""
    proxy, port = start(machine, store, mode, upstream=upstream, more=more)
    try:
        yield port
    finally:
        os.kill(proxy.pid, signal.SIGTERM)
        proxy.wait(60)
