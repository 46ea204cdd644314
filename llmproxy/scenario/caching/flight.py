"""Single flight: of many who want the same thing at the same time, one makes it and the others wait.

    key free   -> lead: make it, hand the text to whoever waits
    key taken  -> wait for the leader; make it yourself if the leader came to nothing that can be shared

Threads and event loops alike. Whoever asks again from inside his own making (a recursion whose arguments are ignored) makes it, for
waiting would be for ever. An exception of the leader is everybody's; a leader who was cancelled leaves the place to the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar


class _Gone(Exception):
    """The leader was stopped, and nothing is known."""


class Flights:
    """What is being made now."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._flying: dict[str, Future[str | None]] = {}
        self._mine: ContextVar[frozenset[str]] = ContextVar("flights", default=frozenset())

    def run(self, key: str, make: Callable[[], str | None]) -> str | None:
        """Return what `make` returns, made once for all who ask meanwhile; None is never shared."""
        while True:
            if key in self._mine.get():
                return make()
            flight, leads = self._join(key)
            if leads:
                with self._leading(key, flight):
                    text = make()
                    flight.set_result(text)
                return text
            try:
                text = flight.result()
            except _Gone:
                continue
            return make() if text is None else text

    async def arun(self, key: str, make: Callable[[], Awaitable[str | None]]) -> str | None:
        """Do the same in an event loop."""
        while True:
            if key in self._mine.get():
                return await make()
            flight, leads = self._join(key)
            if leads:
                with self._leading(key, flight):
                    text = await make()
                    flight.set_result(text)
                return text
            try:
                text = await asyncio.wrap_future(flight)
            except _Gone:
                continue
            return await make() if text is None else text

    def _join(self, key: str) -> tuple[Future[str | None], bool]:
        with self._guard:
            found = self._flying.get(key)
            if found is not None:
                return found, False
            made: Future[str | None] = Future()
            made.set_running_or_notify_cancel()  # a waiter who is cancelled cannot cancel it for the others
            self._flying[key] = made
            return made, True

    @contextmanager
    def _leading(self, key: str, flight: Future[str | None]) -> Iterator[None]:
        token = self._mine.set(self._mine.get() | {key})
        try:
            yield
        except Exception as error:
            self._land(key)
            flight.set_exception(error)
            raise
        except BaseException:
            self._land(key)
            flight.set_exception(_Gone())
            raise
        else:
            self._land(key)
        finally:
            self._mine.reset(token)

    def _land(self, key: str) -> None:
        with self._guard:
            self._flying.pop(key, None)
