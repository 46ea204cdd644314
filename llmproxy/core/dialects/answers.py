"""The answers of every dialect, whole and in the pieces of a stream: one function a shape, one table.

Each function adds one JSON value of a response to a draft. Pieces find their place by index: the first choice, a
tool call by its own index, a block by the number that its events carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmproxy.core.dialects.messages import (
    Draft,
    add_blocks,
    add_tool_calls,
    as_dict,
    as_json,
    as_list,
    as_str,
    block_call,
    is_thought,
)


def _chat(draft: Draft, value: dict[str, Any]) -> None:
    """OpenAI's chat and completions, whole and in chunks: choice 0 only."""
    for choice in map(as_dict, as_list(value.get("choices"))):
        if choice.get("index", 0) not in (0, None):
            continue
        said = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
        draft.heard = draft.heard or bool(choice)
        content = said.get("content")
        draft.say(content) if isinstance(content, str) else add_blocks(draft, content)
        draft.say(said.get("refusal"))
        draft.say(choice.get("text"))
        draft.think(said.get("reasoning_content", said.get("reasoning")))
        add_tool_calls(draft, said.get("tool_calls"))
        old = as_dict(said.get("function_call"))
        if old:
            draft.call(0, None, old.get("name"), as_str(old.get("arguments")))


def _responses(draft: Draft, value: dict[str, Any]) -> None:
    """OpenAI's Response; in a stream its last state replaces what the deltas told."""
    response = as_dict(value.get("response")) or value
    kind = as_str(value.get("type"))
    output = as_list(response.get("output"))
    if output:
        draft.text, draft.reasoning, draft.calls = [], [], {}
        for item in map(as_dict, output):
            add_blocks(
                draft, item.get("content") if item.get("type") == "message" else [item] if _wanted(item) else None
            )
    elif kind in ("response.output_text.delta", "response.refusal.delta"):
        draft.say(value.get("delta"))
    elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
        draft.think(value.get("delta"))
    elif kind == "response.output_item.added":
        item = as_dict(value.get("item"))
        if (call := block_call(item)) is not None:
            draft.call(value.get("output_index"), call[0], call[1])
    elif kind == "response.function_call_arguments.delta":
        draft.call(value.get("output_index"), arguments=as_str(value.get("delta")))


_SPOKEN = frozenset({"response.output_text.delta", "response.text.delta", "response.output_audio_transcript.delta",
                     "response.audio_transcript.delta"})  # fmt: skip


def _realtime(draft: Draft, value: dict[str, Any]) -> None:
    """OpenAI's Realtime: the socket's last answer, what was spoken as its transcript."""
    kind = as_str(value.get("type"))
    if kind == "response.created":
        draft.text, draft.reasoning, draft.calls = [], [], {}
    elif kind in _SPOKEN:
        draft.say(value.get("delta"))
    elif kind.startswith("response."):
        _responses(draft, {name: member for name, member in value.items() if name != "response"})


def _wanted(item: dict[str, Any]) -> bool:
    return block_call(item) is not None or is_thought(item)


def _anthropic(draft: Draft, value: dict[str, Any]) -> None:
    """Anthropic's message, whole and in events; blocks are kept apart by their index."""
    kind = value.get("type")
    if kind == "content_block_start":
        block = as_dict(value.get("content_block"))
        if (call := block_call(block)) is not None:
            draft.call(value.get("index"), call[0], call[1], as_json(call[2]) if call[2] else "")
        else:
            draft.say(block.get("text"))
    elif kind == "content_block_delta":
        delta = as_dict(value.get("delta"))
        draft.say(delta.get("text"))
        draft.think(delta.get("thinking"))
        if isinstance(delta.get("partial_json"), str):
            draft.call(value.get("index"), arguments=delta["partial_json"])
    elif kind == "message" or (kind is None and "content" in value):
        add_blocks(draft, value.get("content"))
        draft.heard = True
    elif kind == "completion" or "completion" in value:
        draft.say(value.get("completion"))


def _gemini(draft: Draft, value: dict[str, Any]) -> None:
    value = as_dict(value.get("response")) or value
    for candidate in map(as_dict, as_list(value.get("candidates"))[:1]):
        draft.heard = True
        for part in as_list(as_dict(candidate.get("content")).get("parts")):
            add_blocks(draft, [part])


