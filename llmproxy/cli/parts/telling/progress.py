"""What a terminal sees of work that takes more than a second: one line on stderr, which goes away when the work is done."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self, TextIO

from llmproxy.amounts import duration, format_count
from llmproxy.report.terminal.cells import cut, width

_PATIENCE = 1.0
"""Seconds before anything is said."""
_MINUTE = 60
_OFTEN = 0.25
"""Seconds between two lines."""


class Working:
    """Says what is being done, how far it is and since when; nothing in a pipe.

    with Working("verifying llmproxy.db", "interaction") as working:
        for row in working.through(rows): ...
    """

    def __init__(
        self, what: str, unit: str = "", *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Say `what`; `unit` is what :meth:`through` counts."""
        self._what, self._unit, self._clock = what, unit, clock
        self._stream = stream or sys.stderr
        self._began = clock()
        self._done = self._total = 0
        self._shown = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._thread = threading.Thread(target=self._tell, name="llmproxy-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._write("")

    def through[Thing](self, things: Iterable[Thing], total: int = 0) -> Iterator[Thing]:
        """Go through things, counting them; `total` is how many there are, where that is known."""
        self._done, self._total = 0, total
        for each in things:
            yield each
            self._done += 1

    def line(self) -> str:
        """Return what is to be said now; nothing in the first second."""
        since = self._clock() - self._began
        if since < _PATIENCE:
            return ""
        of = f" of {self._total:,}" if self._total else ""
        far = (
            f": {self._done:,}{of} {self._unit}s"
            if of
            else f": {format_count(self._done, self._unit)}"
            if self._done
            else ""
        )
        long = f"{since:.0f} s" if since < _MINUTE else duration(since * 1000)
        return f"{self._what}{far}, {long}"

    def _tell(self) -> None:
        while not self._over.wait(_OFTEN):
            self._write(self.line())

    def _write(self, text: str) -> None:
        """Write over the line before."""
        text = cut(text, shutil.get_terminal_size().columns - 1)
        if text or self._shown:
            self._stream.write(f"\r{text}{' ' * (self._shown - width(text))}" + ("" if text else "\r"))
            self._stream.flush()
        self._shown = width(text)
