"""The values of this room.

A kind of fault, a rule that chooses one, the call that it meets, and what the client then sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from llmproxy.core.providers.provider_table import Family
from llmproxy.core.traffic.interaction import Response
from llmproxy.protocol import Channel

ALWAYS = 1 << 30
"""`times: always`: no retry of the request gets its recorded answer."""


class FaultNeeds(StrEnum):
    """What a kind must have before it can be done."""

    NOTHING = "nothing"
    """It takes the place of an answer: nobody is asked."""
    ANSWER = "an answer"
    """It is done to the answer, the recorded one or the provider's."""


class Parameter(NamedTuple):
    """A number that a kind takes."""

    name: str
    default: float
    about: str
    low: float = 0
    high: float = 3600
    whole: bool = False


class Symptom(NamedTuple):
    """What the client sees of a call that met a fault."""

    response: Response | None
    """Its offsets are the microseconds after which its pieces are sent; None: nothing is sent."""
    reset: bool = False
    """End the connection with a reset (RST) behind it, as a host that crashed."""
    shut: float = 0
    """Seconds for which the port refuses new connections."""


class FaultTarget(NamedTuple):
    """A call that may meet a fault: everything that a rule can look at."""

    session: str
    party: str
    provider: str
    model: str
    operation: str
    channel: str
    """What it is about: ``llm``, ``mcp`` or ``http``; see `protocol.Channel`."""
    transport: str
    """How it came: ``http``, ``websocket``, ``stdio``, or ``tls`` for the handshake of an intercepted connection."""
    key: str
    nth: int
    """Which arrival of its key it is, from 1: a retry of a faulty call has the same number."""
    family: Family = "generic"
    recording: int | None = None
    """Row of the recording that would answer; 0: the answer is made by hand; None: the provider would be asked."""
    stream: bool = False
    target: str = ""
    body: bytes = b""
    speed: float = 0
    """Pace of the session: what is recorded keeps its time at 1 and has none at 0."""
    now: int = 0
    """Unix time, whole seconds."""
    answer: Callable[[], Response | None] = lambda: None
    """Reads the answer; None while there is none."""
    tools: Callable[[], tuple[str, ...]] = tuple
    """Reads which tools the answer calls; of MCP which tool the request calls."""
    in_session: bool = False
    """A request of MCP that names a session of its server's."""
    rpc: bool = False
    """Whether it is a call of gRPC, whose failures are told in `grpc-status`."""


Values = Mapping[str, float]
"""What was given for the parameters of a kind, with the defaults of the others."""
Break = Callable[[FaultTarget, Values], Symptom | None]
"""Does it; None where this answer has nothing to do it to: no text, no tool call."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault: a row of the table."""

    name: str
    about: str
    sound: str
    """What a sound agent does."""
    do: Break
    takes: tuple[Parameter, ...] = ()
    needs: FaultNeeds = FaultNeeds.NOTHING
    channels: tuple[str, ...] = (Channel.LLM, Channel.HTTP)
    """What it can meet; MCP only where a rule says so, unless there is nothing else."""
    transports: tuple[str, ...] = ("http",)
    again: bool = True
    """A sound agent gets over it by asking again; False: giving up with a message is as good."""
    sweep: Values | None = field(default_factory=dict)
    """What it takes in a sweep, besides its defaults; None: a sweep leaves it out unless it is named."""
    shared: bool = False
    """It meets every client of the proxy, not only the call that meets it."""

    @property
    def usual_channels(self) -> tuple[str, ...]:
        """What it meets where a rule names no channel: tools stay sound while a model's provider stumbles."""
        return tuple(each for each in self.channels if each != Channel.MCP) or self.channels

    @property
    def defaults(self) -> dict[str, float]:
        """Return what counts where nothing is given."""
        return {each.name: each.default for each in self.takes}


@dataclass(frozen=True, slots=True)
class FaultRule:
    """Which call meets which fault. What is empty chooses everything."""

    kind: FaultKind
    values: Values = field(default_factory=dict)
    numbers: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Which `call` or `recording`; see `NUMBERS`."""
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns with ``*`` and ``?``; see `TEXTS`."""
    probability: float = 1.0
    times: int = 1
    """How many attempts of one request meet a fault, by this rule and all others, before it is let alone."""

    def to_json(self) -> dict[str, object]:
        """Return it as it stands in a file, defaults left out."""
        words = {name: sorted(each) for name, each in self.numbers.items()} | {
            n: list(t) for n, t in self.texts.items()
        }
        chosen = {name: value[0] if len(value) == 1 else value for name, value in words.items() if value}
        values = {each.name: self.values[each.name] for each in self.kind.takes}
        given = {name: value for name, value in values.items() if value != self.kind.defaults[name]}
        chance: dict[str, object] = {} if self.probability == 1 else {"probability": self.probability}
        times: dict[str, object] = (
            {} if self.times == 1 else {"times": "always" if self.times == ALWAYS else self.times}
        )
        return {"kind": self.kind.name, **given, **chosen, **chance, **times}


TEXTS = ("provider", "model", "operation", "party", "channel", "transport", "tool")
"""What a rule can say of a call in words; what counts where it does not stands in `fault_choice`."""
NUMBERS = ("call", "recording")
"""And in numbers: which call of the session, from 1 in the order of arrival; which recording."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What was asked for: rules in their order, the first that fits counts."""

    rules: tuple[FaultRule, ...] = ()
    seed: int = 0
    name: str = ""
    """As it was asked for: a file, a preset, ``reset@3``."""

    @property
    def summary(self) -> str:
        """What a user should know before the first request."""
        kinds = ", ".join(dict.fromkeys(rule.kind.name for rule in self.rules)) or "none"
        return f"injected faults: {self.name} ({kinds}; seed {self.seed})"

    def to_json(self) -> dict[str, object]:
        """Return it as a file holds it."""
        return {"seed": self.seed, "faults": [rule.to_json() for rule in self.rules]}


class Fault(NamedTuple):
    """A fault that a call meets."""

    rule: FaultRule
    number: int
    """Of the rule, from 1."""

    @property
    def kind(self) -> FaultKind:
        return self.rule.kind

    def __str__(self) -> str:
        return f"fault {self.kind.name} (rule {self.number})"


CHUNK = Parameter("chunk", 0, "events of a stream before the fault; 0: half of the answer", 0, 1 << 20, whole=True)
