"""The answers of every dialect, whole and in the pieces of a stream: one function a shape, one table.

Each function adds one JSON value of a response to a draft. Pieces find their place by index: the first choice, a
tool call by its own index, a block by the number that its events carry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmproxy.core.dialects.callers import CONVERSE, GEMINI, MESSAGES, RESPONSES, Asks, By, kind_of
from llmproxy.core.dialects.messages import (
    Draft,
    Message,
    add_blocks,
    add_tool_calls,
    as_dict,
    as_json,
    as_list,
    as_str,
    asks_of,
    block_call,
    block_result,
    is_hosted,
    is_thought,
)


def _chat(draft: Draft, value: dict[str, Any]) -> None:
    """OpenAI's chat and completions, whole and in chunks: choice 0, and what the others call."""
    for position, choice in enumerate(map(as_dict, as_list(value.get("choices")))):
        index = choice.get("index", position)
        said = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
        for number, done in enumerate(map(as_dict, as_list(said.get("executed_tools")))):
            arguments = as_json(done.get("arguments"))
            name = as_str(done.get("name")) or as_str(done.get("type"))
            draft.call(("executed", index, number), None, name, arguments, hosted=True, beside=True)
        if index not in (0, None):
            add_tool_calls(draft, said.get("tool_calls"), choice=index)
            if old := as_dict(said.get("function_call")):
                draft.call((index, "old"), None, old.get("name"), as_str(old.get("arguments")), beside=True)
            continue
        draft.heard = draft.heard or bool(choice)
        content = said.get("content")
        draft.add_text(content) if isinstance(content, str) else add_blocks(draft, content)
        draft.add_text(said.get("refusal"))
        draft.add_text(choice.get("text"))
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
        draft.text, draft.reasoning, draft.calls, draft.beside, draft.outputs = [], [], {}, {}, {}
        for number, item in enumerate(map(as_dict, output)):
            add_blocks(
                draft, item.get("content") if item.get("type") == "message" else [item] if _is_wanted(item) else None
            )
            _item(draft, item, number)
    elif kind in ("response.output_text.delta", "response.refusal.delta"):
        draft.add_text(value.get("delta"))
    elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
        draft.think(value.get("delta"))
    elif kind == "response.output_item.added":
        item = as_dict(value.get("item"))
        if (call := block_call(item)) is not None:
            draft.call(value.get("output_index"), call[0], call[1])
        _item(draft, item, value.get("output_index"))
    elif kind == "response.output_item.done":
        item = as_dict(value.get("item"))
        if (call := block_call(item)) is not None:  # it says all that its deltas told
            draft.call(value.get("output_index"), call[0], call[1]).pieces = [as_json(call[2])]
        _item(draft, item, value.get("output_index"))
    elif kind in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
        draft.call(value.get("output_index"), arguments=as_str(value.get("delta")))


def _item(draft: Draft, item: dict[str, Any], index: object) -> None:
    """Note what an item is beside words and calls: a tool of the provider's, its output, or nothing that we know."""
    kind = as_str(item.get("type"))
    if kind not in RESPONSES:
        draft.unknown[kind or "an item without a type"] = None
        return
    draft.result(block_result(item))
    asks = asks_of(item)
    if asks is None:
        return
    name = asks.name_in(item)
    call_id = item.get("call_id") or item.get("id")
    if block_call(item) is None:
        entry = draft.call(index, call_id, name, hosted=True, beside=True)
        entry.pieces, entry.pending = [as_json(asks.arguments_in(item))], kind == "mcp_approval_request"
    elif is_hosted(item, asks):
        for entry in draft.calls.values():
            entry.hosted = entry.hosted or entry.id == call_id
    if kind == "mcp_call" and (item.get("output") is not None or item.get("error") is not None):
        failed = item.get("error") is not None
        said = item.get("error") if failed else item.get("output")
        draft.result(Message("tool", as_json(said), tool_call_id=as_str(call_id)), failed=failed)


_SPOKEN = frozenset({"response.output_text.delta", "response.text.delta", "response.output_audio_transcript.delta",
                     "response.audio_transcript.delta"})  # fmt: skip


def _realtime(draft: Draft, value: dict[str, Any]) -> None:
    """OpenAI's Realtime: the socket's last answer, what was spoken as its transcript."""
    kind = as_str(value.get("type"))
    if kind == "response.created":
        draft.text, draft.reasoning, draft.calls = [], [], {}
    elif kind in _SPOKEN:
        draft.add_text(value.get("delta"))
    elif kind.startswith("response."):
        _responses(draft, {name: member for name, member in value.items() if name != "response"})


def _is_wanted(item: dict[str, Any]) -> bool:
    return block_call(item) is not None or is_thought(item)


def _anthropic(draft: Draft, value: dict[str, Any]) -> None:
    """Anthropic's message, whole and in events; blocks are kept apart by their index."""
    kind = value.get("type")
    if kind == "content_block_start":
        block = as_dict(value.get("content_block"))
        if (call := block_call(block)) is not None:
            hosted = _by(block, MESSAGES) is By.PROVIDER
            draft.call(value.get("index"), call[0], call[1], as_json(call[2]) if call[2] else "", hosted=hosted)
        else:
            draft.add_text(block.get("text"))
        _block(draft, block)
    elif kind == "content_block_delta":
        delta = as_dict(value.get("delta"))
        draft.add_text(delta.get("text"))
        draft.think(delta.get("thinking"))
        if isinstance(delta.get("partial_json"), str):
            draft.call(value.get("index"), arguments=delta["partial_json"])
    elif kind == "message" or (kind is None and "content" in value):
        add_blocks(draft, value.get("content"))
        for block in map(as_dict, as_list(value.get("content"))):
            _block(draft, block)
        draft.heard = True
    elif kind == "completion" or "completion" in value:
        draft.add_text(value.get("completion"))


