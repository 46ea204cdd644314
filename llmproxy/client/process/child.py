"""A command run in our place: it has our terminal, gets our signals, and its exit code is the one we end with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from llmproxy.errors import LLMProxyError

NOT_FOUND = 127
NOT_EXECUTABLE = 126
KILLED = 128
"""A shell's exit code for a child that ended by signal n is 128 + n."""
_TERMINAL = ("SIGINT", "SIGQUIT")
"""Signals that a terminal sends to the whole foreground group, the child included."""
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class CommandNotFound(LLMProxyError):
    """There is no such command, or it cannot be executed; `exit_code` is what a shell would end with."""

    code = "llmproxy_command_not_found"


def find(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Return where the program is.

    Raises:
        CommandNotFound: nowhere.

    """
    found = shutil.which(command[0], path=env.get("PATH"))
    if found is None:
        there = os.path.exists(command[0]) and os.sep in command[0]  # noqa: PTH110 (a word of a command line, not a path of ours)
        raise _not_found(command[0], NOT_EXECUTABLE if there else NOT_FOUND)
    return found


def _not_found(word: str, code: int) -> CommandNotFound:
    what = "cannot be executed" if code == NOT_EXECUTABLE else "not found"
    hint = "Write the command as words, not as one text: llmproxy run -- npm test" if " " in word else ""
    error = CommandNotFound(f"{word}: command {what}", hint=hint)
    error.exit_code = code  # type: ignore[assignment]  # a shell's code, not one of our table
    return error


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    started: Callable[[int], None] = lambda _pid: None,
    heard: Callable[[int], object] = lambda _signal: None,
) -> int:
    """Run a command to its end and return its exit code, 128 + n if signal n ended it.

    `started` hears its process id, `heard` each signal that came meanwhile.

    Raises:
        CommandNotFound: it cannot be executed.

    """
    popen: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        heard(number)
        if popen is None:
            early.append(number)
        elif number not in terminal or not _in_foreground():
            popen.send_signal(number)

    terminal = {getattr(signal, name) for name in _TERMINAL if hasattr(signal, name)}
    caught = terminal | {getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)}
    # What was ignored when we came (nohup) stays so, for us and for the child.
    before = {
        number: signal.signal(number, forward) for number in caught if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        try:
            popen = subprocess.Popen(command, env=dict(env))
        except OSError as error:
            raise _not_found(
                command[0], NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            ) from error
        for number in early:
            popen.send_signal(number)
        started(popen.pid)
        return exit_code(popen.wait())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(returned: int) -> int:
    """Return a shell's exit code for what `Popen.wait` returned."""
    return KILLED - returned if returned < 0 else returned


def _in_foreground() -> bool:
    """Tell whether a terminal's own signals reach our children without us."""
    try:
        with open("/dev/tty", "rb") as tty:  # noqa: PTH123 (a device)
            return os.tcgetpgrp(tty.fileno()) == os.getpgrp()
    except (OSError, AttributeError):
        return False
