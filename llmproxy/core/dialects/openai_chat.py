"""OpenAI's chat completions, and compatible dialects: most servers, gateways and local models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmproxy.core.dialects.answers import SSE, WHOLE, drop_none, dump_json, make_event_type_check, sse
from llmproxy.core.dialects.codecs import (
    AnswerForm,
    BodyLayout,
    Codec,
    Composer,
    Dialect,
    FailedCallFacts,
    Json,
    SpokenTurn,
)
from llmproxy.core.dialects.messages import (
    Draft,
    Message,
    ToolCall,
    add_blocks,
    add_tool_calls,
    as_dict,
    as_json,
    as_list,
    as_str,
)
from llmproxy.core.traffic.interaction import Headers

# -- reading an answer


def add_chat_completion(draft: Draft, value: dict[str, Any]) -> None:
    """Add chat and other completions, whole or in chunks: choice 0, and the calls of other choices."""
    for position, choice in enumerate(map(as_dict, as_list(value.get("choices")))):
        index = choice.get("index", position)
        said = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
        for number, done in enumerate(map(as_dict, as_list(said.get("executed_tools")))):
            arguments = as_json(done.get("arguments"))
            name = as_str(done.get("name")) or as_str(done.get("type"))
            draft.add_call(("executed", index, number), None, name, arguments, hosted=True, beside=True)
        if index not in (0, None):
            add_tool_calls(draft, said.get("tool_calls"), choice=index)
            if old := as_dict(said.get("function_call")):
                draft.add_call((index, "old"), None, old.get("name"), as_str(old.get("arguments")), beside=True)
            continue
        draft.heard = draft.heard or bool(choice)
        content = said.get("content")
        draft.add_text(content) if isinstance(content, str) else add_blocks(draft, content)
        draft.add_text(said.get("refusal"))
        draft.add_text(choice.get("text"))
        draft.add_reasoning(said.get("reasoning_content", said.get("reasoning")))
        add_tool_calls(draft, said.get("tool_calls"))
        if old := as_dict(said.get("function_call")):
            draft.add_call(0, None, old.get("name"), as_str(old.get("arguments")))


def _read_writer_completion(draft: Draft, value: dict[str, Any]) -> None:
    """Add Writer's completions: bare values when streamed."""
    add_chat_completion(draft, value)
    draft.add_text(value.get("value"))


# -- writing


