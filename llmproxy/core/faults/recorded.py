"""A recording as a call that rules can look at, and kinds can be tried on."""

from __future__ import annotations

from llmproxy.core.dialects.conversation import answered
from llmproxy.core.faults.pieces import kind_of
from llmproxy.core.faults.values import Call
from llmproxy.core.providers.routing import Family, family_of
from llmproxy.core.traffic.interaction import Interaction, Response

SWITCHING = 101
"""Status of a recorded WebSocket."""


def call_of(one: Interaction) -> Call:
    """Return a recording as the call that it answers."""
    socket = one.response.status == SWITCHING
    family = family_of(one.provider, one.operation)
    answer = None if socket else one.response
    return Call(
        session=one.cassette,
        party=one.party,
        provider=one.provider,
        model=one.model or "",
        operation=one.operation,
        channel="websocket" if socket else "http",
        key=one.key,
        nth=one.occurrence,
        family=family,
        recording=one.id,
        stream=one.stream,
        target=one.request.target,
        body=one.request.body,
        answer=lambda: answer,
        tools=lambda: tools_of(family, one.operation, answer),
    )


def tools_of(family: Family, operation: str, answer: Response | None) -> tuple[str, ...]:
    """Return the names of the tools that an answer calls."""
    said = None if answer is None else answered(family, operation, kind_of(answer), answer.body)
    return () if said is None else tuple(call.name for call in (*said.tool_calls, *said.beside))
