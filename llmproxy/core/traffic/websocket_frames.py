"""Stored form of a WebSocket conversation: one interaction whose body has one JSON line, a chunk, for each message.

    {"t": 1200, "from": "client", "text": "{...}"}                   a text message
    {"t": 1900, "from": "server", "text": "{...}", "binary": true}   a binary message that is UTF-8 JSON (Google Live)
    {"t": 2100, "from": "server", "data": "AAEC"}                    any other binary message, in base64
    {"t": 9000, "from": "client", "close": 1000, "reason": "bye"}    the end; 1006: cut, without a closing handshake

`t` is in microseconds since the release of the upgrade, which is the request. Pings and pongs are not stored, and
messages are whole: their division into frames is a matter of the network (RFC 6455 section 5.4).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from llmproxy.core.traffic.interaction import Chunk, Headers, header
from llmproxy.errors import CassetteCorrupt

CONTENT_TYPE = "application/x-llmproxy-frames+jsonl"
SWITCHING = 101
"""HTTP status of an accepted upgrade."""
CUT = 1006
"""Close code of a connection that ended without a closing handshake; it is never sent (RFC 6455 section 7.4.1)."""

_LONGEST = 2000
"""Maximum characters of one message in a transcript."""
_SPARED = 64
"""Characters shown of one base64 string (audio)."""


@dataclass(frozen=True, slots=True)
class WebSocketFrame:
    at: int
    """Microseconds since the upgrade was released."""
    client: bool
    data: str | bytes = ""
    """Text, or bytes of a binary message; for the end, the reason."""
    close: int | None = None


def is_websocket_body(headers: Headers) -> bool:
    return (header(headers, "content-type") or "").startswith(CONTENT_TYPE)


def encode_frame_as_json_line(frame: WebSocketFrame) -> bytes:
    line: dict[str, object] = {"t": frame.at, "from": "client" if frame.client else "server"}
    if frame.close is not None:
        line |= {"close": frame.close, "reason": frame.data}
    elif isinstance(frame.data, str):
        line["text"] = frame.data
    elif (text := _json_bytes_to_text(frame.data)) is not None:
        line |= {"text": text, "binary": True}
    else:
        line["data"] = base64.b64encode(frame.data).decode("ascii")
    return json.dumps(line, ensure_ascii=False, separators=(", ", ": ")).encode() + b"\n"


def encode_websocket_frames_as_chunks(frames: Iterable[WebSocketFrame]) -> tuple[Chunk, ...]:
    return tuple(Chunk(frame.at, encode_frame_as_json_line(frame)) for frame in frames)


def _json_bytes_to_text(data: bytes) -> str | None:
    if data[:1] not in (b"{", b"["):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def parse_recorded_websocket_frames(body: bytes) -> list[WebSocketFrame]:
    """Decode a conversation. Raises CassetteCorrupt: a line does not have the form above."""
    found = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                found.append(_parse_frame_line(json.loads(line)))
            except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as why:
                raise CassetteCorrupt(f"line {number} of a recorded WebSocket is damaged: {why}") from why
    return found


def _parse_frame_line(line: dict[str, Any]) -> WebSocketFrame:
    client = {"client": True, "server": False}[line["from"]]
    at = int(line["t"])
    if "close" in line:
        return WebSocketFrame(at, client, str(line.get("reason") or ""), int(line["close"]))
    if "data" in line:
        return WebSocketFrame(at, client, base64.b64decode(line["data"], validate=True))
    if not isinstance(text := line["text"], str):
        raise TypeError("text is no string")
    return WebSocketFrame(at, client, text.encode() if line.get("binary") else text)


def list_json_of_websocket_side(body: bytes, side: str) -> Iterator[object]:
    """Yield the JSON values that one side sent; other or damaged lines are skipped. Never raises."""
    for line in body.split(b"\n"):
        try:
            whole = json.loads(line)
            if whole["from"] == side and "text" in whole:
                yield json.loads(whole["text"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue


def extract_websocket_requests(body: bytes) -> list[bytes]:
    """Return the client's events, each as the body of an equivalent HTTP request. Never raises."""
    asked = []
    for event in list_json_of_websocket_side(body, "client"):
        if isinstance(event, dict):
            turns = event["clientContent"].get("turns") if isinstance(event.get("clientContent"), dict) else None
            same = {"input": [event["item"]]} if "item" in event else {"contents": turns} if turns else event
            asked.append(json.dumps(same).encode())
    return asked


def format_websocket_transcript(body: bytes) -> Iterator[str]:
    """Yield a conversation line by line as readable text: `12.3 ms  client -> {...}`; long base64 is shortened."""
    for frame in parse_recorded_websocket_frames(body):
        yield f"{frame.at / 1000:10.1f} ms  {'client ->' if frame.client else 'server <-'} {_format_frame(frame)}"


def _format_frame(frame: WebSocketFrame) -> str:
    if frame.close == CUT:
        return "(cut, without a closing handshake)"
    if frame.close is not None:
        return f"(close {frame.close}{f': {frame.data!s}' if frame.data else ''})"
    text = frame.data if isinstance(frame.data, str) else _json_bytes_to_text(frame.data)
    if text is None:
        return f"({len(frame.data)} bytes)"
    with suppress(ValueError, RecursionError):
        text = json.dumps(_shorten_strings(json.loads(text)), ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _shorten_strings(value: object) -> object:
    if isinstance(value, dict):
        return {name: _shorten_strings(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_shorten_strings(element) for element in value]
    if isinstance(value, str) and len(value) > 4 * _SPARED and " " not in value[: 4 * _SPARED]:
        return f"{value[:_SPARED]}… ({len(value)} characters)"
    return value