def _by(block: dict[str, Any], table: Mapping[str, Asks]) -> By | None:
    asks = table.get(as_str(block.get("type")))
    return None if asks is None else asks.by


def _block(draft: Draft, block: dict[str, Any]) -> None:
    """Note what a block of Anthropic's is beside words and calls."""
    if _by(block, MESSAGES) is None:
        draft.unknown[as_str(block.get("type")) or "a block without a type"] = None
    content = as_dict(block.get("content"))
    failed = block.get("is_error") is True or as_str(content.get("type")).endswith("_error")
    draft.result(block_result(block), failed=failed)


def _gemini(draft: Draft, value: dict[str, Any]) -> None:
    value = as_dict(value.get("response")) or value
    draft.heard = draft.heard or "promptFeedback" in value
    for position, candidate in enumerate(map(as_dict, as_list(value.get("candidates")))):
        draft.heard = True
        first = candidate.get("index", position) in (0, None)
        for part in as_list(as_dict(candidate.get("content")).get("parts")):
            block = as_dict(part)
            if first:
                add_blocks(draft, [part])
            _part(draft, block, first=first)


def _part(draft: Draft, part: dict[str, Any], *, first: bool) -> None:
    """Note what a part of Gemini's is: a tool of the provider's, a call of another candidate, or
    nothing that we know.
    """
    kind = kind_of(part, GEMINI)
    if kind is None:
        draft.unknown[next(iter(part))] = None
        return
    asks, inner = GEMINI[kind], as_dict(part.get(kind))
    if asks.by is By.NOBODY or (first and asks.by is By.AGENT):
        return
    name = as_str(inner.get("toolType")).lower() or asks.name_in(inner)
    arguments = as_json(asks.arguments_in(inner))
    hosted = asks.by is By.PROVIDER
    draft.call(len(draft.beside), inner.get("id"), name, arguments, hosted=hosted, beside=True)


def _converse(draft: Draft, value: dict[str, Any]) -> None:
    """Bedrock's converse, whole and in events; Nova's own events under `invoke` are the same."""
    message = as_dict(as_dict(value.get("output")).get("message"))
    if message:
        draft.heard = True
        add_blocks(draft, message.get("content"))
        for block in map(as_dict, as_list(message.get("content"))):
            _record_block(draft, block)
    start, delta = as_dict(value.get("contentBlockStart")), as_dict(value.get("contentBlockDelta"))
    begun = as_dict(start.get("start"))
    use = as_dict(begun.get("toolUse"))
    if use:
        hosted = use.get("type") is not None
        draft.call(start.get("contentBlockIndex"), use.get("toolUseId"), use.get("name"), hosted=hosted)
    inner = as_dict(delta.get("delta"))
    _record_block(draft, begun)
    _record_block(draft, inner)
    draft.add_text(inner.get("text"))
    draft.think(as_dict(inner.get("reasoningContent")).get("text"))
    if isinstance(inner.get("toolUse"), dict):
        draft.call(delta.get("contentBlockIndex"), arguments=as_str(inner["toolUse"].get("input")))


def _record_block(draft: Draft, block: dict[str, Any]) -> None:
    """Note a kind of block of Bedrock's that no table knows."""
    if kind_of(block, CONVERSE) is None:
        draft.unknown[next(iter(block))] = None


def _invoke(draft: Draft, value: dict[str, Any]) -> None:
    """The native answers of Bedrock's models: Anthropic, Nova, Titan, Llama, Cohere, AI21, Mistral."""
    if "type" in value or "completion" in value:
        _anthropic(draft, value)
    elif "choices" in value:
        _chat(draft, value)
    else:
        _converse(draft, value)
    draft.add_text(value.get("outputText"))
    draft.add_text(value.get("generation"))
    for name, path in (("results", "outputText"), ("generations", "text"), ("outputs", "text")):
        for first in as_list(value.get(name))[:1]:
            draft.add_text(as_dict(first).get(path))
    for first in as_list(value.get("completions"))[:1]:
        draft.add_text(as_dict(as_dict(first).get("data")).get("text"))


def _ollama(draft: Draft, value: dict[str, Any]) -> None:
    message = as_dict(value.get("message"))
    draft.add_text(message.get("content"))
    draft.think(message.get("thinking") or None)
    add_tool_calls(draft, message.get("tool_calls"), offset=True)
    draft.add_text(value.get("response"))


def _cohere(draft: Draft, value: dict[str, Any]) -> None:
    """Cohere's v1 and v2, whole and in events."""
    kind = value.get("type") or value.get("event_type")
    if kind is None:
        generations = as_list(value.get("generations"))
        draft.add_text(value.get("text") if not generations else as_dict(generations[0]).get("text"))
        message = as_dict(value.get("message"))
        add_blocks(draft, message.get("content"))
        add_tool_calls(draft, message.get("tool_calls") or value.get("tool_calls"), offset=True)
        draft.think(message.get("tool_plan"))
        return
    if kind == "text-generation":
        draft.add_text(value.get("text"))
    message = as_dict(as_dict(value.get("delta")).get("message"))
    content, calls = as_dict(message.get("content")), as_dict(message.get("tool_calls"))
    draft.add_text(content.get("text"))
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
            draft.add_text(as_dict(as_dict(part).get("text")).get("value"))


def _writer(draft: Draft, value: dict[str, Any]) -> None:
    """Writer's completions: OpenAI's when whole, bare values when streamed."""
    _chat(draft, value)
    draft.add_text(value.get("value"))


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
