"""One event loop for all calls of models in this process, in a thread of its own.

Scenarios run in many threads, each with a loop. An HTTP client belongs to the loop that it was made in: with one loop there is one pool of
connections, made once, and no client outlives its loop. Whoever waits elsewhere may be cancelled, and then the call is too.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any


class ModelLoop:
    """A loop that runs in the background until the process ends."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    async def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work there and return what comes of it."""
        future = asyncio.run_coroutine_threadsafe(work, self._ready())
        return await asyncio.wrap_future(future)

    def _ready(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._loop is None or self._process != os.getpid():  # a forked child has no threads but its own
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="llmproxy-models", daemon=True).start()
            return self._loop


_LOOP = ModelLoop()


async def elsewhere[T](work: Coroutine[Any, Any, T]) -> T:
    """Do the work in the loop of the process's model calls."""
    return await _LOOP.run(work)
