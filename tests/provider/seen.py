"""What a request asks for, read from its bytes: dialect, model, last user text, stream flag.

Only as much of each provider's format as is needed to tell an expected request from an unexpected one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

# Path pattern -> dialect. The first match counts; a prefix before /v1 is allowed, as upstreams may have a path of their own.
DIALECTS: tuple[tuple[str, str], ...] = (
    (r"/chat/completions$", "openai.chat"),
    (r"/responses$", "openai.responses"),
    (r"/embeddings$", "openai.embeddings"),
    (r"/audio/(transcriptions|translations)$", "openai.audio"),
    (r"/files(/[^/]+)?$", "openai.files"),
    (r"/messages/count_tokens$", "anthropic.count"),
    (r"/messages$", "anthropic.messages"),
    (r":(stream)?[gG]enerateContent$", "gemini.generate"),
    (r"/api/chat$", "ollama.chat"),
    (r"/model/.+/converse(-stream)?$", "bedrock.converse"),
    (r"/model/.+/invoke(-with-response-stream)?$", "bedrock.invoke"),
    (r"/models$", "models"),
)


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    connection: int
    """Which TCP connection brought it, counted from 1."""
    refused: str = field(default="", compare=False)
    """Why it was refused; empty if it was expected."""

    def header(self, name: str) -> str | None:
        """First value of a header field (lower-case name)."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @cached_property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @cached_property
    def dialect(self) -> str:
        """Which format is spoken; empty for a path nobody knows."""
        return next((name for pattern, name in DIALECTS if re.search(pattern, self.path)), "")

    @cached_property
    def fields(self) -> dict[str, Any]:
        """JSON body, or the multipart form's fields (a file is represented by its name); empty for anything else."""
        kind = self.header("content-type") or ""
        if kind.startswith("multipart/"):
            return _form(kind, self.body)
        try:
            value = json.loads(self.body or b"{}")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def model(self) -> str | None:
        """Model of the body, or of Gemini's or Bedrock's path."""
        found = re.search(r"/models/([^/:]+):", self.path) or re.search(r"/model/(.+)/[a-z-]+$", self.path)
        return found.group(1) if found else self.fields.get("model")

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed (Gemini and Bedrock say so in the path; Ollama streams unless told not to)."""
        if self.dialect.startswith("bedrock"):
            return self.path.endswith("-stream")
        if self.dialect == "gemini.generate":
            return ":stream" in self.path
        return bool(self.fields.get("stream", self.dialect == "ollama.chat"))

    @property
    def last_user(self) -> str | None:
        texts = [text for role, text in self._said if role == "user" and text]
        return texts[-1] if texts else None

    @property
    def tool_result(self) -> str | None:
        """What a tool returned, if the conversation ends with that."""
        role, text = self._said[-1] if self._said else ("", "")
        return text if role == "tool" else None

    @property
    def tool_results(self) -> list[str]:
        """What the tools returned in the whole conversation, in order."""
        return [text for role, text in self._said if role == "tool"]

    @cached_property
    def _said(self) -> list[tuple[str, str]]:
        read = READERS.get(self.dialect)
        return read(self.fields) if read else []


def _form(content_type: str, body: bytes) -> dict[str, Any]:
    message = message_from_bytes(b"content-type: " + content_type.encode() + b"\r\n\r\n" + body)
    fields: dict[str, Any] = {}
    for part in message.walk():
        name = part.get_param("name", header="content-disposition")
        if name:
            data = part.get_payload(decode=True)
            fields[str(name)] = part.get_filename() or (
                data.decode("utf-8", "replace") if isinstance(data, bytes) else ""
            )
    return fields


def _text(content: object) -> str:
    """Text of a content: a string, or the text of its parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return _text(content.get("text") or content.get("content") or "")
    return "".join(_text(part) for part in content) if isinstance(content, list) else ""


def _messages(fields: dict[str, Any]) -> list[tuple[str, str]]:
    return [(m.get("role", ""), _text(m.get("content"))) for m in fields.get("messages", ())]


def _input(fields: dict[str, Any]) -> list[tuple[str, str]]:
    given = fields.get("input", "")
    if isinstance(given, str):
        return [("user", given)]
    if not all(isinstance(item, dict) for item in given):
        return [("user", " ".join(map(str, given)))]
    return [
        ("tool", _text(i.get("output")))
        if str(i.get("type")).endswith("_call_output")
        else (i.get("role", ""), _text(i.get("content")))
        for i in given
    ]


def _blocks(fields: dict[str, Any]) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    for message in fields.get("messages", ()):
        content = message.get("content")
        blocks = [content] if isinstance(content, str) else content
        for block in blocks:
            is_result = isinstance(block, dict) and block.get("type") == "tool_result"
            said.append(("tool" if is_result else message["role"], _text(block)))
    return said


def _converse(fields: dict[str, Any]) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    for message in fields.get("messages", ()):
        for block in message.get("content", ()):
            result = block.get("toolResult")
            said.append(
                ("tool", _text(result.get("content")) or json.dumps(result))
                if result
                else (message["role"], block.get("text", ""))
            )
    return said


def _contents(fields: dict[str, Any]) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    for content in fields.get("contents", ()):
        for part in content.get("parts", ()):
            result = part.get("functionResponse") or part.get("function_response")
            said.append(("tool", _answered(result)) if result else (content.get("role", "user"), part.get("text", "")))
    return said


def _answered(result: dict[str, Any]) -> str:
    """Text of a function's response: that of its only member, if it is one, as SDKs wrap texts."""
    members = list((result.get("response") or {}).values())
    return members[0] if len(members) == 1 and isinstance(members[0], str) else json.dumps(result)


def _file(fields: dict[str, Any]) -> list[tuple[str, str]]:
    return [("user", fields.get("file", ""))]


READERS: dict[str, Callable[[dict[str, Any]], list[tuple[str, str]]]] = {
    "openai.chat": _messages, "openai.responses": _input, "openai.embeddings": _input, "openai.audio": _file,
    "openai.files": _file, "anthropic.messages": _blocks, "anthropic.count": _blocks, "gemini.generate": _contents,
    "ollama.chat": _messages, "bedrock.converse": _converse, "bedrock.invoke": _blocks,
}  # fmt: skip
