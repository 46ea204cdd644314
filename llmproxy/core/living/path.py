"""The recorded calls of tools as a walk through states.

    rows of a cassette, in order -> `ToolPath`: for each recording the changes that had been made before it

A call *changes* something unless it is known not to: GET, HEAD and their like; a tool that its server calls read-only (`readOnlyHint` of
`tools/list`); what the user declared (``--read-only``). The state in which a call was answered is the changes before it, of all tools
together: two servers may stand before one database. Calls that ran at the same time as a change were answered in a state that nobody knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from llmproxy.core.keys.mcp import ANSWER, DISCOVER, END, NOTIFICATION, STREAM
from llmproxy.core.living.channels import name_of_call
from llmproxy.core.providers.table import MCP_PREFIX, SAFE
from llmproxy.protocol import Channel

LISTS = tuple(f"{MCP_PREFIX}{kind}/list" for kind in ("tools", "resources", "resources/templates", "prompts"))
"""What a server offers. It may change with its state, and seldom does."""
TOOLS = LISTS[0]
_READS = frozenset(
    f"{MCP_PREFIX}{name}"
    for name in ("resources/read", "prompts/get", "completion/complete", "tasks/get", "tasks/result", "tasks/list")
)
_SETS_UP = frozenset(
    {
        *(f"{MCP_PREFIX}{name}" for name in ("initialize", "ping", "logging/setLevel")),
        *(f"{MCP_PREFIX}resources/{name}" for name in ("subscribe", "unsubscribe")),
        *(ANSWER, STREAM, END, DISCOVER),
    }
)
"""What belongs to a connection, whatever the state."""
_SECOND = 1000.0


class ToolRow(Protocol):
    """What must be known of a recording."""

    @property
    def id(self) -> int: ...

    @property
    def provider(self) -> str: ...

    @property
    def operation(self) -> str: ...

    @property
    def method(self) -> str:
        """HTTP's."""

    @property
    def target(self) -> str: ...

    @property
    def started_at(self) -> float:
        """Unix seconds."""

    @property
    def duration_ms(self) -> float | None:
        """Until the end of the answer."""

    @property
    def channel(self) -> Channel: ...


class PathStep(NamedTuple):
    """One recorded call."""

    state: int
    """Changes that had been begun before it."""
    changes: bool
    name: str
    beside: tuple[int, ...] = ()
    """Changes that ran at the same time: interactions."""


@dataclass(frozen=True, slots=True)
class ToolPath:
    """The recorded calls of one cassette."""

    steps: Mapping[int, PathStep] = field(default_factory=dict)
    """By interaction."""
    changes: tuple[int, ...] = ()
    """Interactions that may have changed something, in order."""


def depends(channel: Channel, operation: str) -> bool:
    """Tell whether the answer to a request may depend on a state: not what sets a connection up, nor (see `LISTS`) what is offered."""
    if channel is not Channel.MCP:
        return channel is Channel.HTTP
    return not (operation in _SETS_UP or operation in LISTS or operation.startswith(NOTIFICATION))


def read_path(rows: Iterable[ToolRow], changes: Callable[[ToolRow], bool]) -> ToolPath:
    """Return the walk that recordings are, which come in the order in which they were asked; `changes` tells of each whether it may change something."""
    found: list[tuple[ToolRow, bool]] = [
        (row, changes(row))
        for row in rows
        if depends(row.channel, row.operation) or (row.channel is Channel.MCP and row.operation in LISTS)
    ]
    steps: dict[int, PathStep] = {}
    made: list[int] = []
    for at, (row, changing) in enumerate(found):
        name = name_of_call(row.operation, row.provider, row.method, row.target)
        steps[row.id] = PathStep(len(made), changing, name, _beside(found, at))
        made += [row.id] * changing
    return ToolPath(steps, tuple(made))


def may_change(row: ToolRow, read_only_tools: Mapping[str, frozenset[str]], declared: Callable[[str], bool]) -> bool:
    """Tell whether a recorded call may have changed something; `read_only_tools` are those of each server that says so."""
    if row.channel is Channel.HTTP:
        changing = row.method not in SAFE
    else:  # of a method that nobody knows, too
        changing = depends(row.channel, row.operation) and row.operation not in _READS
    name = name_of_call(row.operation, row.provider, row.method, row.target)
    return changing and name not in read_only_tools.get(row.provider, frozenset()) and not declared(name)


def tools_that_only_read(messages: Iterable[object]) -> tuple[set[str], set[str]]:
    """Return the tools that a server's answers to `tools/list` call read-only, and all others that they name."""
    reading: set[str] = set()
    others: set[str] = set()
    for message in messages:
        result = message.get("result") if isinstance(message, dict) else None
        tools = result.get("tools") if isinstance(result, dict) else None
        for tool in tools if isinstance(tools, list) else ():
            if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
                continue
            said = tool.get("annotations")
            only = isinstance(said, dict) and said.get("readOnlyHint") is True
            (reading if only else others).add(tool["name"])
    return reading - others, others


def _beside(found: Sequence[tuple[ToolRow, bool]], at: int) -> tuple[int, ...]:
    """Return the changes during which a call ran, or that ran during it."""
    row = found[at][0]
    begun, over = row.started_at, _end(row)
    return tuple(
        other.id
        for n, (other, changing) in enumerate(found)
        if n != at and changing and other.started_at < over and begun < _end(other)
    )


def _end(row: ToolRow) -> float:
    return row.started_at + (row.duration_ms or 0.0) / _SECOND


def same_call(request: bytes, name: str, arguments: str) -> bool:
    """Tell whether a recorded call of a tool is what a model asked for: the tool's name, maybe behind its server's, and equal arguments."""
    try:
        asked = json.loads(request)["params"]
        tool, given = str(asked["name"]), asked.get("arguments") or {}
        return (name == tool or name.endswith(("_" + tool, "." + tool, "/" + tool))) and given == json.loads(
            arguments or "{}"
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
