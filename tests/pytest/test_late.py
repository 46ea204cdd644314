"""Threads that outlive their test ask nothing in the name of the next one."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from llmproxy.pytest.late import LateThreads
from tests.support.process import ROOT, clean_env

TRY = """
import asyncio, queue, socket, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
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
    while not go.is_set():
        time.sleep(0.01)
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
# What libraries start when they are first used, and keep for all tests that follow.
pool = ThreadPoolExecutor(2)
pool.submit(ask, "pool, in its test").result()
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
work = queue.Queue()
threading.Thread(target=lambda: [task() for task in iter(work.get, None)], daemon=True).start()
async def over(who):
    await asyncio.to_thread(ask, who + ", of a worker")
    ask(who)
asyncio.run_coroutine_threadsafe(over("loop, in its test"), loop).result(20)
work.put(lambda: ask("queue, in its test"))
while not any(who == "queue, in its test" for who, _ in said):
    time.sleep(0.01)
time.sleep(0.2)
late.end("test_a", lambda: where)
late.begin()
go.set()
thread.join(20)
old.join(20)
ask("the next test")
pool.submit(ask, "pool").result()
asyncio.run_coroutine_threadsafe(over("loop"), loop).result(20)
work.put(lambda: ask("queue"))
work.put(None)
while not any(who == "queue" for who, _ in said):
    time.sleep(0.01)
late.end("test_b", lambda: where)
print(sorted(said), len(late.refused))
"""


def test_a_thread_that_outlives_its_test_is_refused_and_said() -> None:
    """It, and what it starts, opens no connection to the proxy; older threads, waiting workers, the next test and other servers are left alone."""
    done = subprocess.run(
        [sys.executable, "-c", TRY],
        env=clean_env({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    expected = {"in the test": "asked", "late": True, "its child": True, "late, elsewhere": "asked", "older": "asked"}
    workers = ("pool", "loop", "loop, of a worker", "queue")
    expected |= dict.fromkeys(
        ("the next test", *workers, *(f"{each}, in its test" for each in ("pool", "loop", "queue"))), "asked"
    )
    expected |= {"loop, in its test, of a worker": "asked"}
    assert done.stdout.strip() == f"{sorted(expected.items())} 2"


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
