"""Cohere's chat, of both versions."""

from __future__ import annotations

from typing import Any

from llmproxy.core.dialects.answer_writing import (
    SSE,
    WHOLE,
    build_event_type_predicate,
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
    RequestBodyLayout,
    SpokenTurn,
)
from llmproxy.core.dialects.messages import (
    Draft,
    add_content_blocks_to_draft,
    as_dict,
    as_list,
    as_str,
    collect_tool_calls_into_draft,
)
from llmproxy.core.dialects.openai import build_openai_stream_error_event, build_openai_tool_call_json
from llmproxy.core.traffic.interaction import Headers


def _add_answer_or_event(draft: Draft, value: dict[str, Any]) -> None:
    """Add v1 and v2, whole or in events."""
    kind = value.get("type") or value.get("event_type")
    if kind is None:
        generations = as_list(value.get("generations"))
        draft.add_text(value.get("text") if not generations else as_dict(generations[0]).get("text"))
        message = as_dict(value.get("message"))
        add_content_blocks_to_draft(draft, message.get("content"))
        collect_tool_calls_into_draft(draft, message.get("tool_calls") or value.get("tool_calls"), offset=True)
        draft.add_reasoning(message.get("tool_plan"))
        return
    if kind == "text-generation":
        draft.add_text(value.get("text"))
    message = as_dict(as_dict(value.get("delta")).get("message"))
    content, calls = as_dict(message.get("content")), as_dict(message.get("tool_calls"))
    draft.add_text(content.get("text"))
    draft.add_reasoning(content.get("thinking", message.get("tool_plan")))
    if calls:
        function = as_dict(calls.get("function"))
        draft.add_call(value.get("index"), calls.get("id"), function.get("name"), as_str(function.get("arguments")))
    if kind == "stream-end" and not draft.calls:
        collect_tool_calls_into_draft(draft, as_dict(value.get("response")).get("tool_calls"), offset=True)


_WHY = {"length": "MAX_TOKENS", "content_filter": "ERROR"}
_USAGE = {"billed_units": {"input_tokens": 0, "output_tokens": 0}, "tokens": {"input_tokens": 0, "output_tokens": 0}}


def _write_answer(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    calls = [build_openai_tool_call_json(n, call) for n, call in enumerate(said.message.tool_calls)]
    text = said.message.text
    why = _WHY.get(said.finish, "TOOL_CALL" if calls else "COMPLETE")
    if not wanted.stream:
        message: Json = {"role": "assistant"}
        message |= {"content": [{"type": "text", "text": text}]} if text or not calls else {}
        message |= {"tool_calls": calls} if calls else {}
        return WHOLE, [dump_json({"id": said.id, "finish_reason": why, "message": message, "usage": _USAGE})]
    events: list[Json] = [{"type": "message-start", "id": said.id, "delta": {"message": {"role": "assistant"}}}]
    if text or not calls:
        events += [
            {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}},
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}},
            {"type": "content-end", "index": 0},
        ]
    for index, call in enumerate(calls):
        first = {**call, "function": {**call["function"], "arguments": ""}}
        rest = {"function": {"arguments": call["function"]["arguments"]}}
        events += [
            {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": first}}},
            {"type": "tool-call-delta", "index": index, "delta": {"message": {"tool_calls": rest}}},
            {"type": "tool-call-end", "index": index},
        ]
    events.append({"type": "message-end", "delta": {"finish_reason": why, "usage": _USAGE}})
    return SSE, [sse([(event["type"], event)]) for event in events]


def _write_v1_answer(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    calls = [{"name": call.name, "parameters": parse_tool_args(call.arguments)} for call in said.message.tool_calls]
    whole: Json = {
        "response_id": said.id,
        "generation_id": said.id,
        "text": said.message.text,
        "finish_reason": {"length": "MAX_TOKENS", "content_filter": "ERROR_TOXIC"}.get(said.finish, "COMPLETE"),
    }
    whole |= {"tool_calls": calls} if calls else {}
    whole |= {"meta": {"billed_units": {"input_tokens": 0, "output_tokens": 0}}}
    if not wanted.stream:
        return WHOLE, [dump_json(whole)]
    events: list[Json] = [{"event_type": "stream-start", "is_finished": False, "generation_id": said.id}]
    if said.message.text:
        events.append({"event_type": "text-generation", "is_finished": False, "text": said.message.text})
    if calls:
        events.append({"event_type": "tool-calls-generation", "is_finished": False, "tool_calls": calls})
    end = {"event_type": "stream-end", "is_finished": True, "finish_reason": whole["finish_reason"]}
    events.append({**end, "response": whole})
    return (("content-type", "application/stream+json"),), [dump_json(event) + b"\n" for event in events]


def _imitate_provider_error(status: int, _asked: InjectedErrorParameters) -> tuple[Json, Headers]:
    limited = "You are using a Trial key, which is limited to 20 API calls / minute."
    text = limited if status == 429 else "internal server error"
    return {"id": "4f21b6ce-9a8e-4f9d-93f5-2c1ad7b8a1f3", "message": text}, ()


_V2_ERROR: Json = {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "internal server error"}}


def _is_finished(value: Json) -> bool:
    return value.get("is_finished") is True


DIALECT = ProviderApiDialect(
    {
        "v1.chat": ModelAnswerCodec(
            _add_answer_or_event, _is_finished, write=_write_v1_answer, text_whole=False, text_streamed=False,
            error_event=lambda _: ("", {"event_type": "stream-end", "is_finished": True, "finish_reason": "ERROR"}),
            layout=RequestBodyLayout(("chat_history", "message"), ("preamble",), results=("tool_results",)),
        ),
        "v1.generate": ModelAnswerCodec(_add_answer_or_event, _is_finished, layout=RequestBodyLayout(("prompt",))),
        "v2.chat": ModelAnswerCodec(
            _add_answer_or_event, build_event_type_predicate("message-end"), done=True, write=_write_answer,
            error_event=lambda _: ("message-end", _V2_ERROR),
        ),
    },
    lambda _status, _code, message: ((), {"message": message}), _imitate_provider_error,
    build_openai_stream_error_event,
)  # fmt: skip
