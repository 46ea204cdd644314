"""A child process whose output is kept in files, waited for until it serves and ended politely.

Output goes to files, not to pipes: nothing can block on a full pipe, and a test may search them for what must not be there.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from .forked import KEPT, PYTHON, program

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Find a port of 127.0.0.1 that nobody listens on (somebody may take it before it is used)."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(holds: Callable[[], object], seconds: float = 120) -> None:
    last = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < last
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Return whether a process is there and more than a corpse that nobody buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listening(port: int, seconds: float = 180) -> None:
    """Wait until somebody listens on a port of 127.0.0.1. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError as error:
            if time.monotonic() > until:
                raise TimeoutError(f"nobody listens on port {port}") from error
            time.sleep(0.02)
        else:
            return


def required() -> frozenset[str]:
    """Return what a test may not skip for want of: names of programs, or `all` for what every machine of ours has."""
    return frozenset(each.strip() for each in os.environ.get("LLMPROXY_TEST_REQUIRE", "").split(",") if each.strip())


def needed(what: str, program: str = "", *, rare: bool = False) -> NoReturn:
    """Skip the test because something is missing; fail instead where it is required, by `program`'s name or, unless `rare`, by `all`."""
    if program in required() or ("all" in required() and not rare):
        named = ",".join(sorted(required()))
        pytest.fail(f"LLMPROXY_TEST_REQUIRE={named}, and this is missing: {what}", pytrace=False)
    pytest.skip(f"NOT RUN: {what}")


def python() -> str:
    """Return the word that starts a file or, after ``-c``, code: an agent that imports what we do is there in a tenth of the time."""
    return program(PYTHON)[0]


def clean_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment for a child: hardly anything of ours, plus `extra`."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | dict(extra or {})


def llmproxy(
    *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command line of ours to its end, with these variables and hardly any others; `text` is what is typed into it."""
    command = [*program("llmproxy"), *words]
    return subprocess.run(
        command, cwd=cwd, env=clean_env(env), input=text, capture_output=True, text=True, timeout=240, check=False
    )


@contextmanager
def serving(command: Sequence[str], port: int, out: Path, *, cwd: Path, **more: str) -> Iterator[str]:
    """Run a server over HTTP for the block, with `more` variables, its output in `out`; gives its origin."""
    with out.open("wb") as said:
        server = subprocess.Popen(command, cwd=cwd, env=clean_env(more), stdout=said, stderr=said)
    try:
        listening(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


class Process:
    """A running child. `stdout` and `stderr` read what it wrote so far."""

    def __init__(
        self, command: Sequence[str], folder: Path, name: str, env: Mapping[str, str], cwd: Path = ROOT
    ) -> None:
        """Start `command`; its output goes to `folder`/`name`.out and .err."""
        folder.mkdir(parents=True, exist_ok=True)
        self.out_path, self.err_path = folder / f"{name}.out", folder / f"{name}.err"
        self.command = tuple(command)
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            # In a group of its own, so that a Ctrl-C at the terminal reaches pytest alone and it ends its children in order.
            self.popen = subprocess.Popen(
                command, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip

    @property
    def stdout(self) -> str:
        return self.out_path.read_text("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.err_path.read_text("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        return self.popen.poll()

    def wait_until(self, ready: Callable[[], bool], seconds: float = 180) -> None:
        """Wait until `ready` says so; RuntimeError with its output if it ended before that, or takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.exit_code is not None or time.monotonic() > deadline:
                state = "is still not ready" if self.exit_code is None else f"ended with {self.exit_code}"
                self.end(signal.SIGKILL)
                raise RuntimeError(f"{' '.join(self.command)} {state}:\n{self.stdout[-3000:]}{self.stderr[-3000:]}")
            time.sleep(0.03)

    def wait(self, seconds: float = 180) -> int:
        """Wait for its end; subprocess.TimeoutExpired if it takes longer."""
        return self.popen.wait(seconds)

    def end(self, how: signal.Signals = signal.SIGINT, seconds: float = 60) -> int:
        """Ask it to end, and kill it if it does not; returns the exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(how)
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        return self.popen.returncode
