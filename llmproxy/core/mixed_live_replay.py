"""Sessions with live and replayed channels: a new model with recorded tools (``--live llm``), or live tools.

A tool has a state that the proxy cannot see. A recorded result is served only if this run has made exactly those calls
before it that may have changed something, in the recorded order. A call *changes* something unless it is known not to:
GET, HEAD and similar methods; a tool that its server declares read-only (`readOnlyHint` of `tools/list`); calls that
the user declares read-only (``--read-only``). The state is the sequence of changes of all tools together, since two
servers may share a database; of calls that ran at the same time as a change it is unknown. Pure: no store, no clock.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from llmproxy.amount_formatting import name_some
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.messages import ToolCall
from llmproxy.core.keys.mcp import ANSWER, DISCOVER, END, NOTIFICATION, STREAM, is_mcp_tool_call, is_rpc_message
from llmproxy.core.providers.provider_table import HTTP_PREFIX, MCP_PREFIX, PROVIDERS, SAFE
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.core.traffic.canonical_json import LossyJsonError, parse_json_or_raise_if_lossy
from llmproxy.core.traffic.interaction import Interaction, Key
from llmproxy.protocol import Channel, UnknownToolPolicy

_OF_MODELS = frozenset({*CHAT, "embeddings", "count_tokens", "models", "moderations", "rerank"})
"""Operations that use a model, or concern models, at any provider."""


@dataclass(frozen=True, slots=True)
class LiveChannelSettings:
    channels: frozenset[Channel]
    unknown: UnknownToolPolicy = UnknownToolPolicy.ERROR
    read_only: tuple[str, ...] = ()
    """Patterns of calls that change nothing: names of tools, ``POST api.example.com/search*``."""

    def is_user_declared_read_only(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.read_only)

    def to_json(self) -> dict[str, object]:
        return {"channels": sorted(self.channels), "unknown_tool": str(self.unknown), "read_only": list(self.read_only)}


def format_call_display_name(operation: str, provider: str, method: str, target: str) -> str:
    """Return a call's display name: the tool's name, else the MCP method; for HTTP, method, host and path."""
    if operation.startswith(MCP_PREFIX):
        return operation.rpartition(" ")[2] if is_mcp_tool_call(operation) else operation.removeprefix(MCP_PREFIX)
    return f"{method} {provider.removeprefix(HTTP_PREFIX)}{target.partition('?')[0]}"


def is_model_request(provider: str, operation: str, body: bytes) -> bool:
    """Return whether an `llm` request is for a model: a name of `--upstream` may be any service."""
    if provider in PROVIDERS:
        return True
    if operation.partition("/")[0] not in _OF_MODELS:
        return False
    try:
        return not is_rpc_message(parse_json_or_raise_if_lossy(body)) if body else True
    except LossyJsonError:
        return True


LISTS = tuple(f"{MCP_PREFIX}{kind}/list" for kind in ("tools", "resources", "resources/templates", "prompts"))
"""Operations that list a server's offers. The answers may change with its state, but seldom do."""
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
"""Operations that concern a connection and do not depend on the tool's state."""


class ToolStateAtRecordedCall(NamedTuple):
    state: int
    """Number of changes that had begun before it."""
    changes: bool
    name: str
    beside: tuple[int, ...] = ()
    """Interactions of changes that ran at the same time."""


@dataclass(frozen=True, slots=True)
class ChangeCountsAtRecordedToolCalls:
    steps: Mapping[int, ToolStateAtRecordedCall] = field(default_factory=dict)
    changes: tuple[int, ...] = ()
    """Interactions that may have changed something, in order."""
    reading: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Tools that were declared read-only, by server."""


def may_depend_on_tool_state(channel: Channel, operation: str) -> bool:
    """Return whether an answer may depend on a tool's state: false for connection setup and for `LISTS`."""
    if channel is not Channel.MCP:
        return channel is Channel.HTTP
    return not (operation in _SETS_UP or operation in LISTS or operation.startswith(NOTIFICATION))


