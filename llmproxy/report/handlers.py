"""Handlers: functions as handlers, and how each is told an event.

Whoever wants to hear events may hand in one function instead of an object with two methods. A handler that fails
disturbs neither the run nor the others, and is warned of: whoever asserts in one must not take silence for a pass.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from llmproxy.report.events import Event, Handler

_log = logging.getLogger(__name__)

HandlerLike = Handler | Callable[[Event], object]
"""A handler, or a function that takes events."""


@dataclass(frozen=True, slots=True)
class _Function:
    call: Callable[[Event], object]

    def handle(self, event: Event) -> None:
        self.call(event)

    def close(self) -> None:
        """Nothing is kept back."""


def handlers_from(given: object) -> tuple[Handler, ...]:
    """Return handlers; of a function one that calls it.

    Raises:
        ValueError: it is neither a handler nor a function; it would hear nothing, and nobody would notice.

    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"handlers takes a list of handlers or functions, not {given!r}")  # noqa: TRY004 - as for every other argument
    return tuple(_handler(each) for each in given)


def notify(handlers: Iterable[Handler], event: Event) -> None:
    """Tell every handler an event; of one that fails there is a warning, and the traceback is logged."""
    for handler in handlers:
        try:
            handler.handle(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is not its business
            name = getattr(getattr(handler, "call", handler), "__qualname__", type(handler).__name__)
            _log.exception("the handler %s failed at %s", name, type(event).__name__)
            with suppress(RuntimeWarning):  # where warnings are errors
                warnings.warn(
                    f"the handler {name} failed: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2
                )


def _handler(given: object) -> Handler:
    if isinstance(given, type):
        raise ValueError(f"handlers: {given.__name__} is a class; write {given.__name__}()")  # noqa: TRY004 - a wrong value to whoever wrote it
    if callable(getattr(given, "handle", None)):
        return cast("Handler", given)
    if callable(given):
        return _Function(cast("Callable[[Event], object]", given))
    raise ValueError(
        f"handlers: {given!r} hears nothing: it has no method `handle(event)`, and is no function that takes an event"
    )
