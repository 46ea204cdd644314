"""One decoded interaction: request, answer, tools, timing. Nothing raises on invalid input.

An agent sends the whole conversation again with each request: the messages in common with a recent one are reused, same
messages, same objects.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Any

from llmproxy.core.dialects.conversation import read_request_messages
from llmproxy.core.dialects.dialect_table import get_dialect_codec_or_default
from llmproxy.core.dialects.messages import (
    SCHEMAS,
    Draft,
    Message,
    ToolCall,
    as_dict,
    as_list,
    convert_conversation_entry,
    extract_content_text,
)
from llmproxy.core.dialects.stream_events import SSEParser, list_stream_events
from llmproxy.core.dialects.usage_and_cost import LIMITS, compute_cost
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Ending, Interaction, Response, Usage, header
from llmproxy.trace.span_models import Span, TokenUsage

_DEPTH = 8  # of a value searched for texts
_REMEMBERED = 16  # requests
_LARGEST = 1 << 18
"""Maximum bytes of a cached body, so that the cache has at most some megabytes."""
# A request with one of these is read as a whole: its conversation is not in `messages` alone.
_ELSEWHERE = frozenset({"instructions", "systemInstruction", "system_instruction", "preamble", "chat_history",
                        "contents", "input", "message", "prompt", "inputText", "inputs", "query", "texts", "content",
                        "instances", "request"})  # fmt: skip
_FIRST_CHUNKS = 64  # of a stream that are searched for the first token
_FIRST_BYTES = 1 << 16
CLIENT_ERROR = 400
_DEEPEST = 8  # of a schema whose names are read
_PARAMETERS = (
    ("gen_ai.request.temperature", ("temperature",)),
    ("gen_ai.request.top_p", ("top_p", "topP", "p")),
    ("gen_ai.request.top_k", ("top_k", "topK", "k")),
    ("gen_ai.request.max_tokens", LIMITS),
    ("gen_ai.request.frequency_penalty", ("frequency_penalty", "frequencyPenalty")),
    ("gen_ai.request.presence_penalty", ("presence_penalty", "presencePenalty")),
    ("gen_ai.request.stop_sequences", ("stop", "stop_sequences", "stopSequences")),
    ("gen_ai.request.seed", ("seed",)),
    ("gen_ai.request.choice.count", ("n", "candidateCount")),
)  # fmt: skip
_HOLDERS = ("generationConfig", "generation_config", "inferenceConfig", "options")
_REASONS = frozenset({"finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason", "completionReason"})
_ENDS = 6  # events searched at either end of a stream
_PIECES = ("content_block_start", "content_block_delta", "response.output_item.added")
_PROVIDERS = {row.name: row.otel for row in PROVIDERS.values() if row.otel} | {"watsonx": "ibm.watsonx.ai"}


def derive_span_id(interaction: Interaction, part: str) -> str:
    i = interaction
    text = f"{i.cassette}\0{i.sample}\0{i.party}\0{i.key}\0{i.occurrence}\0{i.started_at!r}\0{part}"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def convert_usage_for_trace(usage: Usage) -> TokenUsage:
    """Return tokens as counted by the trace: the prompt is its fresh part, the total all of them."""
    fresh = None if usage.input is None else max(usage.input - (usage.cached or 0) - (usage.cache_written or 0), 0)
    total = None if usage.input is None or usage.output is None else usage.input + usage.output
    return TokenUsage(fresh, usage.output, total, usage.cached, usage.cache_written)


def set_span_arguments(span: Span, call: ToolCall) -> None:
    """Set the arguments; anything but a JSON object is kept as text, and marked."""
    try:
        value = _parse_json_without_nan(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        span.input = call.arguments
        span.metadata["llmproxy.arguments"] = "not JSON"
        return
    if isinstance(value, dict):
        span.tool_args = value
    else:
        span.input = value
        span.metadata["llmproxy.arguments"] = "not an object"


def parse_result_json_or_text(text: str) -> Any:
    try:
        return _parse_json_without_nan(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return text


def _parse_json_without_nan(text: str) -> Any:
    """Return a JSON value by the standard: Python accepts NaN and 1e999 too. Raises ValueError."""
    value = json.loads(text)
    json.dumps(value, allow_nan=False)
    return value


def join_nested_strings(value: Any, depth: int = 0) -> str:
    if isinstance(value, str):
        return value
    if depth > _DEPTH:
        return ""
    parts: Iterable[Any] = value.values() if isinstance(value, dict) else as_list(value)
    return "\n".join(join_nested_strings(part, depth + 1) for part in parts)


def find_tool_name(exchange: DecodedExchange, call_id: str | None) -> str | None:
    """Return the tool of a call that occurs only in the request's history."""
    calls = [call for message in exchange.messages for call in message.tool_calls]
    named = next((call.name for call in calls if call_id and call.id == call_id), None)
    return named or (call_id if any(call.name == call_id for call in calls) else None)


