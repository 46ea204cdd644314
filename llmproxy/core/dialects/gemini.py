"""Gemini's generateContent, in Google's two services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmproxy.core.dialects.answer_writing import (
    SSE,
    WHOLE,
    choose_error_type_by_status,
    drop_none,
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
    ToolCallFormat,
    add_content_blocks_to_draft,
    as_dict,
    as_json,
    as_list,
    find_content_block_kind,
)
from llmproxy.core.traffic.interaction import Headers

PARTS: Mapping[str, ToolCallFormat | None] = {
    "functionCall": ToolCallFormat(arguments=("args",)),
    "function_call": ToolCallFormat(arguments=("args",)),
    "executableCode": ToolCallFormat("code_execution", ("code",), hosted=True),
    "executable_code": ToolCallFormat("code_execution", ("code",), hosted=True),
    "toolCall": ToolCallFormat("tool", ("args",), hosted=True),
    "tool_call": ToolCallFormat("tool", ("args",), hosted=True),
    **dict.fromkeys(
        (
            "text", "thought", "thoughtSignature", "thought_signature", "inlineData", "inline_data", "fileData",
            "file_data", "videoMetadata", "video_metadata", "functionResponse", "function_response",
            "codeExecutionResult", "code_execution_result", "toolResponse", "tool_response", "mediaResolution",
            "media_resolution", "partMetadata", "part_metadata",
        ),
    ),
}  # fmt: skip


def _add_candidates(draft: Draft, value: dict[str, Any]) -> None:
    value = as_dict(value.get("response")) or value
    draft.heard = draft.heard or "promptFeedback" in value
    for position, candidate in enumerate(map(as_dict, as_list(value.get("candidates")))):
        draft.heard = True
        first = candidate.get("index", position) in (0, None)
        for part in as_list(as_dict(candidate.get("content")).get("parts")):
            if first:
                add_content_blocks_to_draft(draft, [part])
            _record_hosted_or_unknown_part(draft, as_dict(part), first=first)


def _record_hosted_or_unknown_part(draft: Draft, part: dict[str, Any], *, first: bool) -> None:
    if (kind := find_content_block_kind(part, PARTS)) is None:
        draft.unknown[next(iter(part))] = None
        return
    asks, inner = PARTS[kind], as_dict(part.get(kind))
    if asks is None or (first and not asks.hosted):
        return
    name = str(inner.get("toolType") or "").lower() or asks.read_tool_name(inner)
    arguments = as_json(asks.read_call_arguments(inner))
    draft.add_call(len(draft.beside), inner.get("id"), name, arguments, hosted=asks.hosted, beside=True)


_WHY = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}


def _build_parts(message: Message, names: Mapping[str | None, str] | None = None) -> list[Json]:
    if message.tool_call_id is not None:
        name = (names or {}).get(message.tool_call_id, message.tool_call_id)
        return [{"functionResponse": {"name": name, "response": {"result": message.text}}}]
    parts: list[Json] = [{"text": message.text}] if message.text else []
    return parts + [
        {"functionCall": {"name": c.name, "args": parse_tool_args(c.arguments)}} for c in message.tool_calls
    ]


def _build_request(model: str, messages: Sequence[Message], stream: bool) -> tuple[str, Json]:
    how = "streamGenerateContent?alt=sse" if stream else "generateContent"
    system = [part for each in messages if each.role == "system" for part in _build_parts(each)]
    names = {call.id: call.name for each in messages for call in each.tool_calls}
    said = [
        {"role": "model" if each.role == "assistant" else "user", "parts": _build_parts(each, names)}
        for each in messages
        if each.role != "system"
    ]
    body: Json = {"contents": said, **({"systemInstruction": {"parts": system}} if system else {})}
    return f"https://generativelanguage.googleapis.com/v1beta/models/{model}:{how}", body


def _build_answer(said: SpokenTurn) -> Json:
    asked = said.find_token_count("promptTokenCount", "prompt_tokens", "input_tokens")
    replied = said.find_token_count("candidatesTokenCount", "completion_tokens", "output_tokens")
    counts = drop_none(promptTokenCount=asked, candidatesTokenCount=replied)
    total = {"totalTokenCount": (asked or 0) + (replied or 0)}
    candidate = {
        "content": {"role": "model", "parts": _build_parts(said.message)},
        "finishReason": "PROHIBITED_CONTENT" if said.finish == "refusal" else _WHY.get(said.why, said.why),
        "index": 0,
    }
    return {
        "candidates": [candidate],
        "usageMetadata": counts | total if counts else {},
        "modelVersion": said.model,
        "responseId": said.id,
    }


def _build_error(status: int, message: str, name: str = "") -> Json:
    name = name or choose_error_type_by_status(_STATUSES, status, "INVALID_ARGUMENT", "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}


def _write_answer(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    answer = _build_answer(said)
    if not wanted.stream:
        return WHOLE, [dump_json(answer)]
    if "alt=sse" in wanted.target:
        return SSE, [sse([("", answer)])]
    return WHOLE, [b"[", dump_json(answer), b"]"]


def _holds_finish_reason(value: Json) -> bool:
    inner = as_dict(value.get("response", value))  # Code Assist wraps it
    finished = any(as_dict(candidate).get("finishReason") for candidate in as_list(inner.get("candidates")))
    return finished or bool(as_dict(inner.get("promptFeedback")).get("blockReason"))


_OVERLOADED = "The model is overloaded. Please try again later."
# google.rpc.Code names as the Gemini API pairs them with HTTP statuses.
_STATUSES = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ABORTED", 429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}  # fmt: skip


def _build_provider_error(status: int, asked: InjectedErrorParameters) -> tuple[Json, Headers]:
    page = "https://developers.generativeai.google/guide/troubleshooting"
    internal = f"An internal error has occurred. Please retry or report in {page}"
    texts = {429: "Resource has been exhausted (e.g. check quota).", 503: _OVERLOADED, 529: _OVERLOADED}
    failed = _build_error(status, texts.get(status, internal))
    if status == 429:
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{asked.retry_after:g}s"}
        failed["error"]["details"] = [retry]
    return failed, ()


DIALECT = ProviderApiDialect(
    {
        "generateContent": ModelAnswerCodec(
            _add_candidates, finishes=_holds_finish_reason, write=_write_answer, text_whole=False, text_streamed=False,
            layout=RequestBodyLayout(("contents",), ("systemInstruction", "system_instruction"), wrapper="request"),
        )
    },
    # `code` is a number: with a string the AI SDK shows only "Not Found".
    lambda status, _code, message: ((), _build_error(status, message)),
    _build_provider_error, lambda _number: ("", _build_error(503, _OVERLOADED)),
    made_names=("cachedContents", "files", "operations", "tunedModels", "batches", "fileSearchStores"),
    speaker=ProviderRequestAndAnswerWriter(
        _build_request, _build_answer, lambda said: [("", _build_answer(said))],
        lambda error, status: _build_error(status, error.get("message", ""), error.get("type") or "UNKNOWN"),
    ),
)  # fmt: skip
