"""Parsed answers of models: from OpenAI's chat completions, or from litellm's objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from llmproxy.core.dialects.codecs import ERROR_HEADER
from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.scenario.models.errors import HttpModelCallFailed, ModelError
from llmproxy.scenario.values.messages import extract_html_title

_THOUGHT = re.compile(r"<(think|thinking|reasoning|thought)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"^.*</(?:think|thinking|reasoning|thought)>", re.DOTALL | re.IGNORECASE)
_GOOD = range(200, 300)
_REDIRECTS = range(300, 400)
_UNUSABLE = 500
"""Status of an invalid answer: like a failure of the server, so that it is retried."""
_UNPROCESSABLE = 422
_STATUS_DIGITS = 3
_QUOTED = 300  # characters of a body quoted in an error


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    """Without reasoning, and without surrounding white space."""
    tool_calls: tuple[ModelToolCall, ...] = ()

    @classmethod
    def from_json_text(cls, kept: str) -> Answer:
        value = json.loads(kept)  # earlier versions kept more members
        return cls(value["text"], tuple(ModelToolCall(**call) for call in value["tool_calls"]))

    def to_text(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def strip_reasoning(content: object) -> str:
    if isinstance(content, list):
        content = "".join(
            str(part.get("text") or "") for part in content if isinstance(part, dict) and part.get("type") == "text"
        )
    return _THOUGHT_END.sub("", _THOUGHT.sub("", content if isinstance(content, str) else "")).strip()


def read_litellm(found: Any) -> Answer:
    """Return the answer in a litellm response. Raises ModelError if it has no choice."""
    choices = getattr(found, "choices", None) or []
    if not choices:
        raise ModelError(f"No response from LLM: {found!r}")
    message = choices[0].message
    calls = tuple(
        ModelToolCall(str(call.function.name or ""), str(call.function.arguments or ""))
        for call in message.tool_calls or ()
        if call.function is not None
    )
    return Answer(strip_reasoning(message.content), calls)


def read_openai(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Parse an answer in OpenAI's chat completions. Raises HttpModelCallFailed; ModelError: there is no choice."""
    value = parse_json(body)
    found = value.get("error") if isinstance(value, dict) else value[0] if isinstance(value, list) and value else None
    error = found.get("error", found) if isinstance(found, dict) else found
    said = _format_error(error)
    code = error.get("code") if isinstance(error, dict) else None

    if status in _REDIRECTS:
        place = str(headers.get("location", ""))[:_QUOTED]
        what = f"HTTP {status}, a redirection to {place!r}, which is not followed: give the address that answers"
        raise HttpModelCallFailed(what, status)
    if status not in _GOOD:
        ours = headers.get(ERROR_HEADER, "")
        raise HttpModelCallFailed(said if ours else f"HTTP {status}: {said or _format_body(body)}", status, ours)
    if said:
        raise HttpModelCallFailed(f"HTTP {status}: {said}", _derive_status_from_code(code))
    choices = value.get("choices") if isinstance(value, dict) else None
    if choices == []:
        raise ModelError(f"No response from LLM: {_format_body(body)}")
    first = choices[0] if isinstance(choices, list) else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(message, dict):
        raise HttpModelCallFailed(
            f"the answer is no chat completion, there is no message in it: {_format_body(body)}", _UNUSABLE
        )
    calls = message.get("tool_calls")
    functions = [each.get("function") for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []
    called = tuple(_read_call(function) for function in functions if isinstance(function, dict))
    return Answer(strip_reasoning(message.get("content")), called)


def _read_call(function: Mapping[str, Any]) -> ModelToolCall:
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
    return ModelToolCall(str(function.get("name") or ""), written)


def _format_error(error: object) -> str:
    if isinstance(error, dict):
        said = error.get("message")
        if isinstance(said, (dict, list)):
            said = json.dumps(said)
        return str(said or "") or ("" if error.get("code") is None else json.dumps(error))
    return error if isinstance(error, str) else ""


def _derive_status_from_code(code: object) -> int:
    """Return the status of an error inside a successful answer: OpenRouter writes it as the code."""
    if code is None:
        return _UNPROCESSABLE
    said = str(code) if isinstance(code, (int, str)) else ""
    return int(said) if said.isdecimal() and len(said) == _STATUS_DIGITS else _UNUSABLE


def _format_body(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    title = extract_html_title(text)
    if title is not None:
        return f"a web page ({title!r})" if title else "a web page"
    return repr(text[:_QUOTED]) if text else "nothing"
