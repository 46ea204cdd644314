"""Servers and clients of tools as processes, by the official SDK (`mcp_server.py`, `mcp_client.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.forked import PYTHON, program
from tests.support.process import clean_env, free_port, python, serving

HERE = Path(__file__).resolve().parent
SERVER = (python(), str(HERE / "mcp_server.py"))


@contextmanager
def http_server(log: Path, cwd: Path) -> Iterator[str]:
    """Run the server over HTTP for the block; give its origin. Each call of a tool adds a line to `log`."""
    port = free_port()
    command = [sys.executable, *SERVER[1:], "http", str(port), str(log)]  # killed, it is gone
    with serving(command, port, log.parent / "server.out", cwd=cwd) as origin:
        yield origin


def use(where: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, **plan: Any) -> Any:
    """Let the client do a plan at a URL, or with a command that speaks stdio; the results of each run."""
    place = list(where) if len(where) == 1 else ["--", *where]
    command = [*program(PYTHON), str(HERE / "mcp_client.py"), json.dumps(plan), *place]
    done = subprocess.run(
        command, cwd=cwd, env=clean_env(env), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
