"""A command run in our place."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from llmproxy.client.process.child import CommandNotFound, exit_code, find, run

ENV = dict(os.environ)


@pytest.mark.parametrize(("code", "ends"), [("import sys; sys.exit(7)", 7), ("pass", 0)])
def test_its_exit_code_is_ours(code: str, ends: int) -> None:
    """Whoever calls us sees what the command said."""
    assert run([sys.executable, "-c", code], ENV) == ends


def test_a_child_that_a_signal_ended_has_a_shell_s_code() -> None:
    """128 + n."""
    assert run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], ENV) == 137
    assert (exit_code(-15), exit_code(3)) == (143, 3)


def test_a_signal_to_us_reaches_it_and_our_handlers_come_back(tmp_path: Path) -> None:
    """A supervisor ends us; the child ends in its own way."""
    ready = tmp_path / "ready"
    code = (
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(20)"
    )

    def knock() -> None:
        while not ready.exists():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=knock).start()
    assert run([sys.executable, "-c", code], ENV) == 5
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_that_is_not_there_is_127(tmp_path: Path) -> None:
    """As in a shell; before a proxy is started."""
    with pytest.raises(CommandNotFound, match="nosuch: command not found") as error:
        find(["nosuch"], ENV)
    assert error.value.exit_code == 127
    plain = tmp_path / "plain.txt"
    plain.write_text("no program")
    with pytest.raises(CommandNotFound, match="cannot be executed") as error:
        find([str(plain)], ENV)
    assert error.value.exit_code == 126
    with pytest.raises(CommandNotFound, match="as words"):
        find(["npm test"], ENV)


def test_it_is_looked_for_on_its_own_path(tmp_path: Path) -> None:
    """The child's PATH counts."""
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\nexit 4\n")
    program.chmod(0o755)
    env = {**ENV, "PATH": str(tmp_path)}
    assert find(["mine"], env) == str(program)


def test_who_starts_it_hears_its_process_id() -> None:
    """The doctor watches it."""
    heard: list[int] = []
    run([sys.executable, "-c", "pass"], ENV, heard.append)
    assert len(heard) == 1
