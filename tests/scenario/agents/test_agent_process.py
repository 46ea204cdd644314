"""Processes spoken to in lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llmproxy.errors import AgentUnreachable
from llmproxy.scenario.agents.agent_process import AgentProcess, ProcessEnded


@contextmanager
def child(code: str) -> Iterator[AgentProcess]:
    """Run Python code as a child, killed at the end."""
    made = AgentProcess([sys.executable, "-u", "-c", code], None, dict(os.environ))
    try:
        yield made
    finally:
        made.kill_group()


def test_lines_go_in_and_come_out() -> None:
    with child("print(); print(input()[::-1])") as made:
        made.write_stdin(b"abc\n")
        assert made.wait_for_line(10) == b"cba\n"


def test_a_line_that_does_not_come_is_a_timeout_and_its_end_stays_its_end() -> None:
    """Waiting ends in time; after the last line every question gets the same answer."""
    with child("import sys; sys.stdin.read()") as made:
        with pytest.raises(TimeoutError):
            made.wait_for_line(0.1)
        assert made.popen.stdin is not None
        made.popen.stdin.close()
        for _ in range(2):
            with pytest.raises(ProcessEnded):
                made.wait_for_line(10)


def test_the_end_of_its_complaints_is_kept() -> None:
    """However many there are: the last lines, not the first."""
    with child("import sys\nfor n in range(5000): print(n, file=sys.stderr)") as made:
        made.wait_for_exit(20)
        assert made.stderr_tail.endswith("4999\n")
        assert "\n1000\n" not in made.stderr_tail


def test_a_process_that_ends_by_itself_is_not_killed() -> None:
    """Closing its input is enough; it may tidy up."""
    with child("import sys; sys.stdin.read(); sys.exit(7)") as made:
        made.end_process()
        assert made.popen.returncode == 7


def test_a_process_that_ignores_everything_is_killed() -> None:
    """Its input, SIGTERM, then SIGKILL."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(60)"
    with child(code) as made:
        made.wait_for_line(10)
        made.end_process(grace=0.2)
        assert made.popen.returncode == -9  # not 0, as by itself after a minute


def test_what_cannot_be_executed_was_never_reached() -> None:
    """The text names the command, and what may be wrong with it."""
    with pytest.raises(AgentUnreachable, match="list of words"):
        AgentProcess(["node agent.mjs"], None, {"PATH": os.environ["PATH"]})


def test_an_unasked_line_can_be_seen() -> None:
    """And nothing is seen where there is none."""
    with child("print('hello'); import time; time.sleep(60)") as made:
        assert made.wait_for_line(10) == b"hello\n"
        assert made.take_unread_line() is None