class RequestMessageCache:
    def __init__(self) -> None:
        self._recent: deque[tuple[list[Any], list[list[Message]]]] = deque(maxlen=_REMEMBERED)

    def read_messages(self, interaction: Interaction, tree: dict[str, Any]) -> Sequence[Message]:
        entries = tree.get("messages")
        if not isinstance(entries, list) or tree.keys() & _ELSEWHERE:
            return read_request_messages(interaction.request.body)
        read = self._reuse_read_entries(entries)
        if len(interaction.request.body) <= _LARGEST:
            self._recent.append((entries, read))
        system = extract_content_text(tree["system"]) if tree.get("system") else ""
        messages = [Message("system", system)] if system else []
        messages += [message for found in read for message in found if is_nonempty_message(message)]
        return messages

    def _reuse_read_entries(self, entries: list[Any]) -> list[list[Message]]:
        best: list[list[Message]] = []
        source = None
        for number in range(len(self._recent) - 1, -1, -1):
            known, read = self._recent[number]
            most = min(len(known), len(entries))
            same = next((n for n in range(most) if known[n] != entries[n]), most)
            if same > len(best):
                best, source = read[:same], number
            if same == len(known):
                break  # the request before this one of the same conversation
        if source is not None:
            del self._recent[source]  # what goes on with it takes its place
        return best + [convert_conversation_entry(entry) for entry in entries[len(best) :]]


def convert_neutral_message_to_dict(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
        ]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        plain["reasoning"] = message.reasoning
    return plain


def is_nonempty_message(message: Message) -> bool:
    return bool(message.text or message.tool_calls or message.reasoning or message.tool_call_id)


@dataclass(frozen=True, slots=True)
class DecodedExchange:
    interaction: Interaction
    tree: dict[str, Any]
    messages: Sequence[Message]
    answer: Message | None
    tools: frozenset[str]
    answer_model: str | None
    answer_id: str | None
    finish_reasons: tuple[str, ...]
    error: str | None
    duration_ms: float | None
    """Milliseconds from the request's release to the last byte; None without recorded times."""
    first_token_ms: float | None
    """Milliseconds to the first text, reasoning or tool call of a stream; None without stream or times."""

    @property
    def failed(self) -> bool:
        """Whether the answer is incomplete or an error, so that a client would retry."""
        response = self.interaction.response
        return response.status >= CLIENT_ERROR or response.ending is not Ending.COMPLETE or self.error is not None

    @property
    def unread_reason(self) -> str:
        """Reason why a complete answer of a model cannot be read, or not fully; empty if it can."""
        if self.answer is None and not self.finish_reasons:
            kind = header(self.interaction.response.headers, "content-type") or "no content-type"
            return f"could not be read as an answer of {self.interaction.operation} ({kind})"
        if self.answer is not None and self.answer.unknown:
            return f"holds what is not known, and may call a tool: {', '.join(self.answer.unknown)}"
        return ""

    @property
    def cost(self) -> Decimal | None:
        """US dollars, at the requested model's price, else the answering one's; None without a price."""
        asked = self.interaction
        costs = (compute_cost(asked.provider, model, asked.usage) for model in (asked.model, self.answer_model))
        return next((cost for cost in costs if cost is not None), None)


