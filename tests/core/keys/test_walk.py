"""Ids get names by where they stand: of this request, of an earlier answer, or their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from llmproxy.core.keys.normalize import Origin, Walk, canonicalize, key_of
from llmproxy.core.keys.rules import CHAT, CONVERSE, GENERATE, MESSAGES, RESPONSES, Shape
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.interaction import Key, Request

MADE = {
    "resp_1": Origin(Key("v1:a"), 1, 0), "msg_1": Origin(Key("v1:a"), 1, 1), "call_s": Origin(Key("v1:a"), 1, 2),
    "files/f1": Origin(Key("v1:f"), 2, 0),
}  # fmt: skip


def walked(tree: dict[str, Any], shape: Shape) -> tuple[dict[str, Any], list[str]]:
    """Apply a shape; return the tree and the references met."""
    walk = Walk(MADE.get)
    walk.body(tree, shape)
    return tree, walk.refs


def test_calls_of_the_request_are_renamed_by_first_appearance() -> None:
    """Results keep to their calls."""
    tree, refs = walked(
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "x", "function": {"arguments": '{"b": 1.0}'}}, {"id": "y"}],
                },
                {"role": "tool", "tool_call_id": "y"},
                {"role": "tool", "tool_call_id": "x"},
            ]
        },
        CHAT,
    )
    assert tree["messages"] == [
        {"role": "assistant", "tool_calls": [{"id": "call#1", "function": {"arguments": '{"b":1}'}}, {"id": "call#2"}]},
        {"role": "tool", "tool_call_id": "call#2"},
        {"role": "tool", "tool_call_id": "call#1"},
    ]
    assert refs == []


CALLS = [
    ("/v1/chat/completions", lambda name: {"messages": [{"role": "assistant", "tool_calls": [{"id": name, "function": {"name": "f"}}]}, {"role": "tool", "tool_call_id": name}]}),
    ("/v1/responses", lambda name: {"input": [{"type": "function_call", "call_id": name, "name": "f"}, {"type": "function_call_output", "call_id": name}]}),
    ("/v1/responses", lambda name: {"input": [{"type": "message", "id": name, "content": []}]}),
    ("/v1/responses", lambda name: {"input": [{"type": "reasoning", "id": name, "encrypted_content": "x"}]}),
    ("/v1/messages", lambda name: {"messages": [{"content": [{"type": "tool_use", "id": name, "input": {}}]}, {"content": [{"type": "tool_result", "tool_use_id": name}]}]}),
    ("/v1beta/models/g:generateContent", lambda name: {"contents": [{"parts": [{"functionCall": {"id": name, "name": "f"}}]}, {"parts": [{"functionResponse": {"id": name}}]}]}),
    ("/model/m/converse", lambda name: {"messages": [{"content": [{"toolUse": {"toolUseId": name}}]}, {"content": [{"toolResult": {"toolUseId": name}}]}]}),
]  # fmt: skip
"""A call and its result, in each place that gives an id a name."""


@pytest.mark.parametrize(("target", "body"), CALLS, ids=lambda each: each if isinstance(each, str) else "")
def test_what_cannot_be_an_id_is_no_other_ids_request(target: str, body: Callable[[str], dict[str, Any]]) -> None:
    """Providers refuse an empty id, or one with spaces; so such a request has neither a right one's key nor another such one's."""
    where = route("POST", target, ())

    def key(name: str) -> Key:
        request = Request("POST", where.target, (), json.dumps(body(name)).encode())
        return key_of(canonicalize(request, where, Rules(), lambda _: None))

    right = {key(each) for each in ("x", "call_9|fc_1", "functions.f:0", "call#1", "a" * 500)}
    odd = ["", " ", "call_9 ", "a b", "x\n", "ä", "\0", "call#1 "]
    assert len(right) == 1
    assert len(right | {key(each) for each in odd}) == 1 + len(odd)


def test_calls_that_only_the_server_holds_are_references() -> None:
    """Results of calls that the request does not hold must not be swapped unnoticed."""
    tree, refs = walked(
        {
            "previous_response_id": "resp_1",
            "input": [
                {"type": "function_call_output", "call_id": "call_s", "output": "1"},
                {"type": "function_call_output", "call_id": "call_unknown", "output": "2"},
            ],
        },
        RESPONSES,
    )
    assert [item["call_id"] for item in tree["input"]] == [
        {"made-by": "v1:a", "occurrence": 1, "ordinal": 2},
        "call_unknown",
    ]
    assert tree["previous_response_id"] == {"made-by": "v1:a", "occurrence": 1, "ordinal": 0}
    assert sorted(refs) == ["call_s", "call_unknown", "resp_1"]


@pytest.mark.parametrize(("item", "named"), [
    ({"type": "message", "id": "msg_9", "content": []}, "call#1"),
    ({"role": "user", "id": "msg_9"}, "call#1"),
    ({"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}, "call#1"),
    ({"type": "reasoning", "id": "rs_1", "summary": []}, "rs_1"),
    ({"type": "item_reference", "id": "rs_1"}, "rs_1"),
    ({"type": "item_reference", "id": "msg_1"}, {"made-by": "v1:a", "occurrence": 1, "ordinal": 1}),
    ({"type": "image_generation_call", "id": "ig_1"}, "ig_1"),
    ({"type": "image_generation_call", "id": "ig_1", "result": "AAAA"}, "call#1"),
])  # fmt: skip
def test_echoed_items_are_named_and_bare_ones_refer(item: dict[str, Any], named: object) -> None:
    """An item without its content is only a name for the server's copy."""
    tree, refs = walked({"input": [dict(item)]}, RESPONSES)
    assert tree["input"][0]["id"] == named
    assert refs == ([] if named == "call#1" else [item["id"]])


