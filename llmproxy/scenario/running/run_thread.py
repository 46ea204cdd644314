"""Threads for runs, each with an event loop of its own, which do not prevent the program's exit.

The thread that runs a scenario may be blocked by an adapter for any time. Its waiter checks from outside whether the
current call has exceeded its limit.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llmproxy.scenario.running.executor import ScenarioExecutor
from llmproxy.scenario.types import ScenarioResult

GRACE = 0.8
"""Seconds that a cancelled run may take to end; within one second the waiter is released."""
_SLACK = 1.0
"""Seconds that a run may take to notice a timeout by itself."""
_PATIENCE = 3600.0
"""Seconds between two checks of a run without any time limit."""
_log = logging.getLogger(__name__)


@dataclass
class _RunThread:
    """A thread, its loop and the task in it."""

    executor: ScenarioExecutor
    ended: Future[ScenarioResult] = field(default_factory=Future)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    task: asyncio.Task[ScenarioResult] | None = None

    def run_thread(self) -> None:
        """Run the scenario to its end; the thread's target."""
        asyncio.set_event_loop(self.loop)
        try:
            self.task = self.loop.create_task(self.executor.run())
            end = partial(self.ended.set_result, self.loop.run_until_complete(self.task))
        except BaseException as error:  # noqa: BLE001 (raised again where somebody waits)
            end = partial(self.ended.set_exception, error)
        try:
            _close_loop(self.loop)
            self.executor.event_bus.drain()
        finally:
            end()

    def cancel_run(self) -> None:
        """Cancel the run from another thread."""
        try:
            self.loop.call_soon_threadsafe(lambda: self.task.cancel() if self.task else None)
        except RuntimeError:
            _log.debug("cancel: the run had ended")


async def run_in_new_thread(executor: ScenarioExecutor) -> ScenarioResult:
    """Run a scenario on a thread of its own. Raises its exceptions, for a blocked thread its time limit's error."""
    worker = _RunThread(executor)
    worker.ended.set_running_or_notify_cancel()
    done = asyncio.wrap_future(worker.ended)
    context = contextvars.copy_context()
    name = f"scenario {executor.name}"[:40]
    threading.Thread(target=context.run, args=(worker.run_thread,), name=name, daemon=True).start()
    try:
        await _wait_within_limit(worker, done)
    except asyncio.CancelledError:
        worker.cancel_run()
        await asyncio.wait((done,), timeout=GRACE)
        if not done.done():
            _abandon_thread(executor, asyncio.CancelledError("cancelled"))
        raise
    finally:
        if not done.cancel():  # nobody waits for a thread that was given up
            done.exception()  # it was looked at
    return worker.ended.result()  # `done` has a copy of some errors, without their traceback


async def _wait_within_limit(worker: _RunThread, done: asyncio.Future[ScenarioResult]) -> None:
    """Wait for the end. Raises the error of an exceeded time limit that the blocked thread cannot notice."""
    while not done.done():
        left = worker.executor.lifecycle.get_nearest_limit_seconds()
        await asyncio.wait((done,), timeout=_PATIENCE if left is None else max(left, 0.0) + _SLACK)
        left = worker.executor.lifecycle.get_nearest_limit_seconds()
        if not done.done() and left is not None and left < -_SLACK / 2:
            error = worker.executor.lifecycle.build_exceeded_limit_error()
            worker.cancel_run()
            _abandon_thread(worker.executor, error)
            raise error


def _abandon_thread(executor: ScenarioExecutor, error: BaseException) -> None:
    """Abandon a blocked thread, with a warning."""
    busy = executor.lifecycle.caller.busy
    _log.warning(
        "scenario %r was given up while its thread is blocked%s; the thread goes on until the call returns",
        executor.name,
        f" in {type(busy).__name__}.call" if busy else "",
    )
    executor.lifecycle.end_blocked_run(error)


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel tasks that an adapter left on the loop, and close it."""
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=GRACE))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def run_to_end(make: Callable[[], Coroutine[Any, Any, ScenarioResult]]) -> ScenarioResult:
    """Run a coroutine to its end and return its result, whether or not a loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    done: Future[ScenarioResult] = Future()

    def work() -> None:
        try:
            done.set_result(asyncio.run(make()))
        except BaseException as error:  # noqa: BLE001 (raised again below)
            done.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # in pieces, so that Ctrl-C is heard
    return done.result()
