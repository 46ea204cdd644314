"""What can call a tool is seen in every dialect, whole and streamed; what no table knows is said, never passed over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from llmproxy.core.dialects.bedrock import CONTENT
from llmproxy.core.dialects.conversation import read_request_messages
from llmproxy.core.dialects.dialect_table import get_dialect_codec_or_default
from llmproxy.core.dialects.gemini import PARTS
from llmproxy.core.dialects.messages import BLOCKS, ITEMS, Draft, Message

Json = dict[str, Any]


def read(operation: str, *values: Json) -> Message:
    draft = Draft()
    for value in values:
        get_dialect_codec_or_default(operation).add(draft, value)
    return draft.build_message()


def called(message: Message) -> list[tuple[str, Any, bool]]:
    """Return what an answer calls: name, arguments, whether the provider runs it."""
    calls = (*message.tool_calls, *message.beside)
    return [(call.name, json.loads(call.arguments) if call.arguments else None, call.hosted) for call in calls]


SHELL = {"commands": ["rm -rf /tmp/x"]}
CALLS: Mapping[str, tuple[Json, str, Any]] = {
    "function_call": ({"name": "f", "arguments": '{"a": 1}'}, "f", {"a": 1}),
    "custom_tool_call": ({"name": "sql", "input": '"drop table"'}, "sql", "drop table"),
    "computer_call": ({"action": {"type": "click"}}, "computer", {"type": "click"}),
    "local_shell_call": ({"action": {"command": ["ls"]}}, "local_shell", {"command": ["ls"]}),
    "shell_call": ({"action": SHELL}, "shell", SHELL),
    "apply_patch_call": ({"operation": {"type": "delete_file"}}, "apply_patch", {"type": "delete_file"}),
    "tool_search_call": ({"arguments": {"q": "x"}, "execution": "client"}, "tool_search", {"q": "x"}),
    "mcp_approval_request": ({"name": "pay", "arguments": '{"eur": 5}'}, "pay", {"eur": 5}),
    "mcp_call": ({"name": "pay", "arguments": '{"eur": 5}'}, "pay", {"eur": 5}),
    "web_search_call": ({"action": {"query": "Oslo"}}, "web_search", {"query": "Oslo"}),
    "file_search_call": ({"queries": ["a"]}, "file_search", ["a"]),
    "code_interpreter_call": ({"code": "1"}, "code_interpreter", 1),
    "image_generation_call": ({}, "image_generation", None),
    "program": ({"code": "2"}, "program", 2),
}


def test_every_kind_of_call_of_the_table_is_tried() -> None:
    """A row that is added to the table of Responses needs its example here."""
    assert set(CALLS) == {kind for kind, asks in ITEMS.items() if asks is not None}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("how", ["whole", "streamed", "only items"])
def test_responses_call_tools_by_items(kind: str, how: str) -> None:
    """In a whole answer, in a stream that ends with it, and in one that tells its items only while it goes on."""
    members, name, arguments = CALLS[kind]
    item = {"type": kind, "id": "i1", "call_id": "c1", **members}
    whole = {"object": "response", "status": "completed", "output": [item]}
    bare = {member: value for member, value in item.items() if member in ("type", "id", "call_id", "name", "execution")}
    events: list[Json] = [
        {"type": "response.output_item.added", "output_index": 0, "item": bare},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]
    last = {"type": "response.completed", "response": whole if how == "streamed" else {**whole, "output": []}}
    found = read("responses", whole) if how == "whole" else read("responses", *events, last)
    assert called(found) == [(name, arguments, (asks := ITEMS[kind]) is not None and asks.hosted)]
    assert found.unknown == ()


def test_a_tool_in_a_namespace_is_not_its_namesake() -> None:
    """Codex has a namespace for each server of tools; in an answer, in a stream and in a history."""
    named = {"namespace": "mcp__crm", "name": "delete", "arguments": "{}"}
    item = {"type": "function_call", "id": "i1", "call_id": "c1", **named}
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    for values in ([{"object": "response", "output": [item]}], [added]):
        assert called(read("responses", *values))[0][0] == "mcp__crm__delete"
    history = read_request_messages(json.dumps({"input": [item]}).encode())
    assert [call.name for each in history for call in each.tool_calls] == ["mcp__crm__delete"]


def test_items_that_call_nothing_call_nothing() -> None:
    for kind, asks in ITEMS.items():
        if asks is None:
            found = read("responses", {"object": "response", "output": [{"type": kind, "content": []}]})
            assert (called(found), found.unknown) == ([], ()), kind


def test_custom_tools_of_chat_completions_have_their_name() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": '"select 1"'}}
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [custom]}}]}
    assert called(read("chat.completions", whole)) == [("sql", "select 1", False)]
    pieces = [
        {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "sql", "input": ""}},
        {"index": 0, "custom": {"input": '"select'}},
        {"index": 0, "custom": {"input": ' 1"'}},
    ]
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
    found = read("chat.completions", *chunks)
    assert (called(found), found.unknown) == ([("sql", "select 1", False)], ())


def chat_call(call_id: str, name: str, **more: Any) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}, **more}


@pytest.mark.parametrize("numbered", [True, False])
def test_every_choice_is_looked_into(numbered: bool) -> None:
    """With `n: 2` the second answer may call what the first does not; its words are no part of the first."""
    choices: list[Json] = [
        {"message": {"role": "assistant", "content": "I would not."}},
        {"message": {"role": "assistant", "content": "I do.", "tool_calls": [chat_call("c2", "deleteTask")]}},
    ]
    for number, choice in enumerate(choices if numbered else []):
        choice["index"] = number
    found = read("chat.completions", {"choices": choices})
    assert (found.text, found.tool_calls, called(found)) == ("I would not.", (), [("deleteTask", {}, False)])


def test_choices_in_a_stream_are_kept_apart() -> None:
    calls = ((1, 0, "b", "two"), (0, 0, "a", "one"), (1, 1, "c", "three"))
    chunks = [
        {"choices": [{"index": choice, "delta": {"tool_calls": [{"index": index, **chat_call(call_id, name)}]}}]}
        for choice, index, call_id, name in calls
    ]
    assert [name for name, _, _ in called(read("chat.completions", *chunks))] == ["one", "two", "three"]


def test_calls_that_a_server_gives_one_index_are_told_apart_by_their_ids() -> None:
    """Some give every call of a stream the index 0, or none at all."""
    for index in ({"index": 0}, {}):
        pieces = (chat_call("a", "one"), chat_call("b", "two"), {"function": {"arguments": " "}})
        chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [{**index, **piece}]}}]} for piece in pieces]
        found = read("chat.completions", *chunks).tool_calls
        assert [(call.id, call.name, call.arguments) for call in found] == [("a", "one", "{}"), ("b", "two", "{} ")]


def test_gemini_calls_tools_in_every_candidate_and_runs_code_itself() -> None:
    """The call of the second candidate, and what the provider runs, stand beside the first one's."""
    value: Json = {
        "candidates": [
            {"index": 0, "content": {"parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}, {"executableCode": {"code": "1"}}]}},
            {"index": 1, "content": {"parts": [{"functionCall": {"name": "g", "args": {}}}]}},
        ]
    }  # fmt: skip
    found = read("generateContent", value)
    assert called(found) == [("f", {"a": 1}, False), ("code_execution", 1, True), ("g", {}, False)]


@pytest.mark.parametrize(("operation", "kind", "value"), [
    ("responses", "robot_call", {"object": "response", "output": [{"type": "robot_call", "call_id": "c"}]}),
    ("realtime", "robot_call", {"type": "response.output_item.done", "item": {"type": "robot_call"}}),
    ("chat.completions", "robot", {"choices": [{"message": {"tool_calls": [{"id": "c", "type": "robot", "robot": {}}]}}]}),
    ("messages", "robot_use", {"type": "message", "content": [{"type": "robot_use", "id": "t"}]}),
    ("generateContent", "robotCall", {"candidates": [{"content": {"parts": [{"robotCall": {"name": "f"}}]}}]}),
    ("converse", "robotUse", {"output": {"message": {"content": [{"robotUse": {"name": "f"}}]}}}),
    ("messages", "robot_use", {"type": "content_block_start", "index": 0, "content_block": {"type": "robot_use"}}),
    ("converse", "robotUse", {"contentBlockStart": {"start": {"robotUse": {}}, "contentBlockIndex": 0}}),
    ("chat.completions", "a call without a name",
     {"choices": [{"message": {"tool_calls": [{"id": "c", "type": "function", "function": {"arguments": "{}"}}]}}]}),
])  # fmt: skip
def test_a_kind_that_no_table_knows_is_said(operation: str, kind: str, value: Json) -> None:
    """It may be one more way of calling a tool: whole, at the beginning of a block, or a call that nobody named."""
    assert kind in read(operation, value).unknown


def test_a_call_whose_output_stands_beside_it_was_run_by_the_provider() -> None:
    """A shell in the provider's container, a server tool, an MCP call: with what they answered."""
    shell: list[Json] = [
        {"type": "shell_call", "id": "s", "call_id": "c1", "action": SHELL},
        {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "gone"}]},
    ]
    (call,) = read("responses", {"object": "response", "output": shell}).tool_calls
    assert call.hosted
    search: list[Json] = [
        {"type": "server_tool_use", "id": "t1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}]},
    ]
    (call,) = read("messages", {"type": "message", "content": search}).tool_calls
    assert (call.hosted, call.output, call.failed) == (True, "found", False)
    mcp = {"type": "mcp_call", "id": "m1", "name": "pay", "arguments": "{}", "output": None, "error": "declined"}
    (call,) = read("responses", {"object": "response", "output": [mcp]}).tool_calls
    assert (call.hosted, call.output, call.failed) == (True, "declined", True)


def test_the_other_tables_know_their_words() -> None:
    """What is no call in Anthropic's, Gemini's and Bedrock's answers is known as such."""
    for kind, asks in BLOCKS.items():
        found = read("messages", {"type": "message", "content": [{"type": kind, "id": "t", "name": "f", "input": {}}]})
        assert (bool(called(found)), found.unknown) == (asks is not None, ()), kind
    for kind, asks in (*PARTS.items(), *CONTENT.items()):
        block: Json = {kind: {"name": "f"}}
        if kind in PARTS:
            found = read("generateContent", {"candidates": [{"content": {"parts": [block]}}]})
        else:
            found = read("converse", {"output": {"message": {"content": [block]}}})
        assert (bool(called(found)), found.unknown) == (asks is not None, ()), kind
