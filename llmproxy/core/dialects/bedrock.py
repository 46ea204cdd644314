"""Bedrock's converse, and the native bodies of its models under invoke."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from llmproxy.core.dialects import dialect_table
from llmproxy.core.dialects.answer_writing import AWS, WHOLE, choose_error_type_by_status, dump_json, parse_tool_args
from llmproxy.core.dialects.dialect_table import (
    InjectedErrorParameters,
    Json,
    ModelAnswerCodec,
    ParsedRequestToAnswer,
    ProviderApiDialect,
    RequestBodyLayout,
    SpokenTurn,
)
from llmproxy.core.dialects.messages import (
    Draft,
    ToolCallFormat,
    add_content_blocks_to_draft,
    as_dict,
    as_list,
    as_str,
    find_content_block_kind,
)
from llmproxy.core.dialects.openai import build_openai_stream_error_event, decode_chat_completion
from llmproxy.core.dialects.stream_events import write_aws_frame
from llmproxy.core.traffic.interaction import Headers

CONTENT: Mapping[str, ToolCallFormat | None] = {
    "toolUse": ToolCallFormat(arguments=("input",)),
    **dict.fromkeys(
        (
            "text", "image", "document", "video", "audio", "toolResult", "guardContent", "cachePoint",
            "reasoningContent", "citationsContent", "citation", "searchResult",
        ),
    ),
}  # fmt: skip
"""Blocks of converse, by the member that names their kind; a `type` next to it only says who runs the tool."""


def _add_converse(draft: Draft, value: dict[str, Any]) -> None:
    """Add converse, whole or in events; Nova's own events under `invoke` are the same."""
    if message := as_dict(as_dict(value.get("output")).get("message")):
        draft.heard = True
        add_content_blocks_to_draft(draft, message.get("content"))
        for block in map(as_dict, as_list(message.get("content"))):
            _record_unknown_block(draft, block)
    start, delta = as_dict(value.get("contentBlockStart")), as_dict(value.get("contentBlockDelta"))
    begun = as_dict(start.get("start"))
    if use := as_dict(begun.get("toolUse")):
        hosted = use.get("type") is not None
        draft.add_call(start.get("contentBlockIndex"), use.get("toolUseId"), use.get("name"), hosted=hosted)
    inner = as_dict(delta.get("delta"))
    _record_unknown_block(draft, begun)
    _record_unknown_block(draft, inner)
    draft.add_text(inner.get("text"))
    draft.add_reasoning(as_dict(inner.get("reasoningContent")).get("text"))
    if isinstance(inner.get("toolUse"), dict):
        draft.add_call(delta.get("contentBlockIndex"), arguments=as_str(inner["toolUse"].get("input")))


def _record_unknown_block(draft: Draft, block: dict[str, Any]) -> None:
    if find_content_block_kind(block, CONTENT) is None:
        draft.unknown[next(iter(block))] = None


def _add_invoke_answer(draft: Draft, value: dict[str, Any]) -> None:
    """Add the native answers of the models: Claude, Nova, Titan, Llama, Cohere, AI21, Mistral."""
    if "type" in value or "completion" in value:
        dialect_table.get_dialect_codec_or_default("messages").add(draft, value)
    elif "choices" in value:
        decode_chat_completion(draft, value)
    else:
        _add_converse(draft, value)
    draft.add_text(value.get("outputText"))
    draft.add_text(value.get("generation"))
    for name, path in (("results", "outputText"), ("generations", "text"), ("outputs", "text")):
        for first in as_list(value.get(name))[:1]:
            draft.add_text(as_dict(first).get(path))
    for first in as_list(value.get("completions"))[:1]:
        draft.add_text(as_dict(as_dict(first).get("data")).get("text"))


def _frame(kind: str, value: object) -> bytes:
    fields = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return write_aws_frame(fields, dump_json(value))


_WHY = {"length": "max_tokens", "content_filter": "content_filtered"}


