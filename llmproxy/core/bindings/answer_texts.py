"""The texts of an answer, and the pieces of a stream that form one text.

    a JSON value of an answer -> `Piece`s: the path of each text in it, its channel, and whether it is JSON text

A *channel* is a text that comes in pieces: the words of one block, the arguments of one call. A text outside of any
channel is complete in itself. Ids, signatures and sealed data are left out: they are never rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from llmproxy.core.dialects.messages import as_dict

Step = str | int
Path = tuple[Step, ...]


class Piece(NamedTuple):
    path: Path
    text: str
    channel: tuple[object, ...] | None
    """Equal for the pieces of one text; None for a complete text."""
    is_json: bool = False
    """Whether it is JSON text: the arguments of a call, whole or in pieces."""
    tool: str | None = None
    """Tool of these arguments, if this value names it."""
    member: str = ""
    """Nearest member name of a text inside of arguments that are an object."""
    inner: str = ""
    """Path in those arguments, from ``$``."""
    is_name: bool = False
    """Whether it is the name of a member of those arguments: ``{"/tmp/a/x.py": ...}``."""


_SEALED = frozenset({
    "id", "object", "type", "role", "model", "signature", "thoughtSignature", "thought_signature",
    "encrypted_content", "b64_json",
    "call_id", "item_id", "response_id", "toolUseId", "tool_use_id", "tool_call_id", "previous_response_id",
    "finish_reason",
    "stop_reason", "stopReason", "finishReason", "status", "system_fingerprint", "service_tier", "modelVersion",
    "responseId", "obfuscation",
    "created_at", "data", "name", "event_type", "done_reason", "thinking", "reasoning", "reasoning_content",
    "reasoningContent", "tool_plan",
})  # fmt: skip
"""Members that are not the model's words, or that only their creator can read."""
_ECHOED = frozenset({"instructions", "tools", "metadata", "text", "reasoning", "prompt"})
"""Members of a Response that repeat the request's (``text`` and ``reasoning`` are settings there)."""
_ARGUMENTS = frozenset({"arguments", "partial_json"})
_OBJECTS = frozenset({"input", "args", "arguments", "parameters"})
_STRUCTURED = "structuredContent"
"""An MCP tool's result as an object: any member of it may contain a value."""


def list_texts(value: object) -> Iterator[Piece]:
    """Yield the texts of one JSON value of an answer: a whole body, or the data of an event."""
    if not isinstance(value, dict):
        return
    yield from _list_text_pieces(value, (), value, None)


def _list_text_pieces(node: object, path: Path, event: dict[str, Any], tool: str | None) -> Iterator[Piece]:
    if isinstance(node, list):
        for n, each in enumerate(node):
            yield from _list_text_pieces(each, (*path, n), event, tool)
        return
    if not isinstance(node, dict) or _is_thinking_block(node):
        return
    named = node.get("name")
    tool = named if isinstance(named, str) else tool
    for name, value in node.items():
        here = (*path, name)
        if name in _SEALED or (name in _ECHOED and node.get("object") == "response"):
            continue
        if name == _STRUCTURED or (name in _OBJECTS and isinstance(value, dict) and tool is not None):
            yield from list_argument_pieces(value, tool or "", here)
        elif isinstance(value, str):
            if value:
                yield _build_piece(node, name, value, here, event, tool)
        else:
            yield from _list_text_pieces(value, here, event, tool)


def _is_thinking_block(node: dict[str, Any]) -> bool:
    """Return whether an object is the model's thinking: it is often signed, so it is never changed."""
    kind = node.get("type")
    return (isinstance(kind, str) and ("thinking" in kind or "reasoning" in kind)) or node.get("thought") is True


def list_argument_pieces(
    value: object, tool: str, path: Path = (), inner: str = "$", member: str = ""
) -> Iterator[Piece]:
    """Yield the texts and numbers of arguments; a member's name follows its content."""
    if isinstance(value, dict):
        for name, each in value.items():
            here, at = (*path, name), f"{inner}.{name}"
            yield from list_argument_pieces(each, tool, here, at, name)
            yield Piece(here, name, None, tool=tool, inner=at, is_name=True)
    elif isinstance(value, list):
        for n, each in enumerate(value):
            yield from list_argument_pieces(each, tool, (*path, n), f"{inner}[{n}]", member)
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        text = value if isinstance(value, str) else str(value)
        yield Piece(path, text, None, tool=tool, member=member, inner=inner)


def _build_piece(
    node: dict[str, Any], name: str, value: str, path: Path, event: dict[str, Any], tool: str | None
) -> Piece:
    kind = event.get("type")
    if isinstance(kind, str) and name == "delta" and kind.startswith("response."):  # OpenAI's responses
        which = (kind, event.get("item_id"), event.get("output_index"), event.get("content_index"))
        return Piece(path, value, which, "arguments" in kind, tool)
    if kind == "content_block_delta":  # of Messages
        return Piece(path, value, ("block", event.get("index"), name), name in _ARGUMENTS, tool)
    if "contentBlockDelta" in event:  # of converse
        index = as_dict(event["contentBlockDelta"]).get("contentBlockIndex")
        is_json = "toolUse" in path and name == "input"
        return Piece(path, value, ("block", index, is_json), is_json, tool)
    if "choices" in path and "delta" in path:  # chat completions, by choice and call
        numbers = [step for step in path if isinstance(step, int)]
        choice, call = (
            _read_index_member(event, ("choices", numbers[0])),
            node.get("index") if "tool_calls" in path else None,
        )
        if "tool_calls" in path and len(numbers) > 1:
            call = _read_index_member(event, ("choices", numbers[0], "delta", "tool_calls", numbers[1]))
        return Piece(path, value, ("choice", choice, call, name), name in _ARGUMENTS, tool)
    if path and path[0] in ("candidates", "response") and name == "text":  # of generateContent
        numbers = [step for step in path if isinstance(step, int)]
        return Piece(path, value, ("candidate", *numbers[:1]), tool=tool)
    if "done" in event and name in ("content", "response", "thinking"):  # Ollama
        return Piece(path, value, ("ollama", name), tool=tool)
    if "delta" in event and kind in ("content-delta", "tool-call-delta", "tool-call-start", "tool-plan-delta"):
        return Piece(path, value, ("cohere", event.get("index"), name in _ARGUMENTS), name in _ARGUMENTS, tool)
    return Piece(path, value, None, name in _ARGUMENTS, tool)


def _read_index_member(event: object, path: Path) -> object:
    node = value_at_path(event, path)
    return node.get("index", path[-1]) if isinstance(node, dict) else path[-1]


def value_at_path(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def rename_keys_in_place(tree: object, path: Path, names: Mapping[str, str]) -> bool:
    """Rename members of the object at a path, all together and in order; False if two names would be equal."""
    value = value_at_path(tree, path)
    members = {names.get(name, name): each for name, each in value.items()}
    if len(members) < len(value):
        return False
    value.clear()
    value.update(members)
    return True


def set_at(tree: object, path: Path, new: object) -> None:
    value_at_path(tree, path[:-1])[path[-1]] = new
