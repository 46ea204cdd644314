"""What the engine knows about a request that it refuses: it counts, `explain` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmproxy.advice import StartCommand
from llmproxy.core.providers.provider_table import Client
from llmproxy.protocol import AGENT, DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class RecordedElsewhere:
    """Somewhere else where this very key is recorded."""

    cassette: str
    sample: int = 1
    party: str = AGENT


@dataclass(frozen=True, slots=True)
class MissContext:
    """What the engine knows about a request that it refuses."""

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
    """Text of the conversation's last user message."""
    store: str = DEFAULT_STORE
    store_exists: bool = True
    again: StartCommand = field(default_factory=StartCommand)
    """How the proxy is started again."""
    upstreams: Mapping[str, str] = field(default_factory=dict)
    """Those that its session has of its own."""
    recordings: int = 0
    """Live recordings of (cassette, sample), all parties."""
    same_operation: int = 0
    """Of those: of this provider and operation."""
    played: int = 0
    """Recordings of this very key that were all served already (``--exhausted miss``)."""
    elsewhere: tuple[RecordedElsewhere, ...] = ()
    """Where else this key is recorded."""
    complete: bool = False
    """Mode `once`: the cassette was complete when the session opened."""
    state: str = ""
    """Beside live channels: why no recording of this tool's call holds in the state in which it was asked."""
    beside_live: str = ""
    """Beside live channels: the name of this tool's call."""
    toolless: bool = False
    """A server of tools was asked, and none is in the cassette."""
    concurrent: tuple[tuple[int, ...], ...] = ()
    """Recordings of the session's cassette that went on at the same time, by group."""
    client: Client | None = None
    """The program that asked, as far as it says so."""
    recorded_by: Client | None = None
    """The program that asked what is recorded nearest to it."""
    is_placeholder: bool = False
    """Whether its key is the one that replay sets where there is none."""
    is_python: bool = False
    """Whether the client says that it is a Python program."""
    unbound: str = ""
    """Why a recording that was held against it, with what is bound, does not fit."""
    unbound_at: str = ""
    """JSON path of that, where nothing but a difference is meant."""
    not_carried: str = ""
    """Why the recording at its place is not given although something has changed."""
    on_trial: bool = False
    """Whether a trial asks that says what has changed (`llmproxy changes`)."""