def _converse(draft: Draft, value: dict[str, Any]) -> None:
    """Bedrock's converse, whole and in events; Nova's own events under `invoke` are the same."""
    message = as_dict(as_dict(value.get("output")).get("message"))
    if message:
        draft.heard = True
        add_blocks(draft, message.get("content"))
    start, delta = as_dict(value.get("contentBlockStart")), as_dict(value.get("contentBlockDelta"))
    use = as_dict(as_dict(start.get("start")).get("toolUse"))
    if use:
        draft.call(start.get("contentBlockIndex"), use.get("toolUseId"), use.get("name"))
    inner = as_dict(delta.get("delta"))
    draft.say(inner.get("text"))
    draft.think(as_dict(inner.get("reasoningContent")).get("text"))
    if isinstance(inner.get("toolUse"), dict):
        draft.call(delta.get("contentBlockIndex"), arguments=as_str(inner["toolUse"].get("input")))


def _invoke(draft: Draft, value: dict[str, Any]) -> None:
    """The native answers of Bedrock's models: Anthropic, Nova, Titan, Llama, Cohere, AI21, Mistral."""
    if "type" in value or "completion" in value:
        _anthropic(draft, value)
    elif "choices" in value:
        _chat(draft, value)
    else:
        _converse(draft, value)
    draft.say(value.get("outputText"))
    draft.say(value.get("generation"))
    for name, path in (("results", "outputText"), ("generations", "text"), ("outputs", "text")):
        for first in as_list(value.get(name))[:1]:
            draft.say(as_dict(first).get(path))
    for first in as_list(value.get("completions"))[:1]:
        draft.say(as_dict(as_dict(first).get("data")).get("text"))


def _ollama(draft: Draft, value: dict[str, Any]) -> None:
    message = as_dict(value.get("message"))
    draft.say(message.get("content"))
    draft.think(message.get("thinking") or None)
    add_tool_calls(draft, message.get("tool_calls"), offset=True)
    draft.say(value.get("response"))


def _cohere(draft: Draft, value: dict[str, Any]) -> None:
    """Cohere's v1 and v2, whole and in events."""
    kind = value.get("type") or value.get("event_type")
    if kind is None:
        generations = as_list(value.get("generations"))
        draft.say(value.get("text") if not generations else as_dict(generations[0]).get("text"))
        message = as_dict(value.get("message"))
        add_blocks(draft, message.get("content"))
        add_tool_calls(draft, message.get("tool_calls") or value.get("tool_calls"), offset=True)
        draft.think(message.get("tool_plan"))
        return
    if kind == "text-generation":
        draft.say(value.get("text"))
    message = as_dict(as_dict(value.get("delta")).get("message"))
    content, calls = as_dict(message.get("content")), as_dict(message.get("tool_calls"))
    draft.say(content.get("text"))
    draft.think(content.get("thinking", message.get("tool_plan")))
    if calls:
        function = as_dict(calls.get("function"))
        draft.call(value.get("index"), calls.get("id"), function.get("name"), as_str(function.get("arguments")))
    if kind == "stream-end" and not draft.calls:
        add_tool_calls(draft, as_dict(value.get("response")).get("tool_calls"), offset=True)


def _thread(draft: Draft, value: dict[str, Any]) -> None:
    """OpenAI's assistants: the deltas of the messages of a run."""
    if value.get("object") == "thread.message.delta":
        for part in as_list(as_dict(value.get("delta")).get("content")):
            draft.say(as_dict(as_dict(part).get("text")).get("value"))


def _writer(draft: Draft, value: dict[str, Any]) -> None:
    """Writer's completions: OpenAI's when whole, bare values when streamed."""
    _chat(draft, value)
    draft.say(value.get("value"))


SHAPES: dict[str, Callable[[Draft, dict[str, Any]], None]] = {
    "chat.completions": _chat,
    "completions": _chat,
    "fim.completions": _chat,
    "writer.chat": _chat,
    "responses": _responses,
    "realtime": _realtime,
    "messages": _anthropic,
    "complete": _anthropic,
    "generateContent": _gemini,
    "converse": _converse,
    "invoke": _invoke,
    "api.chat": _ollama,
    "api.generate": _ollama,
    "v1.chat": _cohere,
    "v1.generate": _cohere,
    "v2.chat": _cohere,
    "threads.runs": _thread,
    "threads": _thread,
    "writer.completions": _writer,
}
"""By operation; of one with ids in it, by what stands before them. The rest is taken for chat completions."""
