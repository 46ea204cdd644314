"""Event handlers: functions as handlers, dispatch of events, and a handler that redacts secrets.

A function may be given instead of an object with two methods. A failing handler disturbs neither the run nor other
handlers, and causes a warning: a test that asserts in a handler must not take silence for a pass.

Secrets are redacted before events are shown, since an agent's text can contain a key, also a recorded one. Only texts
change, each on its own; ids, numbers and states do not. Keys in this process's environment are known.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

from llmproxy.report.events import Event, Handler, ImmediateHandler

_log = logging.getLogger(__name__)

HandlerLike = Handler | Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class _FunctionHandler(ImmediateHandler):
    call: Callable[[Event], object]

    def handle(self, event: Event) -> None:
        self.call(event)


def to_handlers(given: object) -> tuple[Handler, ...]:
    """Return handlers; functions are wrapped. Raises ValueError for anything else, which would get no events."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"handlers takes a list of handlers or functions, not {given!r}")
    return tuple(_to_handler(each) for each in given)


def notify_handlers(handlers: Iterable[Handler], event: Event) -> None:
    """Pass an event to every handler; for a failing one a warning is issued and the traceback logged."""
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


def _to_handler(given: object) -> Handler:
    if isinstance(given, type):
        raise ValueError(f"handlers: {given.__name__} is a class; write {given.__name__}()")
    if callable(getattr(given, "handle", None)):
        return cast("Handler", given)
    if callable(given):
        return _FunctionHandler(cast("Callable[[Event], object]", given))
    raise ValueError(
        f"handlers: {given!r} hears nothing: it has no method `handle(event)`, and is no function that takes an event"
    )


_KNOWN, _NAME = 1024, 120
"""Size of the cache of checked texts, and the longest text cached."""


class SecretHider:
    def __init__(self, inner: Handler, env: Mapping[str, str] | None = None) -> None:
        self._inner, self._env = inner, os.environ if env is None else env

    def handle(self, event: Event) -> None:
        self._inner.handle(cast("Event", redact_plain_data(event, self._redact)))

    def close(self) -> None:
        self._inner.close()

    @cached_property
    def _redact(self) -> Callable[[str], str]:
        from llmproxy.core.secrets.redact import Redactor  # late: a run without a report needs none

        redactor = Redactor(self._env)
        known = lru_cache(_KNOWN)(redactor.text)  # names, ids and states come with every event
        return lambda text: known(text) if len(text) <= _NAME else redactor.text(text)


def redact_plain_data(value: object, text: Callable[[str], str]) -> object:
    if type(value) is str:
        shown = text(value)
        return value if shown == value else shown
    if is_dataclass(value) and not isinstance(value, type):
        old: dict[str, Any] = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        changed = {name: new for name, one in old.items() if (new := redact_plain_data(one, text)) is not one}
        return replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        items = {redact_plain_data(name, text): redact_plain_data(one, text) for name, one in value.items()}
        return items if any(items.get(name, value) is not one for name, one in value.items()) else value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        made = [redact_plain_data(one, text) for one in value]
        same = all(one is other for one, other in zip(made, value, strict=True))
        return value if same else (tuple(made) if isinstance(value, tuple) else made)
    return value
