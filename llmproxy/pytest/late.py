"""Calls that come after the end of the test that made them: of a thread that it started and did not wait for.

All tests of a process share one base URL, so what arrives belongs to the test that runs. A thread that outlives its test would ask in
the name of the next one, and land in its cassette. Which thread opens a connection is known here, and nowhere else: to the proxy, those
of ended tests may open none any more. Such a call belongs to nobody; its thread gets an error that says so, and so does the report.
A worker that waits for work when its test ends (of a pool, of an event loop) is nobody's: the next test may use it.
(A connection that was opened before and is kept alive tells no threads apart: join your threads.)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType
from weakref import WeakKeyDictionary

SHOWN = 5
_STARTED = ("_thread.start_new_thread", "_thread.start_joinable_thread")
_WAITING = frozenset({"queue.py", "selectors.py", "concurrent/futures/thread.py", "multiprocessing/pool.py"})
"""Ends of the files in which a worker waits for what it is given next."""


class LateThreads:
    """The threads of tests that have ended."""

    def __init__(self) -> None:
        """Know of none."""
        self.refused: list[str] = []
        """What to say about calls that were refused, one line each."""
        self._of: WeakKeyDictionary[threading.Thread, str] = WeakKeyDictionary()
        self._before: frozenset[threading.Thread] = frozenset()
        self._address: Callable[[], tuple[str, int] | None] = lambda: None
        self._hooked = False

    def begin(self) -> None:
        """Hear that a test begins: what runs already is not its own."""
        self._before = frozenset(threading.enumerate())

    def end(self, test: str, address: Callable[[], tuple[str, int] | None]) -> None:
        """Hear that a test ended; `address` says where the proxy listens."""
        frames = sys._current_frames()  # noqa: SLF001 - documented, under this name
        new = [each for each in threading.enumerate() if each not in self._before]
        late = [each for each in new if not waits_for_work(frames.get(each.ident or 0))]
        for thread in late:
            self._of.setdefault(thread, test)
        self._address = address
        if late and not self._hooked:  # never taken out again, so put in only where it is needed
            self._hooked = True
            sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "socket.connect" and event not in _STARTED:
            return
        test = self._test_of(threading.get_ident())
        if test is None:
            return
        if event in _STARTED:  # what it starts is the ended test's as well
            started = getattr(arguments[0], "__self__", None)
            if isinstance(started, threading.Thread):
                self._of[started] = test
            return
        where = arguments[1]
        if isinstance(where, tuple) and tuple(where[:2]) == self._address():
            said = f"a thread of {test} asked after its end; its call belongs to no test and was refused"
            if len(self.refused) < SHOWN:
                self.refused.append(said)
            raise ConnectionRefusedError(f"llmproxy: {said}. Wait for your threads before the test returns.")

    def _test_of(self, ident: int) -> str | None:
        return next(
            (test for thread, test in list(self._of.items()) if thread.ident == ident and thread.is_alive()), None
        )


def waits_for_work(frame: FrameType | None) -> bool:
    """Tell by its innermost frame whether a thread is a worker of a pool, a queue or an event loop that has nothing to do now."""
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return frame is not None and any(PurePath(frame.f_code.co_filename).match(each) for each in _WAITING)
