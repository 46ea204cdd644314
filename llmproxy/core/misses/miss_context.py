"""Facts about a refused request: the engine collects them, `explain` writes the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmproxy.advice import StartCommand
from llmproxy.core.providers.provider_table import Client
from llmproxy.protocol import AGENT, DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class RecordedElsewhere:
    cassette: str
    sample: int = 1
    party: str = AGENT


@dataclass(frozen=True, slots=True)
class MissContext:
    mode: str
    cassette: str
    session: str
    key: str
    method: str
    provider: str
    operation: str
    sample: int = 1
    party: str = AGENT
    model: str | None = None
    stream: bool = False
    last_user: str = ""
    store: str = DEFAULT_STORE
    store_exists: bool = True
    again: StartCommand = field(default_factory=StartCommand)
    upstreams: Mapping[str, str] = field(default_factory=dict)
    """Upstreams that only its session has, or that the nearest recording came from and no option names."""
    recordings: int = 0
    """Number of live recordings of (cassette, sample), all parties."""
    same_operation: int = 0
    """Number of those with this provider and operation."""
    played: int = 0
    """Number of recordings of this key, all served already (``--exhausted miss``)."""
    elsewhere: tuple[RecordedElsewhere, ...] = ()
    complete: bool = False
    """Mode `once`: the cassette was complete when the session opened."""
    state: str = ""
    """With live channels: reason why no recording of this tool's call matches the state of the tools."""
    beside_live: str = ""
    """With live channels: the name of this tool's call."""
    toolless: bool = False
    """Whether it went to a tool server, and the cassette has none."""
    concurrent: tuple[tuple[int, ...], ...] = ()
    """Recordings of the session's cassette that ran concurrently, by group."""
    client: Client | None = None
    recorded_by: Client | None = None
    is_placeholder: bool = False
    """Whether its API key is the placeholder that replay sets for a missing one."""
    is_python: bool = False
    unbound: str = ""
    """Reason why a recording that was compared with bindings does not fit."""
    unbound_at: str = ""
    """JSON path of that, if a difference is the reason."""
    not_carried: str = ""
    """Reason why the recording at its place is not served in spite of changes."""
    on_trial: bool = False
    """Whether a trial asks that says what has changed (`llmproxy changes`)."""
