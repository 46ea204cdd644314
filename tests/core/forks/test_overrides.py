"""Overrides are read strictly, from JSON and as they are typed."""

from __future__ import annotations

import json

import pytest

from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.forks.overrides import (
    AnswerOverrides,
    OverrideError,
    ToolResultOverride,
    parse_answer_override_options,
    parse_answer_overrides_from_json,
    parse_overriding_model_answer,
)


def test_what_is_typed_is_what_the_model_reads() -> None:
    """The text of a result stays as it was typed; JSON is only checked. A number names one call."""
    found = parse_answer_override_options(['get_weather={"temp":  5}', "add#2=seven", "empty="], [])
    assert [(each.tool, each.nth, each.text) for each in found.tools] == [
        ("get_weather", None, '{"temp":  5}'), ("add", 2, "seven"), ("empty", None, ""),
    ]  # fmt: skip
    assert [each.parsed_value for each in found.tools] == [{"temp": 5}, "seven", ""]
    assert [each.name_as_typed for each in found.tools] == ["get_weather", "add#2", "empty"]


def test_an_answer_is_text_or_an_object_of_text_and_calls() -> None:
    """By the number of the call; a quoted text is its content, anything that is no JSON is itself."""
    calls = '{"text": "Let me see.", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}'
    assert parse_answer_override_options([], ["0=It is = cold.", '1="quoted"', f"2={calls}", "3="]).answers == {
        0: Message("assistant", "It is = cold."),
        1: Message("assistant", "quoted"),
        2: Message("assistant", "Let me see.", (ToolCall(None, "add", '{"a": 1}'),)),
        3: Message("assistant", ""),
    }


@pytest.mark.parametrize(("tools", "answers", "said"), [
    (["get_weather"], [], "NAME=RESULT"),
    (["=5"], [], "NAME=RESULT"),
    (["x#0=5"], [], "from 1"),
    (['x={"a":'], [], "looks like JSON and is none"),
    (["x=[1,"], [], "looks like JSON and is none"),
    ([], ["text"], "begin with the number"),
    ([], ["-1=x"], "begin with the number"),
    ([], ["0=a", "0=b"], "given twice"),
    (["x=1", "x=2"], [], "--override-tool x: given twice"),
    (["x#2=1", "y=1", "x=1", "x#2=1"], [], "--override-tool x#2: given twice"),
    ([], ['0={"temp": 5}'], "overridden answer is"),
    ([], ['0={"text": 5}'], "overridden answer is"),
    ([], ['0={"tool_calls": [{"arguments": {}}]}'], "tool call of an overridden answer"),
    ([], ['0={"text": "a'], "looks like JSON and is none"),
])  # fmt: skip
def test_what_cannot_be_meant_is_an_error(tools: list[str], answers: list[str], said: str) -> None:
    """With what was typed, and how it is written."""
    with pytest.raises(OverrideError) as error:
        parse_answer_override_options(tools, answers)
    assert said in str(error.value)
    assert error.value.hint or "twice" in error.value.message


def test_json_that_is_meant_as_text_is_shown_how() -> None:
    """An agent's answer may be JSON."""
    with pytest.raises(OverrideError) as error:
        parse_answer_override_options([], ['0={"temp": 5}'])
    quoted = error.value.hint.rpartition(": ")[0] and error.value.hint[error.value.hint.index('{"text": "{') :]
    assert parse_overriding_model_answer(json.loads(quoted)).text == '{"temp": 5}'


def test_the_json_form_goes_both_ways() -> None:
    """What a control request says is what a fork keeps."""
    given = parse_answer_override_options(["a=1", 'b#3={"x": [1]}'], ["0=hi", '4={"tool_calls": [{"name": "f"}]}'])
    assert parse_answer_overrides_from_json(json.loads(json.dumps(given.to_json()))) == given
    assert parse_answer_overrides_from_json(None) == AnswerOverrides()
    assert not parse_answer_overrides_from_json({})
    assert parse_answer_overrides_from_json({"tools": [{"tool": "a", "result": {"é": 1}}]}).tools[0].text == '{"é": 1}'


@pytest.mark.parametrize("value", [
    [], "x", {"tool": []}, {"tools": {}}, {"tools": ["x"]}, {"tools": [{"tool": "a"}]}, {"tools": [{"tool": "", "result": 1}]},
    {"tools": [{"tool": "a", "result": 1, "nth": 0}]}, {"tools": [{"tool": "a", "result": 1, "nth": True}]},
    {"tools": [{"tool": "a", "result": 1, "n": 1}]}, {"answers": [{"text": "x"}]}, {"answers": [{"call": -1, "text": "x"}]},
    {"answers": [{"call": 0}]}, {"answers": [{"call": 0, "tool_calls": [{"name": 1}]}]}, {"answers": [{"call": 0, "text": 1}]},
])  # fmt: skip
def test_bad_json_is_a_bad_request(value: object) -> None:
    with pytest.raises(OverrideError) as error:
        parse_answer_overrides_from_json(value)
    assert error.value.status == 400


def test_the_nearest_override_counts() -> None:
    """One for just this call before one for all; those above before those below."""
    below = parse_answer_override_options(["a#1=below", "b=only"], ["0=x"])
    overrides = parse_answer_override_options(["a=later", "a#2=second"], []).with_fallback(below)
    found = {nth: overrides.find_tool_override("a", nth) for nth in (1, 2, 3)}
    assert {nth: each and each.text for nth, each in found.items()} == {1: "below", 2: "second", 3: "later"}
    assert overrides.find_tool_override("b", 1) == ToolResultOverride("b", "only")
    assert overrides.find_tool_override("c", 1) is None
    assert overrides.answers[0].text == "x"


def test_what_is_kept_is_redacted() -> None:
    """A fork is stored: a secret in a typed result must not be."""
    kept = parse_answer_override_options(["a=key sk-1"], ["0=key sk-1"]).redact_texts(
        lambda text: text.replace("sk-1", "***")
    )
    assert (kept.tools[0].text, kept.answers[0].text) == ("key ***", "key ***")
