"""Secrets are taken out of events before anybody shows them: what an agent said can hold a key as well as what it
recorded.

    Hiding(Buffered(Path("report.html"), page))

Only texts change, each for itself; ids, numbers and states go through as they are. Keys that this process has in its
environment are known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, cast

from llmproxy.report.events import Event, Handler

_KEYS = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
"""How variables that hold a credential are called."""


_KNOWN, _NAME = 1024, 120
"""Texts that are looked through once, and characters of the longest of them."""


class Hiding:
    """Hands events on without their secrets."""

    def __init__(self, inner: Handler, env: Mapping[str, str] | None = None) -> None:
        """Hide from `inner`; keys of `env` (the process's own unless given) are known."""
        self._inner, self._env = inner, os.environ if env is None else env
        self._text: Callable[[str], str] | None = None

    def handle(self, event: Event) -> None:
        self._inner.handle(cast("Event", hide_secrets(event, self._build_redaction())))

    def close(self) -> None:
        """Close who shows them. Raises what that raises."""
        self._inner.close()

    def _build_redaction(self) -> Callable[[str], str]:
        if self._text is None:
            from llmproxy.core.secrets.redact import Redactor  # late: a run without a report needs none

            redactor = Redactor()
            keys = [("api-key", value) for name, value in self._env.items() if _KEYS.search(name.upper())]
            redactor.learn(tuple(keys), "")
            known = lru_cache(_KNOWN)(redactor.text)  # names, ids and states come with every event
            self._text = lambda text: known(text) if len(text) <= _NAME else redactor.text(text)
        return self._text


def hide_secrets(value: object, text: Callable[[str], str]) -> object:
    """Return plain data with the secrets out of its texts; the same objects where there are none."""
    if type(value) is str:
        shown = text(value)
        return value if shown == value else shown
    if is_dataclass(value) and not isinstance(value, type):
        old: dict[str, Any] = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        changed = {name: new for name, one in old.items() if (new := hide_secrets(one, text)) is not one}
        return replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        items = {hide_secrets(name, text): hide_secrets(one, text) for name, one in value.items()}
        return items if any(items.get(name, value) is not one for name, one in value.items()) else value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        made = [hide_secrets(one, text) for one in value]
        same = all(one is other for one, other in zip(made, value, strict=True))
        return value if same else (tuple(made) if isinstance(value, tuple) else made)
    return value
