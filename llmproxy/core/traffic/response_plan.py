"""Conversion of a recorded response into bytes for one client: head, timed chunks with the recorded borders, end.

At speed 0 a transient error has `retry-after-ms: 1`, other waits are scaled. A cut answer is cut again, and nothing
announces it: after `connection: close` Node's fetch takes the received part for the whole answer, in chunks too.

A redirect must lead the client back to the proxy, or the client and its key bypass it unnoticed. It is stored as a path
at the provider and sent with the client's prefix. One to another host is forwarded while recording, stored without its
query, which is a key, and removed in replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from llmproxy.core.traffic.interaction import DEFAULT_PORTS, TRAILER, Ending, Headers, Response, TimedChunks, header
from llmproxy.protocol import CACHE_HEADER, RECORDED_RETRY_AFTER_HEADER, TRANSIENT

NOT_REPLAYED = frozenset({
    # Framing and hop-by-hop fields: set by the proxy. Date: renewed.
    "connection", "keep-alive", "proxy-connection", "transfer-encoding", "content-length", "te", "trailer", "upgrade",
    "date",
    # Would send a client to another host, or make it remember something about the real host.
    "alt-svc", "strict-transport-security", "set-cookie",
})  # fmt: skip
WAITING = frozenset({"retry-after", "retry-after-ms", "x-ratelimit-reset-after"})
POLLING = frozenset({"openai-poll-after-ms", "retry-after", "retry-after-ms"})
"""Fields with whole numbers: polling interval in seconds, or in milliseconds if the name says so."""
REMEMBERED_BYTES = 8 << 20
"""Maximum bytes in `SerializedAnswerCache`."""
BODILESS = frozenset({204, 304})


@lru_cache(1)
def _format_http_date(second: int) -> str:
    from email.utils import formatdate  # takes 6 ms; the shim, which uses pipes, needs no dates

    return formatdate(second, usegmt=True)


class ClientFramingTraits(NamedTuple):
    method: str = "POST"
    http10: bool = False
    keep_alive: bool = True


class AnswerSendingPlan(NamedTuple):
    """Content and times to send: `pieces` are (microseconds since the request was complete, bytes)."""

    pieces: tuple[tuple[int, bytes], ...]
    close: bool
    crash: bool = False
    """Whether to end it with a reset (RST), as after a host's crash."""
    shut: float = 0
    """Seconds for which the port refuses new connections."""


def plan_response_sending(
    response: Response, client: ClientFramingTraits, *, speed: float, now: float, extra: Headers = (), prefix: str = "",
    said: str = "hit", timed: bool = False,
) -> AnswerSendingPlan:  # fmt: skip
    """Plan a recorded response for `client`.

    `speed` 0 is at once, N is N times faster; `now` is Unix time; `timed`: at speed 0 too the pieces keep their times.
    `prefix` leads a redirect back to the proxy, `said` is the value of the cache header.
    """
    bodiless = client.method == "HEAD" or response.status in BODILESS
    cut = response.ending in (Ending.CUT, Ending.LEFT) and not bodiless
    chunked = (response.chunked or cut) and not client.http10 and not bodiless
    close = cut or not client.keep_alive or (client.http10 and response.chunked)
    if (headers := _redirect_to_proxy(response.headers, prefix)) is not response.headers:
        response = replace(response, headers=headers)
    said_close = close and not (cut and client.keep_alive and not client.http10)
    head = _build_head(
        response, client, speed=speed, now=now, said=said, extra=extra, chunked=chunked,
        length=None if bodiless else len(response.body) + cut, close=said_close,
    )  # fmt: skip
    if bodiless:
        return AnswerSendingPlan(((scale_time_by_speed(response.head_offset, speed), head),), close)
    pace = speed or (1 if timed else 0)
    end = _write_last_chunk(response.headers) if chunked and not cut else b""
    if not pace:
        frames = _list_frames(response, chunked=True) if chunked else [(0, (response.body,))]
        body = (part for _, frame in frames for part in frame)
        return AnswerSendingPlan(((0, b"".join([head, *body, end])),), close)
    frames = chain(_list_frames(response, chunked=chunked), [(0, (end,))])  # the end is sent with the last frame
    return AnswerSendingPlan(
        tuple(_merge_frames(scale_time_by_speed(response.head_offset, pace), head, frames, pace)), close
    )


def _write_last_chunk(headers: Headers) -> bytes:
    trailers = [(name[len(TRAILER) :], value) for name, value in headers if name.startswith(TRAILER)]
    return f"0\r\n{_format_header_lines(trailers)}\r\n".encode("latin-1", "replace")


class StreamedResponseHead(NamedTuple):
    head: bytes
    chunked: bool
    """Whether each part is an HTTP chunk; the last one, of length 0, ends the answer."""
    close: bool


