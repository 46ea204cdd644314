"""Values of databases as JSON, and back: the table of B2's first row."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from llmproxy.suite.stores.protocol import Kind, is_same_plain_value, to_driver_value, to_plain

UID = UUID("12345678-1234-5678-1234-567812345678")


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(("value", "kind", "expected"), [
    (1, Kind.BOOLEAN, True),
    (0, Kind.BOOLEAN, False),
    (2, Kind.BOOLEAN, 2),
    (1, Kind.INTEGER, 1),
    (None, Kind.BOOLEAN, None),
    (Decimal("12.50"), Kind.NUMBER, 12.5),
    (Decimal("3.00"), Kind.NUMBER, 3),
    (Decimal("0.12345678901234567890"), Kind.NUMBER, "0.12345678901234567890"),
    (Decimal("NaN"), Kind.NUMBER, "NaN"),
    (float("inf"), Kind.NUMBER, "inf"),
    (UID, Kind.UNKNOWN, str(UID)),
    (datetime(2027, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), Kind.DATETIME, "2027-01-31T10:00:00Z"),
    (datetime(2027, 1, 31, 12, 0, 0, 5), Kind.DATETIME, "2027-01-31T12:00:00.000005Z"),  # noqa: DTZ001
    ("2027-01-31 12:00:00", Kind.DATETIME, "2027-01-31T12:00:00Z"),
    ("2027-01-31T12:00:00+02:00", Kind.DATETIME, "2027-01-31T10:00:00Z"),
    ("2027-01-31 12:00:00", Kind.TEXT, "2027-01-31 12:00:00"),
    ("next week", Kind.DATETIME, "next week"),
    (date(2027, 1, 31), Kind.DATE, "2027-01-31"),
    ("2027-01-31", Kind.DATE, "2027-01-31"),
    (time(9, 30), Kind.TIME, "09:30:00"),
    (timedelta(minutes=1), Kind.UNKNOWN, 60.0),
    (b"\xff\x00", Kind.BYTES, "base64:/wA="),
    (memoryview(b"hi"), Kind.BYTES, "base64:aGk="),
    (b"hi", Kind.TEXT, "hi"),
    (b"\xff", Kind.TEXT, "base64:/w=="),
    (Colour.RED, Kind.UNKNOWN, "red"),
    ([Decimal(1), {UID: (1, 2)}], Kind.UNKNOWN, [1, {str(UID): [1, 2]}]),
    ('{"a": 1}', Kind.TEXT, '{"a": 1}'),
])  # fmt: skip
def test_a_value_becomes_json(value: Any, kind: Kind, expected: object) -> None:
    """The column's kind decides what a value means; what would be lost stays a text."""
    made = to_plain(value, kind)
    assert is_same_plain_value(made, expected), made


def test_json_columns_are_parsed_only_where_they_are_texts() -> None:
    """A PostgreSQL driver has parsed already: a text there is a JSON text, even if it looks like a number."""
    assert to_plain('{"a": 1}', Kind.JSON, parse_json=True) == {"a": 1}
    assert to_plain("1", Kind.JSON) == "1"
    assert to_plain("{oops", Kind.JSON, parse_json=True) == "{oops"


@pytest.mark.parametrize(("value", "kind", "expected"), [
    ("base64:/wA=", Kind.BYTES, b"\xff\x00"),
    ("hi", Kind.BYTES, b"hi"),
    ("2027-01-31", Kind.DATE, date(2027, 1, 31)),
    ("2027-01-31T12:00:00+02:00", Kind.DATETIME, datetime(2027, 1, 31, 10, tzinfo=UTC)),
    ({"a": [1]}, Kind.JSON, '{"a": [1]}'),
    ("x", Kind.JSON, '"x"'),
    (True, Kind.BOOLEAN, True),
    (None, Kind.DATE, None),
    (str(UID).upper(), Kind.UUID, str(UID)),
    (7, Kind.TEXT, 7),
])  # fmt: skip
def test_json_becomes_what_a_driver_takes(value: object, kind: Kind, expected: object) -> None:
    """What YAML says is put into the column's type."""
    assert to_driver_value(value, kind) == expected


def test_a_column_without_a_zone_gets_utc() -> None:
    """The wall clock of UTC, so that what comes back is what was said."""
    assert to_driver_value("2027-01-31T12:00:00+02:00", Kind.DATETIME, zone=False) == datetime(2027, 1, 31, 10)  # noqa: DTZ001


@pytest.mark.parametrize(("value", "kind"), [
    ("tomorrow", Kind.DATE), ("x", Kind.BOOLEAN), ("7", Kind.INTEGER), (7.5, Kind.INTEGER), ("no", Kind.UUID),
    ("base64:!", Kind.BYTES),
])  # fmt: skip
def test_what_a_column_cannot_hold_is_refused(value: object, kind: Kind) -> None:
    """With the value that was given, before a database guesses."""
    with pytest.raises(ValueError, match=r"base64|neither|not a"):
        to_driver_value(value, kind)


def test_truth_is_no_number() -> None:
    """True differs from 1, and 1 is 1.0."""
    assert not is_same_plain_value(True, 1)
    assert not is_same_plain_value(0, False)
    assert is_same_plain_value(1, 1.0)
    assert not is_same_plain_value("1", 1)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_json_stays_as_it_is(value: object) -> None:
    assert to_plain(value) == value
