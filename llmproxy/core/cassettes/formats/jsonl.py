"""Recordings as JSON lines, for scripts: one exchange per line, exact and self-contained.

    {"llmproxy": 1, "cassette", "method", "url", "headers": [[name, value], ...], "body",
     "status", "reason", "response_headers", "response_body", "recorded": {...}}

A body is a text, or ``{"base64": ...}`` if its bytes are not UTF-8. `jq` reads the conversation with ``.body | fromjson
| .messages``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded, Source, Tree
from llmproxy.core.traffic.interaction import Headers
from llmproxy.errors import CassetteCorrupt, CassetteNewer

FORMAT = 1


def recognises(source: Source) -> bool:
    return source.head.lstrip().startswith('{"llmproxy":')


def dumps(recorded: Sequence[Recorded], cassette: str) -> str:
    return "".join(json.dumps(build_jsonl_line_object(each, cassette), ensure_ascii=False) + "\n" for each in recorded)


def build_jsonl_line_object(each: Recorded, cassette: str) -> dict[str, object]:
    return {
        "llmproxy": FORMAT, "cassette": cassette, "method": each.method, "url": each.uri, "headers": each.headers,
        "body": _format_body(each.body), "status": each.status, "reason": each.reason,
        "response_headers": each.response_headers, "response_body": _format_body(each.response_body),
        "recorded": dict(each.extra),
    }  # fmt: skip


def _format_body(body: bytes) -> object:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def read(source: Source) -> list[Recorded]:
    numbered = [(n, line) for n, line in enumerate(source.text.split("\n"), 1) if line.strip()]
    parsed = [_parse_line(line, n, source.name) for n, line in numbered]
    return formats.read_each_item(parsed, parse_jsonl_exchange, source, "line")


def _parse_line(line: str, number: int, name: str) -> Tree:
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError) as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise CassetteCorrupt(f"{name}, line {number}: not JSON ({what}).") from error
    version = tree.get("llmproxy") if isinstance(tree, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise CassetteNewer(f"{name} was written by a newer llmproxy (format {version}, we know {FORMAT}).")
    return tree


def parse_jsonl_exchange(tree: Tree, number: int) -> Recorded:
    """Read the object of the `number`-th line. Raises ReadingProblem."""
    tree = formats.mapping(tree)
    return Recorded(
        method=formats.text(tree, "method"), uri=formats.text(tree, "url"), headers=_read_header_pairs(tree, "headers"),
        body=_read_body(tree.get("body")), status=formats.status(tree.get("status")),
        reason=formats.text(tree, "reason", ""), response_headers=_read_header_pairs(tree, "response_headers"),
        response_body=_read_body(tree.get("response_body")),
        number=number, extra=formats.mapping(tree, "recorded") if tree.get("recorded") is not None else {},
    )  # fmt: skip


def _read_header_pairs(tree: dict[str, Tree], name: str) -> Headers:
    found = formats.get_list(tree, name)
    if not all(isinstance(each, list) and [type(part) for part in each] == [str, str] for each in found):
        raise ReadingProblem(f"`{name}` is not a list of pairs of texts")
    return tuple((key, value) for key, value in found)


def _read_body(value: Tree) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return formats.encode_text(value)
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        return formats.decode_base64(value["base64"])
    raise ReadingProblem(f"a body is {formats.kind(value)}, neither a text nor base64")
