"""vcrpy's YAML cassettes, read and written with vcrpy's own serializer.

    FILE.yaml <-> [Recorded, ...]         (`core.cassettes.importing` makes interactions of them, and the other way
    round)

What the format says is method, URI, header fields, bodies and status. What it cannot say (chunk borders, times, how the
answer ended, who asked) stands in a member ``llmproxy`` of each interaction, which vcrpy ignores and loses when it
writes the file anew; everything in it is optional on reading. YAML sorts members, so the order of header fields is
kept there too. Chunks are written ``offset:length``, offsets in microseconds.

A file is read whole or not at all: what is damaged raises CassetteCorrupt with file, line and every problem, is never
taken for empty and never overwritten. Before anything is constructed the file's events are counted, so that deep
nesting and alias bombs end in an error; tags that build Python objects are refused by vcrpy's loader.

vcrpy's JSON is not quite YAML: it writes characters beyond 16 bits as two escapes, which YAML refuses.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from llmproxy.core.cassettes.formats import Source, decode_text, read_bytes, read_each_item, write_text
from llmproxy.core.cassettes.formats.entries import (
    ReadingProblem,
    Recorded,
    Tree,
    is_final_status,
    kind,
    mapping,
    parse_unix_time,
    text,
)
from llmproxy.core.cassettes.formats.yaml_text import build_yaml_error, map_interaction_lines, refuse_exploding_yaml
from llmproxy.core.traffic.interaction import Headers
from llmproxy.errors import CassetteCorrupt, CassetteNewer

_START = re.compile(r"^(?:interactions|version)\s*:|^-\s+\w+\s*:", re.MULTILINE)


def recognises(source: Source) -> bool:
    """Return whether it is a mapping, or a list, of YAML; what is wrong with it is said when it is read."""
    if source.is_json:
        return "interactions" in source.members
    return not source.head.strip() or bool(_START.search(source.head))


def read(source: Source) -> list[Recorded]:
    """Return the exchanges of a file. Raises CassetteCorrupt, CassetteNewer."""
    if source.is_json and source.members:
        return parse_tree(source.json, source.name)
    return parse_exchanges(source.text, source.name)


FORMAT = 1
"""Of the member ``llmproxy``."""
VCR_VERSION = 1


# -- reading


def parse_exchanges(text: str, name: str = "<cassette>") -> list[Recorded]:
    """Return the exchanges in the text of a cassette file; `name` stands in errors. Raises as `read`."""
    return parse_tree(_load_yaml(text, name), name, text)


def parse_tree(data: object, name: str, text: str = "") -> list[Recorded]:
    """Return the exchanges of a parsed cassette; `text` is its YAML, for lines in errors. Raises as `read`."""
    if isinstance(data, list):
        raise CassetteCorrupt(
            f"{name}: this is the list that vcrpy wrote before version 1.",
            hint=f"Convert it first: python -m vcr.migration {name}",
        )
    if not isinstance(data, dict):
        raise CassetteCorrupt(f"{name}: a cassette is a mapping with `version` and `interactions`, not {kind(data)}.")
    version = data.get("version")
    if version != VCR_VERSION or isinstance(version, bool):
        raise CassetteCorrupt(f"{name}: `version` must be {VCR_VERSION}, the file says {version!r}.")
    ours = data.get("llmproxy")
    if ours is not None and (not isinstance(ours, dict) or not isinstance(ours.get("format"), int)):
        raise CassetteCorrupt(f"{name}: the member `llmproxy` must say its `format`.")
    if ours is not None and ours["format"] > FORMAT:
        raise CassetteNewer(f"{name} was written by a newer llmproxy (format {ours['format']}, we know {FORMAT}).")
    items = data.get("interactions")
    if not isinstance(items, list):
        raise CassetteCorrupt(f"{name}: `interactions` must be a list, not {kind(items)}.")
    return read_each_item(
        items, read_interaction, Source(b"", name), "interaction", partial(map_interaction_lines, text)
    )


def _load_yaml(text: str, name: str) -> Any:
    import yaml
    from vcr.serializers import yamlserializer

    if not text.strip():
        hint = "An empty cassette is written as `interactions: []`." if name.endswith((".yaml", ".yml")) else ""
        raise CassetteCorrupt(f"{name}: the file is empty.", hint=hint)
    try:
        refuse_exploding_yaml(text, name)
        return yamlserializer.deserialize(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, CassetteCorrupt):
            raise
        raise build_yaml_error(error, text, name) from error


# -- writing


def dumps(recorded: Sequence[Recorded], cassette: str) -> str:
    """Return the text of a cassette file that vcrpy plays."""
    from vcr.serializers import compat, yamlserializer

    interactions = [
        {
            "request": compat.convert_to_unicode(
                {
                    "method": each.method,
                    "uri": each.uri,
                    "headers": _group_headers(each.headers),
                    "body": each.body or None,
                }
            ),
            "response": compat.convert_to_unicode(
                {
                    "status": {"code": each.status, "message": each.reason},
                    "headers": _group_headers(each.response_headers),
                    "body": {"string": each.response_body},
                }
            ),
            "llmproxy": {**each.extra, "order": _describe_header_order(each)},
        }
        for each in recorded
    ]
    ours = {"format": FORMAT, "cassette": cassette}
    text: str = yamlserializer.serialize({"version": VCR_VERSION, "interactions": interactions, "llmproxy": ours})
    return text


def _group_headers(headers: Headers) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for name, value in headers:
        lists.setdefault(name, []).append(value)
    return lists


def _describe_header_order(each: Recorded) -> dict[str, str]:
    return {
        "request": " ".join(name for name, _ in each.headers),
        "response": " ".join(name for name, _ in each.response_headers),
    }


def write_file(path: Path, recorded: Sequence[Recorded], cassette: str, *, force: bool = False) -> None:
    """Write a cassette file atomically: whoever reads sees the old file or the new one.

    Raises CassetteCorrupt: a file that is damaged, or was not written by us, stands in the way (`force` overwrites it);
    MachineError: the folder cannot be written to.
    """
    if path.exists() and not force:
        _check_replaceable(path)
    write_text(path, dumps(recorded, cassette))


def _check_replaceable(path: Path) -> None:
    hint = "Write to another file, or replace it with --force."
    try:
        text = decode_text(read_bytes(path), str(path))
        data = _load_yaml(text, str(path))
        parse_tree(data, str(path), text)
    except CassetteCorrupt as error:
        raise CassetteCorrupt(f"Not overwritten: {error.message}", hint=hint) from error
    if not data.get("llmproxy"):
        raise CassetteCorrupt(f"Not overwritten: {path} was not written by llmproxy.", hint=hint)


def read_interaction(item: Tree, number: int) -> Recorded:
    """Read one interaction, the `number`-th of its file. Raises Problem."""
    from vcr.serializers import compat

    request = mapping(item, "request")
    response = compat.convert_to_bytes(_upgrade_httpx_response(dict(mapping(item, "response"))))
    status = response.get("status")
    code = status.get("code") if isinstance(status, dict) else status
    if not is_final_status(code):
        raise ReadingProblem(
            f"response: `status` has no code of 200 to 599, or 101 ({code if isinstance(code, int) else kind(code)})"
        )
    request, response = _dump_parsed_body(request), _dump_parsed_body(response)
    if "body" not in response:
        raise ReadingProblem("response: `body` is missing")
    extra = item.get("llmproxy") or {}
    if not isinstance(extra, dict):
        raise ReadingProblem("`llmproxy` is not a mapping")
    when = item.get("recorded_at", 0.0)
    order: Tree = extra.get("order")
    order = order if isinstance(order, dict) else {}
    return Recorded(
        method=text(request, "method") if extra else text(request, "method").upper(),  # Ruby writes `post`
        uri=text(request, "uri"),
        headers=_order_headers(_read_headers(request, "request"), order.get("request")),
        body=_read_body(request.get("body"), "request"),
        status=code,
        reason=str((status.get("message") if isinstance(status, dict) else "") or ""),
        response_headers=_order_headers(_read_headers(response, "response"), order.get("response")),
        response_body=_read_body(response["body"], "response"),
        number=number,
        extra=extra,
        recorded_at=parse_unix_time(when),
    )


def _dump_parsed_body(part: dict[str, Tree]) -> dict[str, Tree]:
    """Turn a body of JSON that a serializer of one's own keeps as a tree (pydantic-ai's) into its text."""
    if "parsed_body" not in part or part.get("body"):
        return part
    text = json.dumps(part["parsed_body"], ensure_ascii=False, separators=(",", ":"), default=str)
    return {**part, "body": text.encode()}


def _upgrade_httpx_response(response: dict[str, Tree]) -> dict[str, Tree]:
    """Turn the form that older versions of vcrpy's httpx stub wrote into today's."""
    if "status_code" in response and "status" not in response:
        response["status"] = {"code": response["status_code"], "message": ""}
    if "content" in response and "body" not in response:
        response["body"] = {"string": response["content"]}
    if isinstance(response.get("body"), dict):
        response["body"] = dict(response["body"])  # convert_to_bytes changes it, and an alias may share it
    return response


def _read_headers(value: Mapping[str, Tree], where: str) -> Headers:
    """Read a mapping of names to a value or a list of them, or (very old) a list of pairs."""
    found = value.get("headers")
    pairs = found.items() if isinstance(found, dict) else found
    result: list[tuple[str, str]] = []
    try:
        for name, values in pairs or ():
            many = values if isinstance(values, list | tuple) else [values]
            result.extend((_read_field(name), _read_field(each)) for each in many)
    except (TypeError, ValueError) as error:
        raise ReadingProblem(f"{where}: `headers` is not a mapping of names to lists of texts") from error
    return tuple(result)


def _read_field(value: Tree) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if value is None:
        return ""
    if isinstance(value, str | int | float):  # a hand-written `retry-after: 1` is a number to YAML
        return str(value)
    raise TypeError(type(value).__name__)


def _read_body(value: Tree, where: str) -> bytes:
    """Return a body: text is its UTF-8; a mapping holds it as ``string`` or ``base64_string``; a file, its content."""
    if isinstance(value, dict):
        if isinstance(coded := value.get("base64_string"), str | bytes):
            try:
                return base64.b64decode(coded)
            except (binascii.Error, ValueError) as error:
                raise ReadingProblem(f"{where}: `base64_string` is not base64") from error
        if "string" not in value:
            raise ReadingProblem(f"{where}: `body` has no `string`")
        value = value["string"]
    if hasattr(value, "read"):
        value = value.read()
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, list | tuple | Iterator):
        return b"".join(_read_body(part, where) for part in value if isinstance(part, bytes | str))
    raise ReadingProblem(f"{where}: `body` is {kind(value)}, not a text")


def _order_headers(headers: Headers, order: Tree) -> Headers:
    """Put header fields into the order kept in `order` (names parted by spaces), if it names just these."""
    names = order.split(" ") if isinstance(order, str) else []
    if sorted(names) != sorted(name for name, _ in headers):
        return headers
    left = _group_headers(headers)
    return tuple((name, left[name].pop(0)) for name in names)
