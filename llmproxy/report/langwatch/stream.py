"""A stream of events to subscribe to, with the one method of Rx subjects that anybody here uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Subscription:
    """Somebody who listens, until `dispose` is called."""

    on_next: Callable[[Any], None] | None = None
    on_error: Callable[[Exception], None] | None = None
    on_completed: Callable[[], None] | None = None
    _stream: Stream | None = field(default=None, repr=False)

    def dispose(self) -> None:
        """Stop listening."""
        if self._stream is not None:
            self._stream.forget(self)
            self._stream = None


class Stream:
    """Hands every event to those who subscribed before it. After its end nothing comes any more."""

    def __init__(self) -> None:
        self._listeners: list[Subscription] = []
        self._ended = False

    def subscribe(
        self,
        on_next: Callable[[Any], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
        on_completed: Callable[[], None] | None = None,
        scheduler: object = None,  # noqa: ARG002 (the fourth parameter of Rx)
    ) -> Subscription:
        """Listen. An object with `on_next` and `on_completed` methods may stand for the three functions."""
        target: Any = on_next
        if on_next is not None and hasattr(on_next, "on_next"):
            on_next, on_error, on_completed = target.on_next, target.on_error, target.on_completed
        made = Subscription(on_next, on_error, on_completed, self)
        self._listeners.append(made)
        if self._ended and on_completed:
            on_completed()
        return made

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners) and not self._ended

    def forget(self, listener: Subscription) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def on_next(self, event: object) -> None:
        for each in () if self._ended else tuple(self._listeners):
            if each.on_next:
                each.on_next(event)

    def on_completed(self) -> None:
        ended, self._ended = self._ended, True
        for each in () if ended else tuple(self._listeners):
            if each.on_completed:
                each.on_completed()
