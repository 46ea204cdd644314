"""What in a model's answer can call a tool: a table for each dialect.

An answer is made of items: words, thoughts, results, calls. A dialect gets new kinds of them from year to year, and a
kind that we do not know may be one more way of calling a tool. So every kind is named here, the harmless ones too, and
whoever asks which tools were called is told of a kind that is not (`Message.unknown`): not knowing is never taken for
"nothing was called".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

NAMESPACE = "__"
"""Between the namespace of a tool (OpenAI's Responses: Codex has one for each MCP server) and its name: as other agents
write ``mcp__SERVER__TOOL``."""


class By(Enum):
    """Who runs what an item calls."""

    AGENT = "agent"
    """Whoever sent the request: it has to send the result."""
    PROVIDER = "provider"
    """The provider itself: web search, code interpreter, MCP."""
    NOBODY = "nobody"
    """It calls nothing."""


@dataclass(frozen=True, slots=True)
class Asks:
    """How a kind of item calls a tool."""

    by: By
    name: str = ""
    """Of the tool; empty where the item's member `name` says it."""
    arguments: tuple[str, ...] = ()
    """Members that may hold the arguments: the first that is there."""

    def name_in(self, item: Mapping[str, Any]) -> str:
        """Return which tool is called, behind its namespace where it has one; empty if nobody says."""
        return named_in(item) or self.name

    def arguments_in(self, item: Mapping[str, Any]) -> object:
        """Return what it is called with, None for nothing."""
        return next((item[name] for name in self.arguments if item.get(name) is not None), None)


def named_in(item: Mapping[str, Any]) -> str | None:
    """Return the name that an item says, behind its namespace where it has one; None if it says none."""
    said, space = item.get("name"), item.get("namespace")
    if not isinstance(said, str):
        return None
    return f"{space}{NAMESPACE}{said}" if said and isinstance(space, str) and space else said


_WORDS = Asks(By.NOBODY)

RESPONSES: Mapping[str, Asks] = {
    "function_call": Asks(By.AGENT, arguments=("arguments",)),
    "custom_tool_call": Asks(By.AGENT, arguments=("input",)),
    "computer_call": Asks(By.AGENT, "computer", ("action", "actions")),
    "local_shell_call": Asks(By.AGENT, "local_shell", ("action",)),
    "shell_call": Asks(By.AGENT, "shell", ("action",)),
    "apply_patch_call": Asks(By.AGENT, "apply_patch", ("operation",)),
    "tool_search_call": Asks(By.AGENT, "tool_search", ("arguments",)),
    "mcp_approval_request": Asks(By.PROVIDER, arguments=("arguments",)),
    "mcp_call": Asks(By.PROVIDER, arguments=("arguments",)),
    "web_search_call": Asks(By.PROVIDER, "web_search", ("action",)),
    "file_search_call": Asks(By.PROVIDER, "file_search", ("queries",)),
    "code_interpreter_call": Asks(By.PROVIDER, "code_interpreter", ("code",)),
    "image_generation_call": Asks(By.PROVIDER, "image_generation"),
    "program": Asks(By.PROVIDER, "program", ("code",)),
    **dict.fromkeys(
        (
            "message", "reasoning", "compaction", "compaction_summary", "item_reference", "additional_tools",
            "mcp_list_tools", "mcp_approval_response", "tool_search_output", "program_output",
            "function_call_output", "custom_tool_call_output", "computer_call_output", "local_shell_call_output",
            "shell_call_output", "apply_patch_call_output",
        ),
        _WORDS,
    ),
}  # fmt: skip
"""Items of OpenAI's Responses and Realtime, by their `type`."""

TOOL_CALLS: Mapping[str, Asks] = {
    "": Asks(By.AGENT),
    "function": Asks(By.AGENT),
    "custom": Asks(By.AGENT),
}
"""Entries of `tool_calls` (chat completions and all who speak like it), by their `type`; many leave it out."""

MESSAGES: Mapping[str, Asks] = {
    "tool_use": Asks(By.AGENT, arguments=("input",)),
    "server_tool_use": Asks(By.PROVIDER, arguments=("input",)),
    "mcp_tool_use": Asks(By.PROVIDER, arguments=("input",)),
    **dict.fromkeys(
        (
            "text", "thinking", "redacted_thinking", "image", "document", "search_result", "compaction",
            "container_upload", "tool_reference", "tool_result", "mcp_tool_result", "web_search_tool_result",
            "web_fetch_tool_result", "tool_search_tool_result", "code_execution_tool_result",
            "bash_code_execution_tool_result", "text_editor_code_execution_tool_result",
        ),
        _WORDS,
    ),
}  # fmt: skip
"""Blocks of Anthropic's messages, by their `type`."""

GEMINI: Mapping[str, Asks] = {
    "functionCall": Asks(By.AGENT, arguments=("args",)),
    "function_call": Asks(By.AGENT, arguments=("args",)),
    "executableCode": Asks(By.PROVIDER, "code_execution", ("code",)),
    "executable_code": Asks(By.PROVIDER, "code_execution", ("code",)),
    "toolCall": Asks(By.PROVIDER, "tool", ("args",)),
    "tool_call": Asks(By.PROVIDER, "tool", ("args",)),
    **dict.fromkeys(
        (
            "text", "thought", "thoughtSignature", "thought_signature", "inlineData", "inline_data", "fileData",
            "file_data", "videoMetadata", "video_metadata", "functionResponse", "function_response",
            "codeExecutionResult", "code_execution_result", "toolResponse", "tool_response", "mediaResolution",
            "media_resolution", "partMetadata", "part_metadata",
        ),
        _WORDS,
    ),
}  # fmt: skip
"""Parts of Gemini's answers, by the member that says what they are."""

CONVERSE: Mapping[str, Asks] = {
    "toolUse": Asks(By.AGENT, arguments=("input",)),
    **dict.fromkeys(
        (
            "text", "image", "document", "video", "audio", "toolResult", "guardContent", "cachePoint",
            "reasoningContent", "citationsContent", "citation", "searchResult",
        ),
        _WORDS,
    ),
}  # fmt: skip
"""Blocks of Bedrock's converse, by the member that says what they are; a `type` beside it says nothing more than who
runs it."""


def kind_of(item: Mapping[str, Any], table: Mapping[str, Asks]) -> str | None:
    """Return under which name a table knows an item that its members describe; None if it knows none of them."""
    calls = (name for name in item if name in table and table[name].by is not By.NOBODY)
    return next(calls, None) or next((name for name in item if name in table), None if item else "text")
