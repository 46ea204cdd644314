"""One request on its way through a proxy, and what the engine knows of the settings."""

from __future__ import annotations

import io
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from llmproxy.advice import StartCommand, quote_word
from llmproxy.core.dialects.streams import decide_ending
from llmproxy.core.faults.rules import Faults
from llmproxy.core.keys.normalize import KnownRequest
from llmproxy.core.keys.server_object_changes import StateChange
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.live_or_recorded import LiveChannels
from llmproxy.core.providers.provider_table import Family, get_channel
from llmproxy.core.providers.routing import Route
from llmproxy.core.providers.stubs import Stub
from llmproxy.core.sessions.interceptor import CallState, ClientEnds, Interceptor
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reader import KeyedRecording
from llmproxy.core.traffic.body_decoding import BodyDecoder
from llmproxy.core.traffic.interaction import (
    RESET,
    ChunkedBody,
    Ending,
    Headers,
    Key,
    Request,
    Response,
    add_trailers,
    header,
    is_failed_call,
    without,
)
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import (
    AGENT,
    DEFAULT_ORDER_WAIT,
    DEFAULT_SESSION,
    BindScope,
    Channel,
    Decision,
    Exhausted,
    Mode,
    Update,
)


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
    bind: BindScope = BindScope.ALL
    """What may be bound."""
    order_wait: float = DEFAULT_ORDER_WAIT
    """Seconds that concurrent answers wait for a call that was recorded before them; 0: they are not ordered."""
    coalesce: bool = False
    """Equal requests to models that are recorded at the same time share one answer."""
    max_age: float | None = None
    """Seconds after which a recording is stale; None: never."""
    update: Update = Update.NONE
    """What becomes of recordings in a session of this proxy that ends well."""
    max_cost: Decimal | None = None
    """US dollars that may be spent on what is asked anew; None: any."""
    change: tuple[str, ...] = ()
    """Names of the changes of which calls are asked anew; none: all."""
    faults: Faults | None = None
    """Injected faults of every session that has none of its own."""
    live: LiveChannels | None = None
    """What goes live in sessions that say nothing else."""
    trial: bool = False
    """Sessions that say nothing else are on trial: what misses gets the answer that stands at its place."""
    record_host: tuple[str, ...] = ()
    """Hosts of other services that are recorded and replayed too."""
    stubs: Mapping[str, str] = field(default_factory=dict)
    """The user's own: kind of answer by host and path."""
    allow_host: tuple[str, ...] = ()
    """Hosts outside the provider table that forwarded traffic may reach even in replay."""

    @property
    def shown_store_path(self) -> str:
        """The store's path as advice names it."""
        return self.shown or str(self.store)

    def build_learn_command(self, cassette: str) -> str:
        return self.again.for_other(f"llmproxy learn {quote_word(cassette)}").command("", store=self.shown_store_path)


class RequestHeadInfo(NamedTuple):
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
    prefix: str = ""
    """What stood in the client's target before the provider's own path."""
    changes: bool = False
    """Whether it makes or changes something of what the provider's server keeps."""
    stubs: tuple[Stub, ...] = ()
    """Rows of auxiliary calls that the head fits."""


@dataclass(slots=True)
class CallProgress:
    """How far a call has come; begun at its arrival, and carried on by the proxy."""

    seq: int
    """Number of this call in its session, from 1."""
    arrived: float
    """Monotonic seconds."""
    started_at: float
    """Unix seconds."""
    released: float | None = None
    """Monotonic seconds; when it was let go upstream."""
    connection: ClientEnds = None
    """Of its client."""
    finished: bool = False
    """Its answer was handed to the writer."""

    @property
    def sent_at(self) -> float:
        """Unix seconds when it was let go upstream, where it was."""
        return self.started_at + max(0.0, (self.released or 0.0) - self.arrived)


@dataclass(slots=True)
class ReceivedRequest:
    """What came of a request, and what counts of it: an interceptor may change it before it gets its key."""

    headers: Headers
    """As they came, ours taken out; what tells its caller or state from others may be added."""
    body: bytes | None = None
    rewritten: bool = False
    """The body is not what the client sent."""
    redacted: tuple[int, Request] | None = None
    """The request as kept, and how many credentials the redactor knew then; None where nobody had to make it."""

    @property
    def data(self) -> bytes:
        """The body; nothing until it is here."""
        return self.body or b""

    def add_header(self, name: str, value: str) -> None:
        """Let a field of ours count."""
        self.headers, self.redacted = (*self.headers, (name, value)), None


