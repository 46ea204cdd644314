"""The original's fingerprint: over every member of every span, ids and times included.

It tells whether a file was changed. What was said and done alone is `trace.values.behavior`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from llmproxy.trace.values.problems import TraceWrongShape


class Fingerprint:
    """The original's fingerprint, over the JSON of a list of spans that go by one at a time."""

    def __init__(self) -> None:
        self._digest = sha256(b"[")
        self._between = b""

    def add(self, span: dict[str, Any]) -> None:
        self._digest.update(self._between + canonical(span))
        self._between = b", "

    def text(self) -> str:
        """Return 16 hex digits, over what was added so far."""
        closed = self._digest.copy()
        closed.update(b"]")
        return closed.hexdigest()[:16]


def fingerprint_of(spans: Iterable[dict[str, Any]]) -> str:
    """Return the original's fingerprint of spans, given as their dicts."""
    fingerprint = Fingerprint()
    for span in spans:
        fingerprint.add(span)
    return fingerprint.text()


def canonical(span: dict[str, Any]) -> bytes:
    """Return one span as the fingerprint sees it. Raises TraceWrongShape for what has no JSON."""
    try:
        return json.dumps(span, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        raise TraceWrongShape(f"Span {span.get('id')!r} cannot be written as JSON: {error}.") from error
