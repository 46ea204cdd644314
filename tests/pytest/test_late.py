"""Threads that outlive their test ask nothing in the name of the next one."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from llmproxy.pytest.late import LateThreads
from tests.support.process import ROOT, clean_env

TRY = """
import socket, sys, threading
from llmproxy.pytest.late import LateThreads

server = socket.create_server(("127.0.0.1", 0))
theirs = socket.create_server(("127.0.0.1", 0))
where, other = server.getsockname(), theirs.getsockname()
late, go, said = LateThreads(), threading.Event(), []

def ask(who, address=where):
    try:
        socket.create_connection(address, 5).close()
        said.append((who, "asked"))
    except OSError as error:
        said.append((who, "after its end" in str(error)))

def wait():
    go.wait(20)
    ask("late")
    ask("late, elsewhere", other)
    child = threading.Thread(target=ask, args=("its child",))
    child.start()
    child.join(20)

old = threading.Thread(target=lambda: (go.wait(20), ask("older")))
old.start()
late.begin()
thread = threading.Thread(target=wait)
thread.start()
ask("in the test")
late.end("test_a", lambda: where)
late.begin()
go.set()
thread.join(20)
old.join(20)
ask("the next test")
late.end("test_b", lambda: where)
print(sorted(said), len(late.refused))
"""


def test_a_thread_that_outlives_its_test_is_refused_and_said() -> None:
    """It, and what it starts, opens no connection to the proxy; older threads, the next test and other servers are left alone."""
    done = subprocess.run(
        [sys.executable, "-c", TRY],
        env=clean_env({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    expected = {"in the test": "asked", "late": True, "its child": True, "late, elsewhere": "asked", "older": "asked"}
    assert done.stdout.strip() == f"{sorted((expected | {'the next test': 'asked'}).items())} 2"


def test_without_late_threads_nothing_is_hooked() -> None:
    """A suite that waits for its threads pays nothing."""
    late = LateThreads()
    late.begin()
    thread = threading.Thread(target=Path.cwd)
    thread.start()
    thread.join()
    late.end("test_a", lambda: ("127.0.0.1", 1))
    assert not late._hooked
    assert late.refused == []
