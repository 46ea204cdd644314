"""A kind of fault, a rule that selects one, the call that meets it, and the client's view of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from llmproxy.core.providers.provider_table import Family
from llmproxy.core.traffic.interaction import Response
from llmproxy.protocol import Channel

ALWAYS = 1 << 30
"""Value of `times: always`: no retry of the request gets its recorded answer."""


class Parameter(NamedTuple):
    name: str
    default: float
    about: str
    low: float = 0
    high: float = 3600
    whole: bool = False


class FaultyAnswer(NamedTuple):
    """The client's view of a call that met a fault."""

    response: Response | None
    """Its offsets are the microseconds after which its pieces are sent; None: nothing is sent."""
    reset: bool = False
    """Whether the connection then ends with a reset (RST), as after a host's crash."""
    shut: float = 0
    """Seconds for which the port refuses new connections."""


class CandidateCall(NamedTuple):
    """A call that may meet a fault: all data that rules use."""

    session: str
    party: str
    provider: str
    model: str
    operation: str
    channel: str
    """``llm``, ``mcp`` or ``http``; see `protocol.Channel`."""
    transport: str
    """``http``, ``websocket``, ``stdio``, or ``tls`` for the handshake of an intercepted connection."""
    key: str
    nth: int
    """Occurrence of its key, from 1: a retry of a faulty call has the same number."""
    family: Family = "generic"
    recording: int | None = None
    """Row of the recording that would answer; 0: a written answer; None: the provider would answer."""
    stream: bool = False
    target: str = ""
    body: bytes = b""
    speed: float = 0
    """Replay speed of the session: recorded times are kept at 1 and dropped at 0."""
    now: int = 0
    """Unix time in whole seconds."""
    answer: Callable[[], Response | None] = lambda: None
    """Returns the answer; None while there is none."""
    tools: Callable[[], tuple[str, ...]] = tuple
    """Returns the tools that the answer calls; for MCP, the tool that the request calls."""
    in_session: bool = False
    """Whether it is an MCP request that names a session of its server."""
    rpc: bool = False
    """Whether it is a gRPC call, whose failures are reported in `grpc-status`."""


Values = Mapping[str, float]
"""Values of a kind's parameters, defaults included."""
Break = Callable[[CandidateCall, Values], FaultyAnswer | None]
"""Applies a fault; None if the answer is unsuitable, for example without text or tool calls."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    name: str
    about: str
    sound: str
    """Expected behaviour of a correct agent."""
    do: Break
    takes: tuple[Parameter, ...] = ()
    needs_answer: bool = False
    """Whether it changes the answer, the recorded one or the provider's; False: it replaces it, and none is sent for.
    """
    channels: tuple[str, ...] = (Channel.LLM, Channel.HTTP)
    """Channels to which it applies; MCP only if a rule names it, unless there is no other."""
    transports: tuple[str, ...] = ("http",)
    again: bool = True
    """Whether a correct agent recovers by retrying; False: giving up with a message is as good."""
    sweep: Values | None = field(default_factory=dict)
    """Parameters in a sweep, in addition to the defaults; None: a sweep includes it only by name."""
    shared: bool = False
    """Whether it affects every client of the proxy, not only the call that meets it."""

    @property
    def default_channels(self) -> tuple[str, ...]:
        """Channels if a rule names none: MCP is excluded, so that tools work while a model's provider fails."""
        return tuple(each for each in self.channels if each != Channel.MCP) or self.channels

    @property
    def defaults(self) -> dict[str, float]:
        return {each.name: each.default for each in self.takes}


@dataclass(frozen=True, slots=True)
class FaultRule:
    """Assignment of a fault to calls. An empty filter selects everything."""

    kind: FaultKind
    values: Values = field(default_factory=dict)
    numbers: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Numbers by `call` or `recording`; see `NUMBERS`."""
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns with ``*`` and ``?``; see `TEXTS`."""
    probability: float = 1.0
    times: int = 1
    """Number of attempts of one request that meet a fault, of this rule and all others, before it succeeds."""

    def to_json(self) -> dict[str, object]:
        words = {n: sorted(each) for n, each in self.numbers.items()} | {n: list(t) for n, t in self.texts.items()}
        chosen = {name: value[0] if len(value) == 1 else value for name, value in words.items() if value}
        given = {
            each.name: self.values[each.name] for each in self.kind.takes if self.values[each.name] != each.default
        }
        chance: dict[str, object] = {} if self.probability == 1 else {"probability": self.probability}
        often = "always" if self.times == ALWAYS else self.times
        times: dict[str, object] = {} if self.times == 1 else {"times": often}
        return {"kind": self.kind.name, **given, **chosen, **chance, **times}


TEXTS = ("provider", "model", "operation", "party", "channel", "transport", "tool")
"""Text filters of a rule; their defaults are in `fault_choice`."""
NUMBERS = ("call", "recording")
"""Numeric filters of a rule: number of the call in the session, from 1 in order of arrival; number of the recording."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Fault settings: ordered rules, of which the first match applies."""

    rules: tuple[FaultRule, ...] = ()
    seed: int = 0
    name: str = ""
    """Name in the settings: a file, a preset, ``reset@3``."""

    @property
    def summary(self) -> str:
        kinds = ", ".join(dict.fromkeys(rule.kind.name for rule in self.rules)) or "none"
        return f"injected faults: {self.name} ({kinds}; seed {self.seed})"

    def to_json(self) -> dict[str, object]:
        return {"seed": self.seed, "faults": [rule.to_json() for rule in self.rules]}


class ChosenFault(NamedTuple):
    rule: FaultRule
    number: int
    """Number of the rule, from 1."""

    @property
    def kind(self) -> FaultKind:
        return self.rule.kind

    def __str__(self) -> str:
        return f"fault {self.kind.name} (rule {self.number})"


CHUNK = Parameter("chunk", 0, "events of a stream before the fault; 0: half of the answer", 0, 1 << 20, whole=True)
