"""vcrpy's YAML cassettes, read and written with vcrpy's own serializer.

What the format lacks (chunk borders ``microseconds:length``, times, the order of header fields) is in a member
``llmproxy`` of each interaction, which vcrpy loses when it rewrites the file; all of it is optional on reading. Before
anything is constructed, the events of a file are counted: deep nesting and alias bombs end in an error; vcrpy's loader
refuses tags that build Python objects. vcrpy's JSON is not quite YAML: it writes characters beyond 16 bits as two
escapes, which YAML refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import yaml

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded, Source, Tree
from llmproxy.core.cassettes.formats.yaml_text import find_yaml_lines_of_interactions
from llmproxy.core.traffic.interaction import Headers
from llmproxy.errors import CassetteCorrupt, CassetteNewer

FORMAT = 1  # version of the member ``llmproxy``
VCR_VERSION = 1
_MAX_DEPTH = 64
_MAX_ALIASES = 10_000  # PyYAML writes one for each repeated object
_START = re.compile(r"^(?:interactions|version)\s*:|^-\s+\w+\s*:", re.MULTILINE)


def recognises(source: Source) -> bool:
    """Return whether it is a mapping, or a list, of YAML; errors are reported when it is read."""
    if source.is_json:
        return "interactions" in source.members
    return not source.head.strip() or bool(_START.search(source.head))


def read(source: Source) -> list[Recorded]:
    name, is_json = source.name, bool(source.members)
    data = source.json if is_json else _load_yaml(source.text, name)
    if isinstance(data, list):
        raise CassetteCorrupt(
            f"{name}: this is the list that vcrpy wrote before version 1.",
            hint=f"Convert it first: python -m vcr.migration {name}",
        )
    if not isinstance(data, dict):
        raise CassetteCorrupt(
            f"{name}: a cassette is a mapping with `version` and `interactions`, not {formats.kind(data)}."
        )
    version = data.get("version")
    if version != VCR_VERSION or isinstance(version, bool):
        raise CassetteCorrupt(f"{name}: `version` must be {VCR_VERSION}, the file says {version!r}.")
    ours = data.get("llmproxy")
    if ours is not None and (not isinstance(ours, dict) or not isinstance(ours.get("format"), int)):
        raise CassetteCorrupt(f"{name}: the member `llmproxy` must say its `format`.")
    if ours is not None and ours["format"] > FORMAT:
        raise CassetteNewer(f"{name} was written by a newer llmproxy (format {ours['format']}, we know {FORMAT}).")
    if not isinstance(items := data.get("interactions"), list):
        raise CassetteCorrupt(f"{name}: `interactions` must be a list, not {formats.kind(items)}.")
    lines: Callable[[], Mapping[int, int]] = dict if is_json else partial(find_yaml_lines_of_interactions, source.text)
    return formats.read_each_item(items, read_vcr_interaction, source, "interaction", lines)


def _load_yaml(text: str, name: str) -> Any:
    """Return a file's tree, read by vcrpy's own loader: its files are YAML 1.1 with tags (`!!binary` bodies)."""
    from vcr.serializers import yamlserializer

    if not text.strip():
        hint = "An empty cassette is written as `interactions: []`." if name.endswith((".yaml", ".yml")) else ""
        raise CassetteCorrupt(f"{name}: the file is empty.", hint=hint)
    try:
        _refuse_exploding_yaml(text, name)
        return yamlserializer.deserialize(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, CassetteCorrupt):
            raise
        raise _build_yaml_error(error, text, name) from error


def _build_yaml_error(error: Exception, text: str, name: str) -> CassetteCorrupt:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        return CassetteCorrupt(f"{name}{where}: {error.problem or error.context or 'not YAML'}.")
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return CassetteCorrupt(f"{name}, line {line}: the character #{error.character:04x} must not stand here.")
    return CassetteCorrupt(f"{name}: {str(error) or type(error).__name__}")


def _refuse_exploding_yaml(text: str, name: str) -> None:
    """Refuse valid YAML that is too large when it is constructed: depth, aliases, merges."""
    depth = aliases = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        problem = ""
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            problem = "nested too deeply" if depth > _MAX_DEPTH else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            problem = "too many aliases" if aliases > _MAX_ALIASES else ""
        elif isinstance(event, yaml.ScalarEvent) and event.value == "<<" and not event.style:
            problem = "merge keys (<<) have no place in a cassette"
        if problem:
            line = event.start_mark.line + 1 if event.start_mark else "?"
            raise CassetteCorrupt(f"{name}, line {line}: {problem}.")


def read_vcr_interaction(item: Tree, number: int) -> Recorded:
    """Read one interaction, the `number`-th of its file. Raises ReadingProblem."""
    request, response = formats.mapping(item, "request"), formats.mapping(item, "response")
    status = response.get("status", response.get("status_code"))  # the latter of older httpx stubs, as is `content`
    code, reason = (status.get("code"), status.get("message")) if isinstance(status, dict) else (status, "")
    if not formats.is_final_http_status(code):
        raise ReadingProblem(
            "response: `status` has no code of 200 to 599, or 101 "
            f"({code if isinstance(code, int) else formats.kind(code)})"
        )
    if response.keys().isdisjoint({"body", "content", "parsed_body"}):
        raise ReadingProblem("response: `body` is missing")
    extra = item.get("llmproxy") or {}
    if not isinstance(extra, dict):
        raise ReadingProblem("`llmproxy` is not a mapping")
    order, method = extra.get("order"), formats.text(request, "method")
    return Recorded(
        method=method if extra else method.upper(),  # Ruby writes `post`
        uri=formats.text(request, "uri"),
        headers=_read_headers(request, "request", order),
        body=_read_body(request, "request"),
        status=code,
        reason=str(reason or ""),
        response_headers=_read_headers(response, "response", order),
        response_body=_read_body(response, "response"),
        number=number,
        extra=extra,
        recorded_at=formats.to_unix_time(item.get("recorded_at", 0.0)),
    )


def _read_headers(side: dict[str, Tree], where: str, order: Tree) -> Headers:
    """Read a mapping of names to a value or a list of them, or (very old) a list of pairs; `order` puts them right."""
    found = side.get("headers") or ()
    try:
        headers = tuple(
            (_field_to_text(name), _field_to_text(each))
            for name, values in (found.items() if isinstance(found, dict) else found)
            for each in (values if isinstance(values, list | tuple) else [values])
        )
    except (TypeError, ValueError) as error:
        raise ReadingProblem(f"{where}: `headers` is not a mapping of names to lists of texts") from error
    said = order.get(where) if isinstance(order, dict) else None
    names = said.split(" ") if isinstance(said, str) else []
    if sorted(names) != sorted(name for name, _ in headers):  # one was added by hand
        return headers
    left = _group_headers(headers)
    return tuple((name, left[name].pop(0)) for name in names)


def _field_to_text(value: Tree) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if value is None:
        return ""
    if isinstance(value, str | int | float):  # a hand-written `retry-after: 1` is a number to YAML
        return str(value)
    raise TypeError(type(value).__name__)


def _read_body(side: dict[str, Tree], where: str) -> bytes:
    """Return a body: a text as UTF-8, or the ``string`` or ``base64_string`` of a mapping, or a file's content."""
    value: Tree = side.get("body", side.get("content"))
    if "parsed_body" in side and not value:  # of a serializer of pydantic-ai's, which keeps JSON as a tree
        return json.dumps(side["parsed_body"], ensure_ascii=False, separators=(",", ":"), default=str).encode()
    if isinstance(value, dict):
        if isinstance(coded := value.get("base64_string"), str | bytes):
            return formats.decode_base64(_field_to_text(coded))
        if "string" not in value:
            raise ReadingProblem(f"{where}: `body` has no `string`")
        value = value["string"]
    if hasattr(value, "read"):
        value = value.read()
    pieces = list(value) if isinstance(value, list | tuple | Iterator) else [b"" if value is None else value]
    if not all(isinstance(piece, bytes | str) for piece in pieces):
        raise ReadingProblem(f"{where}: `body` is {formats.kind(value)}, not a text")
    return b"".join(piece if isinstance(piece, bytes) else formats.encode_text(piece) for piece in pieces)


def dumps(recorded: Sequence[Recorded], cassette: str) -> str:
    from vcr.serializers import yamlserializer

    ours = {"format": FORMAT, "cassette": cassette}
    interactions = [_convert_to_vcr_interaction(each) for each in recorded]
    made: str = yamlserializer.serialize({"version": VCR_VERSION, "interactions": interactions, "llmproxy": ours})
    return made


def _convert_to_vcr_interaction(each: Recorded) -> dict[str, object]:
    from vcr.serializers import compat

    asked, answered = _group_headers(each.headers), _group_headers(each.response_headers)
    status = {"code": each.status, "message": each.reason}
    request = {"method": each.method, "uri": each.uri, "headers": asked, "body": each.body or None}
    response = {"status": status, "headers": answered, "body": {"string": each.response_body}}
    order = {
        side: " ".join(name for name, _ in headers)
        for side, headers in (("request", each.headers), ("response", each.response_headers))
    }
    return {
        "request": compat.convert_to_unicode(request),
        "response": compat.convert_to_unicode(response),
        "llmproxy": {**each.extra, "order": order},
    }


def _group_headers(headers: Headers) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for name, value in headers:
        lists.setdefault(name, []).append(value)
    return lists
