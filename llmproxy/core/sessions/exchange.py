"""One request on its way through a proxy, and what the engine knows of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from llmproxy.advice import StartCommand, quote_word
from llmproxy.core.faults.injection import InjectedFault
from llmproxy.core.faults.values import Faults
from llmproxy.core.keys.changes import StateChange
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.live_channels import LiveChannels
from llmproxy.core.mcp import AnswerPart
from llmproxy.core.providers.routing import Route
from llmproxy.core.providers.table import Family, channel_of
from llmproxy.core.sessions.bound import BoundAnswer
from llmproxy.core.sessions.end_order import ClientEnds
from llmproxy.core.sessions.record import Recording
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.traffic.interaction import Headers, Key, Request, Response
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import AGENT, DEFAULT_ORDER_WAIT, DEFAULT_SESSION, Channel, Decision, Exhausted, Mode, Scope


@dataclass(frozen=True, slots=True)
class Config:
    """What the engine must know of the settings."""

    mode: Mode = Mode.REPLAY
    cassette: str = DEFAULT_SESSION
    speed: float = 0.0
    exhausted: Exhausted = Exhausted.LAST
    miss_status: int | None = None
    """HTTP status of a miss; None: what the dialect's clients take best."""
    max_request: int = 64 << 20
    store: Path = Path("llmproxy.db")
    cassette_dir: Path | None = None
    """Folder with one YAML file a cassette, kept in step with the store."""
    shown: str = ""
    """The store's path as a user of this folder would type it."""
    again: StartCommand = field(default_factory=StartCommand)
    """How the proxy is started again."""
    upstreams: dict[str, str] = field(default_factory=dict)
    redirected: frozenset[str] = frozenset()
    """Providers whose upstream the user named: what an intercepted client sends to their public host goes there too.
    (One that only an OPENAI_BASE_URL names is for clients that read it; another client's key is for the public
    host.)
    """
    rules: Rules = field(default_factory=Rules)
    allow_live: bool = False
    """A replay proxy may open sessions in modes that reach the network."""
    match_credential: bool = False
    """The caller's key counts, as a fingerprint."""
    bind: Scope = Scope.ALL
    """What may be bound."""
    order_wait: float = DEFAULT_ORDER_WAIT
    """Seconds that concurrent answers wait for a call that was recorded before them; 0: they are not ordered."""
    faults: Faults | None = None
    """Injected faults of every session that has none of its own."""
    live: LiveChannels | None = None
    """What goes live in sessions that say nothing else."""
    record_host: tuple[str, ...] = ()
    """Hosts of other services that are recorded and replayed too."""
    allow_host: tuple[str, ...] = ()
    """Hosts outside the provider table that forwarded traffic may reach even in replay."""

    @property
    def store_words(self) -> str:
        """The store's path as advice names it."""
        return self.shown or str(self.store)

    def learn_command(self, cassette: str) -> str:
        """Return the command that learns what varies in a cassette."""
        return self.again.by(f"llmproxy learn {quote_word(cassette)}").command("", store=self.store_words)


class RequestPlace(NamedTuple):
    """What a request's head says about where it belongs; the same for the same head while `Engine.holds`."""

    party: str
    name: str
    """Of the session."""
    route: Route
    in_scope: bool
    method: str
    headers: Headers
    """As they came, ours taken out."""
    operation: str
    counted: bytes
    learned: int
    """How many credentials the redactor knew."""
    upstreams: Mapping[str, str]
    """Those that its session had of its own."""
    channel: Channel = Channel.LLM
    attempt: int | None = None
    """How often its client had sent the request before, as it says itself."""
    speaker: str = AGENT
    """The party for which the session's name was bound."""


class Playback(Protocol):
    """A recorded answer of MCP on its way to a client of today; see `engine.mcp_playback`."""

    response: Response
    turns: list[AnswerPart] | None
    """None where nothing has to be waited for."""

    def ask(self, turn: AnswerPart) -> None:
        """Hear that the client was asked what `turn` waits for."""

    def ready(self, turn: AnswerPart) -> bool | str:
        """Return whether a turn's data may go out now; a text: never, and why."""

    def refusal(self, text: str) -> bytes:
        """Return the end of the answer where it must not be told."""


