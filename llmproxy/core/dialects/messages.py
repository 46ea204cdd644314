"""Messages, and their construction from the blocks of all dialects; a user's text without what an agent wrote in it.

Blocks are recognised by shape rather than by provider. Nothing here raises on odd input. Tables list every kind of
item, including the harmless ones: here those with a `type`, in a dialect's file the others. Any other kind is reported
(`Message.unknown`), because it may be one more way of calling a tool: it is never taken for "nothing was called".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmproxy.lazy_regex import late

NAMESPACE = "__"
"""Separator of a tool's namespace (OpenAI's Responses; in Codex an MCP server) and name: ``mcp__SERVER__TOOL``."""

SCHEMAS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema", "parameters_json_schema")
"""Members of a tool's definition that may contain the schema of its arguments."""


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """The way in which a kind of item calls a tool; a table has None for a kind that calls none."""

    name: str = ""
    """Name of the tool; empty if the item's member `name` contains it."""
    arguments: tuple[str, ...] = ()
    """Members that may contain the arguments: the first present one counts."""
    hosted: bool = False
    """Whether the provider runs the tool (web search, code interpreter, MCP); else the client sends the result."""

    def read_tool_name(self, item: Mapping[str, Any]) -> str:
        return build_namespaced_tool_name(item) or self.name

    def read_call_arguments(self, item: Mapping[str, Any]) -> object:
        return next((item[name] for name in self.arguments if item.get(name) is not None), None)


def build_namespaced_tool_name(item: Mapping[str, Any]) -> str | None:
    said, space = item.get("name"), item.get("namespace")
    if not isinstance(said, str):
        return None
    return f"{space}{NAMESPACE}{said}" if said and isinstance(space, str) and space else said


ITEMS: Mapping[str, ToolCallFormat | None] = {
    "function_call": ToolCallFormat(arguments=("arguments",)),
    "custom_tool_call": ToolCallFormat(arguments=("input",)),
    "computer_call": ToolCallFormat("computer", ("action", "actions")),
    "local_shell_call": ToolCallFormat("local_shell", ("action",)),
    "shell_call": ToolCallFormat("shell", ("action",)),
    "apply_patch_call": ToolCallFormat("apply_patch", ("operation",)),
    "tool_search_call": ToolCallFormat("tool_search", ("arguments",)),
    "mcp_approval_request": ToolCallFormat(arguments=("arguments",), hosted=True),
    "mcp_call": ToolCallFormat(arguments=("arguments",), hosted=True),
    "web_search_call": ToolCallFormat("web_search", ("action",), hosted=True),
    "file_search_call": ToolCallFormat("file_search", ("queries",), hosted=True),
    "code_interpreter_call": ToolCallFormat("code_interpreter", ("code",), hosted=True),
    "image_generation_call": ToolCallFormat("image_generation", hosted=True),
    "program": ToolCallFormat("program", ("code",), hosted=True),
    **dict.fromkeys(
        (
            "message", "reasoning", "compaction", "compaction_summary", "item_reference", "additional_tools",
            "mcp_list_tools", "mcp_approval_response", "tool_search_output", "program_output",
            "function_call_output", "custom_tool_call_output", "computer_call_output", "local_shell_call_output",
            "shell_call_output", "apply_patch_call_output",
        ),
    ),
}  # fmt: skip
"""Items of Responses and Realtime, by their `type`."""

TOOL_CALLS = frozenset({"", "function", "custom"})
"""Types of entries of `tool_calls` (chat completions and compatible dialects); many leave it out."""

BLOCKS: Mapping[str, ToolCallFormat | None] = {
    "tool_use": ToolCallFormat(arguments=("input",)),
    "server_tool_use": ToolCallFormat(arguments=("input",), hosted=True),
    "mcp_tool_use": ToolCallFormat(arguments=("input",), hosted=True),
    **dict.fromkeys(
        (
            "text", "thinking", "redacted_thinking", "image", "document", "search_result", "compaction",
            "container_upload", "tool_reference", "tool_result", "mcp_tool_result", "web_search_tool_result",
            "web_fetch_tool_result", "tool_search_tool_result", "code_execution_tool_result",
            "bash_code_execution_tool_result", "text_editor_code_execution_tool_result",
        ),
    ),
}  # fmt: skip
"""Blocks of Messages, by their `type`."""


