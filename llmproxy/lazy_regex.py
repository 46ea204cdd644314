"""Regular expressions that are compiled at their first use.

A start uses about a dozen of the 230 module-level expressions; compiling all took a tenth of the time until the proxy
serves (55 ms of processor of 560, in `re._compiler.compile`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, overload


class _LazyPattern:
    """A stand-in for a compiled pattern. Its first use replaces its methods with those of the compiled one."""

    def __init__(self, text: Any, flags: int) -> None:
        self._asked = text, flags
        if not callable(text):
            self.pattern = text

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        text, flags = self._asked
        compiled = re.compile(text() if callable(text) else text, flags)
        for each in ("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn", "pattern", "flags"):
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)


@overload
def late(text: str | Callable[[], str], flags: int = 0) -> re.Pattern[str]: ...
@overload
def late(text: bytes | Callable[[], bytes], flags: int = 0) -> re.Pattern[bytes]: ...
def late(text: Any, flags: int = 0) -> Any:
    """Return a lazily compiled expression; `text` may be a function. Not for ``re.sub(expression, ...)``."""
    return _LazyPattern(text, flags)


class LazyRegex:
    """An expression in Rust's syntax; `holds` returns whether it matches anywhere in ASCII bytes.

    One pass for any number of words: 1.5 ms for a megabyte, and 15 us if a literal text is required; `bytes.find` of
    one word takes 450 us.
    """

    holds: Callable[[bytes], bool]

    def __init__(self, text: str | Callable[[], str]) -> None:
        self._text = text

    def __getattr__(self, name: str) -> object:
        if name != "holds":
            raise AttributeError(name)
        from pydantic_core import SchemaValidator, core_schema  # the engine is not to be had by itself

        schema = core_schema.str_schema(pattern=self._text() if callable(self._text) else self._text)
        self.holds = SchemaValidator(schema).isinstance_python
        return self.holds
