"""One loop for the calls of models, whoever waits for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from llmproxy.scenario.models.loop import ModelLoop, elsewhere


async def where() -> tuple[str, int]:
    return threading.current_thread().name, id(asyncio.get_running_loop())


def test_all_loops_share_one() -> None:
    """Runs in other loops and threads do their work in the same one, so that one pool of connections serves all."""
    first = asyncio.run(elsewhere(where()))
    second: list[object] = []
    thread = threading.Thread(target=lambda: second.append(asyncio.run(elsewhere(where()))))
    thread.start()
    thread.join(10)
    assert first == second[0]
    assert first[0] == "llmproxy-models"


def test_whoever_stops_waiting_stops_the_work() -> None:
    """Cancelling a run cancels its call of a model."""
    stopped = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    async def impatient() -> None:
        async with asyncio.timeout(0.2):
            await ModelLoop().run(work())

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert stopped.wait(5)


def test_what_the_work_raises_is_raised_to_whoever_waits() -> None:
    """An error of the call is the caller's, unchanged."""

    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(elsewhere(work()))
