"""HTTP archives (HAR 1.2): what browsers' developer tools, mitmproxy, Charles and Fiddler save, and open.

A HAR holds the answer decoded, with the header fields as they came; times in milliseconds. It does not know chunk
borders; a request's body is a text, so one that is not UTF-8 may have been damaged by whoever wrote the file. What we
write has all of it besides, in members ``_llmproxy`` that other programs pass over (the format's own rule for names
with an underscore), and comes back as it was. An entry without an answer, or whose body was left out when the file was
saved, is skipped.

Source: http://www.softwareishard.com/blog/har-12-spec/ (read 2026-11).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from llmproxy import __version__
from llmproxy.core.cassettes.formats import Source, read_each_item
from llmproxy.core.cassettes.formats.entries import (
    ReadingProblem,
    Recorded,
    Tree,
    decode_base64,
    encode_utf8,
    get_list,
    mapping,
    microseconds,
    parse_header_pairs,
    parse_unix_time,
    text,
)
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import CassetteCorrupt

_OURS = "_llmproxy"
_MS = 1000
_START = re.compile(r'\{\s*"log"\s*:\s*\{')


def recognises(source: Source) -> bool:
    """Look for the member `log`; also of a damaged file, so that it is read as what it was."""
    return source.is_json and (bool(_START.match(source.head.lstrip())) or isinstance(source.members.get("log"), dict))


# -- reading


def read(source: Source) -> list[Recorded]:
    """Return the exchanges of a file in the order of their start. Raises CassetteCorrupt."""
    try:
        entries = get_list(mapping(source.json, "log"), "entries")
    except ReadingProblem as problem:
        raise CassetteCorrupt(f"{source.name}: {problem}.") from problem
    found = read_each_item(entries, _read_entry, source, "entry")
    # Browsers write entries as answers end, or by page; conversations went the way they started.
    return sorted(found, key=lambda each: each.recorded_at)


def _read_entry(tree: Tree, number: int) -> Recorded:
    request, response = mapping(tree, "request"), mapping(tree, "response")
    code = response.get("status")
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= 599:
        raise ReadingProblem(f"the status is {code!r}")
    extra = tree.get(_OURS)
    answered, why = _read_response_body(response)
    if code < 100:
        code, why = 200, "there was no answer (status 0)"
    if extra is None and (code == 101 or tree.get("_webSocketMessages")):  # ours has its messages in the body
        why = "it is a WebSocket"
    return Recorded(
        method=text(request, "method") if extra is not None else text(request, "method").upper(),
        uri=text(request, "url").partition("#")[0],
        headers=parse_header_pairs(request.get("headers")),
        body=_read_body(request),
        status=code,
        reason=text(response, "statusText", ""),
        response_headers=parse_header_pairs(response.get("headers")),
        response_body=answered,
        number=number,
        extra=extra if isinstance(extra, dict) else _read_timings(tree),
        recorded_at=parse_unix_time(tree.get("startedDateTime")),
        problem=why,
    )


def _read_body(request: dict[str, Tree]) -> bytes:
    data = request.get("postData")
    if data is None:
        return b""
    data = mapping(request, "postData")
    coded = data.get("_base64")
    if isinstance(coded, str):
        return decode_base64(coded)
    said = text(data, "text", "")
    if data.get("encoding") == "base64":  # not in the specification; Firefox and some proxies write it
        return decode_base64(said)
    if not said and data.get("params"):
        fields = [each for each in get_list(data, "params") if isinstance(each, dict)]
        return urlencode([(each.get("name", ""), each.get("value", "")) for each in fields]).encode()
    return encode_utf8(said)


def _read_response_body(response: dict[str, Tree]) -> tuple[bytes, str]:
    """Return the body, and why it cannot be used."""
    content = mapping(response, "content")
    said, size = content.get("text"), content.get("size")
    if said is None:
        missing = isinstance(size, int) and size > 0
        return b"", "its body was not saved (save the HAR with content)" if missing else ""
    if not isinstance(said, str):
        raise ReadingProblem("`response.content.text` is not a text")
    return (decode_base64(said) if content.get("encoding") == "base64" else encode_utf8(said)), ""


def _read_timings(entry: dict[str, Tree]) -> dict[str, object]:
    """Return when head and body were there, as far as the entry says."""
    timings = entry.get("timings")
    said = timings if isinstance(timings, dict) else {}
    head = sum(microseconds(said.get(name), _MS) for name in ("send", "wait"))
    return {"head_offset": head, "body_offset": head + microseconds(said.get("receive"), _MS)}


# -- writing


def dumps(recorded: Sequence[Recorded], cassette: str) -> str:
    """Return the text of a file that browsers' developer tools open."""
    log = {
        "version": "1.2",
        "creator": {"name": "llmproxy", "version": __version__},
        "comment": f"cassette {cassette}",
        "entries": [_build_entry(each) for each in recorded],
    }
    return json.dumps({"log": log}, ensure_ascii=False, indent=2) + "\n"


def _build_entry(each: Recorded) -> dict[str, object]:
    extra = each.extra
    started = extra.get("started_at", each.recorded_at)
    wait = _to_number(extra.get("head_offset")) / _MS
    last = max([_to_number(part.partition(":")[0]) for part in str(extra.get("chunks", "")).split()] or [0]) / _MS
    receive = max(0.0, last - wait)
    return {
        "startedDateTime": _format_time(started),
        "time": wait + receive,
        "request": _build_request(each),
        "response": _build_response(each),
        "cache": {},
        "timings": {"blocked": -1, "dns": -1, "connect": -1, "send": 0, "wait": wait, "receive": receive, "ssl": -1},
        _OURS: dict(extra),
    }


def _build_request(each: Recorded) -> dict[str, object]:
    query = parse_qsl(urlsplit(each.uri).query, keep_blank_values=True)
    found: dict[str, object] = {
        "method": each.method,
        "url": each.uri,
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": _list_fields(each.headers),
        "queryString": [{"name": name, "value": value} for name, value in query],
        "headersSize": -1,
        "bodySize": len(each.body),
    }
    if each.body:
        data: dict[str, object] = {"mimeType": header(each.headers, "content-type") or "application/octet-stream"}
        data["text"] = said = each.body.decode("utf-8", "replace")
        if said.encode() != each.body:
            data["_base64"] = base64.b64encode(each.body).decode()
        found["postData"] = data
    return found


def _build_response(each: Recorded) -> dict[str, object]:
    body = each.response_body
    content: dict[str, object] = {
        "size": len(body),
        "mimeType": header(each.response_headers, "content-type") or "application/octet-stream",
    }
    content["text"] = said = body.decode("utf-8", "replace")
    if said.encode() != body:
        content |= {"text": base64.b64encode(body).decode(), "encoding": "base64"}
    return {
        "status": each.status, "statusText": each.reason, "httpVersion": "HTTP/1.1", "cookies": [],
        "headers": _list_fields(each.response_headers), "content": content,
        "redirectURL": header(each.response_headers, "location") or "", "headersSize": -1, "bodySize": len(body),
    }  # fmt: skip


def _list_fields(headers: Headers) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers]


def _to_number(value: Any) -> float:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return 0.0


def _format_time(unix: Any) -> str:
    try:
        return datetime.fromtimestamp(_to_number(unix), UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC).isoformat(timespec="milliseconds")