def decode_interaction_to_messages(interaction: Interaction, history: RequestMessageCache) -> DecodedExchange:
    response = interaction.response
    kind = response.mime_type
    events = [value for value in list_stream_events(kind, response.body) if isinstance(value, dict)]
    tree = as_dict(parse_json_or_none(interaction.request.body))
    timed = response.head_offset > 0 or any(chunk.offset for chunk in response.chunks)
    last = response.chunks[-1].offset if response.chunks else response.head_offset
    model, answer_id, finished = _read_model_id_and_finish(events)
    return DecodedExchange(
        interaction=interaction, tree=tree, messages=history.read_messages(interaction, tree),
        answer=_read_answer(interaction.operation, events) if response.status < CLIENT_ERROR else None,
        tools=list_declared_tool_names(tree), answer_model=model, answer_id=answer_id, finish_reasons=finished,
        error=_describe_error(response, events), duration_ms=last / 1000 if timed else None,
        first_token_ms=_measure_first_token(interaction, kind) if timed and interaction.stream else None,
    )  # fmt: skip


def _read_answer(operation: str, events: Sequence[dict[str, Any]]) -> Message | None:
    draft, add = Draft(), get_dialect_codec_or_default(operation).add
    for value in events:
        add(draft, value)
    return draft.build_message() if draft.heard or draft.unknown else None


def _measure_first_token(interaction: Interaction, kind: str) -> float | None:
    draft, add = Draft(), get_dialect_codec_or_default(interaction.operation).add
    parser, data, seen = SSEParser(), b"", 0
    sse = kind.startswith("text/event-stream")
    for chunk in interaction.response.chunks[:_FIRST_CHUNKS]:
        data += chunk.data
        if sse:
            values = [parse_json_or_none(event.data) for event in parser.parse_bytes(chunk.data)]
        else:  # what other framings have so far is read anew with each chunk; the first words come soon
            values = list_stream_events(kind, data)[seen:]
            seen += len(values)
        for value in values:
            if isinstance(value, dict):
                add(draft, value)
        if any(draft.text) or any(draft.reasoning) or draft.calls:
            return chunk.offset / 1000
        if len(data) > _FIRST_BYTES:
            break
    return None


def list_declared_tool_names(tree: dict[str, Any]) -> frozenset[str]:
    return frozenset(name for name, _ in walk_declared_tools(tree))


def list_declared_argument_names(tree: dict[str, Any]) -> dict[str, dict[tuple[str, ...], frozenset[str]]]:
    """Return argument names of each declared tool by path, () for the top; list items count as the list."""
    properties = ((name, _find_properties(tool)) for name, tool in walk_declared_tools(tree))
    return {name: _list_schema_argument_names(arguments) for name, arguments in properties if arguments}


def _list_schema_argument_names(
    properties: dict[str, Any], place: tuple[str, ...] = ()
) -> dict[tuple[str, ...], frozenset[str]]:
    found = {place: frozenset(properties)}
    for name, schema in properties.items() if len(place) < _DEEPEST else ():
        inner = as_dict(schema)
        while "items" in inner:
            inner = as_dict(inner["items"])
        if below := as_dict(inner.get("properties")):
            found |= _list_schema_argument_names(below, (*place, name))
    return found


def _find_properties(tool: dict[str, Any]) -> dict[str, Any]:
    for key in SCHEMAS:
        schema = as_dict(tool.get(key))
        if properties := as_dict((as_dict(schema.get("json")) or schema).get("properties")):
            return properties
    return as_dict(tool.get("parameter_definitions"))


