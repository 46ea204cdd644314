"""What agents and models say to each other, written as bytes in six dialects, whole and streamed. Reads no code of the product.

A conversation is a list of turns: ``("user", text)``, ``("model", Said)``, ``("results", [(Call, text, failed), ...])``; a first one
``("system", text)`` says who the model is, if not the usual one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.provider.say_bedrock import frame

Json = dict[str, Any]
Turn = tuple[str, Any]
JSON_TYPE, SSE_TYPE, NDJSON_TYPE = "application/json", "text/event-stream", "application/x-ndjson"
AWS_TYPE = "application/vnd.amazon.eventstream"


@dataclass(eq=False)
class Call:
    """A call of a tool, and all that is true of it."""

    name: str
    arguments: Json
    id: str
    hosted: bool = False
    """The provider runs it."""
    ran: bool = False
    """It was run, whoever ran it."""
    told: bool = False
    """The model was told the result."""
    output: str = ""
    failed: bool = False
    asked: int = 0
    """Number of the exchange whose answer asked for it."""
    over: int = 0
    """How many exchanges had begun when that one ended."""


@dataclass
class Said:
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    strange: bool = False
    """It also holds an item of a kind that nobody knows, which calls a tool."""
    cut: Callable[[str], list[str]] = lambda text: [text[: len(text) // 2], text[len(text) // 2 :]]
    """How a stream cuts its texts."""


@dataclass(frozen=True)
class Dialect:
    name: str
    provider: str
    operation: str
    path: str
    kind: str
    """Content type of a stream."""
    has_ids: bool
    ask: Callable[[Sequence[Turn], Sequence[str], bool], Json]
    answer: Callable[[Said], Json]
    pieces: Callable[[Said], Iterable[tuple[str, Json]]]
    """Events of a stream, with their names."""

    def address(self, *, stream: bool) -> str:
        """Return where a request goes; some say in the path that they want a stream."""
        streamed = {"gemini": "/v1beta/models/m:streamGenerateContent?alt=sse", "converse": "/model/m/converse-stream"}
        return streamed.get(self.name, self.path) if stream else self.path

    def request(self, turns: Sequence[Turn], tools: Sequence[str], *, stream: bool) -> bytes:
        return dumps(self.ask(turns, tools, stream))

    def whole(self, said: Said, **written: Any) -> bytes:
        return dumps(self.answer(said), **written)

    def stream(self, said: Said, **written: Any) -> list[bytes]:
        found = [_FRAMED[self.kind](name, dumps(value, **written)) for name, value in self.pieces(said)]
        if self.name == "chat":
            found.append(b"data: [DONE]\n\n")
        return found


def dumps(value: object, **written: Any) -> bytes:
    return json.dumps(value, **{"ensure_ascii": False, **written}).encode()


_FRAMED: dict[str, Callable[[str, bytes], bytes]] = {
    SSE_TYPE: lambda name, value: (f"event: {name}\n" if name else "").encode() + b"data: " + value + b"\n\n",
    NDJSON_TYPE: lambda _, value: value + b"\n",
    AWS_TYPE: lambda name, value: frame(
        {":event-type": name, ":content-type": JSON_TYPE, ":message-type": "event"}, value
    ),
}
"""How an event of a stream is written, by its content type."""


def told(turns: Sequence[Turn]) -> tuple[str, Sequence[Turn]]:
    return (turns[0][1], turns[1:]) if turns and turns[0][0] == "system" else ("You keep tasks.", turns)


def _chat_calls(said: Said) -> list[Json]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in said.calls
        if not call.hosted
    ] + ([{"id": "r1", "type": "robot", "robot": {"name": "deleteTask"}}] if said.strange else [])


def _chat_message(said: Said) -> Json:
    calls = _chat_calls(said)
    return {"role": "assistant", "content": said.text or None} | ({"tool_calls": calls} if calls else {})


def _chat_ask(turns: Sequence[Turn], tools: Sequence[str], stream: bool) -> Json:
    system, turns = told(turns)
    messages: list[Json] = [{"role": "system", "content": system}]
    for kind, what in turns:
        if kind == "user":
            messages.append({"role": "user", "content": what})
        elif kind == "model":
            messages.append(_chat_message(what))
        else:
            messages += [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text, _ in what]
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    return {"model": "m", "messages": messages, "tools": offered} | ({"stream": True} if stream else {})


def _chat_answer(said: Said) -> Json:
    return {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": _chat_message(said), "finish_reason": "stop"}],
    }


def _chat_pieces(said: Said) -> Iterable[tuple[str, Json]]:
    def delta(value: Json, reason: str | None = None) -> tuple[str, Json]:
        return "", {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": value, "finish_reason": reason}],
        }

    yield delta({"role": "assistant", "content": ""})
    for text in said.cut(said.text):
        yield delta({"content": text})
    for index, call in enumerate(_chat_calls(said)):
        if "function" not in call:
            yield delta({"tool_calls": [{"index": index, **call}]})
            continue
        first, *rest = said.cut(call["function"]["arguments"])
        yield delta({
            "tool_calls": [{"index": index, **call, "function": {"name": call["function"]["name"], "arguments": first}}]
        })  # fmt: skip
        for text in rest:
            yield delta({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    yield delta({}, "stop")


def _items(said: Said) -> list[Json]:
    items: list[Json] = []
    if said.text:
        items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said.text}]})
    for call in said.calls:
        if call.hosted:
            items.append({"type": "web_search_call", "id": call.id, "status": "completed", "action": call.arguments})
        elif call.name == "shell":
            items.append({"type": "shell_call", "id": f"i{call.id}", "call_id": call.id, "action": call.arguments})
        else:
            items.append({
                "type": "function_call", "id": f"i{call.id}", "call_id": call.id, "name": call.name,
                "arguments": json.dumps(call.arguments),
            })  # fmt: skip
    return items + ([{"type": "robot_call", "call_id": "r1", "name": "deleteTask"}] if said.strange else [])


def _responses_ask(turns: Sequence[Turn], tools: Sequence[str], stream: bool) -> Json:
    system, turns = told(turns)
    items: list[Json] = []
    for kind, what in turns:
        if kind == "user":
            items.append({"role": "user", "content": what})
        elif kind == "model":
            items += [{key: value for key, value in item.items() if key != "id"} for item in _items(what)]
        else:
            for call, text, _ in what:
                kind_of = "shell_call_output" if call.name == "shell" else "function_call_output"
                items.append({"type": kind_of, "call_id": call.id, "output": text})
    offered = [{"type": "function", "name": name, "parameters": {}} for name in tools]
    return {"model": "m", "instructions": system, "input": items, "tools": offered} | (
        {"stream": True} if stream else {}
    )


def _responses_answer(said: Said) -> Json:
    return {"id": "resp_x", "object": "response", "status": "completed", "output": _items(said)}


def _responses_pieces(said: Said) -> Iterable[tuple[str, Json]]:
    def event(kind: str, **more: Any) -> tuple[str, Json]:
        return kind, {"type": kind, **more}

    yield event(
        "response.created", response={"id": "resp_x", "object": "response", "status": "in_progress", "output": []}
    )
    for index, item in enumerate(_items(said)):
        bare = {key: value for key, value in item.items() if key not in ("arguments", "action", "content")}
        yield event("response.output_item.added", output_index=index, item=bare)
        for text in said.cut(said.text) if item["type"] == "message" else ():
            yield event("response.output_text.delta", output_index=index, delta=text)
        for text in said.cut(item["arguments"]) if item["type"] == "function_call" else ():
            yield event("response.function_call_arguments.delta", output_index=index, delta=text)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=_responses_answer(said))


def _blocks(said: Said) -> list[Json]:
    blocks: list[Json] = [{"type": "text", "text": said.text}] if said.text else []
    for call in said.calls:
        kind = "server_tool_use" if call.hosted else "tool_use"
        blocks.append({"type": kind, "id": call.id, "name": call.name, "input": call.arguments})
    return blocks + ([{"type": "robot_use", "id": "r1", "name": "deleteTask"}] if said.strange else [])


def _messages_ask(turns: Sequence[Turn], tools: Sequence[str], stream: bool) -> Json:
    system, turns = told(turns)
    messages: list[Json] = []
    for kind, what in turns:
        if kind == "user":
            messages.append({"role": "user", "content": what})
        elif kind == "model":
            messages.append({"role": "assistant", "content": _blocks(what)})
        else:
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": failed}
                for call, text, failed in what
            ]
            messages.append({"role": "user", "content": results})
    offered = [{"name": name, "input_schema": {}} for name in tools]
    return {"model": "m", "max_tokens": 9, "system": system, "messages": messages, "tools": offered} | (
        {"stream": True} if stream else {}
    )


def _messages_answer(said: Said) -> Json:
    return {"id": "x", "type": "message", "role": "assistant", "content": _blocks(said), "stop_reason": "end_turn"}


def _messages_pieces(said: Said) -> Iterable[tuple[str, Json]]:
    yield (
        "message_start",
        {"type": "message_start", "message": {"id": "x", "type": "message", "role": "assistant", "content": []}},
    )
    for index, block in enumerate(_blocks(said)):
        bare = {**block, "text": ""} if "text" in block else {**block, "input": {}} if "input" in block else block
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": bare}
        if "text" in block:
            deltas = [{"type": "text_delta", "text": text} for text in said.cut(block["text"])]
        else:
            parts = said.cut(json.dumps(block["input"])) if "input" in block else []
            deltas = [{"type": "input_json_delta", "partial_json": text} for text in parts]
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    yield (
        "message_delta",
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    )
    yield "message_stop", {"type": "message_stop"}


def _parts(said: Said) -> list[Json]:
    parts: list[Json] = [{"text": said.text}] if said.text else []
    for call in said.calls:
        code = {"language": "PYTHON", "code": json.dumps(call.arguments)}
        parts.append(
            {"executableCode": code} if call.hosted else {"functionCall": {"name": call.name, "args": call.arguments}}
        )
    return parts + ([{"robotCall": {"name": "deleteTask"}}] if said.strange else [])


def _gemini_ask(turns: Sequence[Turn], tools: Sequence[str], stream: bool) -> Json:
    system, turns = told(turns)
    contents: list[Json] = []
    for kind, what in turns:
        if kind == "user":
            contents.append({"role": "user", "parts": [{"text": what}]})
        elif kind == "model":
            contents.append({"role": "model", "parts": _parts(what)})
        else:
            parts = [{"functionResponse": {"name": call.name, "response": json.loads(text)}} for call, text, _ in what]
            contents.append({"role": "user", "parts": parts})
    told_as = {"systemInstruction": {"parts": [{"text": system}]}}
    return {**told_as, "contents": contents, "tools": [{"functionDeclarations": [{"name": name} for name in tools]}]}


def _candidates(parts: list[Json], reason: str | None) -> Json:
    candidate = {"content": {"role": "model", "parts": parts}} | ({"finishReason": reason} if reason else {})
    return {"candidates": [candidate], "modelVersion": "m"}


def _gemini_pieces(said: Said) -> Iterable[tuple[str, Json]]:
    for part in _parts(said):
        yield "", _candidates([part], None)
    yield "", _candidates([], "STOP")


def _ollama_message(said: Said) -> Json:
    calls: list[Json] = [
        {"function": {"name": call.name, "arguments": call.arguments}} for call in said.calls if not call.hosted
    ]
    calls += [{"type": "robot", "robot": {"name": "deleteTask"}}] if said.strange else []
    return {"role": "assistant", "content": said.text} | ({"tool_calls": calls} if calls else {})


def _ollama_ask(turns: Sequence[Turn], tools: Sequence[str], stream: bool) -> Json:
    system, turns = told(turns)
    messages: list[Json] = [{"role": "system", "content": system}]
    for kind, what in turns:
        if kind == "user":
            messages.append({"role": "user", "content": what})
        elif kind == "model":
            messages.append(_ollama_message(what))
        else:
            messages += [{"role": "tool", "tool_name": call.name, "content": text} for call, text, _ in what]
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    return {"model": "m", "messages": messages, "tools": offered, "stream": stream}


def _ollama_pieces(said: Said) -> Iterable[tuple[str, Json]]:
    for text in said.cut(said.text):
        yield "", {"model": "m", "message": {"role": "assistant", "content": text}, "done": False}
    yield "", {"model": "m", "message": _ollama_message(replace(said, text="")), "done": False}
    yield "", {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}


def _converse_blocks(said: Said) -> list[Json]:
    blocks: list[Json] = [{"text": said.text}] if said.text else []
    blocks += [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}}
        for call in said.calls
        if not call.hosted
    ]
    return blocks + ([{"robotUse": {"name": "deleteTask"}}] if said.strange else [])


def _converse_ask(turns: Sequence[Turn], tools: Sequence[str], stream: bool) -> Json:
    system, turns = told(turns)
    messages: list[Json] = []
    for kind, what in turns:
        if kind == "user":
            messages.append({"role": "user", "content": [{"text": what}]})
        elif kind == "model":
            messages.append({"role": "assistant", "content": _converse_blocks(what)})
        else:
            content = [
                {
                    "toolResult": {
                        "toolUseId": call.id, "content": [{"text": text}], "status": "error" if failed else "success",
                    }
                }
                for call, text, failed in what
            ]  # fmt: skip
            messages.append({"role": "user", "content": content})
    offered = {"tools": [{"toolSpec": {"name": name}} for name in tools]}
    return {"system": [{"text": system}], "messages": messages, "toolConfig": offered}


def _converse_answer(said: Said) -> Json:
    return {"output": {"message": {"role": "assistant", "content": _converse_blocks(said)}}, "stopReason": "end_turn"}


def _converse_pieces(said: Said) -> Iterable[tuple[str, Json]]:
    yield "messageStart", {"role": "assistant"}
    for index, block in enumerate(_converse_blocks(said)):
        here: Json = {"contentBlockIndex": index}
        if "text" in block:  # of a text no start is told
            deltas: list[Json] = [{"text": text} for text in said.cut(block["text"])]
        elif "toolUse" in block:
            use = block["toolUse"]
            yield (
                "contentBlockStart",
                {"start": {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}, **here},
            )
            deltas = [{"toolUse": {"input": text}} for text in said.cut(json.dumps(use["input"]))]
        else:
            yield "contentBlockStart", {"start": block, **here}
            deltas = []
        for delta in deltas:
            yield "contentBlockDelta", {"delta": delta, **here}
        yield "contentBlockStop", here
    yield "messageStop", {"stopReason": "end_turn"}
    yield "metadata", {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}, "metrics": {"latencyMs": 1}}


DIALECTS = (
    Dialect("chat", "openai", "chat.completions", "/v1/chat/completions", SSE_TYPE, True, _chat_ask, _chat_answer, _chat_pieces),
    Dialect("responses", "openai", "responses", "/v1/responses", SSE_TYPE, True, _responses_ask, _responses_answer, _responses_pieces),
    Dialect("messages", "anthropic", "messages", "/v1/messages", SSE_TYPE, True, _messages_ask, _messages_answer, _messages_pieces),
    Dialect("gemini", "gemini", "generateContent", "/v1beta/models/m:generateContent", SSE_TYPE, False, _gemini_ask,
            lambda said: _candidates(_parts(said), "STOP"), _gemini_pieces),
    Dialect("ollama", "ollama", "api.chat", "/ollama/api/chat", NDJSON_TYPE, False, _ollama_ask,
            lambda said: {"model": "m", "message": _ollama_message(said), "done": True, "done_reason": "stop"}, _ollama_pieces),
    Dialect("converse", "bedrock", "converse", "/model/m/converse", AWS_TYPE, True, _converse_ask, _converse_answer, _converse_pieces),
)  # fmt: skip
