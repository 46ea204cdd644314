"""The one proxy that a command works with: started for it and ended after it, or found running at LLMPROXY_URL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from llmproxy.client.control.client import Control
from llmproxy.client.environment.build import URL_VARIABLE
from llmproxy.client.process.command import find_command
from llmproxy.client.process.proxy import Proxy, spawn

TOKEN_VARIABLE = "LLMPROXY_TOKEN"  # noqa: S105 (the name of a variable)
_ANY = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 (listened on, never asked)


@dataclass(slots=True)
class Attached:
    """A proxy that serves."""

    url: str
    control: Control
    process: Proxy | None
    """The process, if we started it."""
    exit_code: int | None = None
    """What our process ended with, once it has."""

    def end(self) -> None:
        """End the process, if it is ours."""
        if self.process is not None and self.exit_code is None:
            self.exit_code = self.process.end()


def running_at(env: Mapping[str, str]) -> str:
    """Return the address of a running proxy that the environment names, or an empty text."""
    return env.get(URL_VARIABLE, "").strip().rstrip("/")


def reachable(url: str) -> str:
    """Return the address that reaches a proxy which listens on every address."""
    parts = urlsplit(url)
    if parts.hostname not in _ANY:
        return url
    return urlunsplit(parts._replace(netloc=f"{_ANY[parts.hostname]}:{parts.port}"))


@contextmanager
def attach(
    options: Sequence[str], env: Mapping[str, str], *, log: Path | None = None, started_by: str = ""
) -> Iterator[Attached]:
    """Find the running proxy, or start one with `options` of ``llmproxy start``; one that was started ends with the block.

    `started_by` is what the user typed, for what a miss advises.

    Raises:
        MachineError: none can be started, or none answers at LLMPROXY_URL.

    """
    token = env.get(TOKEN_VARIABLE, "")
    if url := running_at(env):
        control = Control(url, token=token)
        control.health()
        yield Attached(url, control, None)
        return
    process = spawn(find_command(env), options, env, log=log, started_by=started_by)
    mine: Attached | None = None
    try:
        url = reachable(process.wait_ready())
        mine = Attached(url, Control(url, token=token), process)
        yield mine
    finally:
        if mine is None:
            process.end(seconds=1.0)
        else:
            mine.end()
        if log is None:
            with suppress(OSError):
                os.unlink(process.log)  # noqa: PTH108 (already a path; missing is fine)
