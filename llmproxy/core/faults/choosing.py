"""Which fault a call meets, if any: a pure function of the rules, the seed, the call and what it met before.

Chance is drawn from a digest of seed, session, rule, party, key, occurrence and attempt. So the same walk meets the
same faults in another process, on another machine and whatever runs beside it, and a retry is another attempt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from llmproxy.core.dialects.conversation import read_answer
from llmproxy.core.faults.pieces import kind_of
from llmproxy.core.faults.values import TEXTS, Fault, FaultRule, Faults, FaultTarget
from llmproxy.core.mcp import name_of_called_tool
from llmproxy.core.providers.routing import family_of
from llmproxy.core.providers.table import MCP_PREFIX, Family, channel_of
from llmproxy.core.traffic.interaction import Interaction, Response, header
from llmproxy.protocol import AGENT, STDIO_PREFIX, Channel

SWITCHING = 101
"""Status of a recorded WebSocket."""


def call_of(one: Interaction) -> FaultTarget:
    socket = one.response.status == SWITCHING
    family = family_of(one.provider, one.operation)
    answer = None if socket else one.response
    return FaultTarget(
        session=one.cassette, party=one.party, provider=one.provider, model=one.model or "", operation=one.operation,
        channel=channel_of(one.provider, one.operation),
        transport="websocket" if socket else transport_of(one.provider), key=one.key, nth=one.occurrence,
        family=family, recording=one.id, stream=one.stream, target=one.request.target, body=one.request.body,
        answer=lambda: answer, tools=lambda: tools_of(family, one.operation, one.request.body, answer),
        in_session=header(one.request.headers, "mcp-session-id") is not None,
    )  # fmt: skip


def transport_of(provider: str) -> str:
    """Return how a call of a provider comes that is no WebSocket."""
    return "stdio" if provider.startswith(STDIO_PREFIX) else "http"


def tools_of(family: Family, operation: str, request: bytes, answer: Response | None) -> tuple[str, ...]:
    """Return the names of the tools that an answer calls; of MCP the one that the request calls."""
    if operation.startswith(MCP_PREFIX):
        return name_of_called_tool(request)
    said = None if answer is None else read_answer(family, operation, kind_of(answer), answer.body)
    return () if said is None else tuple(call.name for call in (*said.tool_calls, *said.beside))


def choose(faults: Faults, call: FaultTarget, *, injected: int, numbers: Mapping[int, int]) -> Iterator[Fault]:
    """Yield the faults that it may meet, the first one first.

    The next counts where one finds nothing in the answer to be done to.

    `injected` is how many attempts of this request met a fault already; `numbers` has for each rule (by its index) that
    names a call which of the calls that its other words choose this is, from 1.
    """
    for index, rule in enumerate(faults.rules):
        if not (covers(rule, call) and is_chosen(rule, call)):
            continue
        calls = rule.numbers.get("call")
        if calls and numbers.get(index) not in calls:
            continue
        if injected < rule.times and draw(faults.seed, call, index, injected) < rule.probability:
            yield Fault(rule, index + 1, injected)


def covers(rule: FaultRule, call: FaultTarget) -> bool:
    """Return whether this kind can meet a call at all; the answer may still offer nothing to do it to."""
    return call.channel in rule.kind.channels and call.transport in rule.kind.transports


def is_chosen(rule: FaultRule, call: FaultTarget) -> bool:
    """Return whether a rule's words, but for numbers, choose a call; an answer's tools are read last: slow."""
    recordings = rule.numbers.get("recording")
    if recordings and call.recording not in recordings:
        return False
    return all(chosen_by(rule, name, call) for name in TEXTS)


def chosen_by(rule: FaultRule, name: str, call: FaultTarget) -> bool:
    patterns = rule.texts.get(name) or _default_of(rule, name, call)
    if name == "tool":
        return not patterns or any(matches(patterns, tool) for tool in call.tools())
    return matches(patterns, getattr(call, name))


def _default_of(rule: FaultRule, name: str, call: FaultTarget) -> tuple[str, ...]:
    """Return what counts by default: the agent's calls, tools' if only they can be met, of MCP calls of tools."""
    if name == "party":
        return (AGENT,)
    if name == "channel":
        return rule.kind.usual
    return (CALLS,) if name == "operation" and call.channel == Channel.MCP else ()


CALLS = f"{MCP_PREFIX}tools/call*"
"""Operations that call a tool."""


def matches(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether a text is one of those that the patterns mean; no pattern means all."""
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)


def draw(seed: int, call: FaultTarget, rule: int, attempt: int) -> float:
    """Return a number from 0 up to 1 that depends on nothing else."""
    words = [seed, call.session, rule, call.party, call.key, call.nth, attempt]
    digest = hashlib.sha256(json.dumps(words).encode()).digest()
    return int.from_bytes(digest[:8]) / (1 << 64)
