"""Pairing of tool calls, and what is contract and what is incidental."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.trace import ToolFieldChange
from llmproxy.trace.comparing.diff import MISSING, classify_incidental_difference, find_tool_call_changes
from tests.trace.runs import Json, tools

UUIDS = "3f2b8a7e-1111-4222-8333-444455556666", "3f2b8a7e-1111-4222-8333-444455556667"


def compare(
    old: Json, new: Json, old_result: Json = None, new_result: Json = None, **options: Json
) -> list[ToolFieldChange]:
    before, after = tools(("t", old, old_result)), tools(("t", new, new_result))
    return find_tool_call_changes(before.get_tool_calls(), after.get_tool_calls(), **options)


@pytest.mark.parametrize(("old", "new", "expected"), [
    ({"x": 1}, {"x": 1.0}, []),
    ({"x": 1}, {"x": True}, [("arguments.x", 1, True)]),
    ({"x": 1}, {}, [("arguments.x", 1, MISSING)]),
    ({}, {"x": 1}, [("arguments.x", MISSING, 1)]),
    (None, {}, []),
    (None, {"x": 1}, [("arguments.x", MISSING, 1)]),
    ({"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}]}}, [("arguments.a.b[0].c", 1, 2)]),
    ({"q": [1, 2]}, {"q": [1, 3, 4]}, [("arguments.q[1]", 2, 3), ("arguments.q[2]", MISSING, 4)]),
    ({"a": {"b": 1}}, {"a": [1]}, [("arguments.a", {"b": 1}, [1])]),
])  # fmt: skip
def test_where_arguments_differ(old: Json, new: Json, expected: list[tuple[str, Any, Any]]) -> None:
    assert [(change.field, change.old, change.new) for change in compare(old, new)] == expected


@pytest.mark.parametrize(("old", "new", "kind"), [
    (*UUIDS, "uuid"),
    ("2024-01-01T10:00:00Z", "2024-01-02T11:00:00Z", "time"),
    ("2024-01-01 10:00", "2024-01-02 11:00", "time"),
    ("/tmp/abc", "/var/folders/x/y", "temporary path"),
    ("call_abcdef12", "call_abcdef13", "id"),
    ("2024-01-01", "2024-01-02", None),
    (f"order {UUIDS[0]}", f"order {UUIDS[1]}", None),
    (UUIDS[0], "x", None),
    ("18", "19", None),
    (1, 2, None),
])  # fmt: skip
def test_what_is_incidental(old: Json, new: Json, kind: str | None) -> None:
    """A whole value of one such kind on both sides; a bare date is what somebody asked for."""
    assert classify_incidental_difference(old, new) == kind
    (change,) = compare({"x": old}, {"x": new})
    assert (change.severity, change.looks) == ("info" if kind else "contract", kind)


def test_results_are_information() -> None:
    """The world answered differently; JSON in a text is compared as what it says."""
    (change,) = compare({}, {}, '{"items": [{"price": 1}]}', {"items": [{"price": 2}]})
    assert (change.field, change.severity, change.label) == ("result.items[0].price", "info", "Tool result changed")
    assert compare({}, {}, "a", "b", results=False) == []


@pytest.mark.parametrize("glob", ["t.*", "t.arguments.x", "arguments.x", "*.x", "*"])
def test_fields_can_be_left_out(glob: str) -> None:
    """By globs on tool and field, or on the field."""
    assert compare({"x": 1}, {"x": 2}, ignore=[glob]) == []


@pytest.mark.parametrize("glob", ["x", "t.x", "result.*"])
def test_globs_that_mean_something_else(glob: str) -> None:
    assert len(compare({"x": 1}, {"x": 2}, ignore=[glob])) == 1


def test_calls_are_paired_by_name_and_order() -> None:
    """An inserted call of another tool moves nothing; calls too many are left to the sequence."""
    old = tools(("a", {"n": 1}), ("b", {"n": 1}), ("a", {"n": 2}))
    new = tools(("b", {"n": 1}), ("c", {}), ("a", {"n": 1}), ("a", {"n": 3}), ("a", {"n": 4}))
    (change,) = find_tool_call_changes(old.get_tool_calls(), new.get_tool_calls())
    assert (change.tool, change.call, change.old, change.new) == ("a", 2, 2, 3)


def test_a_change_in_words_and_as_json() -> None:
    """One line for people, plain values for machines."""
    (change,) = compare({"x": 1}, {})
    assert change.describe() == "Tool contract changed: t (call 1)  arguments.x: 1 → (missing)"
    plain = json.loads(json.dumps(change.to_dict()))
    assert (plain["old"], plain["new"], plain["new_missing"]) == (1, None, True)
    assert len(compare({"x": "a" * 9999}, {"x": "b" * 9999})[0].describe()) < 1000


def test_odd_values_do_not_break_it() -> None:
    """What is not JSON, and what is very deep, is compared as it is."""
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert len(compare({"x": {1, 2}}, {"x": {1, 3}})) == 1
    assert len(compare({"x": deep}, {"x": [deep]})) == 1
    assert len(compare("text", "other")) == 1
