"""Complete but bad answers of a model, or of its provider.

The content is read from the recorded answer, changed, and written in the provider's format (`dialects.answers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmproxy.core.dialects.answers import can_write_answer, dump_json, write_answer, writes_text_arguments
from llmproxy.core.dialects.conversation import read_response_message
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.dialects.usage_and_cost import read_usage
from llmproxy.core.faults.answer_pieces import time_pieces, with_pieces
from llmproxy.core.faults.rules import CandidateCall, FaultKind, FaultyAnswer, Values
from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.core.traffic.interaction import Chunk, without

Change = Callable[[Message, CandidateCall], tuple[Message, str] | None]
"""Returns the new content and OpenAI's finish reason (empty: the matching one); None if nothing can be changed."""

REFUSED = "I'm sorry, but I can't help with that."


def _build_kind(name: str, about: str, sound: str, change: Change) -> FaultKind:
    def do(call: CandidateCall, _values: Values) -> FaultyAnswer | None:
        answer = call.answer()
        if answer is None or not 200 <= answer.status < 300 or not can_write_answer(call.operation):
            return None
        said = read_response_message(call.operation, answer)
        changed = None if said is None else change(said, call)
        if changed is None:
            return None
        used = read_usage(call.family, call.operation, answer.mime_type, answer.body, answer.headers)
        tokens = {"prompt_tokens": used.input or 0, "completion_tokens": used.output or 0}
        message, finish = changed
        made = write_answer(
            call.operation, call.body, call.target, call.model, message, stream=call.stream, call=call.nth,
            finish=finish, usage={**tokens, "total_tokens": sum(tokens.values())},
        )  # fmt: skip
        headers = (*without(answer.headers, "content-type"), ("content-type", made.mime_type))
        last = time_pieces(answer, call.speed)
        at = last[-1].offset if last else 0
        pieces = [Chunk(at, each.data) for each in made.chunks]
        return FaultyAnswer(
            with_pieces(replace(made, headers=headers, head_offset=answer.head_offset), pieces, call.speed)
        )

    return FaultKind(name, about, sound, do, needs_answer=True, again=False)


def _halve(text: str) -> str:
    return text[: (len(text) + 1) // 2]


def _cut_at_length(said: Message, call: CandidateCall) -> tuple[Message, str] | None:
    if said.text:
        return Message("assistant", _halve(said.text)), "length"
    cut = _truncate_arguments(said, call)
    return None if cut is None else (cut[0], "length")


def _list_agent_calls(said: Message) -> tuple[ToolCall, ...]:
    return tuple(call for call in said.tool_calls if not call.hosted)


def _truncate_arguments(said: Message, call: CandidateCall) -> tuple[Message, str] | None:
    if not (calls := _list_agent_calls(said)):
        return None
    last = calls[-1]
    cut = _halve if writes_text_arguments(call.operation, stream=call.stream) else _drop_last_argument
    return replace(said, tool_calls=(*calls[:-1], replace(last, arguments=cut(last.arguments)))), ""


def _drop_last_argument(arguments: str) -> str:
    """Return arguments without the last one, for dialects that send an object, whose text cannot be cut."""
    value = parse_json(arguments)
    return dump_json(dict(list(value.items())[:-1])).decode() if isinstance(value, dict) else "{}"


def _duplicate_call(said: Message, _call: CandidateCall) -> tuple[Message, str] | None:
    calls = _list_agent_calls(said)
    return (replace(said, tool_calls=(*calls, replace(calls[-1], id=None))), "") if calls else None


def _misname_tool(said: Message, _call: CandidateCall) -> tuple[Message, str] | None:
    if not (calls := _list_agent_calls(said)):
        return None
    return replace(said, tool_calls=(replace(calls[0], name=f"{calls[0].name}_v2"), *calls[1:])), ""


_ERROR_RESULT = "returns an error to the model as the tool's result, retries, or reports it; does not run the tool"


ROWS = (
    _build_kind(
        "empty-answer", "an answer without text and without tool calls", "retries, or reports that the answer is empty",
        lambda _said, _call: (Message("assistant", ""), ""),
    ),
    _build_kind(
        "length", "half of the answer, with the finish reason of a token limit",
        "does not use the half as an answer: asks for the rest, retries, or reports the limit", _cut_at_length,
    ),
    _build_kind(
        "content-filter", "half of the answer, with the finish reason of the provider's content filter",
        "does not show the half as an answer; reports the content filter",
        lambda said, _call: (Message("assistant", _halve(said.text)), "content_filter"),
    ),
    _build_kind(
        "refusal", "the model refuses, in the provider's format", "reports a refusal, not a result",
        lambda _said, _call: (Message("assistant", REFUSED), "refusal"),
    ),
    _build_kind("truncated-arguments", "a tool call with truncated arguments", _ERROR_RESULT, _truncate_arguments),
    _build_kind(
        "duplicate-call", "the same tool call twice in one answer",
        "runs the call once, unless a second run is harmless", _duplicate_call,
    ),
    _build_kind(
        "unknown-tool", "a call of a tool that does not exist: the name with _v2", _ERROR_RESULT, _misname_tool,
    ),
)  # fmt: skip
