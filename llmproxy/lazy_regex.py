"""Expressions that are compiled when they are first asked.

Of some 230 at the top of our modules a start asks a dozen; to compile all of them was a tenth of what it takes until
the proxy serves (55 ms of processor of 560, by `re._compiler.compile`), and more of the shim's and of the pytest
plugin's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, overload


class _LazyPattern:
    """What `re.compile` returns, from the first question on without a step between: methods are the compiled one's."""

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
    """Return an expression by its methods; `text` may be a function. Not for ``re.sub(expression, ...)``."""
    return _LazyPattern(text, flags)


class RustPattern:
    """An expression in Rust's syntax; `holds` tells whether it matches somewhere in ASCII bytes.

    One pass, however many words are asked: a megabyte takes a millisecond and a half, and 15 us where a literal text
    has to occur; `bytes.find` of one word takes 450 us.
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
