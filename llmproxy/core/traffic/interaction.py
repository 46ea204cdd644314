"""What passes by: a request, its response as it arrived in chunks, and the two together.

These values are the vocabulary of the whole core. They hold plain bytes and text, know no socket, clock or
store, and never change once made. Times are whole microseconds counted from the moment the request was
released to the upstream, so that a recording can be replayed in its own time.

Who sent a request, in which version, and how often before: as clients themselves say it in headers.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, overload

Key = NewType("Key", str)
"""Tagged digest of a canonical request: ``v2:`` and 64 hex digits."""

Headers = tuple[tuple[str, str], ...]
"""Header fields in the order of the wire, names as they came. Look them up with :func:`header`."""


def header(headers: Headers, name: str) -> str | None:
    length = len(name)
    for key, value in headers:
        if len(key) == length and key.lower() == name:
            return value
    return None


def without(headers: Headers, *names: str) -> Headers:
    """Return `headers` less the fields with these lower-case names."""
    return tuple((key, value) for key, value in headers if key.lower() not in names)


def replace_header(headers: Headers, name: str, value: str) -> Headers:
    """Return `headers` with this value in each field of a lower-case name; nothing is added where there is none."""
    return tuple((key, value if key.lower() == name else said) for key, said in headers)


DEFAULT_PORTS = {"http": 80, "https": 443}


def format_host(scheme: str, host: str, port: int | None) -> str:
    """Return host and port as a URL says them: IPv6 in brackets, a port that goes without saying left out."""
    bare = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return bare if port in (None, DEFAULT_PORTS.get(scheme)) else f"{bare}:{port}"


TRAILER = "trailer:"
"""How the names of trailers begin among the header fields of an answer, behind these: no field's own name has a colon,
so every store and file of cassettes can carry them.
"""


RESET = "h2-reset"
"""Among the header fields of an answer: the code of HTTP/2 with which its upstream broke it off."""


GRPC = "application/grpc"
_FAILED_CALLS = frozenset({"1", "2", "4", "7", "8", "10", "13", "14", "15", "16"})
"""Statuses of gRPC after which the same call may be answered otherwise, as after 401, 429 and 503: cancelled, unknown,
deadline exceeded, permission denied, resource exhausted, aborted, internal, unavailable, data loss, unauthenticated.
"""


def is_grpc(headers: Headers) -> bool:
    """Return whether a body holds messages of gRPC; gRPC-Web is HTTP as any other."""
    kind = header(headers, "content-type") or ""
    return kind == GRPC or kind.startswith((f"{GRPC}+", f"{GRPC};"))


def is_failed_call(headers: Headers) -> bool:
    """Return whether an answer of gRPC, with its trailers, says that the call failed and may be made again."""
    if not is_grpc(headers):
        return False
    return (header(headers, f"{TRAILER}grpc-status") or header(headers, "grpc-status")) in _FAILED_CALLS


def add_trailers(headers: Headers, trailers: Headers) -> Headers:
    """Return an answer's header fields with its trailers."""
    return (*headers, *((TRAILER + name, value) for name, value in trailers)) if trailers else headers


class Ending(StrEnum):
    COMPLETE = "complete"
    """The whole answer is here: the provider's terminator was seen, or HTTP framing says so where none exists."""
    UNTERMINATED = "unterminated"
    """HTTP ended properly, but the terminator that this provider always sends is missing."""
    CUT = "cut"
    """The connection ended in the middle: the upstream broke off, or we were ended."""
    LEFT = "left"
    """The client left before the end: an agent that has read enough, or one that was interrupted."""
    FAILED = "failed"
    """The whole answer is here, and its status of gRPC is a failure (`is_failed_call`); that of HTTP is 200."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the provider sees it: session and provider prefix are gone, framing is undone."""

    method: str
    """In upper case."""
    target: str
    """Path and query, percent-encoding as it came, for example ``/v1/chat/completions?beta=true``."""
    headers: Headers
    body: bytes
    """Content-encoding is undone where it could be (then the header is gone too)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes as they arrived together."""

    offset: int
    """Microseconds since the request was released."""
    data: bytes