def count_state_changes_before_calls(
    rows: Iterable[StoredCallSummary], reading: Mapping[str, frozenset[str]], declared: Callable[[str], bool]
) -> ChangeCountsAtRecordedToolCalls:
    """Return the recorded calls with their states; `reading`: read-only tools by server, `declared`: by the user."""
    found: list[tuple[StoredCallSummary, str, bool]] = []
    for row in rows:
        is_list = row.channel is Channel.MCP and row.operation in LISTS
        if is_list or may_depend_on_tool_state(row.channel, row.operation):
            name = format_call_display_name(row.operation, row.provider, row.method, row.target)
            known = name in reading.get(row.provider, ()) or declared(name)
            found.append((row, name, may_change_tool_state(row.channel, row.method, row.operation) and not known))
    steps: dict[int, ToolStateAtRecordedCall] = {}
    made: list[int] = []
    for at, (row, name, changing) in enumerate(found):
        steps[row.id] = ToolStateAtRecordedCall(len(made), changing, name, _find_overlapping_changes(found, at))
        made += [row.id] * changing
    return ChangeCountsAtRecordedToolCalls(steps, tuple(made), reading)


def may_change_tool_state(channel: Channel, method: str, operation: str) -> bool:
    """Return whether a call may change something, if nobody declared it read-only. Unknown methods may."""
    if channel is Channel.HTTP:
        return method not in SAFE
    return may_depend_on_tool_state(channel, operation) and operation not in _READS


def split_tools_by_read_only(messages: Iterable[object]) -> tuple[set[str], set[str]]:
    """Return the tools that answers to `tools/list` declare read-only, and all other tools in them."""
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


def _find_overlapping_changes(found: Sequence[tuple[StoredCallSummary, str, bool]], at: int) -> tuple[int, ...]:
    row = found[at][0]
    begun, over = row.started_at, _get_end_time(row)
    return tuple(
        other.id
        for n, (other, _, changing) in enumerate(found)
        if n != at and changing and other.started_at < over and begun < _get_end_time(other)
    )


def _get_end_time(row: StoredCallSummary) -> float:
    return row.started_at + (row.duration_ms or 0.0) / 1000


