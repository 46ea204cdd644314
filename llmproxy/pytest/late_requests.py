"""Detection of requests that arrive after the end of their test, from a thread that it did not wait for.

A request belongs to the running test, so such a thread would be recorded in the next one's cassette. Only this process
knows which thread connects or sends: threads of ended tests may do neither with the proxy, and get an error, like the
report. A worker that is idle at the end of a test may be used by the next one; unfinished tasks of an event loop stay
the ended test's.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

SHOWN = 5
_STARTED = ("_thread.start_new_thread", "_thread.start_joinable_thread")
_SENDS = ("send", "sendall", "sendmsg")
"""Sending methods of a socket: they raise no audit event, and a kept-alive connection is opened only once."""
_WAITING = frozenset({"queue.py", "selectors.py", "concurrent/futures/thread.py", "multiprocessing/pool.py"})
"""Ends of the names of files in which an idle worker waits."""


class LateRequestGuard:
    def __init__(self) -> None:
        self.refused: list[str] = []
        self._of: WeakKeyDictionary[threading.Thread, str] = WeakKeyDictionary()
        self._tasks: WeakKeyDictionary[Task[Any], str] = WeakKeyDictionary()
        self._before: frozenset[threading.Thread] = frozenset()
        self._tasks_before: WeakSet[Task[Any]] = WeakSet()
        self._guarded: list[str] = []
        """Methods installed in `socket.socket` while late threads exist."""
        self._address: Callable[[], tuple[str, int] | None] = lambda: None
        self._hooked = False

    def on_test_start(self) -> None:
        self._before = frozenset(threading.enumerate())
        self._tasks_before = WeakSet(_list_unfinished_tasks(sys._current_frames().values()))
        self._patch_or_unpatch_send()

    def watch_leftover_threads_and_tasks(self, test: str, address: Callable[[], tuple[str, int] | None]) -> None:
        frames = sys._current_frames()
        new = [each for each in threading.enumerate() if each not in self._before]
        late = [each for each in new if not is_waiting_worker_thread(frames.get(each.ident or 0))]
        for thread in late:
            self._of.setdefault(thread, test)
        others = [frame for ident, frame in frames.items() if ident != threading.get_ident()]
        for task in _list_unfinished_tasks(others):
            if task not in self._tasks_before:
                self._tasks.setdefault(task, test)
        self._address = address
        self._patch_or_unpatch_send()
        if (late or self._tasks) and not self._hooked:  # never taken out again, so put in only where it is needed
            self._hooked = True
            sys.addaudithook(self._audit_connect)

    def _audit_connect(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "socket.connect" and event not in _STARTED:
            return
        test = self._find_test(threading.get_ident())
        if test is None:
            return
        if event in _STARTED:  # what it starts is the ended test's as well
            started = getattr(arguments[0], "__self__", None)
            if isinstance(started, threading.Thread):
                self._of[started] = test
            return
        where = arguments[1]
        if isinstance(where, tuple) and tuple(where[:2]) == self._address():
            self._refuse_late_request(test)

    def _refuse_late_request(self, test: str) -> None:
        said = f"a thread of {test} asked after its end; its call belongs to no test and was refused"
        if len(self.refused) < SHOWN and said not in self.refused:
            self.refused.append(said)
        raise ConnectionRefusedError(f"llmproxy: {said}. Wait for your threads before the test returns.")

    def _find_test(self, ident: int) -> str | None:
        if self._tasks and (task := _current_task()) is not None and (test := self._tasks.get(task)) is not None:
            return test
        return next(
            (test for thread, test in list(self._of.items()) if thread.ident == ident and thread.is_alive()), None
        )

    # -- sending -------------------------------------------------------------------------------------------------------

    def _patch_or_unpatch_send(self) -> None:
        wanted = any(each.is_alive() for each in list(self._of)) or any(not each.done() for each in list(self._tasks))
        if wanted and not self._guarded:
            self._guarded = [
                name for name in _SENDS if name not in vars(socket.socket) and hasattr(socket.socket, name)
            ]
            for name in self._guarded:
                setattr(socket.socket, name, self._guard_send(getattr(socket.socket, name)))
        elif not wanted and self._guarded:
            for name in self._guarded:
                delattr(socket.socket, name)
            self._guarded = []

    def _guard_send(self, send: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(send)
        def send_guarded(connection: socket.socket, *given: Any, **named: Any) -> Any:
            test = self._find_test(threading.get_ident())
            if test is not None and _peer_address(connection) == self._address():
                self._refuse_late_request(test)
            return send(connection, *given, **named)

        return send_guarded

    def close(self) -> None:
        self._of.clear()
        self._tasks.clear()
        self._patch_or_unpatch_send()


def _peer_address(connection: socket.socket) -> tuple[Any, ...] | None:
    try:
        where = connection.getpeername()
    except OSError:
        return None
    return tuple(where[:2]) if isinstance(where, tuple) else None


def _list_unfinished_tasks(frames: Iterable[FrameType]) -> list[Task[Any]]:
    if (asyncio := sys.modules.get("asyncio")) is None:
        return []
    found: list[Task[Any]] = []
    for each in frames:
        frame: FrameType | None = each
        while frame is not None:
            loop: AbstractEventLoop | None = (
                frame.f_locals.get("self") if frame.f_code.co_name == "run_forever" else None
            )
            if isinstance(loop, asyncio.AbstractEventLoop):
                found += asyncio.all_tasks(loop)
                break
            frame = frame.f_back
    return found


def _current_task() -> Task[Any] | None:
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return None  # no loop runs in this thread


def is_waiting_worker_thread(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return frame is not None and any(PurePath(frame.f_code.co_filename).match(each) for each in _WAITING)
