"""One exchange of a file of recordings, and readers of parts that many formats share.

The readers take the values of a parser, and raise ReadingProblem with a description.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, TypeGuard

from llmproxy.core.traffic.interaction import Headers
from llmproxy.core.traffic.websocket_frames import SWITCHING

# Any: what a YAML loader returns.
Tree = Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange of a cassette file, unchanged."""

    method: str
    uri: str
    """Scheme, host, path and query."""
    headers: Headers
    body: bytes
    status: int
    reason: str
    response_headers: Headers
    response_body: bytes
    """As recorded: still compressed if content-encoding says so."""
    number: int = 0
    """Position in the file, from 1."""
    extra: Mapping[str, Tree] = field(default_factory=dict)
    """The member ``llmproxy``."""
    recorded_at: float = 0.0
    """Unix time, seconds; 0.0 if unknown."""
    problem: str = ""
    """Reason why this exchange cannot be replayed although its file is intact (its body was never saved), or ""."""


def build_skipped_exchange(what: object, number: int) -> Recorded:
    return Recorded("GET", "", (), b"", 200, "", (), b"", number=number, problem=f"it is {what}, not HTTP")


class ReadingProblem(Exception):
    """An error in one interaction."""


def kind(value: Tree) -> str:
    return "nothing" if value is None else type(value).__name__


def is_final_status(status: object) -> TypeGuard[int]:
    """Return whether a status is a final one: after an interim one every client would wait for another."""
    if isinstance(status, bool) or not isinstance(status, int):
        return False
    return 200 <= status <= 599 or status == SWITCHING


def mapping(tree: Tree, *path: str) -> dict[str, Tree]:
    for n, name in enumerate(path):
        tree = tree.get(name) if isinstance(tree, dict) else None
        if not isinstance(tree, dict):
            raise ReadingProblem(f"`{'.'.join(path[: n + 1])}` is {_describe_wrong_value(tree)}, not a mapping")
    if not isinstance(tree, dict):
        raise ReadingProblem(f"it is {kind(tree)}, not a mapping")
    return tree


def text(tree: dict[str, Tree], name: str, default: str | None = None) -> str:
    """Return a text; a required one (no default) must not be empty."""
    value = tree.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (default is None and not value):
        raise ReadingProblem(f"`{name}` is {_describe_wrong_value(value)}, not a text")
    return value


def get_list(tree: dict[str, Tree], name: str) -> list[Tree]:
    value = tree.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ReadingProblem(f"`{name}` is {kind(value)}, not a list")
    return value


def status(value: Tree) -> int:
    if not is_final_status(value):
        raise ReadingProblem(f"the status is {value!r}, not one of 200 to 599, or 101")
    return value


def parse_header_mapping(value: Tree) -> Headers:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise ReadingProblem(f"`headers` is {kind(value)}, not a mapping")
    found: list[tuple[str, str]] = []
    for name, values in value.items():
        for each in values if isinstance(values, list) else [values]:
            if not isinstance(each, str | int | float):
                raise ReadingProblem(f"the header {name!r} is {kind(each)}, not a text")
            found.append((str(name), str(each)))
    return tuple(found)


def parse_name_value_headers(value: Tree) -> Headers:
    """Return header fields of a list of mappings with `name` and `value`, without HTTP/2's pseudo fields."""
    found: list[tuple[str, str]] = []
    for each in get_list({"headers": value}, "headers"):
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise ReadingProblem("`headers` has a field without a name")
        if not each["name"].startswith(":"):
            found.append((each["name"], str(each.get("value", ""))))
    return tuple(found)


def decode_base64(value: str) -> bytes:
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ReadingProblem("its base64 is damaged") from error


def encode_utf8_with_surrogates(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def to_unix_time(value: Tree) -> float:
    """Return ISO text or a time stamp as Unix time; 0.0 for anything else."""
    if isinstance(value, int | float):
        return 0.0 if isinstance(value, bool) else float(value)
    if not isinstance(value, str | date):  # a datetime is a date; TOML and YAML have both
        return 0.0
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def microseconds(value: Tree, unit: int = 1_000_000) -> int:
    """Return a duration as whole microseconds, at least 0; `unit`: microseconds per unit of `value`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return 0
    return round(value * unit)


def _describe_wrong_value(value: Tree) -> str:
    return "missing" if value is None else "empty" if value == "" else kind(value)
