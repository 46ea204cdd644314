"""Data types of traffic: a request, its response as chunks with arrival times, and the two together.

They are immutable. Times are whole microseconds since the request was released to the upstream.
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
"""Header fields in wire order with names unchanged. Read them with :func:`header`."""


def header(headers: Headers, name: str) -> str | None:
    length = len(name)
    for key, value in headers:
        if len(key) == length and key.lower() == name:
            return value
    return None


def get_content_encoding(headers: Headers) -> str:
    """Return all lines of Content-Encoding as one; empty without any, and for ``identity``."""
    coding = ",".join(value for name, value in headers if len(name) == 16 and name.lower() == "content-encoding")
    return "" if coding.strip().lower() == "identity" else coding


def remove_headers(headers: Headers, *names: str) -> Headers:
    return tuple((key, value) for key, value in headers if key.lower() not in names)


def overwrite_existing_header(headers: Headers, name: str, value: str) -> Headers:
    return tuple((key, value if key.lower() == name else said) for key, said in headers)


DEFAULT_PORTS = {"http": 80, "https": 443}


def format_host(scheme: str, host: str, port: int | None) -> str:
    """Return host and port as in a URL: IPv6 in brackets, the scheme's default port omitted."""
    bare = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return bare if port in (None, DEFAULT_PORTS.get(scheme)) else f"{bare}:{port}"


TRAILER = "trailer:"
"""Prefix of trailers, which follow the header fields of an answer: no field's own name has a colon, so every store and
cassette file can hold them."""


RESET = "h2-reset"
"""Header field of an answer that holds the HTTP/2 code with which its upstream reset the stream."""


GRPC = "application/grpc"
_FAILED_CALLS = frozenset({"1", "2", "4", "7", "8", "10", "13", "14", "15", "16"})
"""gRPC statuses after which the same call may get another answer, as after 401, 429 and 503: cancelled, unknown,
deadline exceeded, permission denied, resource exhausted, aborted, internal, unavailable, data loss, unauthenticated."""


def is_grpc(headers: Headers) -> bool:
    """Return whether a body has gRPC messages; gRPC-Web is treated as other HTTP."""
    kind = header(headers, "content-type") or ""
    return kind == GRPC or kind.startswith((f"{GRPC}+", f"{GRPC};"))


def is_retryable_grpc_failure(headers: Headers) -> bool:
    """Return whether a gRPC answer, with its trailers, reports a failure after which the call may be repeated."""
    if not is_grpc(headers):
        return False
    return (header(headers, f"{TRAILER}grpc-status") or header(headers, "grpc-status")) in _FAILED_CALLS


def append_trailers_to_headers(headers: Headers, trailers: Headers) -> Headers:
    return (*headers, *((TRAILER + name, value) for name, value in trailers)) if trailers else headers


class Ending(StrEnum):
    COMPLETE = "complete"
    """The answer is complete: the provider's terminator was seen, or HTTP framing says so if there is none."""
    UNTERMINATED = "unterminated"
    """HTTP ended properly, but the terminator that this provider always sends is missing."""
    CUT = "cut"
    """The connection ended too early: the upstream broke off, or the proxy was stopped."""
    LEFT = "left"
    """The client disconnected before the end: an agent that has read enough, or one that was interrupted."""
    FAILED = "failed"
    """The answer is complete; its gRPC status is a failure (`is_retryable_grpc_failure`); the HTTP status is 200."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    """In upper case."""
    target: str
    """Path and query with percent-encoding unchanged, for example ``/v1/chat/completions?beta=true``."""
    headers: Headers
    body: bytes
    """Without content-encoding if it could be undone (then the header is removed too)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    offset: int
    """Microseconds since the request was released."""
    data: bytes


