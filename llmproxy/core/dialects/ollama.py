"""Ollama's own API."""

from __future__ import annotations

from typing import Any

from llmproxy.core.dialects.answer_writing import LINES, WHOLE, dump_json, parse_tool_args
from llmproxy.core.dialects.dialect_table import (
    InjectedErrorParameters,
    Json,
    ModelAnswerCodec,
    ParsedRequestToAnswer,
    ProviderApiDialect,
    RequestBodyLayout,
    SpokenTurn,
)
from llmproxy.core.dialects.messages import Draft, as_dict, collect_tool_calls_into_draft
from llmproxy.core.traffic.interaction import Headers


def _add_message(draft: Draft, value: dict[str, Any]) -> None:
    message = as_dict(value.get("message"))
    draft.add_text(message.get("content"))
    draft.add_reasoning(message.get("thinking") or None)
    collect_tool_calls_into_draft(draft, message.get("tool_calls"), offset=True)
    draft.add_text(value.get("response"))


def _write_answer(said: SpokenTurn, wanted: ParsedRequestToAnswer) -> tuple[Headers, list[bytes]]:
    head = {"model": said.model, "created_at": "1970-01-01T00:00:00Z"}
    calls = [
        {"function": {"name": call.name, "arguments": parse_tool_args(call.arguments)}}
        for call in said.message.tool_calls
    ]
    message = {"role": "assistant", "content": said.message.text, **({"tool_calls": calls} if calls else {})}
    counts = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
              "eval_duration")  # fmt: skip
    end = {"done": True, "done_reason": "length" if said.finish == "length" else "stop", **dict.fromkeys(counts, 0)}
    if not wanted.stream:
        return WHOLE, [dump_json({**head, "message": message, **end})]
    last = {**head, "message": {"role": "assistant", "content": ""}, **end}
    return LINES, [dump_json(line) + b"\n" for line in ({**head, "message": message, "done": False}, last)]


def _build_provider_error(status: int, _asked: InjectedErrorParameters) -> tuple[Json, Headers]:
    busy = "server busy, please try again.  maximum pending requests exceeded"
    return {"error": busy if status in (429, 503, 529) else "llama runner process has terminated: exit status 2"}, ()


def _is_done(value: Json) -> bool:
    return value.get("done") is True


_TASK = ModelAnswerCodec(_add_message, lambda value: value.get("status") == "success")

DIALECT = ProviderApiDialect(
    {
        "api.chat": ModelAnswerCodec(
            _add_message, _is_done, write=_write_answer, text_whole=False, text_streamed=False
        ),
        "api.generate": ModelAnswerCodec(_add_message, _is_done, layout=RequestBodyLayout(("prompt",), ("system",))),
        **dict.fromkeys(("api.pull", "api.push", "api.create"), _TASK),
    },
    lambda _status, _code, message: ((), {"error": message}),  # of an object, JavaScript shows "[object Object]"
    _build_provider_error,
    lambda _number: ("", {"error": "an error was encountered while running the model: unexpected EOF"}),
)  # fmt: skip
