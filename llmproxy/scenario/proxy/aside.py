"""Threads for short blocking calls, shared by all runs of the process.

Every run has a loop of its own, and a loop's own pool starts a thread for the first such call and ends it with the loop: for calls of a
millisecond that is most of what they cost. What may wait for long does not belong here, for it would hold up everybody.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

THREADS = 32


class _Pool:
    """The threads; made when they are first needed, and again in a forked child, which has none of its parent's."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0

    def ready(self) -> ThreadPoolExecutor:
        """Return them. Two that ask first at the same time may make two pools, of which one is used once."""
        if self._threads is None or self._process != os.getpid():
            self._threads, self._process = ThreadPoolExecutor(THREADS, "llmproxy-control"), os.getpid()
        return self._threads


_POOL = _Pool()


async def aside[**P, T](ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a short blocking call where it holds up no loop."""
    return await asyncio.get_running_loop().run_in_executor(_POOL.ready(), partial(ask, *args, **kwargs))
