"""Handlers: functions as handlers, how each is told an event, and one that takes secrets out of events.

Whoever wants to hear events may hand in one function instead of an object with two methods. A handler that fails
disturbs neither the run nor the others, and is warned of: whoever asserts in one must not take silence for a pass.

Secrets are taken out before anybody shows them, since what an agent said can hold a key as well as what it recorded.
Only texts change, each for itself; ids, numbers and states go through as they are. Keys that this process has in its
environment are known.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, cast

from llmproxy.report.events import Event, Handler, ImmediateHandler

_log = logging.getLogger(__name__)

HandlerLike = Handler | Callable[[Event], object]
"""A handler, or a function that takes events."""


@dataclass(frozen=True, slots=True)
class _FunctionHandler(ImmediateHandler):
    call: Callable[[Event], object]

    def handle(self, event: Event) -> None:
        self.call(event)


def to_handlers(given: object) -> tuple[Handler, ...]:
    """Return handlers; of a function one that calls it. Raises ValueError: neither; it would hear nothing."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"handlers takes a list of handlers or functions, not {given!r}")
    return tuple(_to_handler(each) for each in given)


def notify_handlers(handlers: Iterable[Handler], event: Event) -> None:
    """Pass an event to every handler; of one that fails there is a warning, and the traceback is logged."""
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


_KEYS = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
"""How variables that hold a credential are called."""
_KNOWN, _NAME = 1024, 120
"""Texts that are looked through once, and characters of the longest of them."""


class SecretHider:
    """Hands events on without their secrets."""

    def __init__(self, inner: Handler, env: Mapping[str, str] | None = None) -> None:
        """Hide from `inner`; keys of `env` (the process's own unless given) are known."""
        self._inner, self._env = inner, os.environ if env is None else env
        self._text: Callable[[str], str] | None = None

    def handle(self, event: Event) -> None:
        self._inner.handle(cast("Event", redact_plain_data(event, self._build_redaction())))

    def close(self) -> None:
        """Close who shows them. Raises what that raises."""
        self._inner.close()

    def _build_redaction(self) -> Callable[[str], str]:
        if self._text is None:
            from llmproxy.core.secrets.redact import Redactor  # late: a run without a report needs none

            redactor = Redactor()
            keys = [("api-key", value) for name, value in self._env.items() if _KEYS.search(name.upper())]
            redactor.learn_request(tuple(keys), "")
            known = lru_cache(_KNOWN)(redactor.text)  # names, ids and states come with every event
            self._text = lambda text: known(text) if len(text) <= _NAME else redactor.text(text)
        return self._text


def redact_plain_data(value: object, text: Callable[[str], str]) -> object:
    """Return plain data with the secrets out of its texts; the same objects where there are none."""
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
