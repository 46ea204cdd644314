"""Check whether the model could give a recorded answer to a changed request; an impossible one is never carried.

    answer, recorded and present parameters and tools -> why it is impossible today; empty if it is possible

It is impossible if it calls a tool that is not offered, or with arguments that today's schema refuses; if its
structured output does not validate; or if tool_choice, n, stop, modalities, the stream flag or a token limit do not
allow it. A change that is not understood makes it impossible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llmproxy.core.changes.request_parsing import ParsedRequest
from llmproxy.core.dialects.answers import parse_arguments
from llmproxy.core.dialects.conversation import Kind
from llmproxy.core.dialects.messages import SCHEMAS, Message, as_dict, as_list, as_str
from llmproxy.core.dialects.usage_and_cost import LIMITS

_LIMITS = frozenset({*LIMITS, "max_tokens_to_sample"})
_COUNTS = frozenset({"n", "candidateCount", "candidate_count", "num_generations"})
_STOPS = frozenset({"stop", "stop_sequences", "stopSequences", "stop_sequence"})
_KINDS = frozenset({
    "modalities", "responseModalities", "response_modalities", "audio", "speechConfig", "logprobs", "top_logprobs",
    "responseLogprobs", "include", "echo", "background", "stream_options", "web_search_options",
})  # fmt: skip
"""Parameters that determine the content of an answer."""
_CHOICES = frozenset(
    {"tool_choice", "toolChoice", "toolConfig", "tool_config", "function_call", "functionCallingConfig"}
)
_FORMATS = frozenset({
    "response_format", "format", "responseSchema", "response_schema", "responseJsonSchema", "response_json_schema",
    "responseMimeType", "response_mime_type", "output_format", "output_config", "text",
})  # fmt: skip
_ASKING = frozenset({
    "prompt", "message", "messages", "input", "inputs", "query", "context", "suffix", "template", "variables",
    "documents", "files", "images", "image", "instances", "prediction",
})  # fmt: skip
"""Parameters that may contain the question or the conversation before it."""
_GROUPS = frozenset({"generationConfig", "generation_config", "inferenceConfig", "options", "text", "output_config"})
"""Parameters whose members are parameters."""


def explain_impossible(said: Message, output: int | None, was: ParsedRequest, now: ParsedRequest) -> str:
    """Return why today's request cannot get a recorded answer; empty if it can.

    `output`: number of generated tokens; None if unknown.
    """
    if was.canonical.stream != now.canonical.stream:
        return f"stream is {str(now.canonical.stream).lower()} now"
    before, after = dict(_list_parameters(was)), dict(_list_parameters(now))
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old != new and (why := _check_parameter(name.rpartition(".")[2], old, new, said, output)):
            return f"parameter {name}: {why}"
    return _check_calls(said, was, now)


def may_contain_question(name: str, value: object) -> bool:
    """Return whether a parameter may contain a part of the question: by its name, or because it contains prose."""
    if name in _FORMATS | _GROUPS | _STOPS:
        return False
    return name in _ASKING or " " in json.dumps(value, separators=(",", ":"))


def _list_parameters(request: ParsedRequest) -> Iterator[tuple[str, Any]]:
    for slot, segment in request.slots.items():
        if slot[0] != Kind.PARAMETER:
            continue
        name = segment.own
        if name in _GROUPS and isinstance(segment.value, dict):
            yield from ((f"{name}.{inner}", value) for inner, value in segment.value.items())
        else:
            yield name, segment.value


def _check_parameter(name: str, old: Any, new: Any, said: Message, output: int | None) -> str:
    if name in _LIMITS:
        return _check_limit(old, new, output)
    if name in _COUNTS:
        return "" if {old or 1, new or 1} == {1} else f"{new!r} answers are asked for now"
    if name in _STOPS:
        sides = [set([side] if isinstance(side, str) else as_list(side)) for side in (old, new)]
        found = [text for text in sides[1] if isinstance(text, str) and text in said.text]
        return "" if sides[0] <= sides[1] and not found else "the answer would end elsewhere"
    if name == "include" and {*as_list(old)} ^ {*as_list(new)} == {"reasoning.encrypted_content"}:
        return ""  # it belongs to reasoning, which is optional in an answer
    if name in _KINDS:
        return "the answer would hold something else"
    if name in _CHOICES:
        return _check_tool_choice(new, [call.name for call in said.tool_calls if not call.hosted])
    if name == "parallel_tool_calls":
        return "the answer calls several tools at once" if new is False and len(said.tool_calls) > 1 else ""
    if name in _FORMATS and new is not None:
        return _check_response_format(new, said)
    return ""


def _check_limit(old: Any, new: Any, output: int | None) -> str:
    if output is None:
        return "" if isinstance(old, int) and isinstance(new, int) and new == old else "nobody knows how long it was"
    if isinstance(old, int) and output >= old:
        return "the answer had been cut by the old limit"
    return f"the answer has {output} tokens" if isinstance(new, int) and output > new else ""


def _check_tool_choice(new: Any, called: list[str]) -> str:
    tree = as_dict(new)
    tree = as_dict(tree.get("functionCallingConfig")) or as_dict(tree.get("function_calling_config")) or tree
    kind = (as_str(new) or as_str(tree.get("type")) or as_str(tree.get("mode")) or next(iter(tree), "")).lower()
    named = as_str(
        tree.get("name") or as_dict(tree.get("function")).get("name") or as_dict(tree.get("tool")).get("name")
    )
    if tree.get("disable_parallel_tool_use") is True and len(called) > 1:
        return "the answer calls several tools at once"
    if named:
        return "" if called and set(called) == {named} else f"only {named} may be called"
    if new is None or kind == "auto":
        return ""
    if kind == "none":
        return "the answer calls a tool" if called else ""
    if kind in {"any", "required"} and not tree.keys() - {"type", "mode", "any"}:
        return "" if called else "the answer calls no tool"
    return f"nobody knows whether {json.dumps(new)[:100]} allows the answer"


def _check_response_format(new: Any, said: Message) -> str:
    tree = as_dict(new)
    inner = as_dict(tree.get("json_schema")) or as_dict(tree.get("format")) or tree
    if new in ("text", "text/plain") or tree.get("type") == "text" or not said.text:
        return ""
    try:
        value = json.loads(said.text)
    except ValueError:
        return "the answer is no JSON"
    if new in ("json", "application/json") or tree.get("type") == "json_object":
        return ""
    why = check_schema(value, inner.get("schema", inner))
    return f"the answer does not validate: {why}" if why else ""


def _check_calls(said: Message, was: ParsedRequest, now: ParsedRequest) -> str:
    before, after = dict(_list_tools(was)), dict(_list_tools(now))
    deferred = any("tool_search" in name or "defer" in json.dumps(tool) for name, tool in after.items())
    for call in (*said.tool_calls, *said.beside):
        tool = after.get(call.name)
        if tool is None:
            gone = any(get_parameter_schema(old) is None for name, old in before.items() if name not in after)
            if call.name in before or not (deferred or before == after or (call.hosted and not gone)):
                return f"the answer calls {call.name}, which is not offered"
            continue
        if tool == before.get(call.name) or call.hosted:
            continue
        schema = get_parameter_schema(tool)
        if schema is not None and (why := check_schema(parse_arguments(call.arguments), schema)):
            return f"the answer calls {call.name} with arguments that it does not take now: {why}"
    return ""


def _list_tools(request: ParsedRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    for slot, segment in request.slots.items():
        if slot[0] == Kind.TOOL:
            yield segment.own, as_dict(segment.value)


def get_parameter_schema(tool: Mapping[str, Any]) -> object:
    inner = next((tool[name] for name in ("function", "toolSpec", "custom") if as_dict(tool.get(name))), tool)
    found = next((inner[name] for name in SCHEMAS if name in inner), None)
    return as_dict(found).get("json", found)


def check_schema(value: Any, schema: object) -> str:
    """Return why a value does not validate; empty if it does. A failed check is a reason too."""
    import jsonschema

    schema = _lower_schema_types({} if schema is True else schema)
    if not isinstance(schema, dict):
        return "its schema allows nothing"
    try:
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        error = next(kind(schema).iter_errors(value), None)
    except (jsonschema.SchemaError, RecursionError, re.error, LookupError) as why:
        return f"its schema cannot be read: {why}"[:200]
    return "" if error is None else f"{error.json_path}: {error.message}"[:200]


def _lower_schema_types(schema: object) -> object:
    """Return a schema with JSON Schema's type names: Google's are in capitals, and may be nullable."""
    if isinstance(schema, list):
        return [_lower_schema_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _lower_schema_types(value) for name, value in schema.items()}
    if isinstance(kind := made.get("type"), str):
        made["type"] = [kind.lower(), "null"] if made.get("nullable") is True else kind.lower()
    return made
