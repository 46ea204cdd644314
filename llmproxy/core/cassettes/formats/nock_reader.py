"""Fixtures of nock (``nock.recorder.play()`` with ``output_objects``, ``nock.back``): a JSON array of exchanges.

    {"scope": "https://api.openai.com:443", "method", "path", "body", "status", "response", "rawHeaders", "reqheaders"}

A JSON body is a tree, a compressed or binary one a list of pieces in hexadecimal. `rawHeaders` is an object, or (before
nock 14) a flat list of names and values. Source: lib/recorder.js of 14.0.
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded, Source, Tree
from llmproxy.core.traffic.interaction import DEFAULT_PORTS, Headers
from llmproxy.errors import CassetteCorrupt


def recognises(source: Source) -> bool:
    if source.head.lstrip()[:1] != "[":
        return False
    try:
        found = source.json
    except CassetteCorrupt:
        return False
    return bool(found) and isinstance(found[0], dict) and {"scope", "path", "response"} <= set(found[0])


def read(source: Source) -> list[Recorded]:
    if not isinstance(source.json, list):
        raise CassetteCorrupt(f"{source.name}: fixtures of nock are a JSON array.")
    return formats.read_each_item(source.json, _read_exchange, source, "exchange")


def _read_exchange(tree: Tree, number: int) -> Recorded:
    tree = formats.mapping({"exchange": tree}, "exchange")
    raw = tree.get("rawHeaders") or {}
    return Recorded(
        method=formats.text(tree, "method").upper(),
        uri=_read_origin(formats.text(tree, "scope")) + formats.text(tree, "path"),
        headers=formats.parse_header_mapping(tree.get("reqheaders")),
        body=_read_body(tree.get("body")),
        status=formats.status(tree.get("status", 200)),
        reason="",
        response_headers=_pair_headers(raw) if isinstance(raw, list) else formats.parse_header_mapping(raw),
        response_body=_read_body(tree.get("response")),
        number=number,
    )


def _read_origin(scope: str) -> str:
    try:
        parts = urlsplit(scope)
        plain = parts.port in (None, DEFAULT_PORTS.get(parts.scheme))
    except ValueError as error:
        raise ReadingProblem(f"its `scope` is no origin: {error}") from error
    return f"{parts.scheme}://{parts.hostname}" if plain else scope


def _pair_headers(flat: list[str]) -> Headers:
    if len(flat) % 2:
        raise ReadingProblem("its `rawHeaders` has no value for its last name")
    return tuple(zip(map(str, flat[::2]), map(str, flat[1::2]), strict=True))


def _read_body(value: Tree) -> bytes:
    if isinstance(value, str):
        return formats.encode_text(value)
    if isinstance(value, list) and value and all(isinstance(piece, str) for piece in value):
        try:
            return bytes.fromhex("".join(value))
        except ValueError as error:
            raise ReadingProblem(f"a body in pieces is not hexadecimal: {error}") from error
    return b"" if value is None else formats.encode_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
