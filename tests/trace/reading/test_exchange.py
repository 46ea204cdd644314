"""One interaction, opened: in every dialect, whole and streamed."""

from __future__ import annotations

import dataclasses
import json

import pytest

from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Response
from llmproxy.trace.reading.decoded_exchange import (
    DecodedExchange,
    list_declared_tool_names,
    list_ids_of_continued_state,
    read_model_parameters,
)
from tests.support.messages import asks, call, said, user
from tests.trace.runs import JSON, SSE, Json, chat, decoded, streamed

NDJSON = "application/x-ndjson"


def open_one(operation: str, body: Json, *, kind: str = JSON, status: int = 200, provider: str = "openai",
             ending: Ending = Ending.COMPLETE) -> DecodedExchange:  # fmt: skip
    """Open an exchange of this operation with this answer; a list is a stream."""
    made = chat(1, [user("x")], said(""), operation=operation, provider=provider, stream=isinstance(body, list))
    if isinstance(body, list) and kind == SSE:
        data = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in body)
    else:
        data = b"\n".join(json.dumps(value).encode() for value in (body if isinstance(body, list) else [body]))
    response = Response(status, "Reason", (("content-type", kind),), (Chunk(1000, data),), ending)
    return decoded(dataclasses.replace(made, response=response))


@pytest.mark.parametrize(("operation", "kind", "body", "answer"), [
    ("chat.completions", JSON, {"id": "i", "model": "m", "choices": [{"finish_reason": "stop", "message": {"content": "Hi"}}]},
     ("Hi", "m", "i", ("stop",))),
    ("chat.completions", SSE, [
        {"id": "i", "model": "m", "choices": [{"index": 0, "delta": {"content": "H"}}]},
        {"id": "i", "model": "m", "choices": [{"index": 0, "delta": {"content": "i"}, "finish_reason": "stop"}]}],
     ("Hi", "m", "i", ("stop",))),
    ("responses", JSON, {"id": "r", "object": "response", "model": "m", "status": "incomplete",
                         "incomplete_details": {"reason": "max_output_tokens"},
                         "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]},
     ("Hi", "m", "r", ("max_output_tokens",))),
    ("responses", SSE, [
        {"type": "response.created", "response": {"id": "r", "object": "response", "model": "m", "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"id": "msg_1", "type": "message"}},
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": "response.completed", "response": {"id": "r", "object": "response", "status": "completed"}}],
     ("Hi", "m", "r", ("completed",))),
    ("messages", JSON, {"id": "a", "type": "message", "model": "m", "stop_reason": "end_turn",
                        "content": [{"type": "text", "text": "Hi"}]}, ("Hi", "m", "a", ("end_turn",))),
    ("messages", SSE, [
        {"type": "message_start", "message": {"id": "a", "model": "m", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "id": "no"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}], ("Hi", "m", "a", ("end_turn",))),
    ("generateContent", JSON, {"responseId": "g", "modelVersion": "models/m", "candidates": [
        {"finishReason": "STOP", "content": {"parts": [{"text": "Hi"}]}}]}, ("Hi", "m", "g", ("STOP",))),
    ("converse", JSON, {"output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}}, "stopReason": "end_turn"},
     ("Hi", None, None, ("end_turn",))),
    ("api.chat", NDJSON, [{"model": "m", "message": {"content": "H"}}, {"model": "m", "message": {"content": "i"},
     "done": True, "done_reason": "stop"}], ("Hi", "m", None, ("stop",))),
    ("v2.chat", SSE, [{"type": "message-start", "id": "c"}, {"type": "content-delta", "index": 0, "delta": {"message":
     {"content": {"text": "Hi"}}}}, {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}}],
     ("Hi", None, "c", ("COMPLETE",))),
])  # fmt: skip
def test_answers(operation: str, kind: str, body: Json, answer: tuple[Json, ...]) -> None:
    """Text, model, id and finish reasons, in each dialect."""
    found = open_one(operation, body, kind=kind)
    assert found.answer is not None
    assert (found.answer.text, found.answer_model, found.answer_id, found.finish_reasons) == answer
    assert (found.error, found.failed) == (None, False)


@pytest.mark.parametrize(("tree", "names"), [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {"f"}),
    ({"tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]}, {"f", "web_search"}),
    ({"tools": [{"name": "f", "input_schema": {}}]}, {"f"}),
    (
        {"tools": [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}, {"googleSearch": {}}]},
        {"f", "g", "googleSearch"},
    ),
    ({"toolConfig": {"tools": [{"toolSpec": {"name": "f"}}]}}, {"f"}),
    ({"functions": [{"name": "f"}]}, {"f"}),
    ({"tools": "odd"}, set()),
    ({"tools": [None, 5, {}]}, set()),
    ({}, set()),
])  # fmt: skip
def test_declared_tools(tree: Json, names: set[str]) -> None:
    assert list_declared_tool_names(tree) == names


@pytest.mark.parametrize(("tree", "expected"), [
    ({"temperature": 0, "max_completion_tokens": 9, "stop": "x"},
     {"temperature": 0, "max_tokens": 9, "stop_sequences": ["x"]}),
    ({"generationConfig": {"topK": 3, "maxOutputTokens": 5}}, {"top_k": 3, "max_tokens": 5}),
    ({"inferenceConfig": {"maxTokens": 5}, "options": 7}, {"max_tokens": 5}),
    ({"options": {"num_predict": 5, "seed": 1}}, {"max_tokens": 5, "seed": 1}),
    ({"temperature": "hot", "seed": True}, {}),
])  # fmt: skip
def test_parameters(tree: Json, expected: Json) -> None:
    """By OpenTelemetry's names; what makes no sense is left out."""
    assert read_model_parameters(tree) == {f"gen_ai.request.{name}": value for name, value in expected.items()}


@pytest.mark.parametrize(("tree", "ids"), [
    ({"previous_response_id": "r"}, ("r",)),
    ({"conversation": "c"}, ("c",)),
    ({"conversation": {"id": "c"}}, ("c",)),
    ({"previous_response_id": None, "conversation": 5}, ()),
])  # fmt: skip
def test_earlier_ids(tree: Json, ids: tuple[str, ...]) -> None:
    assert list_ids_of_continued_state(tree) == ids


@pytest.mark.parametrize(("status", "kind", "body", "ending", "error"), [
    (429, JSON, {"error": {"message": "slow down"}}, Ending.COMPLETE, "HTTP 429: slow down"),
    (500, JSON, {"message": "broken"}, Ending.COMPLETE, "HTTP 500: broken"),
    (502, "text/html", "x", Ending.COMPLETE, "HTTP 502: Reason"),
    (200, SSE, [{"type": "error", "error": {"type": "overloaded_error"}}], Ending.COMPLETE, "overloaded_error"),
    (200, SSE, [{"choices": []}], Ending.CUT, "the answer is cut"),
    (200, JSON, {"error": None, "choices": []}, Ending.COMPLETE, None),
    (200, SSE, [{"response": {"error": {"code": "server_error"}}}], Ending.COMPLETE, "server_error"),
])  # fmt: skip
def test_errors(status: int, kind: str, body: Json, ending: Ending, error: str | None) -> None:
    """HTTP's, a stream's own, a cut."""
    found = open_one("chat.completions", body, kind=kind, status=status, ending=ending)
    assert found.error == error
    assert found.failed is (error is not None)


def delta(**parts: Json) -> Json:
    return {"choices": [{"index": 0, "delta": parts}]}


@pytest.mark.parametrize(("pieces", "first"), [
    ([(100, delta(role="assistant", content="")), (2500, delta(content="Hi")), (9000, delta(content="!"))], 2.5),
    ([(100, delta(role="assistant")), (700, delta(reasoning_content="hm")), (9000, delta(content="!"))], 0.7),
    ([(100, delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f"}}]))], 0.1),
    ([(100, delta(role="assistant", content=""))], None),
])  # fmt: skip
def test_time_to_the_first_token(pieces: list[tuple[int, Json]], first: float | None) -> None:
    """When there were the first words, thoughts or a tool call; an empty first piece is none."""
    found = decoded(streamed(chat(1, [user("x")], said("")), *pieces))
    assert found.first_token_ms == first
    assert found.duration_ms == pieces[-1][0] / 1000


def test_without_a_stream_or_times_there_is_no_first_token() -> None:
    """Unknown is None."""
    assert decoded(chat(1, [user("x")], said("y"))).first_token_ms is None
    made: Interaction = streamed(chat(1, [user("x")], said("y")), (0, delta(content="Hi")))
    bare = dataclasses.replace(made, response=dataclasses.replace(made.response, head_offset=0))
    found = decoded(bare)
    assert (found.first_token_ms, found.duration_ms) == (None, None)


def test_a_stream_of_tool_calls_is_put_together_by_index() -> None:
    """Pieces of two calls, mixed; a whole answer's too."""
    pieces = [
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x'}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y'}}]),
        delta(
            tool_calls=[
                {"index": 0, "function": {"arguments": '": 1}'}},
                {"index": 1, "function": {"arguments": '": 2}'}},
            ]
        ),
    ]
    found = open_one("chat.completions", pieces, kind=SSE)
    assert found.answer is not None
    told = [(each.id, each.name, each.arguments) for each in found.answer.tool_calls]
    assert told == [("a", "f", '{"x": 1}'), ("b", "g", '{"y": 2}')]
    found = decoded(chat(1, [user("x")], asks(call(call_id="z"))))
    assert found.answer is not None
    assert found.answer.tool_calls[0].id == "z"
    assert found.tools == {"get_weather"}
