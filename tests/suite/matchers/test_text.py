"""Patterns: of Python's dialect, with a time limit. A JSON Schema is checked with all that it says, its formats too."""

from __future__ import annotations

import re
import time

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.matchers.apply import check_value
from llmproxy.suite.matchers.registry import REGISTRY
from llmproxy.suite.matchers.text import compile_pattern, is_pattern_found, match_json_schema
from llmproxy.suite.matchers.variable_references import CaseVariables, StepError

ENDLESS = "^(a|aa)+$"


def test_a_pattern_that_never_ends_is_an_error() -> None:
    """After a second; neither a pass nor a failure, denied or not."""
    began = time.monotonic()
    for matcher in ({"regex": ENDLESS}, {"not": {"regex": ENDLESS}}):
        (found,) = check_value("x", "a" * 60 + "!", matcher, CaseVariables())
        assert found.status is Status.ENVIRONMENT_ERROR
        assert "did not come to an end within 1 s on a text of 61 characters" in found.message
    assert time.monotonic() - began < 120  # one second is meant; machines are busy


@pytest.mark.parametrize("pattern", ["([", "(?P<a", "*", "a" * 30_000, r"\1"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(StepError, match="pattern"):
        compile_pattern(pattern)


@pytest.mark.parametrize(("pattern", "text", "flags"), [
    ("b", "abc", ""),
    ("^b", "a\nb", "m"),
    ("a.b", "a\nb", "s"),
    ("a b # c", "ab", "x"),
    ("A", "a", "i"),
    (r"\d{2,3}(?=€)", "120€", ""),
    (r"(?P<q>['\"]).*?(?P=q)", "say 'x'", ""),
    ("(?i)A", "a", ""),
])  # fmt: skip
def test_patterns_are_those_of_python(pattern: str, text: str, flags: str) -> None:
    assert is_pattern_found(pattern, text, flags)
    letters = {"m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "i": re.IGNORECASE, "": re.NOFLAG}
    assert re.search(pattern, text, letters[flags])
    assert not is_pattern_found(pattern, "~", flags)


def test_case_is_folded_for_every_language() -> None:
    """Not only ASCII."""
    (found,) = check_value("x", "STRASSE", {"contains": "straße", "ignoreCase": True}, CaseVariables())
    assert found.status is Status.PASSED


@pytest.mark.parametrize("name", ["contains", "containsAny", "notContains"])
def test_no_words_assert_nothing(name: str) -> None:
    """Written out that is refused where the suite is read; a variable has it later."""
    (found,) = check_value("x", "text", {name: "$none"}, CaseVariables({"none": []}))
    assert (found.status, "an empty list asserts nothing" in found.message) == (Status.ENVIRONMENT_ERROR, True)


@pytest.mark.parametrize("matcher", [{"contains": "Gr\u00f6\u00dfe"}, {"containsAny": ["x", "Gro\u0308\u00dfe"]}])
def test_letters_are_the_same_however_they_are_composed(matcher: dict[str, object]) -> None:
    """So what must not be there is found, too, in a text, a list and an object."""
    for actual in ("die Gr\u00f6\u00dfe", "die Gro\u0308\u00dfe", ["Gro\u0308\u00dfe"], {"Gr\u00f6\u00dfe": 1}):
        for ignored in ({}, {"ignoreCase": True}):
            (found,) = check_value("x", actual, {**matcher, **ignored}, CaseVariables())
            assert found.status is Status.PASSED, (actual, matcher)
    (found,) = check_value("x", "die Gro\u0308\u00dfe", {"notContains": "Gr\u00f6\u00dfe"}, CaseVariables())
    assert found.status is Status.FAILED


@pytest.mark.parametrize(
    "matcher", [{"regex": "^caf\u00e9$"}, {"regex": "cafe\u0301"}, {"eq": "caf\u00e9"}, {"in": ["cafe\u0301"]}]
)
@pytest.mark.parametrize("actual", ["caf\u00e9", "cafe\u0301"])
def test_patterns_and_values_are_found_however_they_are_composed(matcher: dict[str, object], actual: str) -> None:
    assert [each.status for each in check_value("x", actual, matcher, CaseVariables())] == [Status.PASSED]
    assert [each.status for each in check_value("x", actual, {"not": matcher}, CaseVariables())] == [Status.FAILED]


def test_a_pattern_may_look_for_a_mark_by_itself() -> None:
    """A text is also searched as it is written."""
    assert is_pattern_found("\u0301", "cafe\u0301")


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
            "x", {"at": text}, {"jsonSchema": {"properties": {"at": {"format": name}}}}, CaseVariables()
        )
        assert found.status is status, text


@pytest.mark.parametrize("schema", [
    {"properties": {"requierd": {"type": "string"}}},
    {"const": {"requierd": 1}},
    {"type": "string", "nullable": True, "x-order": {"tipe": 1}, "example": {"tipe": 1}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"], "c": {"type": "null"}}},
    {"$schema": "http://json-schema.org/draft-04/schema#", "id": "x", "minimum": 1, "exclusiveMinimum": True},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": False},
])  # fmt: skip
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
    (found,) = check_value("x", _KEYS, {"jsonSchema": schema}, CaseVariables())
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
    (held,) = check_value("x", good, {"jsonSchema": schema}, CaseVariables())
    (failed,) = check_value("x", bad, {"jsonSchema": schema}, CaseVariables())
    assert (held.status, failed.status) == (Status.PASSED, Status.FAILED)
    assert told in failed.message


@pytest.mark.slow
def test_definitions_that_double_end() -> None:
    """Forty levels, each of which names the next one twice, are a million million steps."""
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**doubling, "d40": {"type": "object"}}}
    (found,) = check_value("x", {}, {"jsonSchema": schema}, CaseVariables())
    assert found.status is Status.ENVIRONMENT_ERROR
    assert "did not come to an end within 500,000 steps" in found.message


@pytest.mark.parametrize("value", [3, [], {}, None, True, 1.5])
@pytest.mark.parametrize("keyword", ["$schema", "$id", "$ref", "$defs", "$anchor", "$vocabulary", "$dynamicRef"])
def test_an_odd_value_of_a_keyword_is_refused_in_words(keyword: str, value: object) -> None:
    """Never a traceback of the library that reads it."""
    objection = REGISTRY["jsonSchema"].objection({keyword: value, "type": "object"})
    assert objection.startswith(": this is no JSON Schema: at $") or value == {}
