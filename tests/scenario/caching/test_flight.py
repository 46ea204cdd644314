"""Single flight: one makes it, the others wait, nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from llmproxy.scenario.caching.flight import Flights


class Watched(Flights):
    """Knows who has come."""

    def __init__(self) -> None:
        super().__init__()
        self.come: list[str] = []

    def _join(self, key: str) -> tuple[Future[str | None], bool]:
        found = super()._join(key)
        self.come.append(key)
        return found


class Counter:
    """Counts how often it was made; each making waits until so many have come."""

    def __init__(self, flights: Watched, come: int, text: str | None = "made") -> None:
        self.calls = 0
        self._flights, self._come, self._text = flights, come, text

    def make(self) -> str | None:
        self.calls += 1
        while len(self._flights.come) < self._come:
            time.sleep(0.001)
        return self._text

    async def amake(self) -> str | None:
        self.calls += 1
        while len(self._flights.come) < self._come:
            await asyncio.sleep(0.001)
        return self._text


def test_threads_share_one_making() -> None:
    """Eight ask, one makes."""
    counter = Counter(flights := Watched(), 8)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: flights.run("k", counter.make), range(8))) == ["made"] * 8
    assert counter.calls == 1


def test_tasks_share_one_making_and_other_keys_do_not() -> None:
    """In a loop, and afterwards it is made anew."""
    counter = Counter(flights := Watched(), 9)

    async def go() -> None:
        await asyncio.gather(
            *(flights.arun("k", counter.amake) for _ in range(8)), flights.arun("other", counter.amake)
        )

    asyncio.run(go())
    assert counter.calls == 2
    flights.come.clear()
    asyncio.run(go())
    assert counter.calls == 4


def test_loops_in_several_threads_share_it_too() -> None:
    """As scenarios do, each with a loop of its own."""
    counter = Counter(flights := Watched(), 4)

    def go(_: int) -> str | None:
        return asyncio.run(flights.arun("k", counter.amake))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(go, range(4))) == ["made"] * 4
    assert counter.calls == 1


def test_what_cannot_be_kept_is_not_shared() -> None:
    """None: each makes his own."""
    counter = Counter(flights := Watched(), 3, None)

    async def go() -> None:
        assert await asyncio.gather(*(flights.arun("k", counter.amake) for _ in range(3))) == [None] * 3

    asyncio.run(go())
    assert counter.calls == 3


def test_an_error_is_everybodys() -> None:
    """A provider that is down is asked once, not eight times."""
    flights, calls = Flights(), []

    async def fail() -> str | None:
        calls.append(1)
        await asyncio.sleep(0.05)
        raise RuntimeError("down")

    async def go() -> list[object]:
        return list(await asyncio.gather(*(flights.arun("k", fail) for _ in range(8)), return_exceptions=True))

    assert [str(each) for each in asyncio.run(go())] == ["down"] * 8
    assert len(calls) == 1


def test_a_cancelled_leader_leaves_the_place_to_the_next() -> None:
    """Who waits is not cancelled with him; a waiter who is cancelled disturbs nobody."""
    counter = Counter(flights := Watched(), 4)  # the fourth is the waiter, who tries again

    async def go() -> str | None:
        leader, waiter, impatient = (asyncio.ensure_future(flights.arun("k", counter.amake)) for _ in range(3))
        while len(flights.come) < 3:
            await asyncio.sleep(0.001)
        impatient.cancel()
        leader.cancel()
        return await waiter

    assert asyncio.run(go()) == "made"
    assert counter.calls == 2


@pytest.mark.parametrize("how", ["sync", "async"])
def test_asking_again_from_inside_does_not_hang(how: str) -> None:
    """A recursion whose arguments are ignored has the key of its caller."""
    flights = Flights()

    def outer() -> str | None:
        inner = flights.run("k", lambda: "inner")
        return f"outer of {inner}"

    async def inner() -> str | None:
        return "inner"

    async def aouter() -> str | None:
        return f"outer of {await asyncio.create_task(flights.arun('k', inner))}"

    found: list[str | None] = []

    def go() -> None:
        found.append(flights.run("k", outer) if how == "sync" else asyncio.run(flights.arun("k", aouter)))

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    thread.join(10)
    assert found == ["outer of inner"]
