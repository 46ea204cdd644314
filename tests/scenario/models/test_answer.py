"""What a model said, that it survives keeping, and what is no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.scenario.models.answer import Answer, ModelToolCall, read_openai, strip_reasoning
from llmproxy.scenario.models.errors import HttpModelCallFailed, find_proxy_code


def message(**members: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": members, "finish_reason": "stop"}]}).encode()


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("hello", "hello"),
        ("<think>he wants a refund</think>\n\nI want a refund", "I want a refund"),
        ("<Thinking>a</Thinking>b<think>c</think>d", "bd"),
        ("he wants a refund</think>I want a refund", "I want a refund"),
        ("<think>never ends", ""),
        ("i think <b>so</b>", "i think <b>so</b>"),
        (None, ""),
        (7, ""),
        ([{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"}], "a"),
        ([{"type": "text", "text": None}, "x", {"type": "text", "text": "c"}], "c"),
    ],
)
def test_reasoning_is_stripped(said: object, heard: str) -> None:
    """Row 32: what a model thought aloud is not what it said."""
    assert strip_reasoning(said) == heard


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (message(content=" hi "), Answer("hi")),
        (message(content=None), Answer("")),
        (message(content="<think>x</think>hi", reasoning_content="let me pretend"), Answer("hi")),
        (message(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), Answer("ab")),
        (message(content=None, refusal="no"), Answer("")),
        (
            message(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{odd"}}]),
            Answer("", (ModelToolCall("f", "{odd"),)),
        ),
        (
            message(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}, {"function": {"arguments": None}}]),
            Answer("", (ModelToolCall("f", '{"a": 1}'), ModelToolCall("", ""))),
        ),
        (message(tool_calls=[{"type": "custom", "custom": {}}, None, 3]), Answer("")),
        (message(content="x", tool_calls=None), Answer("x")),
        (b'{"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}', Answer("x")),
        (b'{"choices": [{"message": {}, "finish_reason": "content_filter"}]}', Answer("")),
        (b'{"error": null, "choices": [{"message": {"content": "x"}}]}', Answer("x")),
        (b'{"error": {"message": "", "code": null}, "choices": [{"message": {"content": "x"}}]}', Answer("x")),
    ],
    ids=lambda value: str(value)[:70],
)
def test_an_answer_is_read(body: bytes, answer: Answer) -> None:
    """What was said aloud, and what was called."""
    assert read_openai(200, {}, body) == answer


# -- what is no answer


@pytest.mark.parametrize(
    ("status", "body", "meant", "said"),
    [
        (400, b'{"error": {"message": "too long", "code": "context"}}', 400, "too long"),
        (400, b'{"error": "just words"}', 400, "just words"),
        (404, b'[{"error": {"message": "in a list"}}]', 404, "in a list"),
        (422, b'{"detail": "not this"}', 422, """HTTP 422: '{"detail": "not this"}'"""),
        (502, b"<html><title>Bad Gateway</title></html>", 502, "HTTP 502: a web page ('Bad Gateway')"),
        (500, b"", 500, "HTTP 500: nothing"),
        (307, b"", 307, "HTTP 307, a redirection to 'http://b/', which is not followed"),
        (200, b"<html></html>", 500, "no message in it: a web page"),
        (200, b"hello", 500, "no message in it: 'hello'"),
        (200, b"", 500, "no message in it: nothing"),
        (200, b"[]", 500, "no message in it: '[]'"),
        (200, b'{"id": "x"}', 500, "there is no message in it"),
        (200, b'{"choices": {}}', 500, "there is no message in it"),
        (200, b'{"choices": [null]}', 500, "there is no message in it"),
        (200, b'{"choices": [{"delta": {}}]}', 500, "there is no message in it"),
        (200, b'{"error": {"message": "slow down", "code": 429}}', 429, "slow down"),
        (200, b'{"error": {"message": "slow down", "code": "rate"}}', 500, "slow down"),
        (200, b'{"error": {"message": "no", "code": "%b"}}' % (b"9" * 5000), 500, "no"),
        (200, b'{"error": "no"}', 422, "no"),
    ],
)
def test_what_is_no_answer_says_so(status: int, body: bytes, meant: int, said: str) -> None:
    """Every other answer is an error, with the words that were in it, and a status that says whether to ask again."""
    with pytest.raises(HttpModelCallFailed) as caught:
        read_openai(status, {"location": "http://b/"}, body)
    assert caught.value.status_code == meant
    assert said in str(caught.value)


def test_what_the_proxy_says_has_its_code() -> None:
    """In a header, whatever the text says; what is kept in cache.db comes back as it was."""
    body = b'{"error": {"message": "llmproxy: no"}}'
    with pytest.raises(HttpModelCallFailed, match=r"^llmproxy: no$") as caught:
        read_openai(404, {"x-llmproxy-error": "llmproxy_cache_miss"}, body)
    assert find_proxy_code(caught.value) == "llmproxy_cache_miss"
    with pytest.raises(HttpModelCallFailed) as caught:
        read_openai(404, {}, body)
    assert find_proxy_code(caught.value) == ""
    answer = Answer("größe", (ModelToolCall("f", '{"a": 1}'),))
    assert Answer.from_json_text(answer.to_text()) == answer
    assert Answer.from_json_text('{"text": "x", "tool_calls": [], "finish_reason": "stop"}') == Answer("x")