class TimedChunks(Sequence[Chunk]):
    """Chunks of a body stored as one value; each is cut out on access. Equal to any sequence of equal chunks."""

    __slots__ = ("_ends", "_offsets", "body")

    def __init__(self, body: bytes, borders: Iterable[tuple[int, int]]) -> None:
        """Split `body` at `borders`, pairs of offset and length. Raises ValueError if they do not fit this body."""
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
        return map(self._get_chunk_at, range(len(self._offsets)))

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, at: int | slice) -> Chunk | Sequence[Chunk]:
        places = range(len(self._offsets))[at]
        return self._get_chunk_at(places) if isinstance(places, int) else tuple(map(self._get_chunk_at, places))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(other) == len(self) and all(one == another for one, another in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _get_chunk_at(self, at: int) -> Chunk:
        return Chunk(self._offsets[at], self.body[self._ends[at] : self._ends[at + 1]])

    def iter_views(self) -> Iterator[tuple[int, memoryview]]:
        view = memoryview(self.body)
        return ((offset, view[self._ends[at] : self._ends[at + 1]]) for at, offset in enumerate(self._offsets))

    def replace_body(self, body: bytes) -> TimedChunks:
        """Return another body of the same length with the same chunk borders. Raises ValueError for another length."""
        if len(body) != len(self.body):
            raise ValueError(f"{len(body)} bytes for {len(self.body)}")
        made = TimedChunks(b"", ())
        made.body, made._offsets, made._ends = body, self._offsets, self._ends
        return made


@dataclass(frozen=True, slots=True)
class Response:
    """A response as it arrived. Its body is the joined chunks, decoded and without framing."""

    status: int
    reason: str
    headers: Headers
    chunks: Sequence[Chunk]
    """An immutable sequence: a tuple, or a `TimedChunks`."""
    ending: Ending = Ending.COMPLETE
    head_offset: int = 0
    """Microseconds from the release of the request to the response's head."""
    chunked: bool = False
    """Whether the body came without a content-length (HTTP chunks or until close): it is replayed as HTTP chunks."""

    @property
    def body(self) -> bytes:
        chunks = self.chunks
        return chunks.body if isinstance(chunks, TimedChunks) else b"".join(chunk.data for chunk in chunks)

    @property
    def mime_type(self) -> str:
        return header(self.headers, "content-type") or ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call. Unknown is None, never 0; ``input`` includes cached tokens, ``output`` reasoning tokens."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_written: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class Interaction:
    """A request, its response and facts about them. All of it is redacted."""

    provider: str
    """Logical name in the provider table, ``openai``; never a host."""
    operation: str
    """``chat.completions``, ``messages``, ...; the path itself if it is unknown."""
    key: Key
    request: Request
    response: Response
    started_at: float
    """Unix time in seconds of its release to the upstream; offsets of the response count from it."""
    cassette: str = "default"
    sample: int = 1
    party: str = "agent"
    occurrence: int = 1
    """Number of this recording of its key in (cassette, sample, party), from 1."""
    id: int | None = None
    """Row in the store; None until stored."""
    model: str | None = None
    stream: bool = False
    upstream: str = ""
    """Scheme and host that answered, ``https://api.openai.com``; empty if unknown."""
    usage: Usage = Usage()
    redacted: bool = False
    """Whether a secret in the response was overwritten; *exact* excludes those bytes."""
    rules: str = ""
    """Digest of the normalisation rules used for `key`."""
    made_ids: tuple[str, ...] = ()
    """Ids in the response to which later requests may refer (a response, file, conversation ...)."""
    run_variables: str = ""
    """Run variables declared for the recorded run, in the form of `bindings.dump_run_variables`; or empty."""


_COUNT = re.compile(r"(\d{1,4})\Z", re.ASCII)
_AWS = re.compile(r"(?:.*;)?\s*attempt=(\d{1,4})\b", re.ASCII)
ATTEMPTS = (("x-stainless-retry-count", _COUNT, 0), ("amz-sdk-request", _AWS, 1))
"""Header, its pattern, and its value for a first attempt: SDKs of model providers count from 0, those of AWS from 1."""


def read_retry_count_if_sent(headers: Headers) -> int | None:
    """Return 0 for the first attempt of a request, 1 for its first retry ...; None if its client does not send it."""
    for name, form, first in ATTEMPTS:
        said = header(headers, name)
        match = form.match(said.strip()) if said is not None else None
        if match is not None:
            return max(int(match[1]) - first, 0)
    return None
