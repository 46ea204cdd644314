"""Patterns: of Python's dialect, with a time limit."""

from __future__ import annotations

import re
import time

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.matchers.apply import check_value
from llmproxy.suite.matchers.text import compile_pattern, is_pattern_found
from llmproxy.suite.matchers.variables import StepError, VariableScope

ENDLESS = "^(a|aa)+$"


def test_a_pattern_that_never_ends_is_an_error() -> None:
    """After a second; neither a pass nor a failure, denied or not."""
    began = time.monotonic()
    for matcher in ({"regex": ENDLESS}, {"not": {"regex": ENDLESS}}):
        (found,) = check_value("x", "a" * 60 + "!", matcher, VariableScope())
        assert found.status is Status.ENVIRONMENT_ERROR
        assert "did not come to an end within 1 s on a text of 61 characters" in found.message
    assert time.monotonic() - began < 120  # one second is meant; machines are busy


@pytest.mark.parametrize("pattern", ["([", "(?P<a", "*", "a" * 30_000, r"\1"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(StepError, match="pattern"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "flags"),
    [
        ("b", "abc", ""),
        ("^b", "a\nb", "m"),
        ("a.b", "a\nb", "s"),
        ("a b # c", "ab", "x"),
        ("A", "a", "i"),
        (r"\d{2,3}(?=€)", "120€", ""),
        (r"(?P<q>['\"]).*?(?P=q)", "say 'x'", ""),
        ("(?i)A", "a", ""),
    ],
)
def test_patterns_are_those_of_python(pattern: str, text: str, flags: str) -> None:
    assert is_pattern_found(pattern, text, flags)
    letters = {"m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "i": re.IGNORECASE, "": re.NOFLAG}
    assert re.search(pattern, text, letters[flags])
    assert not is_pattern_found(pattern, "~", flags)


def test_case_is_folded_for_every_language() -> None:
    """Not only ASCII."""
    (found,) = check_value("x", "STRASSE", {"contains": "straße", "ignoreCase": True}, VariableScope())
    assert found.status is Status.PASSED


@pytest.mark.parametrize("matcher", [{"contains": "Gr\u00f6\u00dfe"}, {"containsAny": ["x", "Gro\u0308\u00dfe"]}])
def test_letters_are_the_same_however_they_are_composed(matcher: dict[str, object]) -> None:
    """So what must not be there is found, too, in a text, a list and an object."""
    for actual in ("die Gr\u00f6\u00dfe", "die Gro\u0308\u00dfe", ["Gro\u0308\u00dfe"], {"Gr\u00f6\u00dfe": 1}):
        for ignored in ({}, {"ignoreCase": True}):
            (found,) = check_value("x", actual, {**matcher, **ignored}, VariableScope())
            assert found.status is Status.PASSED, (actual, matcher)
    (found,) = check_value("x", "die Gro\u0308\u00dfe", {"notContains": "Gr\u00f6\u00dfe"}, VariableScope())
    assert found.status is Status.FAILED


@pytest.mark.parametrize(
    "matcher", [{"regex": "^caf\u00e9$"}, {"regex": "cafe\u0301"}, {"eq": "caf\u00e9"}, {"in": ["cafe\u0301"]}]
)
@pytest.mark.parametrize("actual", ["caf\u00e9", "cafe\u0301"])
def test_patterns_and_values_are_found_however_they_are_composed(matcher: dict[str, object], actual: str) -> None:
    assert [each.status for each in check_value("x", actual, matcher, VariableScope())] == [Status.PASSED]
    assert [each.status for each in check_value("x", actual, {"not": matcher}, VariableScope())] == [Status.FAILED]


def test_a_pattern_may_look_for_a_mark_by_itself() -> None:
    """A text is also searched as it is written."""
    assert is_pattern_found("\u0301", "cafe\u0301")
