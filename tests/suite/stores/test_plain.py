"""Values of databases as JSON, and back: the table of B2's first row."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from llmproxy.suite.stores.protocol import ColumnType, is_same_plain_value, to_driver_value, to_plain

UID = UUID("12345678-1234-5678-1234-567812345678")


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(("value", "kind", "expected"), [
    (1, ColumnType.BOOLEAN, True),
    (0, ColumnType.BOOLEAN, False),
    (2, ColumnType.BOOLEAN, 2),
    (1, ColumnType.INTEGER, 1),
    (None, ColumnType.BOOLEAN, None),
    (Decimal("12.50"), ColumnType.NUMBER, 12.5),
    (Decimal("3.00"), ColumnType.NUMBER, 3),
    (Decimal("0.12345678901234567890"), ColumnType.NUMBER, "0.12345678901234567890"),
    (Decimal("NaN"), ColumnType.NUMBER, "NaN"),
    (float("inf"), ColumnType.NUMBER, "inf"),
    (UID, ColumnType.UNKNOWN, str(UID)),
    (datetime(2027, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), ColumnType.DATETIME, "2027-01-31T10:00:00Z"),
    (datetime(2027, 1, 31, 12, 0, 0, 5), ColumnType.DATETIME, "2027-01-31T12:00:00.000005Z"),  # noqa: DTZ001
    ("2027-01-31 12:00:00", ColumnType.DATETIME, "2027-01-31T12:00:00Z"),
    ("2027-01-31T12:00:00+02:00", ColumnType.DATETIME, "2027-01-31T10:00:00Z"),
    ("2027-01-31 12:00:00", ColumnType.TEXT, "2027-01-31 12:00:00"),
    ("next week", ColumnType.DATETIME, "next week"),
    (date(2027, 1, 31), ColumnType.DATE, "2027-01-31"),
    ("2027-01-31", ColumnType.DATE, "2027-01-31"),
    (time(9, 30), ColumnType.TIME, "09:30:00"),
    (timedelta(minutes=1), ColumnType.UNKNOWN, 60.0),
    (b"\xff\x00", ColumnType.BYTES, "base64:/wA="),
    (memoryview(b"hi"), ColumnType.BYTES, "base64:aGk="),
    (b"hi", ColumnType.TEXT, "hi"),
    (b"\xff", ColumnType.TEXT, "base64:/w=="),
    (Colour.RED, ColumnType.UNKNOWN, "red"),
    ([Decimal(1), {UID: (1, 2)}], ColumnType.UNKNOWN, [1, {str(UID): [1, 2]}]),
    ('{"a": 1}', ColumnType.TEXT, '{"a": 1}'),
])  # fmt: skip
def test_a_value_becomes_json(value: Any, kind: ColumnType, expected: object) -> None:
    """The column's kind decides what a value means; what would be lost stays a text."""
    made = to_plain(value, kind)
    assert is_same_plain_value(made, expected), made


def test_json_columns_are_parsed_only_where_they_are_texts() -> None:
    """A PostgreSQL driver has parsed already: a text there is a JSON text, even if it looks like a number."""
    assert to_plain('{"a": 1}', ColumnType.JSON, parse_json=True) == {"a": 1}
    assert to_plain("1", ColumnType.JSON) == "1"
    assert to_plain("{oops", ColumnType.JSON, parse_json=True) == "{oops"


@pytest.mark.parametrize(("value", "kind", "expected"), [
    ("base64:/wA=", ColumnType.BYTES, b"\xff\x00"),
    ("hi", ColumnType.BYTES, b"hi"),
    ("2027-01-31", ColumnType.DATE, date(2027, 1, 31)),
    ("2027-01-31T12:00:00+02:00", ColumnType.DATETIME, datetime(2027, 1, 31, 10, tzinfo=UTC)),
    ({"a": [1]}, ColumnType.JSON, '{"a": [1]}'),
    ("x", ColumnType.JSON, '"x"'),
    (True, ColumnType.BOOLEAN, True),
    (None, ColumnType.DATE, None),
    (str(UID).upper(), ColumnType.UUID, str(UID)),
    (7, ColumnType.TEXT, 7),
])  # fmt: skip
def test_json_becomes_what_a_driver_takes(value: object, kind: ColumnType, expected: object) -> None:
    """What YAML says is put into the column's type."""
    assert to_driver_value(value, kind) == expected


def test_a_column_without_a_zone_gets_utc() -> None:
    """The wall clock of UTC, so that what comes back is what was said."""
    assert to_driver_value("2027-01-31T12:00:00+02:00", ColumnType.DATETIME, zone=False) == datetime(2027, 1, 31, 10)  # noqa: DTZ001


@pytest.mark.parametrize(("value", "kind"), [
    ("tomorrow", ColumnType.DATE), ("x", ColumnType.BOOLEAN), ("7", ColumnType.INTEGER), (7.5, ColumnType.INTEGER), ("no", ColumnType.UUID),
    ("base64:!", ColumnType.BYTES),
])  # fmt: skip
def test_what_a_column_cannot_hold_is_refused(value: object, kind: ColumnType) -> None:
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
