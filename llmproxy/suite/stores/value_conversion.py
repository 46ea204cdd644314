"""Conversion of database values to plain JSON values, and back.

The kind of the column decides: SQLite has no booleans and no dates. A value that cannot be converted without loss stays
a text with the exact stored value.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from llmproxy.suite.stores.protocol import Kind, Row, Rows, sort_rows

BASE64 = "base64:"
"""Prefix of the text for bytes."""


def to_plain(value: Any, kind: Kind = Kind.UNKNOWN, *, parse_json: bool = False) -> Any:
    """Return a value as JSON; `parse_json` if the driver returns JSON columns as text."""
    if value is None:
        return None
    if kind is Kind.BOOLEAN and isinstance(value, int | float) and value in {0, 1}:
        return bool(value)
    if kind in {Kind.DATETIME, Kind.DATE} and isinstance(value, str):
        try:
            is_day = kind is Kind.DATE
            return date.fromisoformat(value).isoformat() if is_day else _format_utc(datetime.fromisoformat(value))
        except ValueError:
            return value
    if kind is Kind.JSON and parse_json and isinstance(value, str | bytes):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value if isinstance(value, str) else to_plain(value)
    return _to_plain_by_python_type(value, kind)


def _to_plain_by_python_type(value: Any, kind: Kind) -> Any:
    match value:
        case bool() | int() | str():
            return value.value if isinstance(value, Enum) else value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            if not value.is_finite():
                return str(value)
            if value == value.to_integral_value():
                return int(value)
            near = float(value)
            return near if Decimal(repr(near)) == value else format(value, "f")  # the digits, if a float changes them
        case datetime():
            return _format_utc(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            if kind is Kind.TEXT:
                with suppress(UnicodeDecodeError):
                    return bytes(value).decode()
            return BASE64 + base64.b64encode(value).decode()
        case Enum():
            return to_plain(value.value)
        case Mapping():
            return {str(name): to_plain(member) for name, member in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_plain(member) for member in value]
        case _:
            return str(value)


def from_plain(value: Any, kind: Kind, *, zone: bool = True) -> Any:
    """Return a driver's value for JSON; `zone`: dates with time keep theirs, else UTC. Raises ValueError."""
    if value is None:
        return None
    if kind is Kind.BYTES and isinstance(value, str):
        try:
            return base64.b64decode(value[len(BASE64) :], validate=True) if value.startswith(BASE64) else value.encode()
        except binascii.Error as error:
            raise ValueError(f"{value!r} is not base64: {error}") from None
    if kind in {Kind.DATETIME, Kind.DATE} and isinstance(value, str):
        return _parse_date_or_datetime(value, kind, zone=zone)
    if kind is Kind.BOOLEAN and not isinstance(value, bool) and value not in (0, 1):
        raise ValueError(f"{value!r} is neither true nor false")
    if kind is Kind.INTEGER and (isinstance(value, str) or (isinstance(value, float) and not value.is_integer())):
        raise ValueError(f"{value!r} is not a whole number")
    if kind is Kind.UUID:
        try:
            return str(UUID(str(value)))
        except ValueError:
            raise ValueError(f"{value!r} is not a UUID") from None
    if kind is Kind.JSON or isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return value


def parse_key(value: Any, kind: Kind) -> Any:
    """Convert a key to its column's type: keys are often texts after passing through a prompt or a URL."""
    if kind is Kind.TEXT and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if kind is Kind.INTEGER and isinstance(value, str):
        text = value.strip()
        return int(text) if text.removeprefix("-").isdecimal() else value
    return value


def is_same_plain_value(one: object, other: object) -> bool:
    """Compare plain values: 1 equals 1.0, but not true, and not a text."""
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def pick_rows(rows: Iterable[Row], filters: Mapping[str, Any], key: str, limit: int | None) -> Rows:
    found = (row for row in rows if all(is_same_plain_value(row.get(name), value) for name, value in filters.items()))
    return sort_rows(found, key)[:limit]


def _format_utc(value: datetime) -> str:
    """Return ISO-8601 in UTC with a Z; a time without a zone is taken as UTC."""
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _parse_date_or_datetime(value: str, kind: Kind, *, zone: bool) -> datetime | date:
    try:
        if kind is Kind.DATE:
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value)
    except ValueError:
        wanted = "2027-01-31" if kind is Kind.DATE else "2027-01-31T12:00:00Z"
        raise ValueError(f"{value!r} is not a date like {wanted}") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment if zone else moment.replace(tzinfo=None)
