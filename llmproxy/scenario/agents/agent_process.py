"""A child process with line-based communication: started in a process group of its own, read by threads, killed with
all its children.

It uses threads and blocking pipes rather than an event loop's: a conversation may continue in another loop than it
started in. Standard output is for answers only; any other line there is an error that shows it. Log messages belong on
standard error, whose end is kept for error messages.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from llmproxy.errors import AgentUnreachable, printable

LONGEST = 32 << 20
"""Maximum bytes of a line."""
_KEPT = 200
"""Maximum lines of standard error kept."""
_PIECE = 4096
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Kill signal; Windows has only one signal."""
GRACE = 3.0
"""Seconds that a process gets to exit once its input is closed, and again after a signal."""


class ProcessEnded(Exception):
    """Standard output has ended."""


class LineTooLong(Exception):
    """A line exceeds the maximum length."""


class AgentProcess:
    def __init__(self, words: Sequence[str], cwd: Path | None, env: Mapping[str, str]) -> None:
        """Start it. Raises AgentUnreachable if the program does not exist, or is not executable."""
        found = shutil.which(words[0], path=env.get("PATH"))
        if found is None and cwd is not None and os.sep in words[0]:
            found = shutil.which(str(cwd / words[0]))
        try:
            self.popen = subprocess.Popen(
                [found or words[0], *words[1:]],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a group of its own: what it started ends with it
            )
        except (OSError, ValueError) as error:
            where = f" in {cwd}" if cwd and not cwd.is_dir() else ""
            hint = "Is it installed, and on the PATH?"
            if " " in words[0]:
                hint = (
                    'Write the command as a list of words, ["node", "agent.mjs"], or as one text that is split like a '
                    "shell's."
                )
            raise AgentUnreachable(
                f"the agent `{printable(' '.join(words))}` cannot be started{where}: {error}", hint=hint
            ) from error
        self._lines: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        self._complaints: deque[bytes] = deque(maxlen=_KEPT)
        name = f"agent {self.popen.pid}"
        works = (self._read_stdout, self._read_stderr)
        self._readers = [threading.Thread(target=work, daemon=True, name=name) for work in works]
        for reader in self._readers:
            reader.start()

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    @property
    def stderr_tail(self) -> str:
        """The end of its standard error."""
        return b"".join(self._complaints).decode("utf-8", "replace")

    def write_stdin(self, data: bytes) -> None:
        """Write to its standard input; blocks while it does not read. Raises OSError when it has exited."""
        pipe = self.popen.stdin
        if pipe is None or pipe.closed:
            raise BrokenPipeError("its input is closed")
        pipe.write(data)
        pipe.flush()

    def take_unread_line(self) -> bytes | None:
        with contextlib.suppress(queue.Empty):
            found = self._lines.get_nowait()
            if isinstance(found, bytes):
                return found
            self._lines.put(found)
        return None

    def wait_for_line(self, timeout: float) -> bytes:
        """Wait for the next non-empty line. Raises TimeoutError, ProcessEnded, LineTooLong."""
        try:
            found = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(found, bytes):
            return found
        self._lines.put(found)  # it stays at its end
        raise found

    def wait_for_exit(self, timeout: float) -> int | None:
        """Return its exit code once it has exited and its output is read; None if it continues."""
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        for reader in self._readers:
            reader.join(timeout=1.0)
        return code

    def end_process(self, grace: float = GRACE) -> None:
        """End it: close its input, signal it, kill it, and kill the rest of its group."""
        with contextlib.suppress(OSError):
            if self.popen.stdin is not None:
                self.popen.stdin.close()
        if self.wait_for_exit(grace) is None:
            self._signal_group(signal.SIGTERM)
            if self.wait_for_exit(grace) is None:
                self._signal_group(KILL)
                self.popen.wait()
        self._signal_group(KILL)
        for reader in self._readers:
            reader.join(timeout=1.0)
        for pipe in (self.popen.stdout, self.popen.stderr):
            if pipe is not None and not any(reader.is_alive() for reader in self._readers):
                pipe.close()

    def kill_group(self) -> None:
        self._signal_group(KILL)
        self.end_process(grace=1.0)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self.popen.pid, number)
            elif self.alive:
                self.popen.send_signal(number)

    def _read_stdout(self) -> None:
        pipe = self.popen.stdout
        assert pipe is not None  # noqa: S101 - asked for above
        problem: Exception = ProcessEnded()
        while line := _read_pipe_line(pipe):
            if len(line) >= LONGEST:
                problem = LineTooLong()
                break
            if line.strip():
                self._lines.put(line)
        self._lines.put(problem)

    def _read_stderr(self) -> None:
        pipe = self.popen.stderr
        assert pipe is not None  # noqa: S101 - the type's, not the user's
        while piece := _read_pipe_line(pipe, _PIECE):
            self._complaints.append(piece)


def _read_pipe_line(pipe: IO[bytes], limit: int = LONGEST) -> bytes:
    try:
        return pipe.readline(limit)
    except (OSError, ValueError):  # closed under our feet
        return b""
