"""OpenAI's chat completions, which most servers, gateways and local models use, its Responses, Realtime and threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmproxy.core.dialects import messages
from llmproxy.core.dialects.answer_writing import SSE, WHOLE, build_event_type_predicate, drop_none, dump_json, sse
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
    read_tool_call_of_any_provider,
)
from llmproxy.core.traffic.interaction import Headers


def decode_chat_completion(draft: Draft, value: dict[str, Any]) -> None:
    """Add chat and other completions, whole or in chunks: choice 0, and the calls of other choices."""
    for position, choice in enumerate(map(as_dict, as_list(value.get("choices")))):
        index = choice.get("index", position)
        said = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
        for number, done in enumerate(map(as_dict, as_list(said.get("executed_tools")))):
            arguments = as_json(done.get("arguments"))
            name = as_str(done.get("name")) or as_str(done.get("type"))
            draft.add_call(("executed", index, number), None, name, arguments, hosted=True, beside=True)
        if index not in (0, None):
            messages.collect_tool_calls_into_draft(draft, said.get("tool_calls"), choice=index)
            if old := as_dict(said.get("function_call")):
                draft.add_call((index, "old"), None, old.get("name"), as_str(old.get("arguments")), beside=True)
            continue
        draft.heard = draft.heard or bool(choice)
        content = said.get("content")
        draft.add_text(content) if isinstance(content, str) else add_content_blocks_to_draft(draft, content)
        draft.add_text(said.get("refusal"))
        draft.add_text(choice.get("text"))
        draft.add_reasoning(said.get("reasoning_content", said.get("reasoning")))
        messages.collect_tool_calls_into_draft(draft, said.get("tool_calls"))
        if old := as_dict(said.get("function_call")):
            draft.add_call(0, None, old.get("name"), as_str(old.get("arguments")))


def _read_writer_completion(draft: Draft, value: dict[str, Any]) -> None:
    decode_chat_completion(draft, value)
    draft.add_text(value.get("value"))


def build_openai_tool_call_json(n: int, call: messages.ToolCall) -> Json:
    return {
        "id": call.id or f"call_{n}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _build_message(message: Message) -> Json:
    calls = [build_openai_tool_call_json(n, call) for n, call in enumerate(message.tool_calls)]
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
        events.append(chunk({"tool_calls": [{"index": n, **build_openai_tool_call_json(n, call)}]}))
    return [*events, chunk({}, said.why), ("", "[DONE]")]


def _write_answer(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    if not wanted.stream:
        return WHOLE, [dump_json(_build_answer(said))]
    events = _build_stream_events(said)
    if as_dict(wanted.request.get("stream_options")).get("include_usage"):
        head = {name: value for name, value in as_dict(events[0][1]).items() if name != "choices"}
        events.insert(-1, ("", {**head, "choices": [], "usage": said.usage}))
    return SSE, [sse([event]) for event in events]


_RPM = (
    "Rate limit reached for {model} on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in "
    "{wait:g}s. Visit https://platform.openai.com/account/rate-limits to learn more."
)
FAILED = "The server had an error while processing your request. Sorry about that!"


def build_openai_error_body(status: int, asked: InjectedErrorParameters) -> tuple[Json, Headers]:
    busy = "The engine is currently overloaded, please try again later."
    limited = _RPM.format(model=asked.model or "this model", wait=asked.retry_after)
    text, kind, code = {
        429: (limited, "requests", "rate_limit_exceeded"),
        503: (busy, "service_unavailable_error", None),
        529: (busy, "overloaded_error", None),
    }.get(status, (FAILED, "server_error", None))
    headers: Headers = (("retry-after-ms", f"{asked.retry_after * 1000:.0f}"),) if status == 429 else ()
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}, headers


def build_openai_stream_error_event(_number: int) -> tuple[str, Json]:
    return "", {"error": {"message": FAILED, "type": "server_error", "param": None, "code": None}}


_LAYOUT = RequestBodyLayout(tools=("tools", "functions"))
_PROMPT = RequestBodyLayout(("prompt", "inputs"))
_CHAT = ModelAnswerCodec(decode_chat_completion, done=True, write=_write_answer, layout=_LAYOUT)


# -- Responses, Realtime, threads: reading an answer


def _add_response(draft: Draft, value: dict[str, Any]) -> None:
    response = as_dict(value.get("response")) or value
    kind = as_str(value.get("type"))
    if output := as_list(response.get("output")):
        draft.text, draft.reasoning, draft.calls, draft.beside, draft.outputs = [], [], {}, {}, {}
        for number, item in enumerate(map(as_dict, output)):
            kept = (
                [item] if read_tool_call_of_any_provider(item) is not None or messages.is_thought_block(item) else None
            )
            add_content_blocks_to_draft(draft, item.get("content") if item.get("type") == "message" else kept)
            _record_hosted_or_unknown_item(draft, item, number)
    elif kind in ("response.output_text.delta", "response.refusal.delta"):
        draft.add_text(value.get("delta"))
    elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
        draft.add_reasoning(value.get("delta"))
    elif kind in ("response.output_item.added", "response.output_item.done"):
        item = as_dict(value.get("item"))
        if (call := read_tool_call_of_any_provider(item)) is not None:
            entry = draft.add_call(value.get("output_index"), call[0], call[1])
            if kind == "response.output_item.done":  # the item contains all of its deltas
                entry.pieces = [as_json(call[2])]
        _record_hosted_or_unknown_item(draft, item, value.get("output_index"))
    elif kind in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
        draft.add_call(value.get("output_index"), arguments=as_str(value.get("delta")))


def _record_hosted_or_unknown_item(draft: Draft, item: dict[str, Any], index: object) -> None:
    kind = as_str(item.get("type"))
    if kind not in messages.ITEMS:
        draft.unknown[kind or "an item without a type"] = None
        return
    draft.add_result(messages.read_tool_result_of_any_provider(item))
    if (asks := messages.find_tool_call_format_by_type(item)) is None:
        return
    name = asks.read_tool_name(item)
    call_id = item.get("call_id") or item.get("id")
    if read_tool_call_of_any_provider(item) is None:
        entry = draft.add_call(index, call_id, name, hosted=True, beside=True)
        entry.pieces, entry.pending = ([as_json(asks.read_call_arguments(item))], kind == "mcp_approval_request")
    elif messages.is_hosted_tool_call(item, asks):
        for entry in draft.calls.values():
            entry.hosted = entry.hosted or entry.id == call_id
    if kind == "mcp_call" and (item.get("output") is not None or item.get("error") is not None):
        failed = item.get("error") is not None
        said = item["error"] if failed else item["output"]
        draft.add_result(Message("tool", as_json(said), tool_call_id=as_str(call_id)), failed=failed)


_SPOKEN = frozenset({"response.output_text.delta", "response.text.delta", "response.output_audio_transcript.delta",
                     "response.audio_transcript.delta"})  # fmt: skip


def _add_realtime(draft: Draft, value: dict[str, Any]) -> None:
    """Add an event of a Realtime socket: only the last answer counts, speech as its transcript."""
    kind = as_str(value.get("type"))
    if kind == "response.created":
        draft.text, draft.reasoning, draft.calls = [], [], {}
    elif kind in _SPOKEN:
        draft.add_text(value.get("delta"))
    elif kind.startswith("response."):
        _add_response(draft, {name: member for name, member in value.items() if name != "response"})


def _add_assistant_message_delta(draft: Draft, value: dict[str, Any]) -> None:
    if value.get("object") == "thread.message.delta":
        for part in as_list(as_dict(value.get("delta")).get("content")):
            draft.add_text(as_dict(as_dict(part).get("text")).get("value"))


def _write_response(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    final = _build_response(said, wanted.request)
    if said.finish in _INCOMPLETE:
        final |= {"status": "incomplete", "incomplete_details": {"reason": _INCOMPLETE[said.finish]}}
    if not wanted.stream:
        return WHOLE, [dump_json(final)]
    events = [("response.created", {"response": {**final, "status": "in_progress", "output": [], "usage": None}})]
    for index, item in enumerate(final["output"]):
        events += _build_item_events(index, item)
    events.append((f"response.{final['status']}", {"response": final}))
    return SSE, [sse([(name, {"type": name, "sequence_number": n, **data})]) for n, (name, data) in enumerate(events)]


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def _build_response(said: SpokenTurn, tree: Json) -> Json:
    output: list[Json] = []
    if said.message.text or not said.message.tool_calls:
        part: Json = {"type": "output_text", "text": said.message.text, "annotations": [], "logprobs": []}
        if said.finish == "refusal":
            part = {"type": "refusal", "refusal": said.message.text}
        item = {"id": f"msg_{said.id}", "type": "message", "status": "completed", "role": "assistant"}
        output.append({**item, "content": [part]})
    for call in said.message.tool_calls:
        named = _split_namespace(call.name, tree)
        body = {"call_id": call.id, **named, "arguments": call.arguments, "status": "completed"}
        output.append({"id": f"fc_{call.id}", "type": "function_call", **body})
    echoed = {name: tree.get(name) for name in ("instructions", "previous_response_id", "metadata")}
    fixed = {"error": None, "incomplete_details": None, "parallel_tool_calls": True, "tools": tree.get("tools") or []}
    given: Json = {"input_tokens": 0, "input_tokens_details": {"cached_tokens": 0}}
    usage = {**given, "output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0}
    state = {"object": "response", "created_at": 0, "status": "completed"}
    head: Json = {"id": f"resp_{said.id}", **state, "model": said.model}
    return {**head, **echoed, **fixed, "tool_choice": tree.get("tool_choice", "auto"), "output": output, "usage": usage}


def _split_namespace(name: str, tree: Json) -> Json:
    """Return a tool's name, with its namespace if it is in one that the request offers."""
    asked = tree.get("input")
    places = [tree, *(asked if isinstance(asked, list) else ())]  # a tool search adds more
    tools = (as_dict(each).get("tools") for each in places)
    offered = [as_dict(tool) for some in tools if isinstance(some, list) for tool in some]
    if any(tool.get("name") == name for tool in offered):
        return {"name": name}
    spaces = [str(tool.get("name")) for tool in offered if tool.get("type") == "namespace"]
    space = max((each for each in spaces if name.startswith(each + messages.NAMESPACE)), key=len, default="")
    return {"namespace": space, "name": name.removeprefix(space + messages.NAMESPACE)} if space else {"name": name}


