"""The events of a stream's bytes in four framings, whether it is complete, and its JSON values' positions, for edits.

The events do not depend on where the network cut the bytes. Completeness is decided from the content, since clients
hang up right after the terminator. Parsing many megabytes at once takes ten times their size: long documents are read
event by event and shortened first; if even that is too long, they are not read. Sources: WHATWG HTML section 9.2
(server-sent events), AWS "Event stream encoding", WIRE.md 3.4, read 2026-07.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from llmproxy.core.dialects.dialect_table import find_stream_end_codec
from llmproxy.core.providers.provider_table import MCP_PREFIX
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Chunk, Ending
from llmproxy.core.traffic.websocket_frames import CONTENT_TYPE, list_json_of_websocket_side
from llmproxy.lazy_regex import late

LONG = 4 << 20
"""Bytes of an answer above which it is read shortened."""
MOST_WEIGHT = 32 << 20
"""Bytes (`estimate_parsed_size`) above which it is read shortened, too: tiny values take 40 times the body."""
_STRING = 2048
"""Bytes that are kept of a string."""
_LIST = 1 << 20
"""Maximum bytes of a list or an object with shortened strings; a larger one is emptied."""

_ALL = 2 << 20
"""Maximum bytes of a shortened document; of a longer one nothing is kept."""
_PIECES = 600_000
"""Maximum strings and brackets of a shortened document: parsed, each takes many bytes."""
_DEEPEST = 500
"""Maximum nesting of lists and objects; a deeper document is not read."""
_MOST = 3_000_000
"""Maximum strings and brackets that are scanned, in some seconds; a document with more is not read."""
_UNITS = late(
    rb"(?:[^\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+",
    re.DOTALL,
)
"""Content of a string, up to an incomplete escape or surrogate pair."""
_MARK = late(rb'["\[\]{}]')
_STRING_HERE = late(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)


def is_body_too_big_to_parse_whole(body: bytes) -> bool:
    return len(body) > LONG or (len(body) > _SURELY_SHORT and estimate_parsed_size(body) > MOST_WEIGHT)


_SURELY_SHORT = MOST_WEIGHT // 256


def estimate_parsed_size(body: bytes) -> int:
    """Return the approximate size in bytes of a body's parsed JSON: objects, lists, strings, members."""
    return 232 * body.count(b"{") + 72 * body.count(b"[") + 30 * body.count(b'"') + 40 * body.count(b",") + len(body)


def _list_json_tokens(body: bytes | bytearray) -> Iterator[tuple[bytes, int, int]]:
    """Yield a document's strings and brackets as (first byte, start, end). An unended string ends with the document."""
    at = 0
    while match := _MARK.search(body, at):  # a search for a byte set is much faster than for alternatives
        start = match.start()
        found = match if match[0] != b'"' else _STRING_HERE.match(body, start)
        at = found.end() if found else match.end()
        yield match[0], start, at


class _OpenNode(NamedTuple):
    at: int
    """Index in the kept parts."""
    kept: int
    """Bytes kept before it."""


class _ShortenedDocument:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._size = 0
        self._open: list[_OpenNode] = []
        self._left_out = 0
        """Depth of the scan inside a part that is left out; 0: not inside one."""

    def add_text(self, data: bytes | bytearray) -> None:
        if self._left_out:
            return
        self.parts.append(bytes(data))
        self._size += len(data)
        if len(self._open) > 1 and self._size - self._open[-1].kept > _LIST:
            at, kept = self._open[-1]
            del self.parts[at + 1 :]
            self._size = kept + 1
            self._left_out = 1

    def begin_node(self, bracket: bytes) -> None:
        if self._left_out:
            self._left_out += 1
            return
        self._open.append(_OpenNode(len(self.parts), self._size))
        self.parts.append(bracket)
        self._size += 1

    def end_node(self, bracket: bytes) -> None:
        self._left_out = max(0, self._left_out - 1)
        if self._left_out:
            return
        self.parts.append(bracket)
        self._size += 1
        if self._open:
            self._open.pop()

    def is_beyond_limits(self) -> bool:
        return self._size > _ALL or len(self.parts) > _PIECES or len(self._open) + self._left_out > _DEEPEST


