"""Work that an interruption does not leave half done.

Cancelling a task that waits for a thread does not end the thread: it goes on, and inserts its row after the clean-up looked for rows.
And a second cancellation ends what the first one began to clean up. So what changes the store, and what cleans up, is waited for to
its end; only then is the cancellation heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def to_the_end[T](work: Awaitable[T]) -> T:
    """Wait for work until it is over, however often its waiter is cancelled meanwhile; raises the cancellation then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it was looked at; the cancellation is what matters now
        raise cancelled
    return task.result()


async def in_thread[**P, T](act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a blocking call that changes something; when this returns, or raises, it is over."""
    return await to_the_end(asyncio.to_thread(act, *args, **kwargs))
