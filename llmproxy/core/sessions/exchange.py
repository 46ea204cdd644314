"""One request with its answer in a proxy, and the engine's settings."""

from __future__ import annotations

import io
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from llmproxy.advice import SuggestedCommandTemplate, quote_word
from llmproxy.core.dialects.stream_events import classify_response_ending
from llmproxy.core.faults.rules import Faults
from llmproxy.core.keys.normalize import CachedKeyEntry
from llmproxy.core.keys.server_state_in_keys import ServerObjectChange
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.mixed_live_replay import LiveChannelSettings
from llmproxy.core.providers.provider_table import Family, get_call_channel
from llmproxy.core.providers.routing import RoutedRequest
from llmproxy.core.providers.stubs import Stub
from llmproxy.core.sessions.call_interceptor import ClientEnds, InterceptorPrivateCallData, SessionCallInterceptor
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.traffic.body_decoding import BodyDecoder
from llmproxy.core.traffic.interaction import (
    RESET,
    Ending,
    Headers,
    Key,
    Request,
    Response,
    TimedChunks,
    append_trailers_to_headers,
    get_content_encoding,
    header,
    is_retryable_grpc_failure,
    remove_headers,
)
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import (
    AGENT,
    DEFAULT_ORDER_WAIT,
    DEFAULT_SESSION,
    BindingPolicy,
    Channel,
    Decision,
    Exhausted,
    Mode,
    UpdateMode,
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    mode: Mode = Mode.REPLAY
    cassette: str = DEFAULT_SESSION
    speed: float = 0.0
    exhausted: Exhausted = Exhausted.LAST
    miss_status: int | None = None
    """HTTP status of a miss; None: the status that the dialect's clients handle best."""
    max_request: int = 64 << 20
    store: Path = Path("llmproxy.db")
    cassette_dir: Path | None = None
    """Folder with one YAML file per cassette, synchronized with the store."""
    shown: str = ""
    """The store's path as a user of this folder would type it."""
    again: SuggestedCommandTemplate = field(default_factory=SuggestedCommandTemplate)
    upstreams: dict[str, str] = field(default_factory=dict)
    redirected: frozenset[str] = frozenset()
    """Providers whose upstream the user named: intercepted requests to their public host go there too. (An upstream
    from an OPENAI_BASE_URL alone is for clients that read it; another client's key is for the public host.)"""
    rules: Rules = field(default_factory=Rules)
    allow_live: bool = False
    """Whether a replay proxy may open sessions in modes that reach the network."""
    match_credential: bool = False
    """Whether the client's API key counts, as a fingerprint."""
    bind: BindingPolicy = BindingPolicy.ALL
    order_wait: float = DEFAULT_ORDER_WAIT
    """Seconds that concurrent answers wait for an earlier recorded call; 0: they are not ordered."""
    coalesce: bool = False
    """Whether equal requests to models that are recorded at the same time share one answer."""
    max_age: float | None = None
    """Seconds after which a recording is stale; None: never."""
    update: UpdateMode = UpdateMode.NONE
    """Recordings that are replaced when a session of this proxy ends well."""
    max_cost: Decimal | None = None
    """Limit in US dollars for requests that are sent; None: no limit."""
    change: tuple[str, ...] = ()
    """Names of the changes whose calls are sent anew; empty: all."""
    faults: Faults | None = None
    live: LiveChannelSettings | None = None
    trial: bool = False
    """Whether sessions are on trial by default: a miss gets the answer at its place."""
    record_host: tuple[str, ...] = ()
    """Hosts of other services that are recorded and replayed too."""
    stubs: Mapping[str, str] = field(default_factory=dict)
    """The user's own stubs: kind of answer by host and path."""
    allow_host: tuple[str, ...] = ()
    """Hosts outside the provider table that forwarded traffic may reach even in replay."""

    @property
    def shown_store_path(self) -> str:
        return self.shown or str(self.store)

    def build_learn_command(self, cassette: str) -> str:
        learn = self.again.for_other_command(f"llmproxy learn {quote_word(cassette)}")
        return learn.command("", store=self.shown_store_path)


class RoutedRequestHead(NamedTuple):
    """Session and route of a request by its head; valid for equal heads while `RequestRouteResolver.is_still_valid`."""

    party: str
    name: str
    route: RoutedRequest
    in_scope: bool
    method: str
    headers: Headers
    """Original fields without llmproxy's own."""
    operation: str
    counted: bytes
    learned: int
    """Number of credentials that the redactor knew."""
    upstreams: Mapping[str, str]
    channel: Channel = Channel.LLM
    attempt: int | None = None
    """Number of earlier attempts, according to the client."""
    speaker: str = AGENT
    """The party for which the session's name was bound."""
    prefix: str = ""
    """Part of the client's target before the provider's own path."""
    changes: bool = False
    """Whether it creates or changes an object on the provider's server."""
    stubs: tuple[Stub, ...] = ()


@dataclass(slots=True)
class CallProgress:
    seq: int
    """Number of this call in its session, from 1."""
    arrived: float
    """Monotonic seconds."""
    started_at: float
    """Unix seconds."""
    released: float | None = None
    """Monotonic seconds at which it was sent upstream."""
    connection: ClientEnds = None
    finished: bool = False
    """Whether its answer was passed to the writer."""

    @property
    def sent_at(self) -> float:
        """Unix seconds at which it was sent upstream; of its arrival if it was not."""
        return self.started_at + max(0.0, (self.released or 0.0) - self.arrived)


@dataclass(slots=True)
class EffectiveRequest:
    """A received request in the form that counts for its key: interceptors may change it first."""

    headers: Headers
    """Original fields without llmproxy's own; fields that identify its caller or state may be added."""
    body: bytes | None = None
    rewritten: bool = False
    redacted: tuple[int, Request] | None = None
    """Number of credentials known at redaction, and the request as stored; None until it is needed."""

    @property
    def data(self) -> bytes:
        """The body; empty until it has arrived."""
        return self.body or b""

    def add_key_header(self, name: str, value: str) -> None:
        """Add a field of llmproxy's own that counts for the key."""
        self.headers, self.redacted = (*self.headers, (name, value)), None


@dataclass(slots=True)
class AnswerChangesForClient:
    """Differences between the client's answer and the recorded or the provider's one."""

    grants: Headers = ()
    """Fields that allow a web page to read it; see `origin_guard`."""
    told: Headers = ()
    made: Response | None = None
    """Answer that an interceptor created in place of the recorded or the provider's."""
    withheld: bool = False
    """Whether the provider's answer is not for the client: an interceptor creates another from it."""
    held: bool = False
    """Whether its pieces may have to wait (`SessionCallInterceptor.get_send_delay`)."""
    awaited: bool = False
    """Whether it waits for the answer to an equal call that has not ended; its decision depends on that."""


@dataclass(slots=True)
class CallRecordingReference:
    into: tuple[str, int] | None = None
    """Cassette and sample, if they are not its session's."""
    occurrence: int = 0
    """Occurrence of its future recording, reserved at its arrival; 0 before."""
    interaction: int | None = None
    """Id of the recording that was stored or played."""
    asked: str = ""
    """Beginning of its last prompt, redacted, if it missed or was recorded."""
    answered: str = ""
    instead: int | None = None
    """Id of the recording that its answer replaces."""
    after: str = ""
    """Key of the previous call of the same thread: of an agent that names itself, else of a connection."""
    has_twin: bool = False
    dealt: bool = False
    """Whether only the order of arrival chose its recording."""


class TelemetryDiscardedInReplayError(LLMProxyError):
    """Telemetry in replay: its sender needs an acknowledgement only."""

    code = "llmproxy_not_llm"
    status = 204


class ArrivingResponseCollector:
    """One response while it arrives; call `on_head`, then `on_data` for each piece, then `build_response`."""

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
        """Whether a piece was lost before it was recorded; the answer must not be stored then."""
        self.trailers: Headers = ()
        self.left = False
        self.overwritten = False
        """Whether the recorded response differs from the received one because a secret was removed."""

    @property
    def has_head(self) -> bool:
        return self.status != 0

    @property
    def timed_head(self) -> tuple[int, Headers]:
        """Time of the head in microseconds, and its fields."""
        return self._head_offset, self._headers

    @property
    def body_so_far(self) -> bytes:
        """The body received so far; empty if it is compressed."""
        return b"" if get_content_encoding(self._headers) else self._body.getvalue()

    @property
    def mime_type(self) -> str:
        return header(self._headers, "content-type") or ""

    @property
    def is_whole(self) -> bool:
        """Whether the announced length has arrived; never for a body without a length."""
        return self._expected is not None and self._received >= self._expected

    @property
    def next_piece_may_be_last(self) -> bool:
        """Whether the next piece may contain the end: the length was announced."""
        return self._expected is not None

    @property
    def first_byte_offset(self) -> int | None:
        """Microseconds until the first byte of the body, or of the head where there is no body; None: nothing came."""
        if self._offsets:
            return self._offsets[0]
        return self._head_offset if self.has_head else None

    def on_head(self, offset: int, status: int, reason: str, headers: Headers) -> None:
        """Handle the response's head, `offset` microseconds after the request's release."""
        self.status, self._reason, self._headers, self._head_offset = status, reason, headers, offset
        length = header(headers, "content-length")
        self._chunked = length is None
        self._expected = int(length) if length is not None and length.isdecimal() else None

    def on_data(self, offset: int, data: bytes) -> None:
        self._received += len(data)
        if data:
            self._body.write(data)
            self._offsets.append(offset)
            self._lengths.append(len(data))

    def record_reset_code(self, code: int) -> None:
        self._headers = (*self._headers, (RESET, str(code)))

    def postpone_last_offset(self, offset: int) -> None:
        """Record that the last bytes of the body reach the client at `offset` at the earliest."""
        if self._offsets:
            self._offsets[-1] = max(self._offsets[-1], offset)

    def build_response(self, operation: str, *, stream: bool, proper: bool) -> Response:
        """Close the recording; `proper`: HTTP's framing ended the message. Slow: off the event loop."""
        proper = proper or self.is_whole
        chunks, undone, is_cut = self._undo_content_encoding()
        proper = proper and not is_cut  # whatever the framing says, its client could not read it to the end
        how = classify_response_ending(operation, stream, self.status, self.mime_type, chunks.body, proper)
        if how is Ending.CUT and (proper or self.left):
            how = Ending.UNTERMINATED if proper else Ending.LEFT
        headers = remove_headers(self._headers, "content-encoding") if undone else self._headers
        headers = append_trailers_to_headers(headers, self.trailers)
        if how is Ending.COMPLETE and is_retryable_grpc_failure(headers):
            how = Ending.FAILED
        return Response(
            status=self.status, reason=self._reason, headers=headers, chunks=chunks, ending=how,
            head_offset=self._head_offset, chunked=self._chunked,
        )  # fmt: skip

    def _undo_content_encoding(self) -> tuple[TimedChunks, bool, bool]:
        """Return the received body, whether its content-encoding is undone, and cut; undecodable content stays."""
        came = TimedChunks(self._body.getvalue(), zip(self._offsets, self._lengths, strict=True))
        coding = get_content_encoding(self._headers)
        # The bytes of PARTIAL_CONTENT are no whole coding; to HEAD the field tells what a GET would get.
        if coding and self.status != PARTIAL_CONTENT and self._received:
            with suppress(ValueError):
                inflater, out = BodyDecoder(coding), io.BytesIO()
                parts = [(each.offset, out.write(data)) for each in came if (data := inflater.decode_piece(each.data))]
                return TimedChunks(out.getvalue(), parts), True, not inflater.is_complete
        return came, not coding, False


PARTIAL_CONTENT = 206
UNIDENTIFIED = CachedKeyEntry(Key(""), None, stream=False)


@dataclass(slots=True)
class Exchange:
    """One request with its answer, from head to end; each stage adds its values."""

    place: RoutedRequestHead
    session: Session
    progress: CallProgress
    request: EffectiveRequest
    identity: CachedKeyEntry = UNIDENTIFIED
    change: ServerObjectChange | None = None
    """Its change of objects on the server, unless it fails."""
    nth: int = 0
    """Number of its arrival among those of its key in its session, from 1."""
    slot: RecordingHead | None = None
    decision: Decision | None = None
    """None until the body has arrived, in modes that depend on it."""
    error: LLMProxyError | None = None
    note: str = ""
    answer: AnswerChangesForClient = field(default_factory=AnswerChangesForClient)
    kept: CallRecordingReference = field(default_factory=CallRecordingReference)
    state: InterceptorPrivateCallData = field(default_factory=InterceptorPrivateCallData)
    recording: ArrivingResponseCollector = field(default_factory=ArrivingResponseCollector)

    @property
    def route(self) -> RoutedRequest:
        return self.place.route

    @property
    def party(self) -> str:
        return self.place.party

    @property
    def method(self) -> str:
        return self.place.method

    @property
    def operation(self) -> str:
        """Name, or the redacted path of an unknown one."""
        return self.place.operation if self.place.route.known else self.identity.path or self.place.operation

    @property
    def key(self) -> Key | None:
        """None until the body has arrived."""
        return self.identity.key or None

    def build_recorded_response(self, *, proper: bool) -> Response:
        return self.recording.build_response(self.operation, stream=self.identity.stream, proper=proper)

    @property
    def interceptors(self) -> tuple[SessionCallInterceptor[Exchange], ...]:
        return self.session.list_interceptors(self.channel, auxiliary=bool(self.place.stubs))

    def mark_refused(self, error: LLMProxyError) -> None:
        self.decision, self.error, self.note = Decision.REFUSE, error, error.message

    @property
    def family(self) -> Family:
        return self.route.family

    @property
    def channel(self) -> Channel:
        """Channel of the call; for MCP it is known once the body has arrived."""
        place = self.place
        return place.channel if place.route.known else get_call_channel(place.route.provider.name, self.operation)

    @property
    def replayed_status(self) -> int | None:
        made = self.answer.made
        return made.status if made is not None else self.slot.status if self.slot is not None else None

    @property
    def save_target(self) -> tuple[str, int]:
        return self.kept.into or self.session.save_target

    @property
    def party_and_key(self) -> tuple[str, Key]:
        """Party and key; only after `identify_and_decide`."""
        return self.party, self.key or Key("")
