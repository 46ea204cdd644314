"""Pictures and sound in a request or an answer, as the dialects carry them: bytes in base64, beside the words.

Only what stands in the recording itself is taken: an address is shown as text, and never fetched. Only types that a browser shows without
running anything are given on; SVG is a document with scripts and links, so it stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from llmproxy.core.dialects.messages import as_dict, as_str

SHOWN = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "audio/wav", "audio/mpeg", "audio/ogg", "audio/flac", "audio/mp4"}
)  # fmt: skip
_DATA = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,([A-Za-z0-9+/=\s]+)", re.IGNORECASE)
_FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg", "opus": "audio/ogg",
            "png": "image/png", "jpeg": "image/jpeg", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}  # fmt: skip
_DEPTH = 12
_MOST = 40
"""Pieces of one message."""

Medium = dict[str, str]
"""``{"type": "image/png", "data": base64}``."""


def media(value: Any) -> list[Medium]:  # noqa: ANN401 - JSON
    """Return the pictures and sounds in a part of a body, in their order. Never raises."""
    found: list[Medium] = []
    for each in _walk(value, 0):
        found.append(each)
        if len(found) == _MOST:
            break
    return found


def _walk(value: Any, depth: int) -> Iterator[Medium]:  # noqa: ANN401 - JSON
    if depth > _DEPTH:
        return
    if isinstance(value, dict):
        own = _own(value)
        if own is not None:
            yield own
            return
        for part in value.values():
            yield from _walk(part, depth + 1)
    elif isinstance(value, list):
        for part in value:
            yield from _walk(part, depth + 1)
    elif isinstance(value, str) and value[:5].lower() == "data:":
        match = _DATA.fullmatch(value)
        if match is not None and (made := _build_medium(match[1], match[2])):
            yield made


def _own(block: dict[str, Any]) -> Medium | None:
    """Return the medium that a block is; Anthropic's source, Gemini's inlineData, OpenAI's input_audio, Bedrock's image."""
    inner = as_dict(block.get("source")) or block
    kind = inner.get("media_type") or inner.get("mimeType") or inner.get("mime_type")
    data = as_str(inner.get("data")) or as_str(inner.get("bytes"))
    if not kind and isinstance(block.get("format"), str):
        kind = _FORMATS.get(block["format"])
    return _build_medium(as_str(kind), data) if kind and data else None


def _build_medium(kind: str, data: str) -> Medium | None:
    kind = kind.lower()
    kind = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav"}.get(kind, kind)
    data = "".join(data.split())
    return {"type": kind, "data": data} if kind in SHOWN and re.fullmatch(r"[A-Za-z0-9+/]+=*", data) else None
