"""Work that an interruption does not leave half done."""

from __future__ import annotations

import asyncio
import threading

import pytest

from llmproxy.scenario.proxy.uncancelled import in_thread, to_the_end


@pytest.mark.parametrize("times", [1, 3])
def test_a_call_in_a_thread_is_over_when_its_waiter_is_cancelled(times: int) -> None:
    """However often it is cancelled, nothing of it happens afterwards; then the cancellation is raised."""
    begun, go, done = threading.Event(), threading.Event(), []

    def act() -> None:
        begun.set()
        go.wait(10)
        done.append(1)

    async def live() -> None:
        task = asyncio.ensure_future(in_thread(act))
        await asyncio.to_thread(begun.wait, 10)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [1]

    asyncio.run(live())


def test_what_was_not_cancelled_gives_its_result_or_its_error() -> None:
    """As if it had been awaited."""

    async def broken() -> None:
        raise LookupError("gone")

    async def live() -> None:
        assert await to_the_end(asyncio.sleep(0, 7)) == 7
        with pytest.raises(LookupError, match="gone"):
            await to_the_end(broken())

    asyncio.run(live())