def walk_declared_tools(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and declaration of each tool of a request; a provider's own tool is named by its type."""
    lists = (tree.get("tools"), tree.get("functions"), as_dict(tree.get("toolConfig")).get("tools"),
             as_dict(tree.get("tool_config")).get("tools"), as_dict(tree.get("request")).get("tools"))  # fmt: skip
    for entry in (each for found in lists for each in as_list(found)):
        tool = as_dict(entry)
        inner = as_dict(tool.get("function")) or as_dict(tool.get("toolSpec")) or tool
        several = as_list(tool.get("functionDeclarations")) or as_list(tool.get("function_declarations"))
        for one in map(as_dict, several or [inner]):
            name = one.get("name") or one.get("type") or next(iter(one), None)
            if isinstance(name, str):
                yield name, one


def read_model_parameters(tree: dict[str, Any]) -> dict[str, Any]:
    holders = [tree, *(tree[name] for name in _HOLDERS if isinstance(tree.get(name), dict))]
    found: dict[str, Any] = {}
    for attribute, names in _PARAMETERS:
        value = next((holder[name] for holder in holders for name in names if holder.get(name) is not None), None)
        if attribute.endswith("stop_sequences") and isinstance(value, str):
            value = [value]
        if isinstance(value, int | float | list) and not isinstance(value, bool):
            found[attribute] = value
    return found


def list_ids_of_continued_state(tree: dict[str, Any]) -> tuple[str, ...]:
    """Return ids of server-side state that a request continues: an answer, a conversation."""
    conversation = tree.get("conversation")
    candidates = (tree.get("previous_response_id"), as_dict(conversation).get("id") or conversation)
    return tuple(name for name in candidates if isinstance(name, str) and name)


def _walk_finish_reasons(value: dict[str, Any]) -> Iterator[str]:
    places = [value, *(each for name in ("choices", "candidates", "results") for each in as_list(value.get(name)))]
    for place in map(as_dict, [*places, value.get("delta"), value.get("messageStop")]):
        for name in place.keys() & _REASONS:
            if isinstance(place[name], str) and place[name]:
                yield place[name]


def _read_model_id_and_finish(events: Sequence[dict[str, Any]]) -> tuple[str | None, str | None, tuple[str, ...]]:
    model = answer_id = None
    reasons: dict[str, None] = {}
    for value in events if len(events) <= _ENDS * 2 else (*events[:_ENDS], *events[-_ENDS:]):
        inner = as_dict(value.get("response")) or as_dict(value.get("message"))
        for place in (value, inner):
            model = model or _first_text_member(place, "model", "modelVersion")
            if answer_id is None and place.get("type") not in _PIECES:
                answer_id = _first_text_member(place, "id", "responseId", "response_id", "generation_id")
        reasons.update(dict.fromkeys(_walk_finish_reasons(value)))
        if "stop_reason" in inner or "candidates" in inner:
            reasons.update(dict.fromkeys(_walk_finish_reasons(inner)))
        state = inner if inner.get("object") == "response" else value
        if state.get("object") == "response" and state.get("status") in ("completed", "incomplete", "failed"):
            reasons[_first_text_member(as_dict(state.get("incomplete_details")), "reason") or state["status"]] = None
    return model and model.removeprefix("models/"), answer_id, tuple(reasons)


def _first_text_member(value: dict[str, Any], *names: str) -> str | None:
    return next((value[name] for name in names if isinstance(value.get(name), str) and value[name]), None)


def _describe_error(response: Response, events: Sequence[dict[str, Any]]) -> str | None:
    told = next((said for value in events[-4:] if (said := _find_error_text(value))), None)
    if response.status >= CLIENT_ERROR:
        said = told or (_first_text_member(events[0], "message", "detail") if events else None) or response.reason
        return f"HTTP {response.status}: {said}".rstrip(": ")
    if told is not None:
        return told
    return None if response.ending is Ending.COMPLETE else f"the answer is {response.ending.value}"


def _find_error_text(value: dict[str, Any]) -> str | None:
    for holder in (value, as_dict(value.get("response"))):
        error = holder.get("error")
        if isinstance(error, str) and error:
            return error
        if isinstance(error, dict) and error:
            return _first_text_member(error, "message", "type", "code") or "error"
    if exception := as_dict(value.get("exception")):
        told = _first_text_member(as_dict(exception.get("body")), "message")
        return told or _first_text_member(exception, "type") or "exception"
    return None


def map_to_otel_provider_name(provider: str) -> str:
    return _PROVIDERS.get(provider, provider)