class ChunkedBody(Sequence[Chunk]):
    """Chunks of a body held in one piece, each cut out when asked for. Equal to any sequence of equal chunks."""

    __slots__ = ("_ends", "_offsets", "body")

    def __init__(self, body: bytes, borders: Iterable[tuple[int, int]]) -> None:
        """Cut `body` at `borders`, pairs of offset and length. Raises ValueError if they are not of this body."""
        self.body = body
        self._offsets, self._ends = array("q"), array("q", [0])
        at = 0
        for offset, length in borders:
            if length < 0:
                raise ValueError(f"a chunk of {length} bytes")
            at += length
            self._offsets.append(offset)
            self._ends.append(at)
        if at != len(body):
            raise ValueError(f"its chunks say {at} bytes, its body has {len(body)}")

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Chunk]:
        return map(self._chunk, range(len(self._offsets)))

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, at: int | slice) -> Chunk | Sequence[Chunk]:
        places = range(len(self._offsets))[at]
        return self._chunk(places) if isinstance(places, int) else tuple(map(self._chunk, places))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(other) == len(self) and all(one == another for one, another in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """Agree with a tuple of these chunks."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Look like a tuple of these chunks."""
        return repr(tuple(self))

    def _chunk(self, at: int) -> Chunk:
        return Chunk(self._offsets[at], self.body[self._ends[at] : self._ends[at + 1]])

    def iter_views(self) -> Iterator[tuple[int, memoryview]]:
        """Return offset and bytes of one after the other without copying them."""
        view = memoryview(self.body)
        return ((offset, view[self._ends[at] : self._ends[at + 1]]) for at, offset in enumerate(self._offsets))

    def replace_body(self, body: bytes) -> ChunkedBody:
        """Return another body of the same length, cut at the same places."""
        if len(body) != len(self.body):
            raise ValueError(f"{len(body)} bytes for {len(self.body)}")
        made = ChunkedBody(b"", ())
        made.body, made._offsets, made._ends = body, self._offsets, self._ends
        return made


@dataclass(frozen=True, slots=True)
class Response:
    """A response as it arrived. Its body is the chunks joined: decoded, framing undone."""

    status: int
    reason: str
    headers: Headers
    chunks: Sequence[Chunk]
    """Values that do not change: a tuple, or a `ChunkedBody`."""
    ending: Ending = Ending.COMPLETE
    head_offset: int = 0
    """Microseconds from the release of the request until the response's head."""
    chunked: bool = False
    """Whether the body came without a content-length (HTTP chunks or until close): it is replayed as HTTP chunks."""

    @property
    def body(self) -> bytes:
        return (
            self.chunks.body if isinstance(self.chunks, ChunkedBody) else b"".join(chunk.data for chunk in self.chunks)
        )

    @property
    def mime_type(self) -> str:
        """Its content-type with all parameters; empty where it names none."""
        return header(self.headers, "content-type") or ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call. Unknown is None, never 0; ``input`` has cached tokens, ``output`` reasoning."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    """Part of `input` that was read from the provider's cache."""
    cache_written: int | None = None
    """Part of `input` that was written to the provider's cache."""
    reasoning: int | None = None
    """Part of `output` that was reasoning."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """One request, its response and what is known about them. Everything in it is redacted."""

    provider: str
    """Logical name of the provider table, ``openai``; never a host."""
    operation: str
    """``chat.completions``, ``messages``, ...; for a path that nobody knows the path itself."""
    key: Key
    request: Request
    response: Response
    started_at: float
    """Unix time, seconds, of its release to the upstream: what the offsets of the response count from."""
    cassette: str = "default"
    sample: int = 1
    party: str = "agent"
    occurrence: int = 1
    """This is the n-th recording of its key in (cassette, sample, party), counted from 1."""
    id: int | None = None
    """Row in the store; None until stored."""
    model: str | None = None
    stream: bool = False
    upstream: str = ""
    """Scheme and host that answered, ``https://api.openai.com``; empty when unknown."""
    usage: Usage = Usage()
    redacted: bool = False
    """Bytes of the response were replaced because they held a secret; *exact* excepts those."""
    rules: str = ""
    """Digest of the normalisation rules under which `key` was derived."""
    made_ids: tuple[str, ...] = ()
    """Ids in the response that later requests may refer to (a response, file, conversation ...)."""
    run_variables: str = ""
    """What was declared of the run that recorded it, as `bindings.dump_run_variables` writes it; or empty."""


_COUNT = re.compile(r"(\d{1,4})\Z", re.ASCII)
_AWS = re.compile(r"(?:.*;)?\s*attempt=(\d{1,4})\b", re.ASCII)
ATTEMPTS = (("x-stainless-retry-count", _COUNT, 0), ("amz-sdk-request", _AWS, 1))
"""Header, its form, and what it says the first time: SDKs of models' makers count from 0, the ones of AWS from 1."""


def read_retry_count(headers: Headers) -> int | None:
    """Return 0 for a request's first sending, 1 for its first repetition ...; None if its client does not say."""
    for name, form, first in ATTEMPTS:
        said = header(headers, name)
        match = form.match(said.strip()) if said is not None else None
        if match is not None:
            return max(int(match[1]) - first, 0)
    return None
