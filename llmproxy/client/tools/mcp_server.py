"""`llmproxy mcp serve`, an MCP server over recordings on the official SDK: its tools are a table, one row each.

A tool runs the command of the same name in a process of its own and returns its output, errors included; nothing of it
reaches the protocol's stdout. Arguments that are cassettes or numbers come after ``=`` or are checked: none of them can
become an option.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import llmproxy
from llmproxy.advice import build_install_command
from llmproxy.errors import LLMProxyError, MachineError, SettingsError, ensure_program_prefix

Arguments = Mapping[str, Any]

_CASSETTE = {"type": "string", "description": "Name of a cassette, see `list`; NAME~2 is its second sample."}
_EITHER = {"type": "string", "description": "Number of an interaction, or name of a cassette; `list` has both."}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_OVERRIDES = {
    "tool_results": _TEXTS
    | {"description": "What a tool is to have returned, by its name; NAME#2 for its second call."},
    "answers": _TEXTS | {"description": "What the model is to answer, by the number of the agent's call, from 0."},
}


class McpServeOptions(NamedTuple):
    store: str = ""
    """Path; empty: from the settings."""
    cassette: str = ""
    write: bool = False
    agent: tuple[str, ...] = ()
    """The command to replay; the client cannot choose one."""
    other_store: str = ""
    """A store that is not served, but may hold the recordings that the client looks for."""
    options: tuple[tuple[str, str | None], ...] = ()
    """Options of that command: flags of `replay` with values, None for a switch."""


class LlmproxyMcpServerTool(NamedTuple):
    name: str
    description: str
    properties: Mapping[str, Any]
    words: Callable[[Arguments, McpServeOptions], Sequence[str]]
    """The command's words after ``llmproxy``. Raises SettingsError."""
    required: tuple[str, ...] = ()
    writes: bool = False
    runs_agent: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        members = {"properties": dict(self.properties), "required": list(self.required)}
        return {"type": "object", **members, "additionalProperties": False}


def _get_asked_cassette(asked: Arguments, serving: McpServeOptions) -> str:
    """Return the requested cassette. Raises SettingsError."""
    if named := str(asked.get("cassette") or serving.cassette):
        return _refuse_leading_dash(named)
    raise SettingsError("name a cassette.", hint="The tool `list` has their names.")


def _refuse_leading_dash(word: str) -> str:
    """Return a word unless it is an option. Raises SettingsError."""
    if not word or word.startswith("-"):
        raise SettingsError(f"{word!r} is no name of a cassette, and no number.", hint="The tool `list` has both.")
    return word


def _build_llmproxy_ls_command(asked: Arguments, serving: McpServeOptions) -> Sequence[str]:
    named = asked.get("cassette") or serving.cassette
    channel = [f"--channel={asked['channel']}"] if "channel" in asked else []
    return ["ls", *([_refuse_leading_dash(named)] if named else []), f"--limit={asked.get('limit', 50)}", *channel]


def _build_llmproxy_replay_words(asked: Arguments, serving: McpServeOptions) -> Sequence[str]:
    results = [f"--override-tool={name}={value}" for name, value in asked.get("tool_results", {}).items()]
    answers = [f"--override-llm={number}={value}" for number, value in asked.get("answers", {}).items()]
    named = asked.get("cassette") or serving.cassette
    run = [flag if value is None else f"{flag}={value}" for flag, value in serving.options]
    return ["replay", *([f"--cassette={_refuse_leading_dash(named)}"] if named else []), *run, *results, *answers]


