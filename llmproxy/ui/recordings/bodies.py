"""Bodies for the page: text as text, anything else in base64; and, in a file, each request as what it adds to an earlier one.

An agent's requests repeat each other nearly whole. In a file a body is ``{"of": id, "prefix": n, "suffix": n, "text": middle}``: so much of
the front and of the end of another request's text, and what stands between. Lengths count UTF-16 units, as JavaScript's strings do.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from llmproxy.core.traffic.differences import common_prefix, common_suffix

_WORTH = 512
"""Characters that must be saved, else a body stands for itself."""


def body(data: bytes) -> dict[str, Any]:
    """Return a body as plain values: ``text`` or ``base64``."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def text_of(data: bytes) -> str | None:
    """Return a body's text; None if it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def delta(base: tuple[int, str], text: str) -> dict[str, Any]:
    """Return `text` as what it adds to another one, or as it is where that saves nothing."""
    of, old = base
    front = common_prefix(old, text)
    back = common_suffix(old, text, min(len(old), len(text)) - front)
    if front + back < _WORTH:
        return {"text": text}
    middle = text[front : len(text) - back]
    return {"of": of, "prefix": _units(text[:front]), "suffix": _units(text[len(text) - back :]), "text": middle}


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
