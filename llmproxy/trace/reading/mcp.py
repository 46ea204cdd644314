"""Messages to servers of tools as spans, by the names of OpenTelemetry's conventions for MCP (1.40, read 2026-11).

    tools/call echo     gen_ai.operation.name execute_tool, gen_ai.tool.name, mcp.method.name, network.transport,
                        error.type

The session's id is no part of a recording (it is a credential), so there is no mcp.session.id. Notifications, streams
and answers of the client are no operations of a server, and have none.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

from llmproxy.core.keys.mcp import ANSWER, END, NOTIFICATION, STREAM
from llmproxy.core.mcp import messages_of, parse_message, read_call
from llmproxy.core.providers.table import MCP_PREFIX
from llmproxy.core.traffic.interaction import Interaction, header
from llmproxy.protocol import STDIO_PREFIX
from llmproxy.trace.model import Span, SpanKind
from llmproxy.trace.reading.exchange import result_value, span_id

_PREFIX = re.compile(r"__|[./:]")
"""Between a server's name and its tool's, as agents tell them to models: ``mcp__github__search``."""
_FAILED = 400


def span_of_mcp(interaction: Interaction) -> Span | None:
    """Return a message to a server as a step; None for one that waits for no answer."""
    operation = interaction.operation
    if operation in (ANSWER, END, STREAM) or operation.startswith(NOTIFICATION):
        return None
    response, chunks = interaction.response, interaction.response.chunks
    duration = chunks[-1].offset / 1000 if chunks else None
    span = Span(
        id=span_id(interaction, "mcp"),
        kind=SpanKind.AGENT_STEP,
        name=operation.removeprefix(MCP_PREFIX),
        timestamp=interaction.started_at,
        duration_ms=duration,
    )
    span.metadata = _attributes(interaction)
    call = read_call(interaction.request.body, header(response.headers, "content-type") or "", response.body)
    code = _error_code(interaction)
    if code is not None:
        span.metadata |= {"rpc.response.status_code": str(code), "error.type": str(code)}
    if response.status >= _FAILED:
        span.metadata["error.type"] = str(response.status)
        span.error = f"HTTP {response.status}"
    if call is None:
        span.error = span.error or (None if code is None else f"JSON-RPC error {code}")
        return span
    span.metadata |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.tool}
    span.tool_name, span.tool_result = call.tool, result_value(call.result)
    arguments = json.loads(call.arguments)
    span.tool_args = arguments if isinstance(arguments, dict) else None
    span.input = None if isinstance(arguments, dict) else arguments
    if call.failed:
        span.metadata.setdefault("error.type", "tool_error")
        span.error = span.error or call.result or "the tool failed"
    return span


def _attributes(interaction: Interaction) -> dict[str, Any]:
    asked = parse_message(interaction.request.body)
    params = asked.get("params") if isinstance(asked.get("params"), dict) else {}
    over_pipe = interaction.provider.startswith(STDIO_PREFIX)
    where = urlsplit(interaction.upstream) if interaction.upstream and not over_pipe else None
    found = {
        "mcp.method.name": asked.get("method"),
        "mcp.resource.uri": params.get("uri") if isinstance(params, dict) else None,
        "mcp.protocol.version": header(interaction.request.headers, "mcp-protocol-version"),
        "jsonrpc.request.id": None if asked.get("id") is None else str(asked["id"]),
        "network.transport": "pipe" if over_pipe else "tcp",
        "server.address": where.hostname if where else None,
        "server.port": where.port if where else None,
        "llmproxy.server": interaction.provider,
        "llmproxy.operation": interaction.operation,
        "llmproxy.interaction": interaction.id,
        "llmproxy.key": interaction.key,
        "llmproxy.occurrence": interaction.occurrence,
        "llmproxy.party": interaction.party,
        "llmproxy.ending": interaction.response.ending.value,
    }
    return {name: value for name, value in found.items() if value is not None}


def _error_code(interaction: Interaction) -> int | None:
    """Return the code of the JSON-RPC error that a message was answered with; None for a result."""
    for part in messages_of(interaction.response):
        error = part.value.get("error") if isinstance(part.value, dict) and "method" not in part.value else None
        if isinstance(error, dict) and isinstance(error.get("code"), int):
            return int(error["code"])
    return None


def is_carried_out(call: Span, served: Span) -> bool:
    """Return whether a message carries out a model's call of a tool: its name, maybe prefixed, and its arguments."""
    return served.tool_name in tool_endings(call.tool_name or "") and call.tool_args == served.tool_args


def tool_endings(name: str) -> list[str]:
    """Return the names that the server of a tool may have for it which a model calls `name`, the longest first."""
    return [name, *(name[each.end() :] for each in _PREFIX.finditer(name))]