TOOLS = (
    LlmproxyMcpServerTool(
        "list",
        "List the cassettes (recorded runs of an agent) and the last interactions in them: calls of models, of MCP "
        "tools, of HTTP services.",
        {
            "cassette": _CASSETTE,
            "channel": {"type": "string", "enum": ["llm", "mcp", "http"], "description": "Only calls of this kind."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "How many at most; 50."},
        },
        _build_llmproxy_ls_command,
    ),
    LlmproxyMcpServerTool(
        "show",
        "Show an interaction whole (what was asked, what was answered, tool calls, tokens, times), or a cassette as a "
        "conversation.", {"what": _EITHER},
        lambda asked, serving: [
            "show", _refuse_leading_dash(str(asked.get("what") or _get_asked_cassette(asked, serving))),
        ],
    ),
    LlmproxyMcpServerTool(
        "why",
        "Say why the last requests were refused in replay: the nearest recording, where it differs, and what to do "
        "about it.",
        {"number": {"type": "integer", "minimum": 1, "maximum": 100, "description": "The last so many; 1."}},
        lambda asked, _: ["why", "-n", str(asked.get("number", 1))],
    ),
    LlmproxyMcpServerTool(
        "diff",
        "Say where two interactions differ, by prompt, tool or message; or two cassettes, by tools, texts, tokens, "
        "cost, time and requests.", {"old": _EITHER, "new": _EITHER},
        lambda asked, _: ["diff", _refuse_leading_dash(asked["old"]), _refuse_leading_dash(asked["new"])],
        ("old", "new"),
    ),
    LlmproxyMcpServerTool(
        "learn",
        "List the values of tools that vary from run to run of a cassette, which could be volatile fields; nothing is "
        "written.", {"cassette": _CASSETTE}, lambda asked, serving: ["learn", _get_asked_cassette(asked, serving)],
    ),
    LlmproxyMcpServerTool(
        "replay",
        "Run the agent on its recording with results of tools or answers of the model overridden, and say where it "
        "leaves the recording. The agent's command was chosen by whoever started this server. No model is asked.",
        {"cassette": _CASSETTE, **_OVERRIDES}, _build_llmproxy_replay_words, runs_agent=True,
    ),
    LlmproxyMcpServerTool(
        "fork", "Make a new cassette that begins like another one.",
        {
            "cassette": _CASSETTE,
            "at": {"type": "integer", "minimum": 1, "description": "Take its first so many interactions; all."},
            "name": {"type": "string", "description": "Of the new cassette; CASSETTE@fork-N."},
        },
        lambda asked, serving: [
            "fork", _get_asked_cassette(asked, serving), *([f"--at={asked['at']}"] if "at" in asked else []),
            *([f"--as={_refuse_leading_dash(asked['name'])}"] if "name" in asked else []),
        ],
        writes=True,
    ),
    LlmproxyMcpServerTool(
        "learn_accept",
        "Make volatile fields of the values that vary: by name, or all that are plain (uuid, hex, time, duration).",
        {"cassette": _CASSETTE, "take": {"type": "array", "items": {"type": "string"}, "description": "Names."}},
        lambda asked, serving: [
            "learn", _get_asked_cassette(asked, serving),
            *([f"--take={each}" for each in asked["take"]] if asked.get("take") else ["--accept"]),
        ],
        writes=True,
    ),
)  # fmt: skip
LONGEST_WORD = 100_000
"""Maximum characters of a text in a command; systems allow 131,072 bytes a word."""

LARGEST = (1 << 63) - 1
SHOWN = 100


def _is_valid_command_word(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value.encode("utf-8", "surrogatepass")) <= LONGEST_WORD
        and not re.search(r"[\0\ud800-\udfff]", value)
    )


_IS: Mapping[str, Callable[[Any], bool]] = {
    "string": _is_valid_command_word,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict) and all(map(_is_valid_command_word, (*value, *value.values()))),
    "array": lambda value: isinstance(value, list) and all(map(_is_valid_command_word, value)),
}
"""Check by schema type. The members of objects and arrays are texts."""


def validate_mcp_tool_arguments(tool: LlmproxyMcpServerTool, asked: Arguments) -> None:
    """Check arguments against the tool's schema. Raises SettingsError."""
    takes = f"{tool.name} takes {', '.join(tool.properties)}"
    if unknown := sorted(set(asked) - set(tool.properties)):
        raise SettingsError(f"{takes}; not {unknown[0][:100]!r}.")
    if missing := [name for name in tool.required if name not in asked]:
        raise SettingsError(f"{takes}; {missing[0]} is missing.")
    for name, value in asked.items():
        schema = tool.properties[name]
        within = not isinstance(value, int) or schema.get("minimum", 0) <= value <= schema.get("maximum", LARGEST)
        if not (_IS[schema["type"]](value) and value in schema.get("enum", [value]) and within):
            raise SettingsError(f"{name} of {tool.name} cannot be {_shorten_json(value)}: it is {json.dumps(schema)}.")


def _shorten_json(value: object) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return "this"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def list_own_mcp_tools(serving: McpServeOptions) -> list[LlmproxyMcpServerTool]:
    return [each for each in TOOLS if (serving.write or not each.writes) and (serving.agent or not each.runs_agent)]


def unknown_tool_error(name: str, serving: McpServeOptions) -> SettingsError:
    """Return the error for a tool that is not offered: unknown, or not allowed at the server's start."""
    offered = ", ".join(each.name for each in list_own_mcp_tools(serving))
    if (known := next((each for each in TOOLS if each.name == name), None)) is None:
        return SettingsError(f"there is no tool {name[:SHOWN]!r}. There is: {offered}.")
    more = "--write" if known.writes else "-- AGENT, the command that is to be replayed"
    hint = f"Only a person can: llmproxy mcp serve ... {more}. There is: {offered}."
    return SettingsError(f"{name} is not offered: this server was started without it.", hint=hint)


def build_llmproxy_arguments(tool: LlmproxyMcpServerTool, asked: Arguments, serving: McpServeOptions) -> list[str]:
    """Return the words after ``llmproxy`` for one call. Raises SettingsError."""
    asked = {name: value for name, value in asked.items() if value is not None}  # as models leave out what they may
    validate_mcp_tool_arguments(tool, asked)
    words = list(tool.words(asked, serving))
    store = [f"--store={serving.store}"] if serving.store else []
    return [words[0], *store, *words[1:], *(["--", *serving.agent] if tool.runs_agent else [])]