def build_tool_call(n: int, call: ToolCall) -> Json:
    return {
        "id": call.id or f"call_{n}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _build_message(message: Message) -> Json:
    calls = [build_tool_call(n, call) for n, call in enumerate(message.tool_calls)]
    return drop_none(
        role=message.role,
        content=message.text or (None if calls else ""),
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
    ) | ({"content": None} if calls and not message.text else {})


def _build_request(model: str, messages: Sequence[Message], stream: bool) -> tuple[str, Json]:
    body: Json = {"model": model, "messages": [_build_message(each) for each in messages]}
    return "https://api.openai.com/v1/chat/completions", body | ({"stream": True} if stream else {})


def _build_usage(said: SpokenTurn) -> Json | None:
    asked = said.find_token_count("prompt_tokens", "input_tokens", "promptTokenCount")
    replied = said.find_token_count("completion_tokens", "output_tokens", "candidatesTokenCount")
    if asked is None and replied is None:
        return None
    total = said.find_token_count("total_tokens", "totalTokenCount") or (asked or 0) + (replied or 0)
    details = {name: said.usage[name] for name in ("prompt_tokens_details", "completion_tokens_details")
               if isinstance(said.usage.get(name), dict)}  # fmt: skip
    return {"prompt_tokens": asked or 0, "completion_tokens": replied or 0, "total_tokens": total, **details}


def _build_answer(said: SpokenTurn) -> Json:
    message = {**_build_message(said.message), "role": "assistant", "refusal": None}
    if said.finish == "refusal":
        message |= {"content": None, "refusal": said.message.text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": said.why}
    head: Json = {"id": f"chatcmpl-{said.id}", "object": "chat.completion", "created": 0, "model": said.model}
    return head | {"choices": [choice]} | drop_none(usage=_build_usage(said))


def _build_stream_events(said: SpokenTurn) -> list[tuple[str, object]]:
    head: Json = {"id": f"chatcmpl-{said.id}", "object": "chat.completion.chunk", "created": 0, "model": said.model}

    def chunk(delta: Json, why: str | None = None) -> tuple[str, object]:
        return "", head | {"choices": [{"index": 0, "delta": delta, "finish_reason": why}]}

    events = [chunk({"role": "assistant", "content": ""})]
    if said.message.text:
        events.append(chunk({"refusal" if said.finish == "refusal" else "content": said.message.text}))
    for n, call in enumerate(said.message.tool_calls):
        events.append(chunk({"tool_calls": [{"index": n, **build_tool_call(n, call)}]}))
    return [*events, chunk({}, said.why), ("", "[DONE]")]


def _write_answer(said: SpokenTurn, wanted: AnswerForm) -> tuple[Headers, list[bytes]]:
    if not wanted.stream:
        return WHOLE, [dump_json(_build_answer(said))]
    events = _build_stream_events(said)
    if as_dict(wanted.request.get("stream_options")).get("include_usage"):
        head = {name: value for name, value in as_dict(events[0][1]).items() if name != "choices"}
        events.insert(-1, ("", {**head, "choices": [], "usage": said.usage}))
    return SSE, [sse([event]) for event in events]


# -- errors


def write_error(_status: int, code: str, message: str) -> tuple[Headers, object]:
    return (), {"error": {"message": message, "type": code, "param": None, "code": code}}


_RPM = (
    "Rate limit reached for {model} on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in "
    "{wait:g}s. Visit https://platform.openai.com/account/rate-limits to learn more."
)
FAILED = "The server had an error while processing your request. Sorry about that!"


def write_failure(status: int, asked: FailedCallFacts) -> tuple[Json, Headers]:
    busy = "The engine is currently overloaded, please try again later."
    limited = _RPM.format(model=asked.model or "this model", wait=asked.retry_after)
    text, kind, code = {
        429: (limited, "requests", "rate_limit_exceeded"),
        503: (busy, "service_unavailable_error", None),
        529: (busy, "overloaded_error", None),
    }.get(status, (FAILED, "server_error", None))
    headers: Headers = (("retry-after-ms", f"{asked.retry_after * 1000:.0f}"),) if status == 429 else ()
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}, headers


def build_error_event(_number: int) -> tuple[str, Json]:
    return "", {"error": {"message": FAILED, "type": "server_error", "param": None, "code": None}}


_LAYOUT = BodyLayout(tools=("tools", "functions"))
_PROMPT = BodyLayout(("prompt", "inputs"))
_CHAT = Codec(add_chat_completion, done=True, write=_write_answer, layout=_LAYOUT)

DIALECT = Dialect(
    {
        **dict.fromkeys(("chat.completions", "fim.completions", "agents.completions"), _CHAT),
        "completions": Codec(add_chat_completion, done=True, layout=_PROMPT),
        "writer.chat": Codec(add_chat_completion, write=_write_answer, layout=_LAYOUT),
        "writer.completions": Codec(_read_writer_completion, layout=_PROMPT),
        "generate": Codec(add_chat_completion, layout=_PROMPT),
        "images.generations": Codec(
            add_chat_completion, make_event_type_check("image_generation.completed"), layout=_PROMPT
        ),
        "images.edits": Codec(add_chat_completion, make_event_type_check("image_edit.completed")),
        "audio.transcriptions": Codec(add_chat_completion, make_event_type_check("transcript.text.done")),
    },
    write_error, write_failure, build_error_event, reasoning_apart=True,
    speaker=Composer(
        _build_request, _build_answer, _build_stream_events,
        lambda error, _status: {"error": {"message": "", "type": None, "param": None, "code": None} | error},
    ),
)  # fmt: skip