def _build_item_events(index: int, item: Json) -> list[tuple[str, Json]]:
    where = {"output_index": index, "item_id": item["id"]}
    spoken = item["type"] == "message"
    empty: Json = {"content": []} if spoken else {"arguments": ""}
    events: list[tuple[str, Json]] = [
        ("response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", **empty}})
    ]
    if spoken:
        part, here = item["content"][0], {**where, "content_index": 0}
        name = "text" if part["type"] == "output_text" else "refusal"
        logged: Json = {"logprobs": []} if name == "text" else {}
        events += [
            ("response.content_part.added", {**here, "part": {**part, name: ""}}),
            (f"response.{part['type']}.delta", {**here, "delta": part[name], **logged}),
            (f"response.{part['type']}.done", {**here, name: part[name], **logged}),
            ("response.content_part.done", {**here, "part": part}),
        ]
    else:
        events += [
            ("response.function_call_arguments.delta", {**where, "delta": item["arguments"]}),
            ("response.function_call_arguments.done", {**where, "name": item["name"], "arguments": item["arguments"]}),
        ]
    return [*events, ("response.output_item.done", {"output_index": index, "item": item})]


_ERROR: Json = {"type": "error", "code": "server_error", "message": FAILED, "param": None}
_THREAD = ModelAnswerCodec(
    _add_assistant_message_delta,
    done=True,
    below=True,
    layout=RequestBodyLayout(("messages", "content"), ("instructions",)),
)

