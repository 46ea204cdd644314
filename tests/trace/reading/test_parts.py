"""Parts of spans: tokens, arguments, results, ids."""

from __future__ import annotations

import dataclasses

import pytest

from llmproxy.core.traffic.interaction import Usage
from llmproxy.trace import TokenUsage
from llmproxy.trace.reading.decoded_exchange import (
    convert_usage_for_trace,
    derive_span_id,
    join_nested_strings,
    parse_result_json_or_text,
)
from tests.support.messages import said, user
from tests.trace.runs import Json, chat


@pytest.mark.parametrize(("usage", "expected"), [
    (Usage(100, 20, 30, 40, 5), TokenUsage(30, 20, 120, 30, 40)),
    (Usage(100, 20), TokenUsage(100, 20, 120, None, None)),
    (Usage(None, 6), TokenUsage(None, 6, None, None, None)),
    (Usage(5, 0, 9), TokenUsage(0, 0, 5, 9, None)),
])  # fmt: skip
def test_tokens_unknown_are_none(usage: Usage, expected: TokenUsage) -> None:
    """None is never taken for 0, and a total of something unknown is unknown."""
    assert convert_usage_for_trace(usage) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": 1}', {"a": 1}), (" [1]", [1]), ("18", "18"), ("", ""), ("{broken", "{broken"), ('"x"', '"x"')],
)
def test_results_are_objects_lists_or_texts(text: str, value: Json) -> None:
    """A number in a text stays the text that the tool answered with."""
    assert parse_result_json_or_text(text) == value


def test_ids_depend_on_what_is_recorded() -> None:
    """Not on the row, and not on chance."""
    one = chat(1, [user("x")], said("y"))
    assert derive_span_id(one, "call0") == derive_span_id(dataclasses.replace(one, id=99), "call0")
    others = [
        dataclasses.replace(one, occurrence=2),
        dataclasses.replace(one, cassette="b"),
        dataclasses.replace(one, sample=2),
    ]
    assert len({derive_span_id(each, "call0") for each in [one, *others]} | {derive_span_id(one, "call1")}) == 5


def test_texts_within_a_value() -> None:
    """All of them, not deeper than makes sense."""
    assert join_nested_strings({"a": "x", "b": ["y", {"c": "z"}], "d": 1}) == "x\ny\nz\n"
    deep: Json = "x"
    for _ in range(50):
        deep = [deep]
    assert join_nested_strings(deep) == ""
