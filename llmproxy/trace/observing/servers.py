"""What servers of tools (MCP) really got and returned, beside what models asked for: read off the servers' own messages.

    calls of a session -> Served of a stretch of it: each call of a tool that a server got, in order, and what is not known

A call that a fault struck, or that replay refused, no server got. One of which nothing was recorded is not known: it is in `unread`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmproxy.core.keys.mcp import is_call
from llmproxy.core.mcp.answers import messages_of
from llmproxy.core.mcp.texts import read_call
from llmproxy.core.traffic.interaction import Interaction, header
from llmproxy.protocol import Decision
from llmproxy.trace.observing.tools import ToolUse, place_of
from llmproxy.trace.reading.mcp import tool_endings

if TYPE_CHECKING:
    from llmproxy.trace.observing.seen import WireCall

__all__ = ["NO_SERVER", "Served", "find_differences", "read_served"]

NO_SERVER = (
    "no server of tools was seen in this run, so what one got and returned is not known. Its messages must pass the proxy "
    "(`llmproxy run --mcp-config`, `llmproxy mcp -- SERVER`, `--upstream NAME=URL`)"
)
_LIST = "mcp:tools/list"
_SHOWN = 200
"""Characters of arguments."""


@dataclass(frozen=True, slots=True)
class Served:
    """What servers of tools got in a stretch of a run."""

    tools: Sequence[ToolUse] = ()
    """Each call that a server got, in the order of arrival; `output` is what it returned, None where its answer did not come whole."""
    names: frozenset[str] = frozenset()
    """Tools that servers listed, or that were called, in the whole run."""
    listed: frozenset[str] = frozenset()
    """Those that servers listed."""
    seen: bool = False
    """Whether any message to a server was seen in this run."""
    unread: Sequence[str] = ()
    """Where calls are that may have reached a server, and of which nothing was recorded."""

    @property
    def unknown(self) -> str:
        """Why nothing can be said about these calls; empty where something can."""
        if not self.seen:
            return NO_SERVER
        return f"nothing was recorded of {self.unread[0]}, so what a server got is not known" if self.unread else ""


def read_served(
    calls: Iterable[tuple[WireCall, Interaction | None]], after: int = 0, until: int | None = None
) -> Served:
    """Return what servers got in the calls after number `after`, up to `until`, of a run's messages to servers and their recordings."""
    tools, unread, called, listed, seen = list[ToolUse](), list[str](), set[str](), set[str](), False
    for call, made in calls:
        seen = True
        if made is not None and call.operation == _LIST:
            listed.update(_listed(made))
        if not is_call(call.operation) or not _reached(call):
            continue
        use = None if made is None else _use(call, made)
        if use is not None:
            called.add(use.name)
        if call.seq <= after or (until is not None and call.seq > until):
            continue
        if use is None:
            unread.append(place_of(call.interaction, call.seq))
        else:
            tools.append(use)
    return Served(tools, frozenset(called | listed), frozenset(listed), seen, unread)


def _reached(call: WireCall) -> bool:
    """Tell whether a call reached a server, now or when it was recorded."""
    return str(call.decision) not in (Decision.REFUSE, Decision.FAULT) and not getattr(call, "fault", None)


def _use(call: WireCall, made: Interaction) -> ToolUse | None:
    kind = header(made.response.headers, "content-type") or ""
    told = read_call(made.request.body, kind, made.response.body)
    if told is None:
        return None
    whole = any("method" not in each.value for each in messages_of(made.response) if isinstance(each.value, dict))
    return ToolUse(
        told.tool,
        told.arguments,
        None,
        call.seq,
        call.interaction,
        executed=whole,
        output=told.result if whole else None,
        errored=told.failed,
    )


def _listed(made: Interaction) -> Iterable[str]:
    for each in messages_of(made.response):
        result = each.value.get("result") if isinstance(each.value, dict) else None
        tools = result.get("tools") if isinstance(result, dict) else None
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                yield tool["name"]


def find_differences(asked: Sequence[ToolUse], served: Served) -> list[str]:
    """Say where what models asked for and what servers got differ; of tools that servers have, those that an agent runs itself left out.

    Each call of a model stands for one of a server, with the same arguments in whatever order; what is left on both sides is told in pairs.
    """
    of_models: dict[str, list[ToolUse]] = {}
    for use in asked:
        name = server_name(use.name, served.names)
        if name and not use.hosted and not use.denied:
            of_models.setdefault(name, []).append(use)
    of_servers: dict[str, list[ToolUse]] = {}
    for use in served.tools:
        of_servers.setdefault(use.name, []).append(use)
    found: list[str] = []
    for name in dict.fromkeys([*of_models, *of_servers]):
        found += _differing(of_models.get(name, []), of_servers.get(name, []))
    return found


def server_name(name: str, known: frozenset[str]) -> str:
    """Return the name that a server has for a tool which a model calls `name`; empty for one that no server has."""
    return next((each for each in tool_endings(name) if each in known), "")


def _differing(models: Sequence[ToolUse], servers: Sequence[ToolUse]) -> list[str]:
    left = list(servers)
    lonely: list[ToolUse] = []
    for use in models:
        twin = next((each for each in left if _same(each.arguments, use.arguments)), None)
        if twin is None:
            lonely.append(use)
        else:
            left.remove(twin)
    pairs = min(len(lonely), len(left))
    told = [
        f"a model asked for {_shown(one)}, and its server got {_shown(other)}"
        for one, other in zip(lonely, left, strict=False)
    ]
    told += [f"a model asked for {_shown(one)}, and no server got it" for one in lonely[pairs:]]
    return told + [f"a server got {_shown(other)}, which no model asked for" for other in left[pairs:]]


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - JSON
    """Compare as JSON does: true is no 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _shown(use: ToolUse) -> str:
    raw = json.dumps(use.arguments, ensure_ascii=False) if use.parsed else " ".join(use.raw.split())
    return f"{use.name}({raw if len(raw) <= _SHOWN else raw[:_SHOWN] + '...'})"
