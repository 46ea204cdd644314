"""How Ctrl-C, a CI that gives up and a closed terminal end a command: what was started is ended too."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

_ENDS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a test: Ctrl-C, a CI that gives up, a terminal that is closed."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Take every signal that ends a test for Ctrl-C, so that what was started is ended: a proxy, agents, reports."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    try:
        for number in _signals():
            with suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> list[signal.Signals]:
    return [getattr(signal, name) for name in _ENDS if hasattr(signal, name)]


async def until_signal[T](pending: Coroutine[Any, Any, T]) -> T:
    """Run; a signal lets what is under way clean up. Raises KeyboardInterrupt when it has."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(pending)
    heard = 0

    def interrupt() -> None:
        nonlocal heard
        heard += 1
        typer.echo("llmproxy: interrupted; " + ("cleaning up" if heard == 1 else "still cleaning up"), err=True)
        task.cancel()

    before = {number: signal.getsignal(number) for number in _signals()}
    try:
        for number in before:
            loop.add_signal_handler(number, interrupt)
    except (NotImplementedError, ValueError, RuntimeError):  # no such signals here
        before = {}
    try:
        return await task
    except asyncio.CancelledError:
        if heard:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
