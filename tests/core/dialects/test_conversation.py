"""Conversations: the same words out of every dialect, streamed or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.dialects.conversation import (
    LOOKED_AT,
    list_server_made_ids,
    parse_answer_body_as_message,
    read_last_user_text,
    read_request_messages,
)
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.dialects.stream_events import detect_framing
from llmproxy.core.providers.provider_table import Family
from tests.support.traffic import exchanges

JSON = "application/json"
SSE = "text/event-stream"
ARGS = '{"city": "Paris"}'
CALL = ToolCall("c1", "weather", ARGS)


def sse(*values: object) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def ndjson(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


DIALOGUE = [
    Message("system", "Be brief."), Message("user", "Weather?"), Message("assistant", "", (CALL,)),
    Message("tool", "sunny", tool_call_id="c1"), Message("user", "Thanks"),
]  # fmt: skip
OPENAI_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ARGS}}
ASKED: list[tuple[Family, str, object, list[Message]]] = [
    ("openai", "chat.completions", {"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "Thanks"}]}, DIALOGUE),
    ("openai", "responses", {"instructions": "Be brief.", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "weather", "arguments": ARGS},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "message", "role": "user", "content": "Thanks"}]}, DIALOGUE),
    ("openai", "responses", {"input": "Hello"}, [Message("user", "Hello")]),
    ("openai", "embeddings", {"input": ["a", "b"]}, [Message("user", "a"), Message("user", "b")]),
    ("openai", "completions", {"prompt": "Once"}, [Message("user", "Once")]),
    ("anthropic", "messages", {"system": [{"type": "text", "text": "Be brief."}], "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather",
                                           "input": {"city": "Paris"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1",
                                      "content": [{"type": "text", "text": "sunny"}]},
                                     {"type": "text", "text": "Thanks"}]}]}, DIALOGUE),
    ("gemini", "generateContent", {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": [
        {"role": "user", "parts": [{"text": "Weather?"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "weather", "args": {"city": "Paris"}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "weather", "response": "sunny"}}]},
        {"role": "user", "parts": [{"text": "Thanks"}]}]}, DIALOGUE),
    ("bedrock", "converse", {"system": [{"text": "Be brief."}], "messages": [
        {"role": "user", "content": [{"text": "Weather?"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "weather",
                                                       "input": {"city": "Paris"}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "sunny"}]}},
                                     {"text": "Thanks"}]}]}, DIALOGUE),
    ("bedrock", "invoke", {"inputText": "Hi"}, [Message("user", "Hi")]),
    ("ollama", "api.chat", {"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "function": {"name": "weather", "arguments": {"city": "Paris"}}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"}, {"role": "user", "content": "Thanks"}]}, DIALOGUE),
    ("ollama", "api.generate", {"system": "Be brief.", "prompt": "Hi"}, [DIALOGUE[0], Message("user", "Hi")]),
    ("cohere", "v1.chat", {"preamble": "Be brief.", "chat_history": [{"role": "CHATBOT", "message": "Yes?"}],
                           "message": "Hi"}, [DIALOGUE[0], Message("assistant", "Yes?"), Message("user", "Hi")]),
    ("openai", "chat.completions", {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:"}}]}]},
     [Message("user", "See\n[image]")]),
    ("openai", "chat.completions", {"messages": [{"role": "assistant", "content": None, "function_call": {
        "name": "weather", "arguments": ARGS}}]}, [Message("assistant", "", (ToolCall(None, "weather", ARGS),))]),
    ("openai", "chat.completions", [1, 2], []),
    ("openai", "chat.completions", {"messages": [None, 7, {"role": 3, "content": {"x": []}}], "input": 3},
     [Message("user", "[x]")]),
]  # fmt: skip


@pytest.mark.parametrize(("family", "operation", "body", "expected"), ASKED)
def test_asked(family: Family, operation: str, body: object, expected: list[Message]) -> None:
    """The same dialogue comes out of every dialect, system first, results of tools as messages of their own; the user's last message has the last words."""
    raw = json.dumps(body).encode()
    assert read_request_messages(raw) == expected
    said = [message.text for message in expected if message.role == "user" and message.text]
    assert read_last_user_text(raw) == (said[-1] if said else None)


@pytest.mark.parametrize("raw", [b"", b"no JSON", b"[]", b'{"messages": 3}', b'{"messages": [{"role": "user"}]}'])
def test_odd_requests_have_no_last_words(raw: bytes) -> None:
    assert read_last_user_text(raw) is None


@pytest.mark.parametrize(
    ("behind", "found"), [(0, "hi"), (LOOKED_AT - 1, "hi"), (LOOKED_AT, None), (LOOKED_AT * 50, None)]
)
def test_of_very_many_entries_only_the_last_ones_are_looked_at(behind: int, found: str | None) -> None:
    """A body of some megabytes may hold millions that say nothing."""
    body = {"messages": [{"role": "user", "content": "hi"}, *({} for _ in range(behind))]}
    assert read_last_user_text(json.dumps(body).encode()) == found


