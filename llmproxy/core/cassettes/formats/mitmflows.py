"""mitmproxy's flow files (``mitmdump -w FILE``): a sequence of flows, each a dictionary in typed netstrings.

    length ":" data type        type: ``,`` bytes  ``;`` text  ``#`` int  ``^`` float  ``!`` bool  ``~`` null  ``]``
                                list  ``}`` dict

Read without mitmproxy, which the light package lacks; the needed part of a flow is unchanged since version 4 of the
format. Contents are stored as on the wire, still compressed; ``null`` if the body was streamed past mitmproxy.
Source: mitmproxy/io/tnetstring.py, io/compat.py and http.py of 12.2.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded, Source, Tree
from llmproxy.core.traffic.interaction import Headers, format_host, header
from llmproxy.core.traffic.origin_guard import is_ip_address
from llmproxy.errors import CassetteCorrupt

_START = re.compile(rb"[0-9]{1,12}:[0-9]{1,9}:[a-z_]{2,30}[;,]")
_LENGTH = 12  # maximum digits of a length, as in mitmproxy's own reader
_DEPTH = 32
_OLDEST = 4  # version of the format (2018) before which it had mitmproxy's number, and fields had other types


def recognises(source: Source) -> bool:
    return bool(_START.match(source.data))


def read(source: Source) -> list[Recorded]:
    found = formats.read_each_item(list(_parse_flows(source)), _read_flow, source, "flow")
    return sorted(found, key=lambda each: each.recorded_at)  # mitmproxy writes a flow when it ends


def _parse_flows(source: Source) -> Iterator[Tree]:
    data, at = memoryview(source.data), 0
    while at < len(data):
        try:
            value, after = _parse_value(data, at, len(data), 0)
        except _Damaged as error:
            place, what = error.args
            raise CassetteCorrupt(f"{source.name}, byte {place}: {what}.") from error
        if not isinstance(value, dict):
            raise CassetteCorrupt(f"{source.name}, byte {at}: a flow is {formats.kind(value)}, not a dictionary.")
        yield value
        at = after


class _Damaged(Exception):
    """Damage of a file: offset in bytes, description."""


def _parse_value(data: memoryview, at: int, end: int, depth: int) -> tuple[Tree, int]:
    """Return the value at `at`, and the position of the next one."""
    if depth > _DEPTH:
        raise _Damaged(at, "nested too deeply")
    digits, colon, _ = bytes(data[at : min(at + _LENGTH + 1, end)]).partition(b":")
    if not colon or not digits.isdigit():
        raise _Damaged(at, "no length of a netstring, the file is damaged or cut")
    start = at + len(digits) + 1
    stop = start + int(digits)
    if stop >= end:
        why = f"{int(digits)} bytes and a type should follow, {end - start} bytes are left: the file is cut"
        raise _Damaged(at, why)
    tag, content = data[stop], data[start:stop]
    if tag == ord("]"):
        return list(_parse_items(data, start, stop, depth + 1)), stop + 1
    if tag == ord("}"):
        items = list(_parse_items(data, start, stop, depth + 1))
        if len(items) % 2:
            raise _Damaged(at, "a dictionary's last name has no value")
        names = [key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key) for key in items[::2]]
        return dict(zip(names, items[1::2], strict=True)), stop + 1
    return _parse_scalar(chr(tag), bytes(content), at), stop + 1


def _parse_items(data: memoryview, start: int, stop: int, depth: int) -> Iterator[Tree]:
    while start < stop:
        value, start = _parse_value(data, start, stop, depth)
        yield value


def _parse_scalar(tag: str, content: bytes, at: int) -> Tree:
    try:
        if tag == ",":
            return content
        if tag == ";":
            return content.decode()
        if tag == "#":
            return int(content)
        if tag == "^":
            return float(content)
    except ValueError as error:
        raise _Damaged(at, f"{content[:20]!r} is not of type {tag!r}") from error
    if tag == "!" and content in (b"true", b"false"):
        return content == b"true"
    if tag == "~" and not content:
        return None
    raise _Damaged(at, f"the type {tag!r} is unknown")


def _read_flow(flow: Tree, number: int) -> Recorded:
    if not isinstance(version := flow.get("version"), int) or version < _OLDEST:
        raise ReadingProblem(f"it is of version {version}; bring it up to date: mitmdump -nr OLD -w NEW")
    if flow.get("type") != "http":
        return formats.build_skipped_exchange(flow.get("type"), number)
    request = formats.mapping(flow, "request")
    headers = _read_headers(request)
    started = formats.to_unix_time(request.get("timestamp_start"))
    answered = flow.get("response") is not None
    response = formats.mapping(flow, "response") if answered else {"status_code": 200, "content": b""}
    why = "" if answered else "there was no answer"
    if flow.get("websocket"):
        why = "it is a WebSocket"
    if request.get("content") is None or response.get("content") is None:
        why = why or "its body was streamed and not saved"
    released = formats.to_unix_time(request.get("timestamp_end")) or started
    times = {"head_offset": "timestamp_start", "body_offset": "timestamp_end"}
    arrived = {name: formats.to_unix_time(response.get(member)) for name, member in times.items()}
    return Recorded(
        method=_read_text(request, "method"), uri=_build_uri(request, headers), headers=headers,
        body=_read_body(request.get("content")), status=formats.status(response.get("status_code")),
        reason=_read_text(response, "reason"), response_headers=_read_headers(response),
        response_body=_read_body(response.get("content")),
        extra={name: formats.microseconds(at - released) for name, at in arrived.items()},
        number=number, recorded_at=started, problem=why,
    )  # fmt: skip


def _build_uri(request: dict[str, Tree], headers: Headers) -> str:
    """Return the URI. A transparent proxy saw an IP address only: then the Host field has the name."""
    scheme, host, port = _read_text(request, "scheme"), _read_text(request, "host"), request.get("port")
    asked = _read_text(request, "authority") or header(headers, "host") or ""
    named = asked.rpartition(":")[0] or asked
    if is_ip_address(host.strip("[]")) and asked and not is_ip_address(named.strip("[]")):
        return f"{scheme}://{asked}{_read_text(request, 'path')}"
    return f"{scheme}://{format_host(scheme, host, port)}{_read_text(request, 'path')}"


def _read_headers(side: dict[str, Tree]) -> Headers:
    found: list[tuple[str, str]] = []
    for each in side.get("headers") or ():
        if not isinstance(each, list) or len(each) != 2:
            raise ReadingProblem("`headers` is not a list of pairs")
        name, value = (part.decode("latin-1") if isinstance(part, bytes) else str(part) for part in each)
        if not name.startswith(":"):
            found.append((name, value))
    return tuple(found)


def _read_text(side: dict[str, Tree], name: str) -> str:
    if isinstance(value := side.get(name), bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else ""


def _read_body(value: Tree) -> bytes:
    if value is None or isinstance(value, bytes):
        return value or b""
    raise ReadingProblem(f"a body is {formats.kind(value)}, not bytes")
