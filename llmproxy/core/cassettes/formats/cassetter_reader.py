"""cassetter's cassettes, in YAML and in TOML.

    body: {type: json|text|binary|none, content: ...}     in TOML: body_type, body_content (JSON as text)

Binary bodies are hexadecimal. JSON bodies were stored parsed: they are written in the style that has the recorded
content-length. Source: files of cassetter 0.16.1, and its `compare.body_to_bytes`.
"""

from __future__ import annotations

import binascii
import re
import tomllib
from functools import partial

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded, Source, Tree
from llmproxy.core.cassettes.formats.yaml_text import STYLES, encode_json_in_style, load_yaml
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import CassetteCorrupt, CassetteNewer

VERSION = 1
_YAML = re.compile(r"^ +body: *\n +type: *['\"]?(?:json|text|binary|none)\b", re.MULTILINE)
_TOML = re.compile(r"^\[\[(?:grpc_|ws_)?interactions\]\]", re.MULTILINE)
_OTHERS = {"grpc_interactions": "a gRPC call", "ws_interactions": "a WebSocket"}


def recognises(source: Source) -> bool:
    return not source.is_json and bool(_YAML.search(source.head) or _TOML.search(source.head))


def read(source: Source) -> list[Recorded]:
    is_toml = bool(_TOML.search(source.head))
    try:
        tree = tomllib.loads(source.text) if is_toml else load_yaml(source.text, source.name)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CassetteCorrupt(f"{source.name}: {error}.") from error
    if not isinstance(tree, dict):
        raise CassetteCorrupt(f"{source.name}: a cassette is a mapping, not {formats.kind(tree)}.")
    if isinstance(version := tree.get("version"), int) and version > VERSION:
        raise CassetteNewer(f"{source.name} is of version {version} of cassetter's format, we know {VERSION}.")
    items = tree.get("interactions") or []
    if not isinstance(items, list):
        raise CassetteCorrupt(f"{source.name}: `interactions` is {formats.kind(items)}, not a list.")
    found = formats.read_each_item(items, partial(_read_interaction, is_toml=is_toml), source, "interaction")
    found.sort(key=lambda each: each.recorded_at)  # an exchange is written when its answer was read
    for name, what in _OTHERS.items():
        found += [formats.build_skipped_exchange(what, n) for n, _ in enumerate(tree.get(name) or (), len(found) + 1)]
    return found


def _read_interaction(tree: Tree, number: int, *, is_toml: bool) -> Recorded:
    request, response = formats.mapping(tree, "request"), formats.mapping(tree, "response")
    when = formats.to_unix_time(formats.mapping(tree).get("recorded_at"))
    if not when:  # it is last in YAML, and a truncated file is still valid YAML
        raise ReadingProblem("`recorded_at` is missing, or no time: the file may have been cut")
    asked, answered = (formats.parse_header_mapping(side.get("headers")) for side in (request, response))
    return Recorded(
        method=formats.text(request, "method").upper(), uri=formats.text(request, "uri"), headers=asked,
        body=_read_body(request, asked, is_toml=is_toml), status=formats.status(response.get("status")), reason="",
        response_headers=answered, response_body=_read_body(response, answered, is_toml=is_toml), number=number,
        recorded_at=when,
    )  # fmt: skip


def _read_body(side: dict[str, Tree], headers: Headers, *, is_toml: bool) -> bytes:
    if is_toml:
        form, content = side.get("body_type", "none"), side.get("body_content")
        if form == "json":
            content = formats.parse_json(content, "body") if isinstance(content, str) else content
    else:
        body = formats.mapping(side, "body") if side.get("body") is not None else {}
        form, content = body.get("type", "none"), body.get("content")
    if form == "none" or (form != "json" and content is None):
        return b""
    try:
        if form == "json":
            return write_json_in_recorded_style(content, header(headers, "content-length"))
        if form == "binary" and isinstance(content, str):
            return binascii.unhexlify("".join(content.split()))
    except (ValueError, TypeError) as error:
        raise ReadingProblem(f"a body of type {form} is damaged: {error}") from error
    if form == "text" and isinstance(content, str):
        return formats.encode_text(content)
    raise ReadingProblem(f"a body of type {form!r} with {formats.kind(content)}")


def write_json_in_recorded_style(tree: Tree, length: str | None) -> bytes:
    """Return the bytes of a tree: in the style of the recorded length, else compact. Raises ValueError, TypeError."""
    best = encode_json_in_style(tree, "compact")
    if length is None or str(len(best)) == length:
        return best
    return next((text for style in STYLES if str(len(text := encode_json_in_style(tree, style))) == length), best)
