"""HTTP archives (HAR 1.2), which browsers' developer tools, mitmproxy, Charles and Fiddler save and open.

A HAR has the answer decoded with the original header fields, times in milliseconds, and no chunk borders. What it lacks
is in members ``_llmproxy`` of our files, which other programs ignore (the format's rule for underscores).
Source: http://www.softwareishard.com/blog/har-12-spec/ (read 2026-11).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from llmproxy import __version__
from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded, Source, Tree
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import CassetteCorrupt

_OURS = "_llmproxy"
_MS = 1000
_YEAR_10000 = 253_402_300_800
_START = re.compile(r'\{\s*"log"\s*:\s*\{')


def recognises(source: Source) -> bool:
    """Return whether there is a member `log`; also for a damaged file, so that its error names this format."""
    return source.is_json and (bool(_START.match(source.head.lstrip())) or isinstance(source.members.get("log"), dict))


def read(source: Source) -> list[Recorded]:
    try:
        entries = formats.get_list(formats.mapping(source.json, "log"), "entries")
    except ReadingProblem as problem:
        raise CassetteCorrupt(f"{source.name}: {problem}.") from problem
    found = formats.read_each_item(entries, _read_entry, source, "entry")
    # Browsers write entries as answers end, or by page; a conversation's order is that of the starts.
    return sorted(found, key=lambda each: each.recorded_at)


def _read_entry(tree: Tree, number: int) -> Recorded:
    request, response = formats.mapping(tree, "request"), formats.mapping(tree, "response")
    code, extra = response.get("status"), tree.get(_OURS)
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= 599:
        raise ReadingProblem(f"the status is {code!r}")
    answered, why = _read_response_body(response)
    said = tree["timings"] if isinstance(tree.get("timings"), dict) else {}
    send, wait, receive = (formats.microseconds(said.get(name), _MS) for name in ("send", "wait", "receive"))
    timings = {"head_offset": send + wait, "body_offset": send + wait + receive}
    if code < 100:
        code, why = 200, "there was no answer (status 0)"
    if extra is None and (code == 101 or tree.get("_webSocketMessages")):  # ours has its messages in the body
        why = "it is a WebSocket"
    return Recorded(
        method=formats.text(request, "method") if extra is not None else formats.text(request, "method").upper(),
        uri=formats.text(request, "url").partition("#")[0],
        headers=formats.parse_name_value_headers(request.get("headers")),
        body=_read_body(request),
        status=code,
        reason=formats.text(response, "statusText", ""),
        response_headers=formats.parse_name_value_headers(response.get("headers")),
        response_body=answered,
        number=number,
        extra=extra if isinstance(extra, dict) else timings,
        recorded_at=formats.to_unix_time(tree.get("startedDateTime")),
        problem=why,
    )


def _read_body(request: dict[str, Tree]) -> bytes:
    data = formats.mapping(request, "postData") if request.get("postData") is not None else {}
    if isinstance(coded := data.get("_base64"), str):
        return formats.decode_base64(coded)
    if not (said := formats.text(data, "text", "")) and data.get("params"):
        fields = [each for each in formats.get_list(data, "params") if isinstance(each, dict)]
        return urlencode([(each.get("name", ""), each.get("value", "")) for each in fields]).encode()
    return _decode_text(said, data)  # base64 is not in the specification; Firefox and some proxies write it


def _read_response_body(response: dict[str, Tree]) -> tuple[bytes, str]:
    content = formats.mapping(response, "content")
    said, size = content.get("text"), content.get("size")
    if said is None:
        missing = isinstance(size, int) and size > 0
        return b"", "its body was not saved (save the HAR with content)" if missing else ""
    if not isinstance(said, str):
        raise ReadingProblem("`response.content.text` is not a text")
    return _decode_text(said, content), ""


def _decode_text(said: str, content: dict[str, Tree]) -> bytes:
    return formats.decode_base64(said) if content.get("encoding") == "base64" else formats.encode_text(said)


def dumps(recorded: Sequence[Recorded], cassette: str) -> str:
    log = {
        "version": "1.2",
        "creator": {"name": "llmproxy", "version": __version__},
        "comment": f"cassette {cassette}",
        "entries": [_build_entry(each) for each in recorded],
    }
    return json.dumps({"log": log}, ensure_ascii=False, indent=2) + "\n"


def _build_entry(each: Recorded) -> dict[str, object]:
    wait = _to_number_or_zero(each.extra.get("head_offset")) / _MS
    offsets = [_to_number_or_zero(part.partition(":")[0]) for part in str(each.extra.get("chunks", "")).split()]
    receive = max(0.0, max(offsets, default=0.0) / _MS - wait)
    started = _to_number_or_zero(each.extra.get("started_at", each.recorded_at))
    started_at = datetime.fromtimestamp(started if started < _YEAR_10000 else 0, UTC)
    return {
        "startedDateTime": started_at.isoformat(timespec="milliseconds"),
        "time": wait + receive,
        "request": _build_request(each),
        "response": _build_har_response(each),
        "cache": {},
        "timings": {"blocked": -1, "dns": -1, "connect": -1, "send": 0, "wait": wait, "receive": receive, "ssl": -1},
        _OURS: dict(each.extra),
    }


def _build_request(each: Recorded) -> dict[str, object]:
    query = parse_qsl(urlsplit(each.uri).query, keep_blank_values=True)
    found: dict[str, object] = {
        "method": each.method, "url": each.uri, "httpVersion": "HTTP/1.1", "cookies": [],
        "headers": _fields_to_har(each.headers), "queryString": _fields_to_har(query), "headersSize": -1,
        "bodySize": len(each.body),
    }  # fmt: skip
    if each.body:
        said = each.body.decode("utf-8", "replace")
        exact = {} if said.encode() == each.body else {"_base64": base64.b64encode(each.body).decode()}
        found["postData"] = {"mimeType": _get_mime_type_or_default(each.headers), "text": said, **exact}
    return found


def _build_har_response(each: Recorded) -> dict[str, object]:
    body = each.response_body
    said = {"text": body.decode("utf-8", "replace")}
    if said["text"].encode() != body:
        said = {"text": base64.b64encode(body).decode(), "encoding": "base64"}
    content = {"size": len(body), "mimeType": _get_mime_type_or_default(each.response_headers), **said}
    return {
        "status": each.status, "statusText": each.reason, "httpVersion": "HTTP/1.1", "cookies": [],
        "headers": _fields_to_har(each.response_headers), "content": content,
        "redirectURL": header(each.response_headers, "location") or "", "headersSize": -1, "bodySize": len(body),
    }  # fmt: skip


def _get_mime_type_or_default(headers: Headers) -> str:
    return header(headers, "content-type") or "application/octet-stream"


def _fields_to_har(fields: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in fields]


def _to_number_or_zero(value: Any) -> float:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return 0.0
