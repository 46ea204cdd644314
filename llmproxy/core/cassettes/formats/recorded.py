"""One exchange as it stands in a cassette file, in every form that vcrpy ever wrote.

    what the YAML loader returned for one interaction -> Recorded, or a Problem in words

Text bodies are their UTF-8, binary ones are bytes; files, lists and base64 are understood, and the flat response of
vcrpy's older httpx stubs. Header fields get their order back from our own member ``llmproxy``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from llmproxy.core.traffic.frames import SWITCHING
from llmproxy.core.traffic.interaction import Headers

# Any: what a YAML loader returns.
Tree = Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange of a cassette file, as it stands there."""

    method: str
    uri: str
    """Scheme, host, path and query."""
    headers: Headers
    body: bytes
    status: int
    reason: str
    response_headers: Headers
    response_body: bytes
    """As recorded: still compressed where content-encoding says so."""
    number: int = 0
    """Position in the file, from 1."""
    extra: Mapping[str, Tree] = field(default_factory=dict)
    """The member ``llmproxy``."""
    recorded_at: float = 0.0
    """Unix time, seconds; 0.0 where the file does not say."""
    problem: str = ""
    """Why this exchange cannot be replayed, although its file is sound (its body was never saved); else empty."""


class ReadingProblem(Exception):
    """Something is wrong with one interaction."""


def recorded_of(item: Tree, number: int) -> Recorded:
    """Read one interaction, the `number`-th of its file. Raises Problem."""
    from vcr.serializers import compat

    request = _mapping(_mapping(item, "the interaction"), "request")
    response = compat.convert_to_bytes(_old_httpx(dict(_mapping(item, "response"))))
    status = response.get("status")
    code = status.get("code") if isinstance(status, dict) else status
    if not is_final(code):
        raise ReadingProblem(
            f"response: `status` has no code of 200 to 599, or 101 ({code if isinstance(code, int) else kind(code)})"
        )
    if "body" not in response:
        raise ReadingProblem("response: `body` is missing")
    extra = item.get("llmproxy") or {}
    if not isinstance(extra, dict):
        raise ReadingProblem("`llmproxy` is not a mapping")
    when = item.get("recorded_at", 0.0)
    order: Tree = extra.get("order")
    order = order if isinstance(order, dict) else {}
    return Recorded(
        method=_string(request, "method") if extra else _string(request, "method").upper(),  # Ruby writes `post`
        uri=_string(request, "uri"),
        headers=_order_headers(_headers(request, "request"), order.get("request")),
        body=_bytes(request.get("body"), "request"),
        status=code,
        reason=str((status.get("message") if isinstance(status, dict) else "") or ""),
        response_headers=_order_headers(_headers(response, "response"), order.get("response")),
        response_body=_bytes(response["body"], "response"),
        number=number,
        extra=extra,
        recorded_at=_seconds(when),
    )


def _old_httpx(response: dict[str, Tree]) -> dict[str, Tree]:
    """Turn the form that older versions of vcrpy's httpx stub wrote into today's."""
    if "status_code" in response and "status" not in response:
        response["status"] = {"code": response["status_code"], "message": ""}
    if "content" in response and "body" not in response:
        response["body"] = {"string": response["content"]}
    if isinstance(response.get("body"), dict):
        response["body"] = dict(response["body"])  # convert_to_bytes changes it, and an alias may share it
    return response


def _mapping(value: Tree, name: str) -> dict[str, Tree]:
    found = value.get(name) if isinstance(value, dict) and name in ("request", "response") else value
    if not isinstance(found, dict):
        raise ReadingProblem(f"{name} is {'missing' if found is None else kind(found)}, not a mapping")
    return found


def _string(value: Mapping[str, Tree], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise ReadingProblem(f"request: `{name}` is {'missing' if found is None else kind(found)}, not a text")
    return found


def _headers(value: Mapping[str, Tree], where: str) -> Headers:
    """Read a mapping of names to a value or a list of them, or (very old) a list of pairs."""
    found = value.get("headers")
    pairs = found.items() if isinstance(found, dict) else found
    result: list[tuple[str, str]] = []
    try:
        for name, values in pairs or ():
            many = values if isinstance(values, list | tuple) else [values]
            result.extend((_field(name), _field(each)) for each in many)
    except (TypeError, ValueError) as error:
        raise ReadingProblem(f"{where}: `headers` is not a mapping of names to lists of texts") from error
    return tuple(result)


def _field(value: Tree) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if value is None:
        return ""
    if isinstance(value, str | int | float):  # a hand-written `retry-after: 1` is a number to YAML
        return str(value)
    raise TypeError(type(value).__name__)


def _bytes(value: Tree, where: str) -> bytes:
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
        return b"".join(_bytes(part, where) for part in value if isinstance(part, bytes | str))
    raise ReadingProblem(f"{where}: `body` is {kind(value)}, not a text")


def _order_headers(headers: Headers, order: Tree) -> Headers:
    """Put header fields into the order kept in `order` (names parted by spaces), if it names just these."""
    names = order.split(" ") if isinstance(order, str) else []
    if sorted(names) != sorted(name for name, _ in headers):
        return headers
    left: dict[str, list[str]] = {}
    for name, value in headers:
        left.setdefault(name, []).append(value)
    return tuple((name, left[name].pop(0)) for name in names)


def _seconds(value: Tree) -> float:
    from datetime import UTC, date, datetime

    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return 0.0
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    return float(value) if isinstance(value, int | float) else 0.0


def kind(value: Tree) -> str:
    """Return what a value is, for an error."""
    return "nothing" if value is None else type(value).__name__


def is_final(status: object) -> TypeGuard[int]:
    """Tell whether a status is that of an answer: after an interim one every client would wait for the real one."""
    if isinstance(status, bool) or not isinstance(status, int):
        return False
    return 200 <= status <= 599 or status == SWITCHING