def find_content_block_kind(item: Mapping[str, Any], table: Mapping[str, ToolCallFormat | None]) -> str | None:
    """Return a table's name for an item that is described by its members; None if it is unknown."""
    calls = (name for name in item if table.get(name) is not None)
    return next(calls, None) or next((name for name in item if name in table), None if item else "text")


_DEPTH = 8
"""Maximum levels of nested content that are read."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str | None
    name: str
    arguments: str
    """JSON text, as the model wrote it if the dialect keeps that, else in one line."""
    hosted: bool = False
    output: str | None = None
    """Result of the provider's tool, if the same answer contains it."""
    failed: bool = False
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message. In its text, images, files and other media appear as ``[image]``."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool`` (a tool's result)."""
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For a tool's result: the id of the call, or the tool's name if the dialect has no ids."""
    reasoning: str = ""
    beside: tuple[ToolCall, ...] = ()
    """Further calls of an answer that no history repeats: of other choices, and of tools only the provider knows."""
    unknown: tuple[str, ...] = ()
    """For an answer: kinds of items that are in no table, so that there may be more calls."""


_ROLES = {"model": "assistant", "developer": "system", "CHATBOT": "assistant", "USER": "user", "SYSTEM": "system",
          "TOOL": "tool", "function": "tool", "ai": "assistant", "human": "user", "Chatbot": "assistant"}  # fmt: skip


def as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _as_id(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def normalize_role(value: object, default: str) -> str:
    name = as_str(value) or default
    return _ROLES.get(name, name)


def as_json(value: object) -> str:
    """Write arguments that are a value; a string is already the model's own text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


@dataclass(slots=True)
class DraftToolCall:
    id: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    hosted: bool = False
    pending: bool = False

    def build_call(self, outputs: dict[str, tuple[str, bool]]) -> ToolCall:
        output, failed = outputs.get(self.id or "", (None, False))
        hosted = self.hosted or output is not None
        return ToolCall(self.id, self.name, "".join(self.pieces), hosted, output, failed, self.pending)


@dataclass(slots=True)
class Draft:
    role: str = "assistant"
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[object, DraftToolCall] = field(default_factory=dict)
    heard: bool = False
    """Whether there was an answer at all, possibly an empty one."""
    beside: dict[object, DraftToolCall] = field(default_factory=dict)
    outputs: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Results of the provider's own tools, and whether they failed, by the id of the call."""
    unknown: dict[str, None] = field(default_factory=dict)

    def add_call(
        self, index: object, call_id: object = None, name: object = None, arguments: str = "", *,
        hosted: bool = False, beside: bool = False,
    ) -> DraftToolCall:  # fmt: skip
        self.heard = True
        entry = (self.beside if beside else self.calls).setdefault(index, DraftToolCall())
        entry.id = entry.id or _as_id(call_id)
        entry.name = entry.name or as_str(name)
        entry.hosted = entry.hosted or hosted
        if arguments:
            entry.pieces.append(arguments)
        return entry

    def add_result(self, message: Message | None, *, failed: bool = False) -> None:
        if message is not None and message.tool_call_id:
            self.outputs[message.tool_call_id] = message.text, failed

    def add_text(self, text: object) -> None:
        if isinstance(text, str):
            self.heard = True
            self.text.append(text)

    def add_reasoning(self, text: object) -> None:
        if isinstance(text, str):
            self.heard = True
            self.reasoning.append(text)

    def build_message(self) -> Message:
        calls, beside = (
            tuple(each.build_call(self.outputs) for each in found.values()) for found in (self.calls, self.beside)
        )
        unknown = dict(self.unknown)
        if not all(each.name for each in calls + beside):
            unknown["a call without a name"] = None
        text, reasoning = "".join(self.text), "".join(self.reasoning)
        return Message(self.role, text, calls, reasoning=reasoning, beside=beside, unknown=tuple(unknown))


