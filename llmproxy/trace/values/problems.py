"""What can be wrong with a trace file: our error and the one that Evalcraft's users catch, in one.

A test written for the original expects JSONDecodeError for text that is no JSON, AttributeError for a list where an
object belongs, KeyError for a missing member and ValueError for an unknown kind. Each of ours is both.
"""

from __future__ import annotations

import json
from typing import Any

from llmproxy.errors import CassetteCorrupt


class TraceNotJSON(CassetteCorrupt, json.JSONDecodeError):
    """The file is no JSON: empty, cut off, or something else."""

    def __init__(self, message: str, cause: json.JSONDecodeError) -> None:
        """Keep what the JSON reader said, for those who ask for line and column."""
        ValueError.__init__(self, message)  # the next in line is JSONDecodeError's, which wants a document
        self.message, self.hint = message, ""
        self.msg, self.doc, self.pos = cause.msg, cause.doc, cause.pos
        self.lineno, self.colno = cause.lineno, cause.colno

    def __reduce__(self) -> Any:  # noqa: ANN401 - pickle's own
        """Pickle as one of ours; JSONDecodeError's way would lose the message."""
        return type(self), (self.message, json.JSONDecodeError(self.msg, self.doc, self.pos))


class TraceWrongShape(CassetteCorrupt, AttributeError, TypeError):
    """There is a list, a text or a number where an object belongs, or the other way round."""


class TraceIncomplete(CassetteCorrupt, KeyError):
    """A member is missing that a span cannot be without."""


class TraceWrongValue(CassetteCorrupt):
    """A member has a value that makes no sense there, such as an unknown kind."""


_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}


def shape(given: object, wanted: type, what: str) -> None:
    """Raise TraceWrongShape unless `given` is of the wanted type."""
    if not isinstance(given, wanted):
        raise TraceWrongShape(f"{what} must be {_NAMES[wanted]}, not {_NAMES.get(type(given), type(given).__name__)}.")


def incomplete(name: str, what: str) -> TraceIncomplete:
    """Return the error for a missing member."""
    return TraceIncomplete(f"{what} has no {name!r}.")


def value(message: str) -> TraceWrongValue:
    """Return the error for a value that makes no sense."""
    return TraceWrongValue(message)