@dataclass(slots=True)
class ClientAnswerOverrides:
    """What its client gets, where that is not the recorded or the provider's answer as it is."""

    grants: Headers = ()
    """Fields that let a web page read it; see `origin_guard`."""
    told: Headers = ()
    """Fields of ours that it gets besides."""
    made: Response | None = None
    """The answer, where an interceptor made one in place of the recorded or the provider's."""
    withheld: bool = False
    """The provider's answer is not for the client: an interceptor makes another of it."""
    held: bool = False
    """Its pieces may have to wait (`Interceptor.get_send_delay`)."""
    awaited: bool = False
    """It is the answer to another call, which has not ended yet; then all is decided."""


@dataclass(slots=True)
class CallStorage:
    """Where its answer stands in the store, and what is told of that."""

    into: tuple[str, int] | None = None
    """Cassette and sample, where that is not its session's."""
    occurrence: int = 0
    """Of its recording, where it is to be recorded: given at its arrival; 0 before."""
    interaction: int | None = None
    """Id of the recording that was made, or played."""
    asked: str = ""
    """Beginning of its last prompt, redacted, where it missed or was recorded."""
    answered: str = ""
    """Beginning of the answer that was recorded."""
    instead: int | None = None
    """Id of the recording whose place its answer takes."""
    after: str = ""
    """Key of the call before it of the same thread: of an agent that names itself, else of a connection."""
    has_twin: bool = False
    """The same was asked while it was under way."""


class HarmlessTelemetry(LLMProxyError):
    """Telemetry in replay: its sender only wants to hear that it arrived."""

    code = "llmproxy_not_llm"
    status = 204


class Recording:
    """One response on its way; call `on_head`, then `on_data` for each piece, then `build_response`."""

    def __init__(self) -> None:
        self.status = 0
        self._reason = ""
        self._headers: Headers = ()
        self._head_offset = 0
        self._body = io.BytesIO()  # its value is not copied unless more is written
        self._offsets, self._lengths = array("q"), array("q")
        self._chunked = False
        self._expected: int | None = None
        self._received = 0
        self.damaged = False
        """A piece was lost on its way into the recording, which must not be stored then."""
        self.trailers: Headers = ()
        self.left = False
        """The client ended it before its end."""
        self.overwritten = False
        """What `end` returned is not what came: a secret was taken out."""

    @property
    def has_head(self) -> bool:
        return self.status != 0

    @property
    def timed_head(self) -> tuple[int, Headers]:
        """The head: when it came, microseconds, and its fields."""
        return self._head_offset, self._headers

    @property
    def body_so_far(self) -> bytes:
        """The body as far as it has come; nothing while it is compressed."""
        return b"" if self._content_encoding else self._body.getvalue()

    @property
    def _content_encoding(self) -> str:
        """How it is compressed; empty where it is not."""
        coding = header(self._headers, "content-encoding") or ""
        return "" if coding.strip().lower() == "identity" else coding

    @property
    def mime_type(self) -> str:
        return header(self._headers, "content-type") or ""

    @property
    def is_whole(self) -> bool:
        """Whether all that the head announced is here; never for a body without a length."""
        return self._expected is not None and self._received >= self._expected

    @property
    def next_piece_may_be_last(self) -> bool:
        """Whether what comes next may hold the end: its length was announced."""
        return self._expected is not None

    @property
    def first_byte_offset(self) -> int | None:
        """Microseconds until the first byte of the body, or of the head where there is no body; None: nothing came."""
        if self._offsets:
            return self._offsets[0]
        return self._head_offset if self.has_head else None

    def on_head(self, offset: int, status: int, reason: str, headers: Headers) -> None:
        """Note the response's head, `offset` microseconds after the request's release."""
        self.status, self._reason, self._headers, self._head_offset = status, reason, headers, offset
        length = header(headers, "content-length")
        self._chunked = length is None
        self._expected = int(length) if length is not None and length.isdecimal() else None

    def on_data(self, offset: int, data: bytes) -> None:
        """Note bytes of the body as they came from the wire."""
        self._received += len(data)
        if data:
            self._body.write(data)
            self._offsets.append(offset)
            self._lengths.append(len(data))

    def on_reset(self, code: int) -> None:
        """Note the code of HTTP/2 with which the upstream breaks the answer off."""
        self._headers = (*self._headers, (RESET, str(code)))

    def postpone_last_offset(self, offset: int) -> None:
        """Note that the last bytes of the body go to the client not before now."""
        if self._offsets:
            self._offsets[-1] = max(self._offsets[-1], offset)

    def build_response(self, operation: str, *, stream: bool, proper: bool) -> Response:
        """Close the recording; `proper`: HTTP's framing ended the message. Slow: off the event loop."""
        proper = proper or self.is_whole
        chunks, undone = self._decode_chunks()
        how = decide_ending(operation, stream, self.status, self.mime_type, chunks.body, proper)
        if how is Ending.CUT and (proper or self.left):
            how = Ending.UNTERMINATED if proper else Ending.LEFT
        headers = without(self._headers, "content-encoding") if undone else self._headers
        headers = add_trailers(headers, self.trailers)
        if how is Ending.COMPLETE and is_failed_call(headers):
            how = Ending.FAILED
        return Response(
            status=self.status, reason=self._reason, headers=headers, chunks=chunks, ending=how,
            head_offset=self._head_offset, chunked=self._chunked,
        )  # fmt: skip

    def _decode_chunks(self) -> tuple[ChunkedBody, bool]:
        """Return what came, and whether its content-encoding is undone; what does not decode stays."""
        came = ChunkedBody(self._body.getvalue(), zip(self._offsets, self._lengths, strict=True))
        if self._content_encoding:
            with suppress(ValueError):
                return _inflate_pieces(came, self._content_encoding), True
        return came, not self._content_encoding


