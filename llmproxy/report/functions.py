"""Functions as handlers: whoever wants to hear events may hand in one function instead of an object with two methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from llmproxy.report.events import Event, Handler

__all__ = ["HandlerLike", "handlers_from"]

HandlerLike = Handler | Callable[[Event], object]
"""A handler, or a function that takes events."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A function as a handler."""

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


def _handler(given: object) -> Handler:
    if isinstance(given, type):
        raise ValueError(f"handlers: {given.__name__} is a class; write {given.__name__}()")  # noqa: TRY004
    if callable(getattr(given, "handle", None)):
        return cast("Handler", given)
    if callable(given):
        return _Function(cast("Callable[[Event], object]", given))
    raise ValueError(
        f"handlers: {given!r} hears nothing: it has no method `handle(event)`, and is no function that takes an event"
    )
