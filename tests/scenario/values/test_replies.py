"""Paths into answers, and what counts as an answer."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.errors import AgentError, SuiteError
from llmproxy.scenario.values.messages import (
    extract_html_title,
    format_value_as_short_json,
    join_user_texts,
    keep_text_end,
    parse_value_path,
    require_value_at_path,
    validate_agent_answer,
)

VALUE: dict[str, Any] = {
    "answer": "hi",
    "choices": [{"message": {"content": "one"}}, {"message": {"content": "two"}}],
    "odd name": {"*": 1, "a.b": 2},
    "parts": [{"text": "a"}, {"text": "b"}],
    "empty": [],
}


@pytest.mark.parametrize(("path", "found"), [
    ("$.answer", "hi"),
    ("answer", "hi"),
    ("$", VALUE),
    ("$.choices[0].message.content", "one"),
    ("choices[-1].message.content", "two"),
    ("$.parts[*].text", ["a", "b"]),
    ("$.empty[*].text", []),
    ("$['odd name']['*']", 1),
    ('$["odd name"]["a.b"]', 2),
])  # fmt: skip
def test_a_path_leads_to_a_value(path: str, found: object) -> None:
    """Names, indices from both ends, every item, quoted names."""
    assert require_value_at_path(parse_value_path(path), VALUE) == found


@pytest.mark.parametrize("path", ["$..answer", "$.a[?(@.b)]", "$.a[1:2]", "a b", "$.a[", "$.[x]"])
def test_a_path_that_is_not_understood_is_refused(path: str) -> None:
    """It names the key and shows a path that would do."""
    with pytest.raises(SuiteError, match=r"reply: .*not a path") as caught:
        parse_value_path(path)
    assert "choices[0]" in str(caught.value)


@pytest.mark.parametrize(("path", "said"), [
    ("$.reply", r"no \$\.reply; \$ is an object with answer, choices"),
    ("$.choices[2].message", r"no \$\.choices\[2\]; \$\.choices is a list of 2"),
    ("$.answer.text", r'no \$\.answer\.text; \$\.answer is "hi"'),
    ("$.answer[*]", r"no \$\.answer\[\*\]"),
    ("$.parts[*].size", r"no \$\.parts\[0\]\.size"),
])  # fmt: skip
def test_a_path_that_leads_nowhere_says_where_it_ends(path: str, said: str) -> None:
    with pytest.raises(LookupError, match=said):
        require_value_at_path(parse_value_path(path), VALUE)


MESSAGE = {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("hi", "hi"),
        ({"text": "hi", "id": 1}, "hi"),
        ({"message": MESSAGE}, MESSAGE),
        ({"message": "hi"}, "hi"),
        ({"messages": [MESSAGE]}, [MESSAGE]),
        (MESSAGE, MESSAGE),
        ([MESSAGE], [MESSAGE]),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, {"role": "assistant", "content": None, "tool_calls": [{}]}),
        ({"text": "hi", "message": None}, "hi"),
    ],
)  # fmt: skip
def test_an_answer_has_one_of_few_forms(value: object, found: object) -> None:
    """A text, a message, messages, or an object with one of them."""
    assert validate_agent_answer(value, "the agent") == found


@pytest.mark.parametrize(("value", "said"), [
    (None, "null, which is neither"),
    (42, "42, which is neither"),
    ("", "empty answer"),
    (" \n", "empty answer"),
    ({}, "none of them"),
    ({"answer": "hi"}, 'is {"text"'),
    ({"text": "a", "message": "b"}, "has text and message"),
    ({"messages": []}, "empty list"),
    ({"messages": ["hi"]}, '"hi", which is neither'),
    ([1], "1, which is neither"),
    ({"role": "assistant", "content": ""}, "empty message"),
    ({"error": "quota"}, 'with an error: "quota"'),
    ({"text": 5}, "5, which is neither"),
])  # fmt: skip
def test_anything_else_is_no_answer(value: object, said: str) -> None:
    """Nothing is guessed; the error shows what was there."""
    with pytest.raises(AgentError, match=said):
        validate_agent_answer(value, "the agent")


def test_what_users_said_is_text() -> None:
    """Several messages, parts of messages; nothing said is not the same as an empty text."""
    parts = {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {}}]}
    assert join_user_texts([{"role": "user", "content": "a"}, MESSAGE, parts]) == "a\n\nb"
    assert join_user_texts([{"role": "user", "content": ""}]) == ""
    assert join_user_texts([MESSAGE]) is None
    assert join_user_texts([]) is None


def test_what_is_shown_is_short_and_printable() -> None:
    """Nothing that a terminal obeys, nothing endless, nothing that raises; of a long text its end, as of a traceback."""
    assert format_value_as_short_json("\x1b[2J") == '"\\u001b[2J"'
    assert len(format_value_as_short_json("x" * 5000)) == 300
    loop: list[Any] = []
    loop.append(loop)
    assert format_value_as_short_json(loop)
    assert keep_text_end("a" * 5000 + "\nValueError: \x1b]0;x").endswith("ValueError: \\u001b]0;x")
    assert keep_text_end("short") == "short"


@pytest.mark.parametrize(("body", "title"), [
    ("<!DOCTYPE html><title>Sign\n in</title>", "Sign in"),
    ("  <html><body>x", ""),
    ('{"a": "<html>"}', None),
    ("", None),
])  # fmt: skip
def test_a_web_page_is_known_by_its_beginning(body: str, title: str | None) -> None:
    assert extract_html_title(body) == title
