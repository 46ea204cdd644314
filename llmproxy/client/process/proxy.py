"""A proxy of our own: started on a port, waited for until it serves, and ended whatever becomes of us.

mitmproxy pins its dependencies strictly, so the proxy often lives in an environment of its own; :mod:`llmproxy.client.process.command`
says how it is called from here. Its output goes to a file: nothing blocks on a full pipe, its first line says where it serves (a port that
we picked ourselves could be taken by another before it listens), and the end of it says why it could not. A small shell watches us and
ends the proxy if we are killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmproxy.client.control.client import Control, ControlError
from llmproxy.client.process.command import COMMAND_VARIABLE, Command
from llmproxy.errors import MachineError
from llmproxy.protocol import STARTED_BY_VARIABLE
from llmproxy.store_server import is_server

ENDING = 15.0
"""Seconds that a proxy gets to store what is open."""
PAUSE = 0.02
_TAIL = 2000


class Proxy:
    """A proxy process of ours."""

    def __init__(
        self, popen: subprocess.Popen[bytes], command: Command, log: Path, guard: subprocess.Popen[bytes] | None
    ) -> None:
        """Take over a process that was just started; see :func:`spawn`."""
        self.popen = popen
        self.log = log
        self.url = ""
        """Where it serves; empty until :meth:`wait_ready`."""
        self._command = command
        self._guard = guard

    @property
    def control(self) -> Control:
        return Control(self.url)

    @property
    def said(self) -> str:
        """Everything that it printed."""
        return self.log.read_text("utf-8", "replace") if self.log.is_file() else ""

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def wait_ready(self) -> str:
        """Wait until it serves and return its URL.

        Raises:
            MachineError: it ended, or took too long; with what it said.

        """
        deadline = time.monotonic() + self._command.patience
        while not self.url:
            self.url = _find_address(self.said)
            if self.url:
                break
            if not self.alive or time.monotonic() > deadline:
                waited = f"does not serve after {self._command.patience:g} s"
                state = waited if self.alive else f"ended with {self.popen.returncode}"
                self.end(seconds=1.0)
                words = shlex.join(self._command.words)
                hint = f"It was called as `{words}` ({self._command.source})."
                said = self.said[-_TAIL:].strip() or "(it said nothing)"
                raise MachineError(f"the proxy {state}:\n{said}", hint=hint)
            time.sleep(PAUSE)
        self._ask(deadline)
        return self.url

    def _ask(self, deadline: float) -> None:
        """See that it answers: it prints its address when it listens, and a moment may pass."""
        while True:
            try:
                self.control.health(timeout=5.0)
            except ControlError:
                if not self.alive or time.monotonic() > deadline:
                    self.end(seconds=1.0)
                    raise
                time.sleep(PAUSE)
            else:
                return

    def end(self, seconds: float = ENDING) -> int:
        """Ask it to end, wait, and kill what does not; return its exit code."""
        if self.alive:
            if os.name != "posix" and self.url:  # no signal there lets a program end in order
                with contextlib.suppress(ControlError):
                    self.control.stop()
            else:
                self.popen.terminate()
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                self._kill()
                self.popen.wait()
        _to_group(self.popen.pid, signal.SIGTERM)  # a wrapper that did not wait for what it started
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        return self.popen.returncode

    def _kill(self) -> None:
        if os.name == "posix":
            _to_group(self.popen.pid, signal.SIGKILL)
        else:
            self.popen.kill()


def spawn(
    command: Command,
    options: Sequence[str],
    env: Mapping[str, str],
    *,
    log: Path | None = None,
    cwd: Path | None = None,
    started_by: str = "",
) -> Proxy:
    """Start ``llmproxy start`` with `options`, on a free port unless they name one; does not wait (see `Proxy.wait_ready`).

    `env` is the environment as it was before base URLs were set to us: what they said becomes the upstream. `log` takes its output,
    `started_by` is what a user types to start it so again. What the command's notice says is written to stderr before it runs.

    Raises:
        MachineError: the command cannot be executed.

    """
    if log is None:
        handle, name = tempfile.mkstemp(prefix="llmproxy-", suffix=".log")
        os.close(handle)
        log = Path(name)
    words = [
        *command.words,
        "start",
        *(() if any(each.startswith("--port") for each in options) else ("--port", "0")),
        *options,
        "--no-quiet",
    ]
    clean = {
        name: value for name, value in env.items() if name not in (COMMAND_VARIABLE, "LLMPROXY_URL", "LLMPROXY_QUIET")
    }
    clean[STARTED_BY_VARIABLE] = started_by
    for word in [word for word in words if is_server(word.removeprefix("--store="))]:
        words.remove(word)  # everybody on the machine may read a command line, and it may hold a password
        clean["LLMPROXY_STORE"] = word.removeprefix("--store=")
    if command.notice:
        sys.stderr.write(f"llmproxy: {command.notice}\n")
        sys.stderr.flush()
    try:
        with log.open("wb") as out:
            popen = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**clean, "PYTHONUNBUFFERED": "1"},
                cwd=cwd,
                start_new_session=True,  # Ctrl-C at the terminal is for the child; we end the proxy after it
            )
    except OSError as error:
        msg = f"cannot start the proxy: {words[0]}: {error.strerror or error}"
        raise MachineError(msg, hint=f"It comes from: {command.source}.") from error
    return Proxy(popen, command, log, _guard(popen.pid))


def _guard(pid: int) -> subprocess.Popen[bytes] | None:
    """Let a shell end the proxy when our end of its pipe closes, however we went; None where there is no `sh`."""
    shell = shutil.which("sh")
    if os.name != "posix" or shell is None:
        return None
    return subprocess.Popen(
        [shell, "-c", f"read _; kill -TERM {pid}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _to_group(pid: int, number: signal.Signals) -> None:
    """Signal what is left of a process group that we started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def _find_address(said: str) -> str:
    """Return the address in the first line of a proxy that serves, or an empty text."""
    for line in said.splitlines(keepends=True):
        words = line.split()
        if line.endswith("\n") and len(words) > 1 and words[0] == "llmproxy:" and words[1].startswith("http"):
            return words[1]
    return ""
