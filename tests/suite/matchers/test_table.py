"""The table of matchers, what a matcher may not say, and that nothing passes by accident."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.checks.row_selection import RowWithColumnMatches, check_row_against_field_matchers
from llmproxy.suite.matchers.apply import check_value, check_values_at_paths
from llmproxy.suite.matchers.registry import ABSENT, REGISTRY, Unknown
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.stores import EntityInfo

PASSED, FAILED, ERROR = Status.PASSED, Status.FAILED, Status.ENVIRONMENT_ERROR
ID = UUID("12345678-1234-5678-1234-567812345678")


def scope() -> CaseVariables:
    made = CaseVariables({"word": "milk", "limit": 3}, declared=["later"], env={})
    made.capture_row("task", {"id": 7, "title": "Buy milk", "uid": ID, "done": False, "nothing": None})
    return made


NAN = float("nan")
TABLE: list[tuple[object, object, Status]] = [
    # what a placeholder stands for is not known
    ("REDACTED-1:github*****", {"contains": "ghp_"}, FAILED),
    ({"a": ["[REDACTED]"]}, {"not": {"json": {"a": ["x"]}}}, ERROR),
    ("key REDACTED-1:github*****", {"notContains": "ghp_"}, ERROR),
    ("key REDACTED-1:github*****", {"notContains": "key"}, FAILED),
    ("key [REDACTED-1:github]", {"contains": "key", "not": {"exists": False}}, PASSED),
    # NaN is not in JSON, and no comparison judges it
    (3, {"not": {"gt": NAN}}, ERROR),
    (3, {"not": NAN}, ERROR),
    (NAN, {"not": {"lt": 5}}, ERROR),
    ('{"a": NaN}', {"jsonSchema": {"properties": {"a": {"minimum": 10}}}}, FAILED),
    # a plain value: equality with types
    ("todo", "todo", PASSED),
    ("todo", "Todo", FAILED),
    (1, 1.0, PASSED),
    (True, 1, FAILED),
    (1, True, FAILED),
    ("1", 1, FAILED),
    (1, "1", FAILED),
    (None, None, PASSED),
    (ABSENT, None, PASSED),
    (0, None, FAILED),
    (["a"], ["a"], PASSED),
    (["a", "b"], ["b", "a"], FAILED),
    ("Buy milk", "Buy $word", PASSED),
    (7, "$task", PASSED),
    ("7", "$task.id", PASSED),
    # contains
    ("Buy milk", {"contains": "milk"}, PASSED),
    ("Buy milk", {"contains": "Milk"}, FAILED),
    ("Buy milk", {"contains": "Milk", "ignoreCase": True}, PASSED),
    ("Buy milk", {"contains": ["Buy", "milk"]}, PASSED),
    ("Buy milk", {"contains": ["Buy", "bread"]}, FAILED),
    ("5 tasks", {"contains": 5}, PASSED),
    ("Buy milk", {"contains": "$word"}, PASSED),
    (["a", 1], {"contains": 1}, PASSED),
    (["a", 1], {"contains": "1"}, FAILED),
    (["a", 1], {"contains": True}, FAILED),
    ([None], {"contains": [None]}, PASSED),
    ({"a": 1}, {"contains": "a"}, PASSED),
    ({"a": 1}, {"contains": "b"}, FAILED),
    (None, {"contains": "a"}, FAILED),
    (ABSENT, {"contains": "a"}, FAILED),
    (5, {"contains": "5"}, FAILED),
    # containsAny, notContains
    ("Buy milk", {"containsAny": ["bread", "milk"]}, PASSED),
    ("Buy milk", {"containsAny": ["bread"]}, FAILED),
    ("Buy milk", {"notContains": ["error", "failed"]}, PASSED),
    ("An error failed", {"notContains": ["error", "nothing"]}, FAILED),
    ("ERROR", {"notContains": "error"}, PASSED),
    ("ERROR", {"notContains": "error", "ignoreCase": True}, FAILED),
    (None, {"notContains": "a"}, PASSED),
    (ABSENT, {"notContains": "a"}, PASSED),
    (5, {"notContains": "a"}, FAILED),
    # regex
    ("Task 5 created", {"regex": "Task .* created"}, PASSED),
    ("xTask 5 created.", {"regex": "^Task .* created$"}, FAILED),
    ("a\nTask", {"regex": "^Task", "flags": "m"}, PASSED),
    ("TASK", {"regex": "task"}, FAILED),
    ("TASK", {"regex": "task", "ignoreCase": True}, PASSED),
    ("ab", {"regex": ["a", "b"]}, PASSED),
    ("ab", {"regex": ["a", "c"]}, FAILED),
    (120, {"regex": "^12"}, PASSED),
    ("costs $word", {"regex": r"\$word$"}, PASSED),
    (None, {"regex": "a"}, FAILED),
    (["a"], {"regex": "a"}, FAILED),
    # exists
    (1, {"exists": True}, PASSED),
    (0, {"exists": True}, PASSED),
    ("", {"exists": True}, PASSED),
    (None, {"exists": True}, FAILED),
    (ABSENT, {"exists": True}, FAILED),
    (None, {"exists": False}, PASSED),
    (ABSENT, {"exists": False}, PASSED),
    (False, {"exists": False}, FAILED),
    # order
    (2, {"gt": 1}, PASSED),
    (1, {"gt": 1}, FAILED),
    (1, {"gte": 1, "lt": 10}, PASSED),
    (10, {"gte": 1, "lt": 10}, FAILED),
    (1.5, {"lte": 1.5}, PASSED),
    (1.6, {"lte": 1.5}, FAILED),
    (Decimal("1.50"), {"gte": 1.5}, PASSED),
    (3, {"gte": "$limit"}, PASSED),
    ("5", {"gt": 1}, FAILED),
    (True, {"gt": 0}, FAILED),
    (None, {"gt": 0}, FAILED),
    (ABSENT, {"lt": 5}, FAILED),
    ("2026-02-01", {"gt": "2026-01-31"}, PASSED),
    (datetime(2026, 1, 1, tzinfo=UTC), {"lt": "2026-01-01T00:00:01Z"}, PASSED),
    (date(2026, 1, 1), {"gte": "2026-01-01"}, PASSED),
    ("tomorrow", {"gt": "2026-01-01"}, FAILED),
    (5, {"gt": "2026-01-01"}, FAILED),
    # eq, in
    ({"contains": 1}, {"eq": {"contains": 1}}, PASSED),
    ({"contains": 1}, {"eq": {"contains": 2}}, FAILED),
    ("ABC", {"eq": "abc", "ignoreCase": True}, PASSED),
    ("b", {"in": ["a", "b"]}, PASSED),
    (1, {"in": ["1"]}, FAILED),
    (7, {"in": ["$task.id"]}, PASSED),
    # ref
    (7, {"ref": "$task.id"}, PASSED),
    ("7", {"ref": "$task.id"}, PASSED),
    (7.0, {"ref": "$task.id"}, PASSED),
    ("7.0", {"ref": "$task.id"}, FAILED),
    (str(ID).upper(), {"ref": "$task.uid"}, PASSED),
    ("False", {"ref": "$task.done"}, FAILED),
    (None, {"ref": "$task.nothing"}, PASSED),
    (8, {"ref": "$task"}, FAILED),
    (7, {"ref": "$later.id"}, ERROR),
    (7, {"ref": "$nobody.id"}, ERROR),
    (7, {"ref": "$task.idd"}, ERROR),
    # JSON
    ('{"a": 1}', {"json": {"a": 1}}, PASSED),
    ({"a": 1}, {"json": {"a": 2}}, FAILED),
    ("no", {"json": {"a": 1}}, FAILED),
    ('```json\n{"a": 1}\n```', {"jsonSchema": {"required": ["a"]}}, PASSED),
    ('{"b": 1}', {"jsonSchema": {"required": ["a"]}}, FAILED),
    ("no", {"jsonSchema": {}}, FAILED),
    # combinations
    ("b", {"anyOf": ["a", {"contains": "b"}]}, PASSED),
    ("c", {"anyOf": ["a", {"contains": "b"}]}, FAILED),
    ("ab", {"allOf": [{"contains": "a"}, {"contains": "b"}]}, PASSED),
    ("a", {"allOf": [{"contains": "a"}, {"contains": "b"}]}, FAILED),
    ("a", {"not": "b"}, PASSED),
    ("a", {"not": {"contains": "a"}}, FAILED),
    ("a", {"not": {"not": "a"}}, PASSED),
    ("x", {"not": {"gt": 5}}, ERROR),
    ("x", {"not": {"not": {"gt": 5}}}, ERROR),
    ("x", {"anyOf": [{"gt": 5}, "x"]}, PASSED),
    ("x", {"anyOf": [{"gt": 5}, "y"]}, FAILED),
    # what cannot be evaluated
    (Unknown("not reported"), 0, ERROR),
    (Unknown("not reported"), {"not": 5}, ERROR),
    (Unknown("not reported"), {"exists": False}, ERROR),
    (Unknown("not reported"), {"notContains": "x"}, ERROR),
    (Unknown("not reported"), {"anyOf": [{"gte": 0}, {"lt": 0}]}, ERROR),
    ("x", {}, ERROR),
    ("x", {"ignoreCase": True}, ERROR),
    ("x", {"nonsense": 1}, ERROR),
    ("x", {"contains": ""}, ERROR),
    ("x", {"contains": [True]}, ERROR),
    ("x", {"regex": "(["}, ERROR),
    ("x", {"exists": "yes"}, ERROR),
    (5, {"gt": "much"}, ERROR),
    ("x", {"in": 5}, ERROR),
    ("x", "$later.title", ERROR),
]


@pytest.mark.parametrize(("actual", "matcher", "status"), TABLE, ids=str)
def test_the_table_of_matchers(actual: object, matcher: object, status: Status) -> None:
    """Each matcher on values that it takes, that it refuses, and that it cannot judge; a message says why it did not pass."""
    found = check_value("x", actual, matcher, scope())
    assert max((each.status for each in found), key=[PASSED, FAILED, ERROR].index) is status
    assert all(bool(each.message) is (each.status is not PASSED) for each in found)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_matcher_is_in_the_table(name: str) -> None:
    seen = {status for _, matcher, status in TABLE if isinstance(matcher, Mapping) and name in matcher}
    assert seen >= {PASSED, FAILED}


MESSAGES = [
    ("Created it", {"contains": "created"},
     '"created" is not in it; it is there in other case, "Created": `ignoreCase: true`'),
    ("a  b", {"contains": "a b"}, "with other spaces or line breaks"),
    ("\ufb01le", {"contains": "file"}, "other Unicode characters that look the same"),
    ("TASK", {"regex": "task"}, "found in other case"),
    ("1", 1, "a number is not text, mind the quotes"),
    (True, "true", "text is not a boolean"),
    ("Done", "done", "they differ in case only"),
    ("a b", "a\nb", "they differ in spaces or line breaks only"),
    ("abc", {"gt": 5}, 'expected a number, more than 5; found text "abc"'),
    ({"a": [1, 2]}, {"eq": {"a": [1, 3]}}, "at $.a[1] 3 was expected, 2 found"),
    (None, {"exists": True}, "expected a value, and there is null"),
    (8, {"ref": "$task.id"}, "expected 7, found 8"),
    (7, {"ref": "$later.id"}, "$later has no value yet (the step that captures it has not run)"),
    (5, {"in": [1, 2]}, "expected one of [1, 2], found 5"),
    ("x", {"not": "x"}, 'should not hold, and does: "x"'),
    ("[1, 2]", {"jsonSchema": {"items": {"type": "string"}}}, "at $[0]: 1 is not of type 'string'"),
]  # fmt: skip


@pytest.mark.parametrize(("actual", "matcher", "words"), MESSAGES, ids=str)
def test_a_stranger_understands_why(actual: object, matcher: object, words: str) -> None:
    """What was expected, what was found, and what it almost was."""
    assert words in check_value("x", actual, matcher, scope())[0].message


def test_each_key_is_an_assertion_of_its_own() -> None:
    """All are told, not the first; expected and actual are plain data, names as the user wrote them."""
    found = check_value("count", 12, {"gte": 1, "lt": 10}, scope(), where="row 3")
    assert [(each.name, each.status, each.expected, each.actual, each.where) for each in found] == [
        ("count.gte", PASSED, 1, 12, "row 3"),
        ("count.lt", FAILED, 10, 12, "row 3"),
    ]
    (one,) = check_value("title", ID, "x", scope())
    assert (one.name, one.actual) == ("title", str(ID))


def test_an_equality_of_texts_only_is_flagged() -> None:
    """A model writes ids as text; that they are equal so is told."""
    (loose,) = check_value("x", "7", {"ref": "$task.id"}, scope())
    (strict,) = check_value("x", 7, {"ref": "$task.id"}, scope())
    assert "equal as text only" in loose.evidence
    assert not strict.evidence


def test_fields_and_inputs_are_checked_by_name_and_path() -> None:
    """A column that is not there is nothing; arguments are looked into."""
    wanted = {"title": "x", "due": {"exists": False}}
    rows = check_row_against_field_matchers(
        "created[0].fields", EntityInfo("tasks"), RowWithColumnMatches({"title": "x"}, {}), wanted, scope()
    )
    assert {each.status for each in rows} == {PASSED}
    assert [each.name for each in rows] == ["created[0].fields.title", "created[0].fields.due.exists"]
    (deep,) = check_values_at_paths("tools.a.input", {"task": {"tags": ["x"]}}, {"task.tags[0]": "x"}, scope())
    assert (deep.name, deep.status) == ("tools.a.input.task.tags[0]", PASSED)


def test_a_broken_value_is_an_error_and_no_crash() -> None:
    """Whatever happens inside: nothing passed, and the report says so."""

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("broken driver")

        __repr__ = __str__

    (found,) = check_value("x", Odd(), {"eq": {"a": 1}}, scope())
    assert found.status is ERROR
