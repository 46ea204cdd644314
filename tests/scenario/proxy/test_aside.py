"""Short blocking calls in threads that all runs share."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from llmproxy.scenario.proxy.aside import aside


def _slow(text: str) -> str:
    time.sleep(0.2)
    return text


def test_a_blocking_call_holds_up_no_loop() -> None:
    """Others go on meanwhile, and what it returns comes back."""

    async def run() -> tuple[str, int]:
        turns = 0

        async def others() -> None:
            nonlocal turns
            for _ in range(5):
                await asyncio.sleep(0.01)
                turns += 1

        said, _ = await asyncio.gather(aside(_slow, "done"), others())
        return said, turns

    assert asyncio.run(run()) == ("done", 5)


def test_loops_share_the_threads() -> None:
    """A second loop finds the thread of the first one."""

    async def who() -> str:
        return await aside(lambda: threading.current_thread().name)

    names = {asyncio.run(who()) for _ in range(5)}
    assert all(name.startswith("llmproxy-control") for name in names)


def test_what_it_raises_is_raised() -> None:
    """To whoever waits."""
    with pytest.raises(ZeroDivisionError):
        asyncio.run(aside(lambda: 1 / 0))


def test_a_forked_child_has_threads_of_its_own() -> None:
    """A pool whose threads stayed with the parent would never answer."""
    code = (
        "import asyncio, os\n"
        "from llmproxy.scenario.proxy.aside import aside\n"
        "asyncio.run(aside(len, 'x'))\n"
        "if os.fork() == 0:\n"
        "    asyncio.run(asyncio.wait_for(aside(len, 'x'), 10))\n"
        "    os._exit(0)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=60, check=False)
    assert done.returncode == 0