def test_conversations_files_and_containers_refer() -> None:
    """As strings, lists and objects."""
    tree, refs = walked(
        {
            "conversation": {"id": "resp_1"},
            "tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["a", "b"]}}],
            "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "c"}]}],
        },
        RESPONSES,
    )
    assert tree["conversation"] == {"id": {"made-by": "v1:a", "occurrence": 1, "ordinal": 0}}
    assert sorted(refs) == ["a", "b", "c", "resp_1"]


def test_an_uploaded_files_uri_refers_and_other_uris_are_content() -> None:
    """gs:// and https:// say which bytes are meant."""
    uris = [
        "https://generativelanguage.googleapis.com/v1beta/files/f1",
        "gs://bucket/files.pdf",
        "https://x.org/a/b.pdf",
    ]
    tree, refs = walked({"contents": [{"parts": [{"fileData": {"fileUri": uri}} for uri in uris]}]}, GENERATE)
    found = [part["fileData"]["fileUri"] for part in tree["contents"][0]["parts"]]
    assert found == [{"made-by": "v1:f", "occurrence": 2, "ordinal": 0}, *uris[1:]]
    assert refs == uris[:1]


def test_signatures_go_only_where_the_thinking_is_there() -> None:
    """Hidden reasoning may change the answer; what is redacted counts."""
    blocks = [
        {"type": "thinking", "thinking": "t", "signature": "s1"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
        {"type": "redacted_thinking", "data": "d"},
    ]
    tree, _ = walked({"messages": [{"role": "assistant", "content": blocks}]}, MESSAGES)
    assert [block.get("signature", block.get("data")) for block in tree["messages"][0]["content"]] == ["*", "s2", "d"]


def test_tool_inputs_and_results_are_opaque() -> None:
    """A member called id, or null, or cache_control, is data there."""
    data: dict[str, Any] = {
        "id": "x", "tool_use_id": "x", "none": None, "cache_control": {}, "content": [{"cache_control": 1}],
    }  # fmt: skip
    anthropic, _ = walked({"messages": [{"content": [{"type": "tool_use", "id": "x", "input": dict(data)}]}]}, MESSAGES)
    assert anthropic["messages"][0]["content"][0] == {"type": "tool_use", "id": "call#1", "input": data}
    bedrock, _ = walked({"messages": [{"content": [{"toolUse": {"toolUseId": "x", "input": dict(data)}}]}]}, CONVERSE)
    assert bedrock["messages"][0]["content"][0] == {"toolUse": {"toolUseId": "call#1", "input": data}}
    gemini, _ = walked({"contents": [{"parts": [{"functionResponse": {"id": "x", "response": dict(data)}}]}]}, GENERATE)
    assert gemini["contents"][0]["parts"][0]["functionResponse"] == {"id": "x", "response": data}


@pytest.mark.parametrize("odd", [None, 1, "text", [], [1, None, "x"], {"type": 5}, [[{"id": "x"}]]])
@pytest.mark.parametrize(
    "shape",
    [CHAT, RESPONSES, MESSAGES, GENERATE, CONVERSE],
    ids=["chat", "responses", "messages", "generate", "converse"],
)
def test_odd_bodies_are_no_error(shape: Shape, odd: object) -> None:
    """What does not have the expected form counts as it is."""
    names = set(shape.members) | {"messages"}
    walked(dict.fromkeys(names, odd), shape)
    walked({name: [{"content": odd, "type": odd, "id": odd, "parts": odd, "tool_calls": odd}] for name in names}, shape)