def is_same_call_as_mcp_request(request: bytes, name: str, arguments: str) -> bool:
    try:
        asked = json.loads(request)["params"]
        tool, given = str(asked["name"]), asked.get("arguments") or {}
        is_named = name == tool or name.endswith(("_" + tool, "." + tool, "/" + tool))
        return is_named and given == json.loads(arguments or "{}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


_NAMED = 3
MOST_TOLD = 100
AreRequested = Callable[[Sequence[int]], bool]


class ChosenRecording(NamedTuple):
    recording: RecordingHead | None = None
    why: str = ""
    """Empty if there are no recordings at all, or if one was chosen."""


@dataclass(slots=True)
class SessionWithLiveChannels:
    asked: LiveChannelSettings
    parent: tuple[str, int]
    """Cassette and sample whose tool results are served."""
    child: str
    path: ChangeCountsAtRecordedToolCalls | None = None
    """None until it is first read."""
    done: set[int] = field(default_factory=set)
    """Recorded changes that this run has made."""
    pending: set[int] = field(default_factory=set)
    """Those of them whose answers have not ended: their servers wait for their client."""
    parted: str = ""
    """The call that went to a real tool and may have changed something; no recorded state is valid after it."""
    made: dict[int, Interaction] = field(default_factory=dict)
    """The proxy's own answers to calls without a recording, by number of the call in the session."""
    waiting: deque[Interaction] = field(default_factory=deque)
    """Interactions to be stored in the child together with its next stored answer."""
    announced: tuple[ToolCall, ...] = ()
    served: int = 0
    unknown: list[str] = field(default_factory=list)
    begun: bool = False
    """Whether some call belongs to the current child."""
    again: bool = False
    """Whether the session restarts: later calls belong to another child."""
    _read: Counter[tuple[Key, int]] = field(default_factory=Counter)

    def is_channel_live(self, channel: Channel) -> bool:
        return channel in self.asked.channels

    def restart(self) -> None:
        self.again = self.again or self.begun
        self.done.clear()
        self.pending.clear()
        self.parted = ""
        self.announced = ()
        self._read.clear()

    def choose_recording(
        self, path: ChangeCountsAtRecordedToolCalls, key: Key, recordings: Sequence[RecordingHead], *,
        alike: Callable[[Sequence[RecordingHead]], bool], announced: AreRequested, loose: bool = False,
    ) -> ChosenRecording:  # fmt: skip
        """Return the recording that was answered in the state in which this run is now, and note what it changes.

        `alike` returns whether answers are equal, `announced` whether the model requested all these recorded calls,
        each once, in its last answer. `loose`: the answer seldom depends on a state.
        """
        if loose and recordings and alike(recordings):
            return ChosenRecording(recordings[-1])
        known = [(each, path.steps[each.id]) for each in recordings if each.id in path.steps]
        whys = [self._explain_unusable_recording(path, each.id, step, announced) for each, step in known]
        here = [found for found, why in zip(known, whys, strict=True) if not why]
        if not here:
            return ChosenRecording(why=whys[0] if whys else "")
        changing = [each for each, step in here if step.changes]
        if changing:
            self.done.add(changing[0].id)
            return ChosenRecording(changing[0])
        reading = [each for each, _ in here]
        self._read[key, len(self.done)] += 1
        nth = self._read[key, len(self.done)]
        if nth <= len(reading):
            return ChosenRecording(reading[nth - 1])
        if alike(reading):
            return ChosenRecording(reading[-1])
        return ChosenRecording(
            why="its recorded results differ although nothing was changed between them, and all of them were told"
        )

    def _explain_unusable_recording(
        self, path: ChangeCountsAtRecordedToolCalls, id_: int, step: ToolStateAtRecordedCall, announced: AreRequested
    ) -> str:
        if self.parted:
            return f"{self.parted} went to a real tool, so no recorded state holds any more"
        if id_ in self.done:
            return "each of its recordings was told already, and a call may change something"
        if (beside := set(step.beside)) and not announced((*sorted(beside), id_)):
            names = _join_call_names(path, sorted(beside))
            return f"it was recorded while {names} ran, so nobody knows in which state it was answered"
        if waits := sorted(self.pending - beside):
            return f"{_join_call_names(path, waits)} has not ended yet"
        before = set(path.changes[: step.state])
        if missing := sorted(before - beside - self.done):
            return f"it was recorded after {_join_call_names(path, missing)}, which this run has not called"
        if extra := sorted(self.done - before - beside):
            return f"it was recorded before {_join_call_names(path, extra)}, which this run has called already"
        return ""

    def record_unanswered(self, name: str, chosen: ChosenRecording | None) -> None:
        """Record a refused call; what was chosen for it has not been done."""
        if chosen is not None and chosen.recording is not None:
            self.done.discard(chosen.recording.id)
        if len(self.unknown) < MOST_TOLD:
            self.unknown.append(name)

    def take_unstored_interactions(self) -> list[Interaction]:
        """Return the unstored interactions, each once; another thread may add more meanwhile."""
        taken = []
        while self.waiting:
            taken.append(self.waiting.popleft())
        return taken

    def to_json(self) -> dict[str, object]:
        return {
            **self.asked.to_json(),
            "parent": self.parent[0],
            "parent_sample": self.parent[1],
            "cassette": self.child,
            "served": self.served,
            "unknown": list(self.unknown),
        }


def _join_call_names(path: ChangeCountsAtRecordedToolCalls, ids: Sequence[int]) -> str:
    return name_some((path.steps[each].name for each in ids), shown=_NAMED)