def extract_content_text(content: object, depth: int = 0) -> str:
    if isinstance(content, str):
        return content
    if depth > _DEPTH:
        return ""
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := extract_content_text(part, depth + 1)))
    block = as_dict(content)
    for name in ("text", "refusal", "content", "parts", "output", "result"):
        if name in block and block[name] is not None:
            value = block[name]
            if isinstance(value, (str, list, dict)):
                return extract_content_text(value, depth + 1)
            return as_json(value)
    if "json" in block:
        return as_json(block["json"])
    kind = as_str(block.get("type")) or next(iter(block), "")
    return f"[{kind.removeprefix('input_').removesuffix('_url')}]" if kind else ""


def is_thought_block(block: dict[str, Any]) -> bool:
    return block.get("type") in ("thinking", "reasoning") or "reasoningContent" in block or block.get("thought") is True


def _read_thought(block: dict[str, Any]) -> str:
    inner = as_dict(as_dict(block.get("reasoningContent")).get("reasoningText"))
    parts = block.get("thinking") or inner.get("text") or block.get("text")
    parts = parts or block.get("summary") or block.get("content")
    return extract_content_text(parts) if parts else ""


_TYPED = {**ITEMS, **BLOCKS}
_REPEATED = frozenset({"server_tool_use", "mcp_tool_use", "mcp_call"})
"""Calls of the provider's own tools that histories repeat like the agent's."""


def find_tool_call_format_by_type(block: dict[str, Any]) -> ToolCallFormat | None:
    return _TYPED.get(as_str(block.get("type")))


def is_hosted_tool_call(block: dict[str, Any], asks: ToolCallFormat) -> bool:
    return asks.hosted or block.get("execution") == "server"


def read_tool_call_of_any_provider(block: dict[str, Any]) -> tuple[object, object, object] | None:
    """Return id, name and arguments of a block that is a tool call, as histories have them."""
    asks = find_tool_call_format_by_type(block)
    if asks is not None and (not asks.hosted or block["type"] in _REPEATED):
        return block.get("call_id") or block.get("id"), asks.read_tool_name(block), asks.read_call_arguments(block)
    if isinstance(block.get("toolUse"), dict):
        use = block["toolUse"]
        return use.get("toolUseId"), use.get("name"), use.get("input")
    for name in ("functionCall", "function_call"):
        if isinstance(block.get(name), dict):
            call = block[name]
            return call.get("id"), call.get("name"), call.get("args", call.get("arguments", {}))
    return None


def read_tool_result_of_any_provider(block: dict[str, Any]) -> Message | None:
    kind = as_str(block.get("type"))
    if kind.endswith("tool_result"):
        content, call_id = block.get("content"), block.get("tool_use_id")
    elif kind.endswith("_call_output"):
        content, call_id = block.get("output"), block.get("call_id")
    elif isinstance(result := block.get("toolResult"), dict):
        content, call_id = result.get("content"), result.get("toolUseId")
    else:
        for name in ("functionResponse", "function_response"):
            if isinstance(result := block.get(name), dict):
                call_id = _as_id(result.get("id")) or _as_id(result.get("name"))
                return Message("tool", as_json(result.get("response")), tool_call_id=call_id)
        return None
    return Message("tool", extract_content_text(content), tool_call_id=_as_id(call_id))


def add_content_blocks_to_draft(draft: Draft, content: object) -> list[Message]:
    """Add content to a draft; return the tool results in it."""
    results: list[Message] = []
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        block = as_dict(part)
        call, result = read_tool_call_of_any_provider(block), read_tool_result_of_any_provider(block)
        if call is not None:
            asks = find_tool_call_format_by_type(block)
            by_type = as_dict(block.get("toolUse")).get("type") is not None
            hosted = by_type if asks is None else is_hosted_tool_call(block, asks)
            draft.add_call(len(draft.calls), call[0], call[1], as_json(call[2]), hosted=hosted)
        elif result is not None:
            results.append(result)
        elif is_thought_block(block):
            draft.add_reasoning(_read_thought(block))
        elif part is not None:
            texts.append(extract_content_text(part))
    if texts:
        draft.add_text("\n".join(text for text in texts if text))
    return results