@dataclass(slots=True)
class Exchange:
    """One request on its way through; the shell carries it from head to end."""

    route: Route
    session: Session
    party: str
    method: str
    headers: Headers
    """As they came, ours taken out."""
    arrived: float
    """Monotonic seconds."""
    started_at: float
    """Unix seconds."""
    operation: str
    """Name, or the redacted path for what nobody knows."""
    seq: int = 0
    """Number of this call in its session, from 1."""
    decision: Decision | None = None
    """None until the body is here, for modes that must look before they leap."""
    key: Key | None = None
    model: str | None = None
    stream: bool = False
    refs: tuple[str, ...] = ()
    change: StateChange | None = None
    """What it changes of what the server keeps, unless it fails."""
    nth: int = 0
    """Which arrival of its key this is in its session, from 1."""
    occurrence: int = 0
    """Of its recording, where it is to be recorded: given at its arrival; 0 before."""
    slot: KeyedRecording | None = None
    client_ends: ClientEnds = None
    """Where the client is that gets an ordered answer."""
    ordered: bool = False
    """Its answer waits for its place among concurrent ones (`Session.order`)."""
    number: int = 0
    """Number of this request among those of the agent, in a session that counts them; see `forking`."""
    llm_call: int | None = None
    """Number of this call of a model among the agent's, from 0, in such a session."""
    swapped: bool = False
    """Results of tools were overridden in the body: it is not what the client sent."""
    bound: BoundAnswer | None = None
    """The recorded answer in this run's words, of a bound hit."""
    unbound: str = ""
    """Why the nearest recording does not fit, where one was compared."""
    made: Response | None = None
    """The answer, where it is overridden."""
    injected: InjectedFault | None = None
    """The injected fault that it met."""
    error: LLMProxyError | None = None
    """Why it was refused."""
    expected: bool = False
    """It was refused, and that is no miss of the run: the model reads that its tool failed."""
    into: tuple[str, int] | None = None
    """Cassette and sample in which its answer is kept, where that is not its session's."""
    repeats: bool = False
    """It is the miss before, asked again without a stream."""
    playback: Playback | None = None
    """Of MCP: the recorded answer on its way."""
    note: str = ""
    nearest: int | None = None
    asked: str = ""
    """Beginning of its last prompt, redacted, where it missed or was recorded."""
    answered: str = ""
    """Beginning of the answer that was recorded."""
    body: bytes | None = None
    finished: bool = False
    """Its answer was handed to the writer."""
    released: float | None = None
    """Monotonic seconds; when it was let go upstream."""
    counted: bytes = b""
    """What of the head counts for the memory of keys (`Memory.read_head`); empty where it was not written down yet."""
    redacted: tuple[int, Request] | None = None
    """The request as it may be kept, and how many credentials the redactor knew then; None where nobody had to make
    it.
    """
    interaction: int | None = None
    prefix: str = ""
    """What stood in the client's target before the provider's own path."""
    grants: Headers = ()
    """Fields of the answer that let a web page read it; see `origin_guard`."""
    _recording: Recording | None = None

    @property
    def recording(self) -> Recording:
        """The answer, as it comes from upstream; made when somebody looks, since a hit has none."""
        if self._recording is None:
            self._recording = Recording()
        return self._recording

    @recording.setter
    def recording(self, recording: Recording) -> None:
        self._recording = recording

    @property
    def first_offset(self) -> int | None:
        """Microseconds until the first byte came from upstream; None where nothing did."""
        return None if self._recording is None else self._recording.first_offset

    @property
    def family(self) -> Family:
        """Dialect of the provider's bodies and errors."""
        return self.route.family

    @property
    def channel(self) -> Channel:
        """What it is about; of MCP that is known once the body is here."""
        return channel_of(self.route.provider.name, self.operation)

    @property
    def replayed_status(self) -> int | None:
        """Status of the answer that is played, None where none is."""
        return self.made.status if self.made is not None else self.slot.status if self.slot is not None else None

    @property
    def may_be_left(self) -> bool:
        """Whether the answer ends where its recorded client left, and can be asked live by who reads on."""
        left = self.slot is not None and self.slot.left and self.injected is None
        return left and self.session.mode.policy.writes and not self.ordered and self.channel is not Channel.MCP

    @property
    def place(self) -> tuple[str, int]:
        """Cassette and sample in which its answer is kept, if it is."""
        return self.into or (self.session.cassette, self.session.sample)

    @property
    def walker(self) -> tuple[str, Key]:
        """Who asks what; only after `identify`."""
        return self.party, self.key or Key("")


class Harmless(LLMProxyError):
    """Telemetry in replay: its sender only wants to hear that it arrived."""

    code = "llmproxy_not_llm"
    status = 204
