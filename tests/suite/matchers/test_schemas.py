"""A JSON Schema is checked with all that it says, its formats too."""

from __future__ import annotations

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.matchers.apply import check_value
from llmproxy.suite.matchers.match import REGISTRY
from llmproxy.suite.matchers.text import is_pattern_found, match_json_schema
from llmproxy.suite.matchers.variables import VariableScope

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
        (found,) = check_value(
            "x", {"at": text}, {"jsonSchema": {"properties": {"at": {"format": name}}}}, VariableScope()
        )
        assert found.status is status, text


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"requierd": {"type": "string"}}},
        {"const": {"requierd": 1}},
        {"type": "string", "nullable": True, "x-order": {"tipe": 1}, "example": {"tipe": 1}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"], "c": {"type": "null"}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "x", "minimum": 1, "exclusiveMinimum": True},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": False},
    ],
)
def test_names_of_a_user_are_no_misspelt_keywords(schema: dict[str, object]) -> None:
    """Of properties, in values, and what other tools write beside."""
    assert REGISTRY["jsonSchema"].rule is match_json_schema
    assert REGISTRY["jsonSchema"].objection(schema) == ""


_FOR_EVER = "^(a|aa)+$"
_KEYS = {"a" * 60 + "!": "a" * 60 + "!"}
_FALSE: dict[str, object] = {"additionalProperties": False}
_NESTED: dict[str, object] = {"allOf": [{"patternProperties": {_FOR_EVER: True}}], "unevaluatedProperties": False}
_SEARCHED: list[dict[str, object]] = [
    {"patternProperties": {_FOR_EVER: {"type": "string"}}},
    {"patternProperties": {_FOR_EVER: True}, "additionalProperties": False},
    _NESTED,
    {"$schema": "https://json-schema.org/draft/2019-09/schema", **_NESTED},
    {"propertyNames": {"pattern": _FOR_EVER}},
    {"additionalProperties": {"pattern": _FOR_EVER}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"patternProperties": {_FOR_EVER: True}}}}}},
]
"""Each takes the whole time that a search has."""


@pytest.mark.parametrize("schema", _SEARCHED)
def test_no_pattern_runs_for_ever(schema: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(is_pattern_found, "__defaults__", ("", 0.1))
    (found,) = check_value("x", _KEYS, {"jsonSchema": schema}, VariableScope())
    assert found.status is Status.ENVIRONMENT_ERROR
    assert "did not come to an end within 0.1 s" in found.message


@pytest.mark.parametrize(("schema", "good", "bad", "told"), [
    ({"patternProperties": {"^x-": {"type": "string"}}}, {"x-a": "", "y": 1}, {"x-a": 1}, "$['x-a']: 1 is not"),
    ({"patternProperties": {"^x-": True}, **_FALSE}, {"x-a": 1}, {"y": 1}, "match any of the regexes: '^x-'"),
    ({"patternProperties": {"^x": True, "(?i)Y": True}, **_FALSE}, {"x": 1, "y": 1}, {"z": 1}, "'z' does not match"),
    ({"properties": {"patternProperties": {"type": "string"}}}, {"patternProperties": ""}, {"patternProperties": 1}, "1 is not"),
    ({"const": {"patternProperties": {"a": 1}}}, {"patternProperties": {"a": 1}}, {"patternProperties": {"b": 1}}, "was expected"),
    ({"patternProperties": {"^a.b$": True, "^c": True}, "unevaluatedProperties": False}, {"a.b": 1, "axb": 1}, {"a": {"a.b": 1}}, "'a' was"),
])  # fmt: skip
def test_patterns_of_names_find_what_they_say(schema: dict[str, object], good: object, bad: object, told: str) -> None:
    """Also where one has flags of its own, and where the word is a name of the user's."""
    (held,) = check_value("x", good, {"jsonSchema": schema}, VariableScope())
    (failed,) = check_value("x", bad, {"jsonSchema": schema}, VariableScope())
    assert (held.status, failed.status) == (Status.PASSED, Status.FAILED)
    assert told in failed.message


@pytest.mark.slow
def test_definitions_that_double_end() -> None:
    """Forty levels, each of which names the next one twice, are a million million steps."""
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**doubling, "d40": {"type": "object"}}}
    (found,) = check_value("x", {}, {"jsonSchema": schema}, VariableScope())
    assert found.status is Status.ENVIRONMENT_ERROR
    assert "did not come to an end within 500,000 steps" in found.message


@pytest.mark.parametrize("value", [3, [], {}, None, True, 1.5])
@pytest.mark.parametrize("keyword", ["$schema", "$id", "$ref", "$defs", "$anchor", "$vocabulary", "$dynamicRef"])
def test_an_odd_value_of_a_keyword_is_refused_in_words(keyword: str, value: object) -> None:
    """Never a traceback of the library that reads it."""
    objection = REGISTRY["jsonSchema"].objection({keyword: value, "type": "object"})
    assert objection.startswith(": this is no JSON Schema: at $") or value == {}