def collect_tool_calls_into_draft(draft: Draft, calls: object, *, offset: bool = False, choice: object = None) -> None:
    """Add a `tool_calls` array, whole or in pieces; `offset`: all are new; `choice`: if it is not the first choice."""
    into = draft.calls if choice is None else draft.beside
    for position, value in enumerate(as_list(calls)):
        call = as_dict(value)
        kind = as_str(call.get("type"))
        if kind not in TOOL_CALLS:
            draft.unknown[kind] = None
        function = as_dict(call.get("function")) or as_dict(call.get("custom")) or call
        index = call.get("index")
        key: object = len(into) if offset else index if isinstance(index, int) else position
        key = key if choice is None else (choice, key)
        if not offset:
            key = _find_draft_call_key(into, key, call.get("id"), function.get("name"))
        arguments = function.get("arguments", function.get("parameters", function.get("input")))
        draft.add_call(key, call.get("id"), function.get("name"), as_json(arguments), beside=choice is not None)


def _find_draft_call_key(calls: dict[object, DraftToolCall], key: object, call_id: object, name: object) -> object:
    """Return the key of a piece: some servers give all calls one index or none, and distinguish them by id."""
    while (known := calls.get(key)) is not None:
        following = (key, "next")
        if following not in calls and not (name and call_id and known.id and known.id != call_id):
            return key
        if call_id and known.id == call_id:
            return key
        key = following
    return key


def convert_conversation_entry(value: object, default: str = "user") -> list[Message]:
    """Return the messages of one entry of a conversation; a tool's results come before the words next to them."""
    if isinstance(value, str):
        return [Message(normalize_role(None, default), value)]
    entry = as_dict(value)
    alone = read_tool_call_of_any_provider(entry), read_tool_result_of_any_provider(entry)
    draft = Draft(role=normalize_role(entry.get("role"), default))
    if any(alone) or is_thought_block(entry):
        draft.role = "assistant"
        results = add_content_blocks_to_draft(draft, [entry])
    else:
        content = (entry[name] for name in ("content", "parts", "message", "text") if name in entry)
        results = add_content_blocks_to_draft(draft, next(content, None))
    if not any(alone) and entry.get("type") != "thinking":
        draft.add_reasoning(entry.get("reasoning_content"))
        draft.add_reasoning(entry.get("thinking"))
    collect_tool_calls_into_draft(draft, entry.get("tool_calls"), offset=True)
    if (old := as_dict(entry.get("function_call"))) and not any(alone):
        draft.add_call(len(draft.calls), None, old.get("name"), as_json(old.get("arguments")))
    message = draft.build_message()
    if draft.role == "tool" and not results:
        call_id = _as_id(entry.get("tool_call_id")) or _as_id(entry.get("tool_name")) or _as_id(entry.get("name"))
        return [Message("tool", message.text, tool_call_id=call_id)]
    return [*results, message] if draft.heard or not results else results


_OPENER = late(r"^[ \t]*<([A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)+)(?:[ \t][^<>\n]*)?>", re.MULTILINE)
_TYPED_BLOCKS = late(r"quer|question|message|request|prompt|task|input|args|command", re.IGNORECASE)
"""Words in the names of tags that surround the user's typed text."""
_OPENINGS = ("This is the Gemini CLI.", "This is the Qwen Code", "# AGENTS.md instructions", "# Context\n", "[SYSTEM]")
"""Beginnings of user messages that coding agents write and no user typed (2026-07)."""
STATE_FOLDERS = (".gemini/tmp", ".gemini/history")
"""Folders below home in which a coding agent creates a folder named after its working folder."""


def find_system_reminder_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of an agent's text in a user's message: in tags of two words, ``<system-reminder>``."""
    if text.startswith(_OPENINGS):
        return [(0, len(text))]
    if "</" not in text:
        return []
    spans: list[tuple[int, int]] = []
    unclosed: set[str] = set()
    end = 0
    for opener in _OPENER.finditer(text):
        tag = opener[1]
        if opener.start() < end or tag in unclosed or _TYPED_BLOCKS.search(tag):
            continue
        closing = f"</{tag}>"
        if (at := text.find(closing, opener.end())) < 0:
            unclosed.add(tag)
            continue
        end = at + len(closing)
        spans.append((opener.start(), end))
    return spans


def remove_system_reminders(text: str) -> str:
    parts, last = [], 0
    for start, end in find_system_reminder_spans(text):
        parts.append(text[last:start].strip())
        last = end
    return "\n".join(filter(None, [*parts, text[last:].strip()])) if last else text
