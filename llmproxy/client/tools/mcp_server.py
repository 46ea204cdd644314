"""An MCP server over recordings, on the official SDK: `mcp_tool_commands` defines its tools, this runs their commands.

Each call is a process of its own: its output is the text for people, a failure becomes a tool error with that text, and
nothing of it reaches the protocol's stdout.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import llmproxy
from llmproxy.advice import install_command
from llmproxy.client.tools.mcp_tool_commands import (
    McpServeOptions,
    McpTool,
    build_llmproxy_arguments,
    list_own_mcp_tools,
    unknown_tool_error,
)
from llmproxy.errors import LLMProxyError, MachineError, ensure_prefix

PATIENCE = 600.0
"""Timeout of a command in seconds."""
LONGEST = 60_000
"""Maximum characters of an answer, which a model reads."""
_WIDTH = "200"


class ToolFailed(LLMProxyError):
    """The request could not be carried out."""


class CommandFailed(LLMProxyError):
    """Output of a failed command; our own messages get our prefix, the agent's do not."""


def serve_stdio(serving: McpServeOptions) -> None:
    """Serve on stdin and stdout until the client leaves. Raises MachineError."""
    try:
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise MachineError(f"the package mcp is not installed ({error}).", hint=install_command("mcp")) from error
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
        text, failed = await answer_tool_call(tools, name, arguments or {}, serving)
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


def _describe_tool(tool: McpTool) -> dict[str, Any]:
    hints = {"readOnlyHint": not (tool.writes or tool.runs_agent), "openWorldHint": False}
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.schema, "annotations": hints}


async def answer_tool_call(
    tools: Mapping[str, McpTool], name: str, arguments: Mapping[str, Any], serving: McpServeOptions
) -> tuple[str, bool]:
    try:
        if (tool := tools.get(name)) is None:
            raise unknown_tool_error(name, serving)
        return await run_llmproxy_command(build_llmproxy_arguments(tool, arguments, serving)), False
    except CommandFailed as error:
        return str(error), True
    except LLMProxyError as error:
        return ensure_prefix(error), True


def _write_instructions(tools: Mapping[str, McpTool], serving: McpServeOptions) -> str:
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
    """Run a command of ours with output to files: a pipe may stay open for ever. Raises ToolFailed, CommandFailed."""
    env = {**os.environ, "COLUMNS": _WIDTH, "NO_COLOR": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "llmproxy",
                *words,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        except OSError as error:  # many words, each of which is short enough
            raise ToolFailed(f"{words[0]} cannot be started: {error.strerror or error}.") from error
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
        raise CommandFailed(text) if text else ToolFailed(f"{words[0]} ended with exit code {child.returncode}.")
    return text or "(nothing)"


def shorten_output(text: str, what: str) -> str:
    if len(text) <= LONGEST:
        return text
    left = len(text) - LONGEST
    return (
        f"{text[: LONGEST // 2]}\n[... {left:,} characters left out; `llmproxy {what}` in a terminal prints them "
        f"...]\n{text[-LONGEST // 2 :]}"
    )