PATIENCE = 600.0
"""Timeout of a command in seconds."""
LONGEST = 60_000
"""Maximum characters of an answer, which a model reads."""


class LlmproxyMcpToolError(LLMProxyError):
    """The request could not be carried out."""


class LlmproxyCommandFailed(LLMProxyError):
    """Output of a failed command; our own messages get our prefix, the agent's do not."""


def serve_llmproxy_tools_on_stdio(serving: McpServeOptions) -> None:
    """Serve on stdin and stdout until the client leaves. Raises MachineError."""
    try:
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise MachineError(f"the package mcp is not installed ({error}).", hint=build_install_command("mcp")) from error
    server = _make_server(serving)

    async def main() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    with suppress(KeyboardInterrupt):
        asyncio.run(main())


def _make_server(serving: McpServeOptions) -> Any:
    """Create the SDK's server; its first generation takes functions by decorators, the second as arguments."""
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, ListToolsResult

    tools = {each.name: each for each in list_own_mcp_tools(serving)}
    listed = ListToolsResult.model_validate({"tools": [_describe_tool(each) for each in tools.values()]})
    kind: Any = Server
    about = {"version": llmproxy.__version__, "instructions": _write_instructions(tools, serving)}

    async def call(name: str, arguments: Mapping[str, Any] | None) -> Any:
        text, failed = await run_own_mcp_tool(tools, name, arguments or {}, serving)
        return CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": failed})

    if not hasattr(Server, "call_tool"):

        async def on_list(*_: object) -> ListToolsResult:
            return listed

        async def on_call(_: object, asked: Any) -> Any:
            return await call(asked.name, asked.arguments)

        return kind("llmproxy", **about, on_list_tools=on_list, on_call_tool=on_call)
    server = kind("llmproxy", **about)

    async def list_tools() -> Any:
        return listed.tools

    server.list_tools()(list_tools)
    server.call_tool(validate_input=False)(call)  # what is wrong is said by us
    return server


def _describe_tool(tool: LlmproxyMcpServerTool) -> dict[str, Any]:
    hints = {"readOnlyHint": not (tool.writes or tool.runs_agent), "openWorldHint": False}
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.schema, "annotations": hints}


async def run_own_mcp_tool(
    tools: Mapping[str, LlmproxyMcpServerTool], name: str, arguments: Mapping[str, Any], serving: McpServeOptions
) -> tuple[str, bool]:
    try:
        if (tool := tools.get(name)) is None:
            raise unknown_tool_error(name, serving)
        return await run_llmproxy_command(build_llmproxy_arguments(tool, arguments, serving)), False
    except LlmproxyCommandFailed as error:
        return str(error), True
    except LLMProxyError as error:
        return ensure_program_prefix(error), True


def _write_instructions(tools: Mapping[str, LlmproxyMcpServerTool], serving: McpServeOptions) -> str:
    changes = [each.name for each in tools.values() if each.writes]
    return (
        "Recorded runs of an agent under test: what it asked of models, MCP tools and HTTP services, and what they "
        "answered. A test that fails with a miss: `why` says what the request differs in, `show` and `diff` what was "
        "recorded. "
        + (f"They are read in {serving.store}. " if serving.store else "")
        + (f"What suites recorded is in {serving.other_store}, and not read here. " if serving.other_store else "")
        + (f"{' and '.join(changes)} change recordings." if changes else "Nothing here changes a recording.")
    )


async def run_llmproxy_command(words: Sequence[str]) -> str:
    """Run a command, output to files: pipes may stay open. Raises LlmproxyMcpToolError, LlmproxyCommandFailed."""
    command, env = [sys.executable, "-m", "llmproxy", *words], {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = await asyncio.create_subprocess_exec(
                *command, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err
            )
        except OSError as error:  # many words, each of which is short enough
            raise LlmproxyMcpToolError(f"{words[0]} cannot be started: {error.strerror or error}.") from error
        late = ""
        try:
            await asyncio.wait_for(child.wait(), PATIENCE)
        except TimeoutError:
            late = f"llmproxy: {words[0]} took over {PATIENCE:g} s, and was ended. It had said:\n"
        finally:
            if child.returncode is None:  # too late, or cancelled
                child.terminate()
                await child.wait()
        parts = []
        for each in (out, err):
            each.seek(0)
            parts.append(each.read().decode("utf-8", "replace").rstrip())
        said = "\n".join(filter(None, parts))
    text = late + shorten_output(said, words[0])
    if child.returncode or late:
        if text:
            raise LlmproxyCommandFailed(text)
        raise LlmproxyMcpToolError(f"{words[0]} ended with exit code {child.returncode}.")
    return text or "(nothing)"


def shorten_output(text: str, what: str) -> str:
    if len(text) <= LONGEST:
        return text
    left = len(text) - LONGEST
    return (
        f"{text[: LONGEST // 2]}\n[... {left:,} characters left out; `llmproxy {what}` in a terminal prints them "
        f"...]\n{text[-LONGEST // 2 :]}"
    )