SAID = Message("assistant", "Hello", (CALL,))


@pytest.mark.parametrize(("family", "operation", "content_type", "body", "expected"), [
    ("openai", "chat.completions", JSON, json.dumps({"choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello", "tool_calls": [OPENAI_CALL]}},
        {"index": 1, "message": {"content": "other"}}]}).encode(), SAID),
    ("openai", "chat.completions", SSE, sse(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hel"}}]},
        {"choices": [{"index": 1, "delta": {"content": "other"}}]},
        {"choices": [{"index": 0, "delta": {"content": "lo"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, {"choices": [], "usage": {}}), SAID),
    ("openai", "completions", SSE, sse({"choices": [{"text": "Hel"}]}, {"choices": [{"text": "lo"}]}),
     Message("assistant", "Hello")),
    ("openai", "responses", JSON, json.dumps({"id": "resp_1", "output": [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": ARGS}]}).encode(),
     Message("assistant", "Hello", (CALL,), reasoning="Hm")),
    ("openai", "responses", SSE, sse(
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"},
        {"type": "response.output_item.added", "output_index": 1, "item": {
            "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": ARGS}), SAID),
    ("anthropic", "messages", JSON, json.dumps({"type": "message", "content": [
        {"type": "thinking", "thinking": "Hm", "signature": "x"}, {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}]}).encode(),
     Message("assistant", "Hello", (CALL,), reasoning="Hm")),
    ("anthropic", "messages", SSE, sse(
        {"type": "message_start", "message": {"content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "c1",
                                                                      "name": "weather", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"city": '}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '"Paris"}'}},
        {"type": "message_stop"}), SAID),
    ("gemini", "generateContent", SSE, sse(
        {"candidates": [{"content": {"parts": [{"text": "Hel"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "lo"}, {"text": "Hm", "thought": True}]}}]},
        {"candidates": [{"content": {"parts": [
            {"functionCall": {"id": "c1", "name": "weather", "args": {"city": "Paris"}}}]}}]}),
     Message("assistant", "Hello", (CALL,), reasoning="Hm")),
    ("bedrock", "converse", JSON, json.dumps({"output": {"message": {"content": [{"text": "Hello"}, {
        "toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Paris"}}}]}}}).encode(), SAID),
    ("bedrock", "invoke", JSON, b'{"results":[{"outputText":"Hello"}]}', Message("assistant", "Hello")),
    ("bedrock", "invoke", JSON, b'{"generation":"Hello"}', Message("assistant", "Hello")),
    ("ollama", "api.chat", "application/x-ndjson", ndjson(
        {"message": {"role": "assistant", "content": "Hello"}},
        {"message": {"content": "", "tool_calls": [
            {"id": "c1", "function": {"name": "weather", "arguments": {"city": "Paris"}}}]}}, {"done": True}), SAID),
    ("ollama", "api.generate", "application/x-ndjson", ndjson({"response": "Hel"}, {"response": "lo", "done": True}),
     Message("assistant", "Hello")),
    ("cohere", "v2.chat", SSE, sse(
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Hello"}}}},
        {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": OPENAI_CALL | {
            "function": {"name": "weather", "arguments": ""}}}}},
        {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": {
            "arguments": ARGS}}}}}), SAID),
    ("cohere", "v1.chat", "application/stream+json", ndjson(
        {"event_type": "text-generation", "text": "Hello"},
        {"event_type": "stream-end", "response": {"text": "Hello"}}), Message("assistant", "Hello")),
    ("openai", "embeddings", JSON, b'{"data":[]}', None),
    ("openai", "chat.completions", JSON, b'{"error":{"message":"no"}}', None),
])  # fmt: skip
def test_answered(family: Family, operation: str, content_type: str, body: bytes, expected: Message | None) -> None:
    """The answer is the same whether it came whole or in pieces; other choices and usage are left out."""
    assert parse_answer_body_as_message(operation, content_type, body) == expected