def build_stream_response_head(
    response: Response, client: ClientFramingTraits, *, now: float, extra: Headers
) -> StreamedResponseHead:
    chunked = not client.http10
    close = client.http10 or not client.keep_alive
    response = replace(response, chunked=True)
    head = _build_head(
        response, client, speed=0, now=now, said="hit", extra=extra, chunked=chunked, length=None, close=close
    )
    return StreamedResponseHead(head, chunked, close)


class AnswerBytesWithRenewableDate:
    __slots__ = ("_date_at", "close", "data", "second")

    def __init__(self, data: bytes, *, close: bool, second: int) -> None:
        """Keep `data`, head and body, with a date of this second (Unix time)."""
        self.data, self.close, self.second = data, close, second
        self._date_at = data.index(_DATE) + len(_DATE)  # the first date is the proxy's: the recorded one is not sent

    def renew_date(self, second: int) -> None:
        """Replace the date by another second's; a date always has the same length (RFC 9110 5.6.7)."""
        date = _format_http_date(second).encode("ascii")
        end = self._date_at + len(date)
        self.data, self.second = b"".join((self.data[: self._date_at], date, self.data[end:])), second


_DATE = b"\r\ndate: "


class SerializedAnswerCache:
    """Latest answers planned at full speed, by kind of client; their date is renewed each second."""

    def __init__(self) -> None:
        self._laid: dict[tuple[int, ClientFramingTraits, Headers], AnswerBytesWithRenewableDate] = {}
        self._bytes = 0

    def clear(self) -> None:
        """Remove all entries, because ids refer to another store from now on."""
        self._laid.clear()
        self._bytes = 0

    def get(
        self,
        interaction: int,
        client: ClientFramingTraits,
        *,
        now: float,
        extra: Headers,
        read: Callable[[int], Response],
    ) -> AnswerBytesWithRenewableDate:
        which, second = (interaction, client, extra), int(now)
        if (laid := self._laid.get(which)) is None:
            (((_, data),), close, *_) = plan_response_sending(
                read(interaction), client, speed=0, now=second, extra=extra
            )
            laid = AnswerBytesWithRenewableDate(data, close=close, second=second)
            if len(data) > REMEMBERED_BYTES // 4:
                return laid
            self._bytes += len(data)
            if self._bytes > REMEMBERED_BYTES:
                self._laid.clear()
                self._bytes = len(data)
            self._laid[which] = laid
        elif laid.second != second:
            laid.renew_date(second)
        return laid


def scale_time_by_speed(offset: int, speed: float) -> int:
    return round(offset / speed) if speed else 0


Frame = tuple[bytes | memoryview, ...]
"""Parts of one piece of a body on the wire; body bytes are not copied."""


def _list_frames(response: Response, *, chunked: bool) -> Iterator[tuple[int, Frame]]:
    """Yield (microseconds, frame) of the body."""
    if not isinstance(response.chunks, TimedChunks):
        parts: Iterable[tuple[int, bytes | memoryview]] = ((chunk.offset, chunk.data) for chunk in response.chunks)
    else:
        parts = response.chunks.iter_views()
    for offset, data in parts:
        if data:  # an empty HTTP chunk would end the message
            yield offset, (b"%x\r\n" % len(data), data, b"\r\n") if chunked else (data,)


def _merge_frames(due: int, head: bytes, frames: Iterable[tuple[int, Frame]], speed: float) -> list[tuple[int, bytes]]:
    """Join pieces due at the same time into one write; times never decrease."""
    made: list[tuple[int, bytes]] = []
    data: list[bytes | memoryview] = [head]
    for offset, frame in frames:
        if (at := scale_time_by_speed(offset, speed)) > due:
            made.append((due, b"".join(data)))
            due, data = at, []
        data += frame
    return [*made, (due, b"".join(data))]


def _build_head(
    response: Response, client: ClientFramingTraits, *, speed: float, now: float, said: str, extra: Headers,
    chunked: bool, length: int | None, close: bool,
) -> bytes:  # fmt: skip
    gone = NOT_REPLAYED.union(name for name, _ in extra)  # these replace recorded fields of the same name
    if client.method == "HEAD" or response.status == 304:  # here it is no framing, but what a GET would get
        gone -= {"content-length"}
    fields = [
        (name, value) for name, value in response.headers if name.lower() not in gone and not name.startswith(TRAILER)
    ]
    if not speed and (response.status in TRANSIENT or response.status >= 500):  # clients may retry by themselves
        fields = _minimize_retry_after(fields)
    elif speed != 1:
        fields = [(name, _scale_retry_after(name, value, speed)) for name, value in fields]
    fields += [("date", _format_http_date(int(now))), (CACHE_HEADER, said), *extra]
    if chunked:
        fields.append(("transfer-encoding", "chunked"))
    elif length is not None and not (client.http10 and response.chunked and length == len(response.body)):
        fields.append(("content-length", str(length)))
    if close:
        fields.append(("connection", "close"))
    elif client.http10:
        fields.append(("connection", "keep-alive"))
    return serialize_response_head(response.status, response.reason, tuple(fields))