def shorten_json_strings_and_lists(body: bytes | bytearray) -> bytes:
    """Return a JSON document with long strings and lists shortened; b"" beyond a limit. Invalid JSON stays invalid."""
    kept, at = _ShortenedDocument(), 0
    for number, (mark, start, after) in enumerate(_list_json_tokens(body)):
        kept.add_text(body[at : min(start, at + LONG + 1)])
        at = after
        if number > _MOST or kept.is_beyond_limits():
            return b""
        if mark == b'"':
            kept.add_text(_truncate_json_string(body, start, after))
        elif mark in b"[{":
            kept.begin_node(mark)
        else:
            kept.end_node(mark)
    kept.add_text(body[at : at + LONG + 1])
    return b"" if kept.is_beyond_limits() else b"".join(kept.parts)


def split_json_array(body: bytes) -> Iterator[bytes]:
    depth, begun = 0, 0
    for mark, start, after in _list_json_tokens(body):
        if mark in b"[{":
            begun = start if depth == 1 else begun
            depth += 1
            if depth > _DEEPEST:
                return
        elif mark != b'"':
            depth -= 1
            if depth == 1:
                yield body[begun:after]


def _truncate_json_string(body: bytes | bytearray, start: int, end: int) -> bytes:
    if end - start <= _STRING:
        return bytes(body[start:end])
    whole = _UNITS.match(body, start + 1, start + _STRING)
    return b'"' + (whole[0] if whole else b"").decode("utf-8", "ignore").encode() + b'"'


_PRELUDE = struct.Struct(">III")
_WORD = struct.Struct(">I")
_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header value by its type; 6 (bytes) and 7 (string) carry a length instead."""
_FRAME_LIMIT = 24 << 20
"""Maximum bytes of a frame; AWS allows 16 MiB of payload and 128 KiB of headers."""


def iter_aws_event_frames(data: bytes) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield headers (non-strings in hex) and payload of each whole frame of an AWS event stream. Raises ValueError."""
    view = memoryview(data)
    start = 0
    while start + _PRELUDE.size <= len(view):
        total, header_length, prelude_crc = _PRELUDE.unpack_from(view, start)
        if binascii.crc32(view[start : start + 8]) != prelude_crc:
            raise ValueError(f"event stream: the checksum of the frame's prelude at byte {start} is wrong")
        if not 16 + header_length <= total <= _FRAME_LIMIT:
            raise ValueError(f"event stream: the frame at byte {start} has an impossible length of {total} bytes")
        end = start + total
        if end > len(view):
            return
        if binascii.crc32(view[start : end - 4]) != _WORD.unpack_from(view, end - 4)[0]:
            raise ValueError(f"event stream: the checksum of the frame at byte {start} is wrong")
        payload = start + 12 + header_length
        yield _parse_frame_headers(bytes(view[start + 12 : payload])), bytes(view[payload : end - 4])
        start = end


def write_aws_frame(headers: Mapping[str, str] | bytes, payload: bytes) -> bytes:
    """Write one frame; `headers` are strings (type 7), or the bytes of a received frame's headers."""
    packed = headers
    if not isinstance(packed, bytes):
        fields = [(name.encode(), text.encode()) for name, text in packed.items()]
        packed = b"".join(struct.pack("!B", len(n)) + n + struct.pack("!BH", 7, len(t)) + t for n, t in fields)
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    frame = prelude + _WORD.pack(binascii.crc32(prelude)) + packed + payload
    return frame + _WORD.pack(binascii.crc32(frame))