@pytest.mark.parametrize(("family", "operation", "content_type", "body", "expected"), [
    ("openai", "responses", JSON, b'{"id":"resp_1","conversation":{"id":"conv_1"},"output":[{"id":"rs_1"},{"id":"fc_1"}]}',
     ("resp_1", "rs_1", "fc_1", "conv_1")),
    ("openai", "responses", SSE, sse({"type": "response.created", "response": {"id": "resp_1", "output": []}},
     {"type": "response.output_item.added", "item": {"id": "msg_1"}}), ("resp_1", "msg_1")),
    ("openai", "files", JSON, b'{"id":"file-1","object":"file"}', ("file-1",)),
    ("openai", "threads/thread_1/runs", JSON, b'{"id":"run_1","thread_id":"thread_1"}', ("run_1",)),
    ("openai", "vector_stores", JSON, b'{"id":"vs_1"}', ("vs_1",)),
    ("openai", "chat.completions", JSON, b'{"id":"chatcmpl-1"}', ()),
    ("openai", "responses", JSON, b'{"error":{"message":"x"},"id":"resp_1"}', ()),
    ("anthropic", "messages", JSON, b'{"id":"msg_1","container":{"id":"cont_1"}}', ("cont_1",)),
    ("anthropic", "messages/batches", JSON, b'{"id":"msgbatch_1"}', ("msgbatch_1",)),
    ("gemini", "cachedContents", JSON, b'{"name":"cachedContents/a1"}', ("cachedContents/a1",)),
    ("gemini", "upload.files", JSON, b'{"file":{"name":"files/a1","uri":"u"}}', ("files/a1",)),
    ("gemini", "interactions", JSON, b'{"id":"int_1"}', ("int_1",)),
    ("openai", "responses", JSON, b"not json", ()),
])  # fmt: skip
def test_made_ids(family: Family, operation: str, content_type: str, body: bytes, expected: tuple[str, ...]) -> None:
    """Ids that a later request may name are found; names nobody refers to are not."""
    assert list_server_made_ids(family, operation, content_type, body) == expected


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "content", "parts", "choices", "delta", "message", "messages", "tool_calls", "function", "index",
                 "output", "response", "item", "candidates", "text", "input", "role", "functionCall", "toolUse", "id",
                 "contentBlockDelta", "usage", "results", "system", "contents", "file", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip
OPERATIONS = ["chat.completions", "responses", "messages", "generateContent", "converse", "invoke", "api.chat",
              "v1.chat", "v2.chat", "threads/t/runs", "/unknown", "files"]  # fmt: skip


@given(SHAPES, st.sampled_from(OPERATIONS))
@settings(max_examples=300, deadline=None)
def test_odd_shapes_raise_nothing(body: object, operation: str) -> None:
    """A body of any shape is looked at without an exception."""
    data = json.dumps(body).encode()
    for family in ("openai", "gemini"):
        read_request_messages(data)
        for content_type, text in ((JSON, data), (SSE, b"data: " + data + b"\n\n")):
            parse_answer_body_as_message(operation, content_type, text)
            list_server_made_ids(family, operation, content_type, text)


def test_deep_content_raises_nothing() -> None:
    body = b'{"messages":[{"content":' + b"[" * 900 + b"]" * 900 + b"}]}"
    assert read_request_messages(body) == []


def test_real_conversations(traffic: Path) -> None:
    """Every recorded call of a chat has a question; plain answers agree with their JSON, streams have words or calls."""
    plain = streamed = 0
    for exchange in exchanges(traffic):
        route, kind = exchange.route, exchange.content_type
        if route is None or exchange.status != 200 or exchange.method != "POST":
            continue
        if exchange.name == "test_prompt_content_filtering.yaml":  # Azure blocked the prompt: an answer without choices
            continue
        if route.operation not in ("chat.completions", "messages", "responses", "converse", "api.chat", "v2.chat"):
            continue
        assert read_request_messages(exchange.asked), exchange.name
        message = parse_answer_body_as_message(route.operation, kind, exchange.body)
        assert message is not None, exchange.name
        if detect_framing(kind, exchange.body) != "json":
            assert message.text or message.tool_calls or message.reasoning, exchange.name
            streamed += 1
        elif route.operation == "chat.completions":
            first = json.loads(exchange.body)["choices"][0].get("message", {})
            assert message.text == (first.get("content") or first.get("refusal") or ""), exchange.name
            calls = first.get("tool_calls") or ([first["function_call"]] if first.get("function_call") else [])
            assert len(message.tool_calls) == len(calls), exchange.name
            plain += 1
    assert plain >= 150
    assert streamed >= 90


@pytest.mark.parametrize(("texts", "typed"), [
    (["<system-reminder>\nToday is Sunday.\n</system-reminder>", "What do my notes say?"], "What do my notes say?"),
    (["<system-reminder>\na\n</system-reminder>\n\nFix it.\n<b>now</b>"], "Fix it.\n<b>now</b>"),
    (["# AGENTS.md instructions for /tmp/a\n\nBe brief."], "# AGENTS.md instructions for /tmp/a\n\nBe brief."),
])  # fmt: skip
def test_what_an_agent_wrote_around_the_question_is_not_what_was_typed(texts: list[str], typed: str) -> None:
    """Where nothing else stands it is told all the same."""
    blocks = [{"type": "text", "text": text} for text in texts]
    said: list[object] = [{"role": "user", "content": blocks}, {"role": "assistant", "content": "Yes."}]
    assert read_last_user_text(json.dumps({"messages": said}).encode()) == typed
    reminder = "<system-reminder>\nz\n</system-reminder>"
    said.append({"role": "user", "content": reminder})
    wanted = typed if len(texts) > 1 or "Fix" in typed else reminder
    assert read_last_user_text(json.dumps({"messages": said}).encode()) == wanted