def _redirect_to_proxy(headers: Headers, prefix: str) -> Headers:
    """Return the fields with a `location` at the proxy; a `location` at other hosts is removed."""
    if header(headers, "location") is None:
        return headers
    led = (
        (name, rewrite_location_to_proxy(value, prefix) if name.lower() == "location" else value)
        for name, value in headers
    )
    return tuple((name, value) for name, value in led if value is not None)


def serialize_response_head(status: int, reason: str, headers: Headers) -> bytes:
    """Write a response head. Line breaks in recorded values cannot start another field."""
    return f"HTTP/1.1 {status} {_escape_line(reason)}\r\n{_format_header_lines(headers)}\r\n".encode(
        "latin-1", "replace"
    )


def _format_header_lines(fields: Iterable[tuple[str, str]]) -> str:
    return "".join(f"{_escape_line(name)}: {_escape_line(value)}\r\n" for name, value in fields)


def _escape_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ").replace("\0", " ")


def _minimize_retry_after(fields: list[tuple[str, str]]) -> list[tuple[str, str]]:
    recorded = header(tuple(fields), "retry-after") or header(tuple(fields), "retry-after-ms")
    kept = [(name, value) for name, value in fields if name.lower() not in WAITING]
    # SDKs ignore zero and wait for a second or more by themselves; they obey one millisecond (measured).
    kept += [("retry-after", "0"), ("retry-after-ms", "1")]
    if recorded is not None:
        kept.append((RECORDED_RETRY_AFTER_HEADER, recorded))
    return kept


def _scale_retry_after(name: str, value: str, speed: float) -> str:
    """Return a client's waiting time at this speed; dates and other fields unchanged."""
    if name.lower() not in POLLING or not value.isdecimal():
        return value
    if speed:
        return str(math.ceil(int(value) / speed))
    return "1" if name.lower().endswith("-ms") and int(value) else "0"  # SDKs treat 0 milliseconds as absent


REDIRECTS = frozenset({201, 202, 300, 301, 302, 303, 307, 308})
"""Statuses whose `location` clients follow, or request next."""


def find_client_path_prefix(target: str, at_provider: str) -> str:
    """Return the part before the provider's path in a client's target, ``/s/weather/openai``; or ""."""
    path, own = target.partition("?")[0], at_provider.partition("?")[0]
    return path.removesuffix(own) if path.endswith(own) else ""


def rewrite_location_for_storage(
    location: str, *, sent_to: str, target: str, at_provider: str, is_public: Callable[[str], bool]
) -> str:
    """Return a `location` as stored: a path at the provider, or another host's absolute address without its query.

    `sent_to` is ``https://host[:port]``, `target` the target sent there and `at_provider` the equivalent one at the
    provider's public host; `is_public` recognises the provider's own hosts. An invalid address becomes ``about:blank``.
    """
    try:
        leads = urlsplit(urljoin(sent_to + target, location))
        is_same_origin = _get_url_origin(leads) == _get_url_origin(urlsplit(sent_to))
        own = is_same_origin or is_public(leads.hostname or "")
    except ValueError:
        return "about:blank"
    if not own:
        return f"{leads.scheme}://{leads.netloc.rpartition('@')[2]}{leads.path}"
    base = find_client_path_prefix(target, at_provider) if is_same_origin else ""
    path = (leads.path.removeprefix(base) if leads.path.startswith(f"{base}/") else leads.path) or "/"
    path = "/" + path.lstrip("/\\")  # `//host/x` would lead to another host
    return path + (f"?{leads.query}" if leads.query else "") + (f"#{leads.fragment}" if leads.fragment else "")


def rewrite_location_to_proxy(kept: str, prefix: str) -> str | None:
    return prefix + kept if kept.startswith("/") else None


def find_redirect_host_past_proxy(headers: Headers) -> str | None:
    """Return the host to which a stored answer leads past the proxy; None if it does not."""
    kept = header(headers, "location")
    return None if kept is None or kept.startswith("/") else urlsplit(kept).hostname or "an address that cannot be read"


def _get_url_origin(url: SplitResult) -> tuple[str, str, int | None]:
    return url.scheme, url.hostname or "", url.port or DEFAULT_PORTS.get(url.scheme)
