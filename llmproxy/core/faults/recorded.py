"""A recording as a call that rules can look at, and kinds can be tried on."""

from __future__ import annotations

from llmproxy.core.dialects.conversation import read_answer
from llmproxy.core.faults.pieces import kind_of
from llmproxy.core.faults.values import FaultTarget
from llmproxy.core.mcp import called_in
from llmproxy.core.providers.routing import family_of
from llmproxy.core.providers.table import MCP_PREFIX, Family, channel_of
from llmproxy.core.traffic.interaction import Interaction, Response, header
from llmproxy.protocol import STDIO_PREFIX

SWITCHING = 101
"""Status of a recorded WebSocket."""


def call_of(one: Interaction) -> FaultTarget:
    """Return a recording as the call that it answers."""
    socket = one.response.status == SWITCHING
    family = family_of(one.provider, one.operation)
    answer = None if socket else one.response
    return FaultTarget(
        session=one.cassette,
        party=one.party,
        provider=one.provider,
        model=one.model or "",
        operation=one.operation,
        channel=channel_of(one.provider, one.operation),
        transport="websocket" if socket else transport_of(one.provider),
        key=one.key,
        nth=one.occurrence,
        family=family,
        recording=one.id,
        stream=one.stream,
        target=one.request.target,
        body=one.request.body,
        answer=lambda: answer,
        tools=lambda: tools_of(family, one.operation, one.request.body, answer),
        in_session=header(one.request.headers, "mcp-session-id") is not None,
    )


def transport_of(provider: str) -> str:
    """Return how a call of a provider comes that is no WebSocket."""
    return "stdio" if provider.startswith(STDIO_PREFIX) else "http"


def tools_of(family: Family, operation: str, request: bytes, answer: Response | None) -> tuple[str, ...]:
    """Return the names of the tools that an answer calls; of MCP the one that the request calls."""
    if operation.startswith(MCP_PREFIX):
        return called_in(request)
    said = None if answer is None else read_answer(family, operation, kind_of(answer), answer.body)
    return () if said is None else tuple(call.name for call in (*said.tool_calls, *said.beside))