def _write_answer(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    blocks: list[Json] = [{"text": said.message.text}] if said.message.text or not said.message.tool_calls else []
    uses = [
        {"toolUseId": call.id, "name": call.name, "input": parse_tool_args(call.arguments)}
        for call in said.message.tool_calls
    ]
    why = _WHY.get(said.finish, "tool_use" if uses else "end_turn")
    usage = {"usage": {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}, "metrics": {"latencyMs": 0}}
    if not wanted.stream:
        message = {"role": "assistant", "content": [*blocks, *({"toolUse": use} for use in uses)]}
        return WHOLE, [dump_json({"output": {"message": message}, "stopReason": why, **usage})]
    frames = [_frame("messageStart", {"role": "assistant"})]
    for index, block in enumerate(blocks):
        frames.append(_frame("contentBlockDelta", {"delta": block, "contentBlockIndex": index}))
        frames.append(_frame("contentBlockStop", {"contentBlockIndex": index}))
    for index, use in enumerate(uses, len(blocks)):
        start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
        given = use["input"]  # text only if it is no JSON: as the model wrote it
        delta = {"toolUse": {"input": given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)}}
        frames.append(_frame("contentBlockStart", {"start": start, "contentBlockIndex": index}))
        frames.append(_frame("contentBlockDelta", {"delta": delta, "contentBlockIndex": index}))
        frames.append(_frame("contentBlockStop", {"contentBlockIndex": index}))
    return AWS, [*frames, _frame("messageStop", {"stopReason": why}), _frame("metadata", usage)]


def _write_invoke_answer(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    speaker = dialect_table.get_composer_for_model("claude")
    if not wanted.stream:
        return WHOLE, [dump_json(speaker.answer(said))]
    events = [dict(as_dict(event)) for _, event in speaker.stream(said)]
    events[-1]["amazon-bedrock-invocationMetrics"] = {"inputTokenCount": 0, "outputTokenCount": 0}
    return AWS, [_frame("chunk", {"bytes": base64.b64encode(dump_json(event)).decode()}) for event in events]


# None of these is in boto's list of throttling or transient codes, so the name alone never causes a retry.
_ERRORS = {403: "AccessDeniedException", 404: "ResourceNotFoundException", 409: "ConflictException"}


def _build_proxy_error(status: int, _code: str, message: str) -> tuple[Headers, object]:
    # Without the header and a top-level `message` boto prints an empty text.
    kind = choose_error_type_by_status(_ERRORS, status, "ValidationException", "InternalServerException")
    return (("x-amzn-errortype", kind),), {"message": message}


def _build_provider_error(status: int, _asked: InjectedErrorParameters) -> tuple[Json, Headers]:
    kind, text = {
        429: ("ThrottlingException", "Too many requests, please wait before trying again."),
        **dict.fromkeys((503, 529), ("ServiceUnavailableException", "Bedrock is unable to process your request.")),
    }.get(status, ("InternalServerException", ("The system encountered an unexpected error during processing. Try your "
    "request again.")))  # fmt: skip
    return {"message": text}, (("x-amzn-errortype", f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"),)


# A prompt that a guardrail blocked is answered by one event without metrics, with the trace or Titan's total.
_LAST = frozenset({"amazon-bedrock-invocationMetrics", "amazon-bedrock-trace", "totalOutputTextTokenCount"})

_COUNT_HEADERS = {
    "x-amzn-bedrock-input-token-count": "inputTokenCount",
    "x-amzn-bedrock-output-token-count": "outputTokenCount",
    "x-amzn-bedrock-cache-read-input-token-count": "cacheReadInputTokenCount",
    "x-amzn-bedrock-cache-write-input-token-count": "cacheWriteInputTokenCount",
}

DIALECT = ProviderApiDialect(
    {
        "converse": ModelAnswerCodec(
            _add_converse, lambda value: "metadata" in value, write=_write_answer, text_whole=False,
            layout=RequestBodyLayout(system=("system",), tools=("toolConfig",)),
        ),
        "invoke": ModelAnswerCodec(
            _add_invoke_answer, lambda value: not _LAST.isdisjoint(value), write=_write_invoke_answer, text_whole=False,
            count_headers=_COUNT_HEADERS,
            layout=RequestBodyLayout(("messages", "prompt", "inputText", "message"), ("system", "preamble")),
        ),
    },
    _build_proxy_error, _build_provider_error, build_openai_stream_error_event,
)  # fmt: skip