DIALECT = ProviderApiDialect(
    {
        **dict.fromkeys(("chat.completions", "fim.completions", "agents.completions"), _CHAT),
        "completions": ModelAnswerCodec(decode_chat_completion, done=True, layout=_PROMPT),
        "writer.chat": ModelAnswerCodec(decode_chat_completion, write=_write_answer, layout=_LAYOUT),
        "writer.completions": ModelAnswerCodec(_read_writer_completion, layout=_PROMPT),
        "generate": ModelAnswerCodec(decode_chat_completion, layout=_PROMPT),
        "images.generations": ModelAnswerCodec(
            decode_chat_completion, build_event_type_predicate("image_generation.completed"), layout=_PROMPT
        ),
        "images.edits": ModelAnswerCodec(decode_chat_completion, build_event_type_predicate("image_edit.completed")),
        "audio.transcriptions": ModelAnswerCodec(
            decode_chat_completion, build_event_type_predicate("transcript.text.done")
        ),
        "responses": ModelAnswerCodec(
            _add_response,
            build_event_type_predicate(
                "response.completed", "response.incomplete", "response.failed", "response.cancelled"
            ),
            below=True, write=_write_response, layout=RequestBodyLayout(("input",), ("instructions",)),
            error_event=lambda number: ("error", _ERROR | {"sequence_number": number}),
        ),
        "realtime": ModelAnswerCodec(_add_realtime),
        "threads": _THREAD,
        "threads.runs": replace(_THREAD, makes_ids=True),
    },
    lambda _status, code, message: ((), {"error": {"message": message, "type": code, "param": None, "code": code}}),
    build_openai_error_body, build_openai_stream_error_event, reasoning_apart=True,
    speaker=ProviderRequestAndAnswerWriter(
        _build_request, _build_answer, _build_stream_events,
        lambda error, _status: {"error": {"message": "", "type": None, "param": None, "code": None} | error},
    ),
)  # fmt: skip
