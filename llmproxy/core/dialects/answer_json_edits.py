"""The JSON values of an answer and their byte positions, to edit them: whole, as events, lines, an array, AWS's frames.

Bytes that are not edited stay unchanged.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from llmproxy.core.dialects.streams import detect_framing, iter_aws_event_frames, write_aws_frame
from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.core.traffic.interaction import Chunk

_DATA = re.compile(rb"^data:[ ]?(?P<data>[^\r\n]*)", re.MULTILINE)


class BodyPart(NamedTuple):
    start: int
    end: int
    value: Any
    write: Callable[[object], bytes]


class ByteReplacement(NamedTuple):
    start: int
    end: int
    data: bytes


def list_json_parts(content_type: str, body: bytes) -> list[BodyPart]:
    """Return the replaceable JSON values of a body, in order. Raises ValueError for a damaged binary stream."""
    kind = detect_framing(content_type, body)
    if kind == "sse":
        return [part for found in _DATA.finditer(body) if (part := _json_part(body, *found.span("data"))) is not None]
    if kind == "ndjson":
        return list(_list_ndjson_parts(body))
    if kind == "aws":
        return list(_list_aws_event_frames(body))
    whole = _json_part(body, 0, len(body))
    if whole is None:
        return list(_list_ndjson_parts(body)) if kind in ("json", "array") else []
    return [whole]  # also a stream in one array: splitting it has no benefit


def _json_part(body: bytes, start: int, end: int) -> BodyPart | None:
    data = body[start:end]
    value = parse_json(data)
    if not isinstance(value, (dict, list)):
        return None
    return BodyPart(start, end, value, lambda new: write_json_like(new, like=data))


def write_json_like(value: object, *, like: bytes) -> bytes:
    """Write JSON in the style of `like`: its spaces and indent, and its escapes beyond ASCII."""
    spaced = b'": ' in like[:2_000]
    indent = next((len(found[1]) for found in [re.match(rb"\s*[\[{]\r?\n( +)", like)] if found), None)
    text = json.dumps(
        value,
        ensure_ascii=like.isascii(),
        indent=indent,
        separators=(None if indent is not None else (", ", ": ")) if spaced else (",", ":"),
    )
    return text.encode("utf-8", "surrogatepass")


def _list_ndjson_parts(body: bytes) -> Iterator[BodyPart]:
    at = 0
    for line in body.splitlines(keepends=True):
        stripped = line.rstrip(b"\r\n")
        if stripped and (part := _json_part(body, at, at + len(stripped))) is not None:
            yield part
        at += len(line)


def _list_aws_event_frames(body: bytes) -> Iterator[BodyPart]:
    at = 0
    for headers, payload in iter_aws_event_frames(body):
        total, header_length = struct.unpack_from(">II", body, at)
        raw = body[at + 12 : at + 12 + header_length]
        if (
            part := _parse_frame_to_editable_part(headers.get(":event-type") or "", raw, payload, at, at + total)
        ) is not None:
            yield part
        at += total


def _parse_frame_to_editable_part(kind: str, raw: bytes, payload: bytes, start: int, end: int) -> BodyPart | None:
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

    return BodyPart(start, end, {kind: value} if inner is None else inner, write)


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