def _parse_frame_headers(data: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    position = 0
    try:
        while position < len(data):
            name_end = position + 1 + data[position]
            name = data[position + 1 : name_end].decode("utf-8", "replace")
            kind = data[name_end]
            position = name_end + 1
            if (length := _FIXED.get(kind)) is None:
                length = int.from_bytes(data[position : position + 2])
                position += 2
            value = data[position : position + length]
            headers[name] = value.decode("utf-8", "replace") if kind == 7 else value.hex()
            position += length
    except IndexError as error:
        raise ValueError("event stream: the headers of a frame are cut short") from error
    return headers


Framing = Literal["sse", "ndjson", "array", "aws", "json", "other"]

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One server-sent event: its name if it has one, and its data lines joined by newlines."""

    event: str | None
    data: str


class SSEParser:
    """Incremental parser of server-sent events. Invalid UTF-8 becomes U+FFFD; `id` and `retry` are ignored."""

    def __init__(self, *, short: bool = False) -> None:
        self._is_short = short
        self._partial = bytearray()
        self._skip_lf = False
        self._first = True
        self._event: str | None = None
        self._data: bytearray | None = None

    def parse_bytes(self, data: bytes) -> list[ServerSentEvent]:
        """Parse the next bytes, cut anywhere, and return the events that they complete."""
        if not data:
            return []
        if self._skip_lf and data.startswith(b"\n"):
            data = data[1:]
        self._skip_lf = data.endswith(b"\r") if data else False
        events: list[ServerSentEvent] = []
        start = 0
        for end in _LINE_END.finditer(data):
            self._partial += data[start : end.start()]
            start = end.end()
            line, self._partial = self._partial, bytearray()
            self._parse_line(line, events)
        self._partial += data[start:]
        return events

    def flush_last_event(self) -> list[ServerSentEvent]:
        return [*self.parse_bytes(b"\n"), *self.parse_bytes(b"\n")] if self._partial or self._data is not None else []

    def _parse_line(self, line: bytearray, events: list[ServerSentEvent]) -> None:
        if self._first:
            self._first = False
            if line.startswith(_BOM):
                del line[: len(_BOM)]
        if not line:
            if self._data is not None:
                is_too_long = self._is_short and len(self._data) > LONG
                data = shorten_json_strings_and_lists(self._data) if is_too_long else self._data
                events.append(ServerSentEvent(self._event, data.decode("utf-8", "replace")))
            self._event = self._data = None
            return
        if line.startswith(b"data:"):
            del line[: 6 if line.startswith(b"data: ") else 5]  # in place: it may be all of the body
            if self._data is None:
                self._data = line
            else:  # in place: an event may have any number of lines
                self._data += b"\n"
                self._data += line
        elif line.startswith(b"event:"):
            self._event = line[6:].removeprefix(b" ").decode("utf-8", "replace") or None
        elif bytes(line[:6]) in (b"data", b"event"):
            self._parse_line(line + b":", events)


def _aws_events(body: bytes, read: Callable[[bytes], Any]) -> Iterator[object]:
    """Yield ``{event type: payload}`` like boto; for a ``chunk`` the model's own event inside it."""
    try:
        for headers, payload in iter_aws_event_frames(body):
            value = read(payload)
            kind = headers.get(":event-type") or ""
            if headers.get(":message-type", "event") != "event":
                name = headers.get(":exception-type") or headers.get(":error-code") or "error"
                yield {"exception": {"type": name, "body": value}}
            elif kind == "chunk" and isinstance(value, dict) and isinstance(value.get("bytes"), str):
                yield read(base64.b64decode(value["bytes"]))
            else:
                yield {kind: value}
    except ValueError:  # the rest is damaged; earlier events still count
        return


def detect_framing(content_type: str, body: bytes) -> Framing:
    """Return a body's framing: by its content type, or by its first bytes if the type is unspecific."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return "sse"
    if kind in ("application/x-ndjson", "application/ndjson", "application/stream+json", "application/jsonl",
                "application/x-jsonl", "application/jsonlines"):  # fmt: skip
        return "ndjson"
    if kind == "application/vnd.amazon.eventstream":
        return "aws"
    start = body[:64].lstrip()
    if kind == "application/json" or kind.endswith("+json") or start[:1] in (b"{", b"["):
        return "array" if start.startswith(b"[") else "json"
    if start.removeprefix(_BOM).startswith((b"data:", b"event:", b"id:", b": ")):
        return "sse"
    return "other"


def list_stream_events(content_type: str, body: bytes) -> list[object]:
    """Return the JSON values of a stream, or of a plain body, without invalid JSON (``[DONE]``). Never raises."""
    return list(iter_stream_events(content_type, body, shortened=False))


_remembered = threading.local()
BEGINNING = 1 << 20
"""Bytes of a stream that are read for its first words: parsed, they take many times as much."""
MOST_REMEMBERED = 32
"""Maximum cached bodies: answers that are stored together are all read twice."""


def parse_events_cached(content_type: str, body: bytes) -> Iterable[object]:
    """Return `list_stream_events` (of long bodies `iter_stream_events`), cached by thread; never change the values."""
    if is_body_too_big_to_parse_whole(body):
        return iter_stream_events(content_type, body)
    known: dict[tuple[str, bytes], tuple[int, list[object]]] = _remembered.__dict__.setdefault("known", {})
    if (found := known.get((content_type, body))) is None:
        found = known[content_type, body] = estimate_parsed_size(body), list_stream_events(content_type, body)
        while len(known) > MOST_REMEMBERED or sum(size for size, _ in known.values()) > MOST_WEIGHT:
            del known[next(iter(known))]
    return found[1]


def _read_shortened(document: bytes) -> Any:
    return parse_json_or_none(
        shorten_json_strings_and_lists(document) if is_body_too_big_to_parse_whole(document) else document
    )


def iter_stream_events(content_type: str, body: bytes, *, shortened: bool = True) -> Iterator[object]:
    """Yield the JSON values of a stream; `shortened`: long ones by `shorten_json_strings_and_lists`. Never raises."""
    read = _read_shortened if shortened else parse_json_or_none
    if content_type.startswith(CONTENT_TYPE):  # a recorded WebSocket
        yield from list_json_of_websocket_side(body, "server")
        return
    kind = detect_framing(content_type, body)
    if kind == "sse":
        values: Iterable[object] = (read(event.data.encode()) for event in _iter_sse_events(body, short=shortened))
    elif kind == "ndjson":
        values = map(read, _iterate_lines(body))
    elif kind == "aws":
        values = _aws_events(body, read)
    elif kind == "array":
        whole = None if shortened and is_body_too_big_to_parse_whole(body) else parse_json_or_none(body)
        values = whole if isinstance(whole, list) else map(read, split_json_array(body))
    else:
        values = [read(body)]
        if values == [None] and kind == "json":  # NDJSON with a wrong content type
            values = map(read, _iterate_lines(body))
    yield from (value for value in values if value is not None)


def _iterate_lines(body: bytes) -> Iterator[bytes]:
    for line in io.BytesIO(body):  # shares the bytes
        yield from line.splitlines()


def _iter_sse_events(body: bytes, *, short: bool = True) -> Iterator[ServerSentEvent]:
    parser, view = SSEParser(short=short), memoryview(body)
    for at in range(0, len(body), _TAIL):
        yield from parser.parse_bytes(bytes(view[at : at + _TAIL]))
    yield from parser.flush_last_event()


def cut_streamed_body_to_megabyte(content_type: str, body: bytes) -> bytes:
    return body[:BEGINNING] if detect_framing(content_type, body) in ("sse", "ndjson", "aws") else body


_LOOK_BACK = 4
"""Number of events at the end of a stream that are searched for its terminator."""
_TAIL = 1 << 16
"""Bytes at the end of a long stream that are searched for these events first; also the size of a parsed piece."""


def _is_error_event(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return bool(value.get("error")) or value.get("type") == "error" or "exception" in value


def _parse_last_sse(body: bytes) -> list[ServerSentEvent]:
    if len(body) > _TAIL and b"\r" not in body and _BOM not in body:  # then an empty line is a border of events
        tail = list(_iter_sse_events(body[body.find(b"\n\n", len(body) - _TAIL) :]))
        if len(tail) >= _LOOK_BACK:
            return tail[-_LOOK_BACK:]
    return list(deque(_iter_sse_events(body), _LOOK_BACK))


def _parse_last_events(kind: Framing, body: bytes) -> tuple[list[Any], bool]:
    if kind == "sse":
        tail = _parse_last_sse(body)
        done = any(event.data.strip() == "[DONE]" or event.event == "done" for event in tail)
        values = ((_read_shortened(each.data.encode()), each.event == "error") for each in tail)
        return [value or ({"type": "error"} if failed else None) for value, failed in values], done
    if kind == "ndjson":
        lines = body[-LONG:].rstrip().splitlines()
        whole = len(body) <= LONG or len(lines) > _LOOK_BACK
        return [_read_shortened(line) for line in (lines if whole else body.rstrip().splitlines())[-_LOOK_BACK:]], False
    return list(deque((value for value in _aws_events(body, _read_shortened) if value is not None), _LOOK_BACK)), False


def _decide_by_finish(finishes: Callable[[Any], bool], content_type: str, body: bytes, *, http_ended: bool) -> Ending:
    """Decide for a stream without a terminator: HTTP must end after an event with a finish reason."""
    finished = False
    for value in iter_stream_events(content_type, body):
        if _is_error_event(value):
            return Ending.COMPLETE
        finished = finished or (isinstance(value, dict) and finishes(value))
    if not http_ended:
        return Ending.CUT
    return Ending.COMPLETE if finished else Ending.UNTERMINATED


_NO_ANSWER = late(rf"{MCP_PREFIX}(?:answer|end|stream|notifications/.*)$")
"""MCP operations whose stream need not contain an answer."""
_EVENT_ID = late(rb"(?:^|[\r\n])id: ?[^\r\n]")
"""A stream whose events have ids may end before its answer: its client then asks for the rest (``Last-Event-ID``)."""


def _has_rpc_answer(content_type: str, body: bytes) -> bool:
    values = (each if isinstance(each, list) else [each] for each in iter_stream_events(content_type, body))
    return any(isinstance(each, dict) and ("result" in each or "error" in each) for batch in values for each in batch)


def classify_response_ending(
    operation: str, stream: bool, status: int, content_type: str, body: bytes, http_ended: bool
) -> Ending:
    """Decide how a response ended: from its content if the dialect has a terminator, else from HTTP's framing."""
    by_http = Ending.COMPLETE if http_ended else Ending.CUT
    kind = detect_framing(content_type, body)
    if not 200 <= status < 300 or kind in ("json", "other"):
        return by_http
    if operation.startswith(MCP_PREFIX):
        awaited = http_ended and kind == "sse" and not (_NO_ANSWER.match(operation) or _EVENT_ID.search(body))
        return Ending.UNTERMINATED if awaited and not _has_rpc_answer(content_type, body) else by_http
    if (codec := find_stream_end_codec(operation)) is None:
        return by_http
    if codec.finishes is not None:
        streamed = kind != "array" or stream
        return _decide_by_finish(codec.finishes, content_type, body, http_ended=http_ended) if streamed else by_http
    if kind == "array" or not (codec.ends or codec.done):
        return by_http
    tail, done = _parse_last_events(kind, body)
    if (done and codec.done) or (tail and _is_error_event(tail[-1])):
        return Ending.COMPLETE
    if codec.ends is not None and any(isinstance(value, dict) and codec.ends(value) for value in tail):
        return Ending.COMPLETE
    return Ending.UNTERMINATED if http_ended else Ending.CUT


_EVENT_DATA = late(
    rb"data:(?:(?<![^\r\n]data:)|(?<=\A\xef\xbb\xbfdata:))[ ]?"
    rb"(?P<first>[^\r\n]*+)(?P<more>(?:(?:(?:\r\n?|\n)[^\r\n]++)*?(?:\r\n?|\n)data:[^\r\n]*+)*+)"
)
"""An event's data, from its first data line to its last, with the other fields between them."""
_FRAMING = late(rb"(?<=[\r\n])(?:data:|[^\r\n]++)")
"""The bytes of an event's further lines that are not data."""


class JsonValueSpanInBody(NamedTuple):
    start: int
    end: int
    data: bytes
    """The value's text at the same positions, with spaces instead of an event's framing; empty for a binary frame."""
    value: Any
    write: Callable[[object], bytes]


class ByteReplacement(NamedTuple):
    start: int
    end: int
    data: bytes


def split_body_into_json_values(content_type: str, body: bytes) -> list[JsonValueSpanInBody]:
    """Return the replaceable JSON values of a body, in order. Raises ValueError for a damaged binary stream."""
    kind = detect_framing(content_type, body)
    if kind == "sse":
        return [part for found in _EVENT_DATA.finditer(body) if (part := _sse_part(found)) is not None]
    if kind == "ndjson":
        return list(_list_ndjson_parts(body))
    if kind == "aws":
        return list(_list_aws_event_frames(body))
    if (whole := _json_part(0, body)) is None:
        return list(_list_ndjson_parts(body)) if kind in ("json", "array") else []
    return [whole]  # also a stream in one array: splitting it has no benefit


def _json_part(start: int, data: bytes) -> JsonValueSpanInBody | None:
    if not isinstance(value := parse_json_or_none(data), (dict, list)):
        return None
    return JsonValueSpanInBody(start, start + len(data), data, value, lambda new: write_json_like(new, like=data))


def _sse_part(found: re.Match[bytes]) -> JsonValueSpanInBody | None:
    """Return the value of an event's data; several lines are rewritten as one, before the fields between them."""
    first, more = found["first"], found["more"]
    part = _json_part(found.start("first"), first + _FRAMING.sub(lambda each: b" " * len(each[0]), more))
    if part is None or not more:
        return part
    fields = [line for line in more.splitlines() if line and not line.startswith(b"data:")]
    return part._replace(write=lambda new: b"\n".join((write_json_like(new, like=first + more), *fields)))


def write_json_like(value: object, *, like: bytes) -> bytes:
    """Write JSON in the style of `like`: its spaces and indent, and its escapes beyond ASCII."""
    spaced = b'": ' in like[:2_000]
    indent = next((len(found[1]) for found in [re.match(rb"\s*[\[{]\r?\n( +)", like)] if found), None)
    separators = (None if indent is not None else (", ", ": ")) if spaced else (",", ":")
    text = json.dumps(value, ensure_ascii=like.isascii(), indent=indent, separators=separators)
    return text.encode("utf-8", "surrogatepass")


def _list_ndjson_parts(body: bytes) -> Iterator[JsonValueSpanInBody]:
    for line in re.finditer(rb"[^\r\n]+", body):
        if (part := _json_part(line.start(), line[0])) is not None:
            yield part


def _list_aws_event_frames(body: bytes) -> Iterator[JsonValueSpanInBody]:
    at = 0
    for headers, payload in iter_aws_event_frames(body):
        total, header_length = struct.unpack_from(">II", body, at)
        raw = body[at + 12 : at + 12 + header_length]
        part = _parse_frame_to_editable_part(headers.get(":event-type") or "", raw, payload, at, at + total)
        if part is not None:
            yield part
        at += total


def _parse_frame_to_editable_part(
    kind: str, raw: bytes, payload: bytes, start: int, end: int
) -> JsonValueSpanInBody | None:
    try:
        value = json.loads(payload)
        inner = json.loads(base64.b64decode(value["bytes"])) if kind == "chunk" else None
    except (ValueError, RecursionError, KeyError, TypeError, binascii.Error):
        return None

    def write(new: object) -> bytes:
        if inner is not None:
            coded = base64.b64encode(json.dumps(new, separators=(",", ":")).encode()).decode()
            new = {**value, "bytes": coded}
        elif isinstance(new, dict):
            new = next(iter(new.values()))  # the event's type is in the headers
        return write_aws_frame(raw, write_json_like(new, like=payload))

    return JsonValueSpanInBody(start, end, b"", {kind: value} if inner is None else inner, write)


def apply_edits_to_chunks(chunks: Sequence[Chunk], edits: Sequence[ByteReplacement]) -> tuple[Chunk, ...]:
    """Replace bytes of a body in chunks; new bytes go where the old ones began. `edits`: in order, disjoint."""
    made: list[Chunk] = []
    at, n = 0, 0
    inside = 0  # bytes before this position are replaced already
    for chunk in chunks:
        end = at + len(chunk.data)
        data = bytearray()
        position = max(at, inside)
        while n < len(edits) and edits[n].start < end:
            data += chunk.data[position - at : edits[n].start - at]
            data += edits[n].data
            inside = edits[n].end
            position = min(inside, end)
            n += 1
        if position < end:
            data += chunk.data[position - at :]
        at = end
        made.append(Chunk(chunk.offset, bytes(data)))
    return tuple(chunk for chunk in made if chunk.data)
