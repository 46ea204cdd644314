"""Values of databases, tools and files are brought to one form and compared with their types."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest

from llmproxy.suite.matchers.registry import (
    ABSENT,
    Unknown,
    are_json_equal,
    get_type_name,
    get_value_at_dotted_path,
    parse_iso_date_or_time,
    quote,
    to_json,
)

ID = UUID("12345678-1234-5678-1234-567812345678")
EAST = timezone(timedelta(hours=2))


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(("left", "right", "equal"), [
    (1, 1.0, True),
    (True, 1, False),
    (False, 0, False),
    (True, True, True),
    ("1", 1, False),
    ("true", True, False),
    (None, None, True),
    (None, ABSENT, True),
    (None, "", False),
    (None, 0, False),
    (None, False, False),
    (Decimal("1.50"), 1.5, True),
    (Decimal("0.1"), 0.1, True),
    (Decimal(1), True, False),
    (Decimal(1), "1", False),
    (ID, str(ID).upper(), True),
    (ID, 5, False),
    (datetime(2026, 1, 2, 10, tzinfo=UTC), "2026-01-02T10:00:00Z", True),
    (datetime(2026, 1, 2, 12, tzinfo=EAST), "2026-01-02T10:00:00Z", True),
    (datetime(2026, 1, 2, 10), "2026-01-02 10:00:00", True),  # noqa: DTZ001 (a database without time zones)
    (datetime(2026, 1, 2, 10, tzinfo=UTC), "2026-01-02", False),
    (datetime(2026, 1, 2, tzinfo=UTC), "soon", False),
    (date(2026, 1, 2), "2026-01-02", True),
    (date(2026, 1, 2), date(2026, 1, 2), True),
    (Colour.RED, "red", True),
    (b"text", "text", True),
    ({"a": [1, {"b": 2}]}, {"a": [1.0, {"b": 2}]}, True),
    ({"a": 1}, {"a": True}, False),
    ({"a": 1}, {"a": 1, "b": 2}, False),
    ([1, 2], [2, 1], False),
    ((1, 2), [1, 2], True),
    ("2026-01-02", "2026-01-02T00:00:00Z", False),
    (float("nan"), float("nan"), False),
])  # fmt: skip
def test_equality_has_types(left: object, right: object, equal: bool) -> None:
    """1 is 1.0 and no boolean and no text; dates, ids and decimals are what they are written as. Both ways round."""
    assert are_json_equal(left, right) is equal
    assert are_json_equal(right, left) is equal


@pytest.mark.parametrize(("value", "made"), [
    (datetime(2026, 1, 2, 12, 30, tzinfo=EAST), "2026-01-02T10:30:00Z"),
    (date(2026, 1, 2), "2026-01-02"),
    (time(10, 30), "10:30:00"),
    (Decimal("2.00"), 2),
    (Decimal("2.5"), 2.5),
    (ID, str(ID)),
    (b"\xff", "base64:/w=="),
    ({1: {"a"}}, {"1": ["a"]}),
    (Colour.RED, "red"),
    (ABSENT, ABSENT),
])  # fmt: skip
def test_values_become_those_of_json(value: object, made: object) -> None:
    assert to_json(value) == made


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a", 1),
        ("b.c", 2),
        ("b.d[1].e", 4),
        ("b.d.1.e", 4),
        ("x.y", 5),
        ("x.y.z", 6),
        ("q", ABSENT),
        ("b.d[7]", ABSENT),
        ("a.b", ABSENT),
        ("nothing", None),
        ("b.d.one", Unknown("'one' is looked for in a list of 2: say in which item, such as [0].one")),
        ("a.b.c", ABSENT),
        ("text.a", Unknown("""'a' is looked for in a text: "{\\"a\\": 1}\"""")),
        ("$.b.d[1].e", 4),
        ("$.q", ABSENT),
    ],
)
def test_paths_lead_into_json(path: str, found: object) -> None:
    """Dots and brackets; a key that holds dots itself goes first; where nothing is, nothing is found."""
    value = {
        "a": 1, "b": {"c": 2, "d": [3, {"e": 4}]}, "x.y": 5, "x": {"y": {"z": 6}}, "nothing": None,
        "text": '{"a": 1}',
    }  # fmt: skip
    assert get_value_at_dotted_path(value, path) == found
    assert get_value_at_dotted_path(value, "$") is value


def test_moments_are_read_from_text() -> None:
    """Days are midnights in UTC; what is no date is none."""
    assert parse_iso_date_or_time("2026-01-02") == datetime(2026, 1, 2, tzinfo=UTC)
    assert parse_iso_date_or_time("2026-01-02T12:00+02:00") == datetime(2026, 1, 2, 10, tzinfo=UTC)
    assert [parse_iso_date_or_time(each) for each in ("2026-13-02", "5", 5, None, "2026", "20260102")] == [None] * 6


def test_kinds_are_told_in_words() -> None:
    values: tuple[object, ...] = (None, ABSENT, True, 1, Decimal(1), "x", ID, [1], {}, date(2026, 1, 1))
    words = ["null", "nothing", "a boolean", "a number", "a number", "text", "text", "a list", "an object", "a date"]
    assert [get_type_name(value) for value in values] == words
    assert quote(ABSENT) == "nothing"
    assert quote("x" * 500).endswith('…"')
    assert Unknown("why").reason == "why"
    assert not ABSENT