def _inflate_pieces(pieces: ChunkedBody, coding: str) -> ChunkedBody:
    """Undo a content-encoding, keeping borders and times. Raises ValueError for what does not decode."""
    inflater, out = BodyDecoder(coding), io.BytesIO()
    borders = [(piece.offset, out.write(data)) for piece in pieces if (data := inflater.decode_piece(piece.data))]
    return ChunkedBody(out.getvalue(), borders)


UNIDENTIFIED = KnownRequest(Key(""), None, stream=False)


@dataclass(slots=True)
class Exchange:
    """One request on its way through, from head to end; each stage adds its value."""

    place: RequestHeadInfo
    session: Session
    progress: CallProgress
    request: ReceivedRequest
    identity: KnownRequest = UNIDENTIFIED
    change: StateChange | None = None
    """What it changes of what the server keeps, unless it fails."""
    nth: int = 0
    """Which arrival of its key this is in its session, from 1."""
    slot: KeyedRecording | None = None
    """The recording that answers it."""
    decision: Decision | None = None
    """None until the body is here, for modes that must look before they leap."""
    error: LLMProxyError | None = None
    """Why it was refused."""
    note: str = ""
    answer: ClientAnswerOverrides = field(default_factory=ClientAnswerOverrides)
    kept: CallStorage = field(default_factory=CallStorage)
    state: CallState = field(default_factory=CallState)
    """What its interceptors keep of it."""
    recording: Recording = field(default_factory=Recording)
    """The answer, as it comes from upstream."""

    @property
    def route(self) -> Route:
        return self.place.route

    @property
    def party(self) -> str:
        return self.place.party

    @property
    def method(self) -> str:
        return self.place.method

    @property
    def operation(self) -> str:
        """Name, or the redacted path for what nobody knows."""
        return self.place.operation if self.place.route.known else self.identity.path or self.place.operation

    @property
    def key(self) -> Key | None:
        """None until the body is here."""
        return self.identity.key or None

    def build_recorded_response(self, *, proper: bool) -> Response:
        """Return the answer as it came from upstream; as `Recording.build_response`."""
        return self.recording.build_response(self.operation, stream=self.identity.stream, proper=proper)

    @property
    def interceptors(self) -> tuple[Interceptor[Exchange], ...]:
        """Those of its session that are asked of its channel, in the declared order."""
        return self.session.list_interceptors(self.channel, auxiliary=bool(self.place.stubs))

    def decide_refusal(self, error: LLMProxyError) -> None:
        self.decision, self.error, self.note = Decision.REFUSE, error, error.message

    @property
    def family(self) -> Family:
        return self.route.family

    @property
    def channel(self) -> Channel:
        """What it is about; of MCP that is known once the body is here."""
        place = self.place
        return place.channel if place.route.known else get_channel(place.route.provider.name, self.operation)

    @property
    def replayed_status(self) -> int | None:
        """Status of the answer that is played, None where none is."""
        made = self.answer.made
        return made.status if made is not None else self.slot.status if self.slot is not None else None

    @property
    def save_target(self) -> tuple[str, int]:
        """Cassette and sample in which its answer is kept, if it is."""
        return self.kept.into or self.session.save_target

    @property
    def party_and_key(self) -> tuple[str, Key]:
        """Who asks what; only after `identify_and_decide`."""
        return self.party, self.key or Key("")
