"""What names stand for in one run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from llmproxy.errors import Exit
from llmproxy.suite.matchers.variable_references import (
    CaseVariables,
    StepError,
    find_variable_references,
    parse_variable_ref,
    strip_dollar,
)

ID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.fixture
def scope() -> CaseVariables:
    made = CaseVariables(
        {
            "userId": "u", "runIndex": 2, "scenarioId": "s", "title": "milk", "n": 3,
            "user": {"name": "Ann", "tags": ["a", "b"]},
        },
        declared=["$later"],
        env={"KEY": "value"},
    )  # fmt: skip
    made.capture_row(
        "$task",
        {"id": 7, "title": "Buy", "price": Decimal("1.50"), "at": datetime(2026, 1, 2, tzinfo=UTC), "gone": None},
    )
    made.capture_row("note", {"key": ID, "text": "x"}, primary="key")
    return made


@pytest.mark.parametrize(("text", "written"), [
    ("plain", "plain"),
    ("a $title b", "a milk b"),
    ("'$task.title'", "'Buy'"),
    ("$task.title.", "Buy."),
    ("${task.title}s", "Buys"),
    ("$task", "7"),
    ("do $task now", "do 7 now"),
    ("$note!", f"{ID}!"),
    ("$user.name has $user.tags[1]", "Ann has b"),
    ("${user.tags[0]}1", "a1"),
    ("$$title is $title", "$title is milk"),
    ("$$$title", "$milk"),
    ("costs $5 and $x", "costs $5 and $x"),
    ("$", "$"),
    ("100$", "100$"),
    ("${env:KEY}!", "value!"),
    ("$userId-$runIndex-$scenarioId", "u-2-s"),
    ("$task.price", "1.50"),
    ("at $task.at", "at 2026-01-02T00:00:00+00:00"),
    ("gone: $task.gone", "gone: null"),
    ("tags: $user.tags", 'tags: ["a", "b"]'),
    ("$title是", "milk是"),
])  # fmt: skip
def test_references_are_written_out(scope: CaseVariables, text: str, written: str) -> None:
    """Names, fields, items, braces, the environment, built-ins; two dollar signs are one; prices stay."""
    assert scope.interpolate_text(text) == written


@pytest.mark.parametrize(("value", "resolved"), [
    ("$task.id", 7),
    ("$task", 7),
    ("${note}", ID),
    ("$n", 3),
    ("$user.tags", ["a", "b"]),
    ("$task.gone", None),
    ({"ref": "$task.id"}, 7),
    ({"a": {"ref": "$task.id"}, "b": ["$n", "$n!"]}, {"a": 7, "b": [3, "3!"]}),
    ({"ref": "$task.id", "other": 1}, {"ref": 7, "other": 1}),
    ("$word", "$word"),
    (5, 5),
    (None, None),
])  # fmt: skip
def test_a_whole_reference_keeps_its_type(scope: CaseVariables, value: object, resolved: object) -> None:
    """Alone it is the value itself, inside of text it is written."""
    made = scope.resolve_value(value)
    assert made == resolved
    assert type(made) is type(resolved)


@pytest.mark.parametrize(("text", "words"), [
    ("$later.title", "$later has no value yet"),
    ("$later", "$later has no value yet"),
    ("$nothing.x", "nothing is called $nothing"),
    ("${nothing}", "nothing is called $nothing"),
    ("$task.titel", "there is no field `titel`"),
    ("$task.titel", "did you mean `title`"),
    ("$user.tags[2]", "the list has 2 items"),
    ("$title.x", "asks for a member of an object"),
    ("${env:MISSING}", "the environment has no variable MISSING"),
    ("${a b}", "is no reference"),
    ("$last.response", "the agent has said nothing yet"),
    ("$conversation.a", "no named conversation has begun"),
])  # fmt: skip
def test_what_has_no_value_is_never_sent(scope: CaseVariables, text: str, words: str) -> None:
    """An error of the step, with what to do; whole and inside of text."""
    for written in (text, f"say {text} now"):
        with pytest.raises(StepError, match=re.escape(words)) as caught:
            scope.resolve_value(written)
        assert caught.value.exit_code is Exit.ENVIRONMENT


def test_last_answer_and_conversations_have_values_once_they_are() -> None:
    scope = CaseVariables()
    scope.record_answer("done")
    scope.record_conversation_id("a", "conv-1")
    assert scope.interpolate_text("$last.response $conversation.a") == "done conv-1"
    with pytest.raises(StepError, match="names no value by itself"):
        scope.lookup_value("$last")
    with pytest.raises(StepError, match="there is no field `b`"):
        scope.lookup_value("$conversation.b")


def test_a_name_is_captured_once(scope: CaseVariables) -> None:
    """A second row under it is an error, unless it is asked for; built-in names are never taken."""
    with pytest.raises(StepError, match="has a value already"):
        scope.capture_row("task", {"id": 8})
    scope.capture_row("task", {"id": 8}, overwrite=True)
    assert scope.lookup_value("$task") == 8
    with pytest.raises(StepError, match="is built in"):
        scope.capture_row("$userId", {"id": 1})


def test_variables_may_build_on_earlier_ones() -> None:
    assert CaseVariables({"host": "h", "url": "http://$host/x"}, env={}).lookup_value("$url") == "http://h/x"
    with pytest.raises(StepError, match="nothing is called"):
        CaseVariables({"url": "${host}", "host": "h"}, env={})


def test_a_captured_row_is_a_copy() -> None:
    """What a store does to its row later does not reach the name."""
    row, scope = {"id": 1}, CaseVariables()
    scope.capture_row("r", row)
    row["id"] = 2
    assert scope.lookup_value("$r") == 1


def test_references_tell_how_sure_they_are() -> None:
    """A bare word may be text; a field, an item or braces are meant."""
    found = {each.text: each.is_unambiguous for each in find_variable_references("$a $b.c ${d} $e[0] $$f $5")}
    assert found == {"$a": False, "$b.c": True, "${d}": True, "$e[0]": True}
    assert parse_variable_ref("$a.b") is not None
    assert [parse_variable_ref(text) for text in ("$a b", "$$", "a", 5)] == [None] * 4


def test_names_are_bare() -> None:
    """`as: $x` and `as: x` are one."""
    assert (strip_dollar("$x"), strip_dollar("x")) == ("x", "x")
    assert CaseVariables({"v": 1}, declared=["$x"]).known_names >= {"v", "x", "userId", "last"}
