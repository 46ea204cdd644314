"""A JSON Schema is checked with all that it says, its formats too."""

from __future__ import annotations

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.matchers.schemas import json_schema
from llmproxy.suite.matchers.table import REGISTRY, check
from llmproxy.suite.matchers.variables import Scope

FORMATS = [
    ("date", "2027-01-31", "2027-1-31"),
    ("date-time", "2027-01-31T10:00:00Z", "2027-01-31 10:00"),
    ("date-time", "2027-01-31T10:00:00.5+02:00", "2027-13-31T10:00:00Z"),
    ("time", "10:00:00Z", "10:00"),
    ("duration", "P1DT2H", "1 day"),
    ("email", "a@b.example", "nobody"),
    ("hostname", "a-b.example", "-a"),
    ("ipv4", "1.2.3.4", "1.2.3"),
    ("ipv6", "::1", "1.2.3.4"),
    ("uri", "https://x.example/y?z=1", "not an address"),
    ("uuid", "12345678-1234-5678-1234-567812345678", "1234"),
    ("regex", "a+", "("),
]


@pytest.mark.parametrize(("name", "good", "bad"), FORMATS)
def test_formats_are_checked(name: str, good: str, bad: str) -> None:
    """A validator passes over them unless it is told not to."""
    for text, status in ((good, Status.PASSED), (bad, Status.FAILED)):
        (found,) = check("x", {"at": text}, {"jsonSchema": {"properties": {"at": {"format": name}}}}, Scope())
        assert found.status is status, text


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"requierd": {"type": "string"}}},
        {"const": {"requierd": 1}},
        {"type": "string", "nullable": True, "x-order": 1},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": False},
    ],
)
def test_names_of_a_user_are_no_misspelt_keywords(schema: dict[str, object]) -> None:
    """Of properties, in values, and what other tools write beside."""
    assert REGISTRY["jsonSchema"].rule is json_schema
    assert REGISTRY["jsonSchema"].objection(schema) == ""
