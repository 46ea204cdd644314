"""A request is read into the parts that people edit: nothing is left out, and each has its name."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.dialects.conversation import Kind, compare, list_segments
from llmproxy.core.dialects.table import CHAT
from llmproxy.core.traffic.differences import member
from llmproxy.core.traffic.json_bytes import parse_json
from tests.support.traffic import exchanges

Json = dict[str, Any]
WORDS = st.sampled_from([
    "type", "text", "role", "content", "parts", "name", "id", "input", "arguments", "function", "tools", "messages",
    "system", "request", "toolUse", "toolResult", "functionCall", "functionResponse", "functionDeclarations",
    "tool_calls", "function_call", "tool_call_id", "tool_use", "tool_result", "thinking", "message", "contents",
    "instructions", "toolConfig", "prompt", "chat_history", "user", "assistant", "tool", "model", "image", "robot",
])  # fmt: skip
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)


def leaves(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield what a tree holds: its scalars and its empty containers."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from leaves(member(path, name), each)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from leaves(f"{path}[{number}]", each)
    else:
        yield path, json.dumps(value)


def assert_whole(operation: str, body: object) -> None:
    """Insist that each leaf of a body is in one segment."""
    found = Counter(leaf for each in list_segments(operation, body) for leaf in leaves(each.path, each.value))
    assert found == Counter(leaves("$", body))


@settings(max_examples=60)
@given(st.sampled_from(sorted(CHAT)), TREES)
def test_segments_hold_every_leaf_once(operation: str, body: object) -> None:
    """Whatever a body is made of."""
    assert_whole(operation, body)


def test_segments_hold_real_requests(traffic: Path) -> None:
    """Each body of real traffic."""
    for exchange in exchanges(traffic):
        if exchange.route is not None and (body := parse_json(exchange.asked)) is not None:
            assert_whole(exchange.route.operation, body)


CHAT_BODY: Json = {
    "messages": [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "12"},
        {"role": "user", "content": [{"type": "robot", "x": 1}]},
    ],
    "model": "m",
    "temperature": 1,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}],
}  # fmt: skip
BODIES: dict[str, tuple[Json, list[tuple[str, str]]]] = {
    "chat.completions": (CHAT_BODY, [
        ("system", "system prompt"), ("tool", "tool f"), ("model", "model"), ("parameter", "parameter temperature"),
        ("user", "message 2 (user), part 1"), ("user", "message 2 (user), part 2"), ("assistant", "message 3 (assistant)"),
        ("call", "message 3, call of f"), ("result", "message 4, result of f"), ("unknown", "message 5, robot"),
    ]),
    "responses": (
        {"instructions": "Be brief.", "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "12"}, {"type": "robot", "x": 1}],
         "tools": [{"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}]}, {"type": "web_search"}]},
        [("system", "system prompt"), ("tool", "tool ns"), ("tool", "tool ns__f"), ("tool", "tool web_search"),
         ("user", "message 1 (user)"), ("thought", "message 2, thinking"), ("call", "message 3, call of f"),
         ("result", "message 4, result of f"), ("unknown", "message 5, robot")]),
    "messages": (
        {"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "max_tokens": 9, "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "12"}]}]},
        [("system", "system prompt, block 1"), ("system", "system prompt, block 2"), ("parameter", "parameter max_tokens"),
         ("user", "message 1 (user)"), ("thought", "message 2, thinking"), ("call", "message 2, call of f"),
         ("result", "message 3, result of f")]),
    "generateContent": (
        {"request": {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "tools": [{"functionDeclarations": [{"name": "f"}]}],
                     "contents": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
                                  {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}]}, "project": "p"},
        [("system", "system prompt"), ("tool", "tool f"), ("parameter", "parameter project"), ("user", "message 1 (user)"),
         ("call", "message 2, call of f"), ("result", "message 3, result of f")]),
    "converse": (
        {"system": [{"text": "Be brief."}], "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
         "toolConfig": {"tools": [{"toolSpec": {"name": "f"}}], "toolChoice": {"any": {}}}},
        [("system", "system prompt"), ("tool", "tool f"), ("parameter", "parameter toolChoice"), ("user", "message 1 (user)")]),
    "v1.chat": (
        {"preamble": "Be brief.", "chat_history": [{"role": "User", "message": "Hi"}], "message": "And?",
         "tool_results": [{"call": {"name": "f"}, "outputs": []}]},
        [("system", "system prompt"), ("user", "message 1 (user)"), ("user", "message (user)"), ("result", "result of f")]),
    "api.generate": ({"system": "Be brief.", "prompt": "Hi"}, [("system", "system prompt"), ("user", "prompt (user)")]),
}  # fmt: skip


@pytest.mark.parametrize("operation", BODIES)
def test_each_part_has_a_kind_and_a_name(operation: str) -> None:
    """In the order in which people edit; what stands beside the parts of a message is a member of it."""
    body, expected = BODIES[operation]
    found = [(str(each.kind), each.name) for each in list_segments(operation, body) if each.kind is not Kind.MEMBER]
    assert list(dict.fromkeys(found)) == expected
    assert_whole(operation, body)


def changed(path: list[str | int], value: object) -> Json:
    """Return the chat with one value changed."""
    made = copy.deepcopy(CHAT_BODY)
    at: Any = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return made


PROPERTIES: list[str | int] = ["tools", 0, "function", "parameters", "properties"]
CHANGES: dict[str, tuple[list[str | int], object]] = {
    "system prompt, line 2": (["messages", 0, "content"], "Be brief.\nBe very kind."),
    "tool f: parameter limit is new": ([*PROPERTIES, "limit"], {"type": "integer"}),
    "tool f: parameter city.type": ([*PROPERTIES, "city", "type"], "number"),
    "model": (["model"], "n"),
    "parameter temperature": (["temperature"], 0),
    "parameter seed is new": (["seed"], 7),
    "message 2 (user), part 1": (["messages", 1, "content", 0, "text"], "Rain?"),
    "message 3, call of f: function.arguments": (["messages", 2, "tool_calls", 0, "function", "arguments"], '{"a": 1}'),
    "message 4, result of f": (["messages", 3, "content"], "13"),
}


@pytest.mark.parametrize("where", CHANGES)
def test_a_difference_is_told_in_words(where: str) -> None:
    """By segment and line; what is new or gone is said."""
    (found,) = compare("chat.completions", CHAT_BODY, changed(*CHANGES[where]), 9)
    assert found.where == where
    if where.endswith("is new"):
        (found,) = compare("chat.completions", changed(*CHANGES[where]), CHAT_BODY, 9)
        assert found.where == where.removesuffix("new") + "gone"


def test_tools_are_compared_by_name_and_what_is_edited_first_is_told_first() -> None:
    """One that was put before the others leaves them what they are; another order is a difference too."""
    new = changed(["messages", 1, "content", 0, "text"], "Rain?")
    new["tools"] = [{"type": "function", "function": {"name": "g"}}, *new["tools"]]
    new["messages"][0]["content"] = "Be brief."
    found = compare("chat.completions", CHAT_BODY, new, 9)
    assert [each.where for each in found] == ["system prompt, line 1", "tool g is new", "message 2 (user), part 1"]
    assert compare("chat.completions", new, {**new, "tools": new["tools"][::-1]}, 9)
    assert compare("/unknown", {"a": 1}, {"a": 2}, 9)[0].where == ""
