"""Anthropic's Messages API, and the older text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmproxy.core.dialects import messages
from llmproxy.core.dialects.answer_writing import (
    SSE,
    WHOLE,
    build_event_type_predicate,
    choose_error_type_by_status,
    dump_json,
    parse_tool_args,
    sse,
)
from llmproxy.core.dialects.dialect_table import (
    InjectedErrorParameters,
    Json,
    ModelAnswerCodec,
    ParsedRequestToAnswer,
    ProviderApiDialect,
    ProviderRequestAndAnswerWriter,
    RequestBodyLayout,
    SpokenTurn,
)
from llmproxy.core.dialects.messages import (
    Draft,
    Message,
    add_content_blocks_to_draft,
    as_dict,
    as_json,
    as_list,
    as_str,
)
from llmproxy.core.traffic.interaction import Headers


def parse_answer_or_event_into_draft(draft: Draft, value: dict[str, Any]) -> None:
    kind = value.get("type")
    if kind == "content_block_start":
        block = as_dict(value.get("content_block"))
        if (call := messages.read_tool_call_of_any_provider(block)) is not None:
            asks = messages.BLOCKS.get(as_str(block.get("type")))
            hosted = asks is not None and asks.hosted
            draft.add_call(value.get("index"), call[0], call[1], as_json(call[2]) if call[2] else "", hosted=hosted)
        else:
            draft.add_text(block.get("text"))
        _record_result_or_unknown(draft, block)
    elif kind == "content_block_delta":
        delta = as_dict(value.get("delta"))
        draft.add_text(delta.get("text"))
        draft.add_reasoning(delta.get("thinking"))
        if isinstance(delta.get("partial_json"), str):
            draft.add_call(value.get("index"), arguments=delta["partial_json"])
    elif kind == "message" or (kind is None and "content" in value):
        add_content_blocks_to_draft(draft, value.get("content"))
        for block in map(as_dict, as_list(value.get("content"))):
            _record_result_or_unknown(draft, block)
        draft.heard = True
    elif kind == "completion" or "completion" in value:
        draft.add_text(value.get("completion"))


def _record_result_or_unknown(draft: Draft, block: dict[str, Any]) -> None:
    kind = as_str(block.get("type"))
    if kind not in messages.BLOCKS:
        draft.unknown[kind or "a block without a type"] = None
    failed = block.get("is_error") is True or as_str(as_dict(block.get("content")).get("type")).endswith("_error")
    draft.add_result(messages.read_tool_result_of_any_provider(block), failed=failed)


_WHY = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


def _build_blocks(message: Message) -> list[Json]:
    if message.tool_call_id is not None:
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.text}]
    blocks: list[Json] = [{"type": "text", "text": message.text}] if message.text else []
    return blocks + [
        {"type": "tool_use", "id": call.id or f"toolu_{n}", "name": call.name, "input": parse_tool_args(call.arguments)}
        for n, call in enumerate(message.tool_calls)
    ]


def _build_request(model: str, messages: Sequence[Message], streamed: bool) -> tuple[str, Json]:
    system = "\n".join(each.text for each in messages if each.role == "system")
    said = [
        {
            "role": "assistant" if each.role == "assistant" else "user",
            "content": _build_blocks(each) if each.tool_calls or each.tool_call_id is not None else each.text,
        }
        for each in messages
        if each.role != "system"
    ]
    body: Json = {"model": model, "max_tokens": 1024, "messages": said, **({"system": system} if system else {})}
    return "https://api.anthropic.com/v1/messages", body | ({"stream": True} if streamed else {})


def _write_answer_json(said: SpokenTurn) -> Json:
    return {
        "id": f"msg_{said.id}",
        "type": "message",
        "role": "assistant",
        "model": said.model,
        "content": _build_blocks(said.message),
        "stop_reason": "refusal" if said.finish == "refusal" else _WHY.get(said.why, said.why),
        "stop_sequence": None,
        "usage": {
            "input_tokens": said.find_token_count("input_tokens", "prompt_tokens") or 0,
            "output_tokens": said.find_token_count("output_tokens", "completion_tokens") or 0,
        },
    }


def build_stream_events(said: SpokenTurn) -> list[tuple[str, object]]:
    answer = _write_answer_json(said)
    usage = answer["usage"]
    start = answer | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": start}]
    for n, block in enumerate(answer["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            given = block["input"]  # text only if it is no JSON: as the model wrote it
            partial = given if isinstance(given, str) else dump_json(given).decode()
            delta = {"type": "input_json_delta", "partial_json": partial}
        events += [
            {"type": "content_block_start", "index": n, "content_block": empty},
            {"type": "content_block_delta", "index": n, "delta": delta},
            {"type": "content_block_stop", "index": n},
        ]
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage["output_tokens"]}},
        {"type": "message_stop"},
    ]
    return [(event["type"], event) for event in events]


def write_anthropic_answer(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    if not wanted.stream:
        return WHOLE, [dump_json(_write_answer_json(said))]
    return SSE, [sse([event]) for event in build_stream_events(said)]


_ERRORS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip


def _build_error(status: int, message: str) -> Json:
    kind = choose_error_type_by_status(_ERRORS, status, "invalid_request_error", "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _build_provider_error(status: int, _asked: InjectedErrorParameters) -> tuple[Json, Headers]:
    limited = "This request would exceed your organization's rate limit of 50 requests per minute."
    text = {429: limited, 529: "Overloaded"}.get(status, "Internal server error")
    return {**_build_error(status, text), "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}, ()


DIALECT = ProviderApiDialect(
    {
        "messages": ModelAnswerCodec(
            parse_answer_or_event_into_draft, build_event_type_predicate("message_stop"), write=write_anthropic_answer,
            text_whole=False, exclusive=True, makes_ids=True, layout=RequestBodyLayout(system=("system",)),
        ),
        "complete": ModelAnswerCodec(
            parse_answer_or_event_into_draft, lambda value: value.get("stop_reason") is not None, exclusive=True,
            layout=RequestBodyLayout(("prompt",)),
        ),
    },
    lambda status, code, message: ((), {**_build_error(status, message), "request_id": code}),
    _build_provider_error, lambda _number: ("error", _build_error(529, "Overloaded")),
    speaker=ProviderRequestAndAnswerWriter(
        _build_request, _write_answer_json, build_stream_events,
        lambda error, status: _build_error(status, error.get("message", "")),
    ),
)  # fmt: skip
