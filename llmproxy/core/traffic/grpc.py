"""gRPC over HTTP/2: messages in a body, the proxy's own errors, and messages as readable text.

A body has messages, each after a flag (is it compressed?) and its length in four bytes; the status is in trailers, or
in the head if the answer has nothing else. Without a descriptor text and a nested message look alike: printable data is
taken for text, unless it starts like a message and is one to its end. Sources: PROTOCOL-HTTP2.md and statuscodes.md in
https://github.com/grpc/grpc/blob/master/doc/, and https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from llmproxy.core.traffic.interaction import GRPC, Headers
from llmproxy.errors import SettingsError
from llmproxy.protocol import CACHE_HEADER

PREFIX = 5
"""Bytes before a message."""
LONGEST = 6000
"""Maximum characters of an error's text: clients accept heads of 8 KiB."""
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 9, 12, 13, 14
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_STATUS = {
    429: RESOURCE_EXHAUSTED, 500: INTERNAL, 501: UNIMPLEMENTED, 502: UNAVAILABLE, 503: UNAVAILABLE, 529: UNAVAILABLE,
}  # fmt: skip
"""gRPC status by HTTP status; for all others the request cannot succeed unchanged, so no client repeats it."""
_SIZES = {1: 8, 5: 4}
"""Size in bytes of a value by wire type."""
_NESTED = 20


def split_grpc_messages(body: bytes | bytearray) -> Iterator[tuple[bool, bytes]]:
    """Yield (whether it is compressed, bytes) of each complete message."""
    at = 0
    while at + PREFIX <= len(body):
        end = at + PREFIX + int.from_bytes(body[at + 1 : at + PREFIX])
        if end > len(body):
            return
        yield bool(body[at]), bytes(body[at + PREFIX : end])
        at = end


def count_grpc_messages_capped(body: bytes | bytearray) -> int:
    """Return 0 while the first message is incomplete, 1 if it is the only one, 2 if another one has begun."""
    end = PREFIX + int.from_bytes(body[1:PREFIX])
    return (len(body) >= end) + (len(body) > end)


def build_grpc_refusal_headers(status: int, code: str, text: str, *, miss: bool = False) -> Headers:
    while len(quote(text, safe=_PLAIN)) > LONGEST:
        text = f"{text[: len(text) * 3 // 4]} ..."
    ours = (("x-llmproxy-error", code), *(((CACHE_HEADER, "miss"),) if miss else ()))
    return (*build_grpc_failure_headers(status, text), *ours)


def build_grpc_failure_headers(status: int, text: str, retry_after: float = 0) -> Headers:
    """Return the head of an answer that is only a failure, from an HTTP status; `retry_after` in seconds."""
    wait = (("grpc-retry-pushback-ms", str(int(retry_after * 1000))),) if retry_after else ()
    number = str(_STATUS.get(status, FAILED_PRECONDITION))
    return (("content-type", GRPC), ("grpc-status", number), ("grpc-message", quote(text, safe=_PLAIN)), *wait)


class GrpcDescriptors:
    """Descriptors of services, as written by `protoc --include_imports --descriptor_set_out=FILE`."""

    def __init__(self, path: Path) -> None:
        """Read a file. Raises SettingsError: it has no descriptors, or protobuf is not installed."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool
        except ImportError as error:
            raise SettingsError("--descriptor needs protobuf.", hint="uv pip install protobuf") from error
        self._path, self._pool = path, descriptor_pool.DescriptorPool()
        try:
            held = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
            for each in held.file:
                self._pool.AddSerializedFile(each.SerializeToString())
        except Exception as error:  # protobuf's two implementations raise different ones
            why = (error.strerror if isinstance(error, OSError) else None) or error
            hint = "Write one: protoc --include_imports --descriptor_set_out=FILE SERVICE.proto"
            raise SettingsError(f"--descriptor {path} holds no descriptors: {why}.", hint=hint) from error
        self._known = [f"{each.package}.{one.name}".lstrip(".") for each in held.file for one in each.service]

    def format_message(self, target: str, data: bytes, *, answer: bool) -> str:
        """Return a call's message as JSON. Raises SettingsError: an unknown call, or a message of another type."""
        from google.protobuf import json_format, message_factory

        service, _, name = target.strip("/").rpartition("/")
        try:
            method: Any = self._pool.FindServiceByName(service).methods_by_name[name]
        except KeyError as error:
            msg = f"--descriptor {self._path} does not know {service}/{name}."
            raise SettingsError(msg, hint=f"It knows: {', '.join(self._known) or 'no service'}") from error
        kind = method.output_type if answer else method.input_type
        try:
            made = message_factory.GetMessageClass(kind).FromString(data)
        except Exception as error:  # as above
            raise SettingsError(f"--descriptor {self._path}: a message is no {kind.full_name}: {error}.") from error
        if data and not made.ListFields():
            raise SettingsError(f"--descriptor {self._path}: a message has no field of {kind.full_name}.")
        return str(json_format.MessageToJson(made, preserving_proto_field_name=True))


def format_grpc_messages(
    body: bytes, target: str, descriptors: GrpcDescriptors | None, *, answer: bool
) -> Iterator[str]:
    """Yield a gRPC body's messages as readable text: JSON, or their sizes and texts. Raises SettingsError."""
    whole = 0
    for number, (compressed, data) in enumerate(split_grpc_messages(body), 1):
        whole += PREFIX + len(data)
        yield f"message {number}, {len(data):,} bytes{', compressed' if compressed else ''}"
        if compressed:
            continue
        if descriptors is not None:
            yield descriptors.format_message(target, data, answer=answer)
        else:
            yield from (f"  {place:<10}  {text}" for place, text in extract_protobuf_texts(data))
    if whole < len(body):
        yield f"{len(body) - whole:,} bytes of a message that was cut"


def extract_protobuf_texts(data: bytes) -> list[tuple[str, str]]:
    """Return (field numbers, text) of the printable parts of a message; if it is no message, the whole data."""
    if (found := _read_text_fields(data, 0)) is None:
        return [("", text)] if (text := _decode_printable_or_empty(data)) else []
    return [(".".join(map(str, place)), text) for place, text in found]


def _read_text_fields(data: bytes, depth: int) -> list[tuple[tuple[int, ...], str]] | None:
    found, at = list[tuple[tuple[int, ...], str]](), 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number or at > len(data) or kind not in (0, 1, 2, 5):
            return None
        length, at = (_SIZES[kind], at) if kind in _SIZES else _read_varint(data, at)
        if kind == 0:
            continue
        inner = data[at : at + length]
        at += length
        if at > len(data):
            return None
        if kind == 2:
            text = _decode_printable_or_empty(inner)
            below = _read_text_fields(inner, depth + 1) if depth < _NESTED and (not text or text[0] < " ") else None
            if below:
                found += [((number, *place), each) for place, each in below]
            elif text:
                found.append(((number,), text))
    return found if at == len(data) else None


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and its end; an end after the data means that it is truncated."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return 0, len(data) + 1


def _decode_printable_or_empty(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return text if all(each.isprintable() or each in "\n\r\t" for each in text) else ""
