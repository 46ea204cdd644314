"""A recorded answer in the words of today's request: its JSON-RPC id and its progress token, and not a byte more.

Only the bytes of ids change: numbers keep their spelling, members their order. An answer whose ids are equal already stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from llmproxy.core.bindings.answer_bodies import BodyPart, Edit, edit_chunks, list_parts
from llmproxy.core.traffic.interaction import Response, header, without

_SPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder()


def messages_of(response: Response) -> list[BodyPart]:
    """Return the messages of an answer, and where each lies in its body: one, server-sent events, or lines."""
    return list_parts(header(response.headers, "content-type") or "", response.body)


def readdress(response: Response, recorded: bytes, asked: bytes) -> Response:
    """Return the answer for the request `asked`, recorded as the answer to `recorded`; the same object where nothing changes."""
    was, now = parse_message(recorded), parse_message(asked)
    if was.get("id") == now.get("id") and _token(was) == _token(now) and type(was.get("id")) is type(now.get("id")):
        return response
    edits = [edit for part in messages_of(response) for edit in _edits(response.body, part, was, now)]
    if not edits:
        return response
    return replace(
        response, headers=without(response.headers, "content-length"), chunks=edit_chunks(response.chunks, edits)
    )


def answers(response: Response, asked: bytes) -> bool:
    """Tell whether an answer holds the result of a request, or its error."""
    id_ = parse_message(asked).get("id")
    found = (part.value for part in messages_of(response) if isinstance(part.value, dict))
    return id_ is not None and any("method" not in each and each.get("id") == id_ for each in found)


def parse_message(body: bytes) -> dict[str, Any]:
    """Return the message in a body; empty for what is no object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _token(message: dict[str, Any]) -> object:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get("progressToken") if isinstance(meta, dict) else None


def _edits(body: bytes, part: BodyPart, was: dict[str, Any], now: dict[str, Any]) -> Iterator[Edit]:
    message = part.value
    if not isinstance(message, dict):
        return
    if "method" not in message:
        if "id" in message and message["id"] == was.get("id") and "id" in now:
            yield from _put(body, part, ("id",), now["id"])
    elif message["method"] == "notifications/progress" and isinstance(message.get("params"), dict):
        token = _token(now)
        if token is not None and message["params"].get("progressToken") == _token(was):
            yield from _put(body, part, ("params", "progressToken"), token)


def _put(body: bytes, part: BodyPart, path: tuple[str, ...], value: object) -> Iterator[Edit]:
    text = body[part.start : part.end].decode("utf-8", "surrogateescape")
    if (found := find_member(text, path)) is None:
        return
    start, end = (part.start + len(text[:at].encode("utf-8", "surrogateescape")) for at in found)
    yield Edit(start, end, json.dumps(value, ensure_ascii=True).encode())


def find_member(text: str, path: tuple[str, ...], at: int = 0) -> tuple[int, int] | None:
    """Return where the value of a member stands in JSON text, the last one of a name as parsers have it; None if it is not there."""
    found: tuple[int, int] | None = None
    at = _skip(text, at)
    if text[at : at + 1] != "{":
        return None
    at = _skip(text, at + 1)
    while text[at : at + 1] not in ("}", ""):
        name, at = _decoder.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)
        _, end = _decoder.raw_decode(text, begin)
        if name == path[0]:
            found = (begin, end) if len(path) == 1 else find_member(text, path[1:], begin)
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at : at + 1] == "," else at
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
