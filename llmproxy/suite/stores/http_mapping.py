"""Mapping of entities to HTTP requests that list, get, create and delete rows.

`get: null` finds a row in the list; `create: null` and `delete: null` mean that the service does not support them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from llmproxy.errors import SuiteError
from llmproxy.scenario.values.messages import ValuePath, parse_value_path
from llmproxy.suite.stores.memory import EntityShape, read_entity_shape

MEMBERS = ("list", "get", "create", "delete", "body", "rows", "row", "next", "id", "user", "columns", "reuses")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
WHOLE = ValuePath("$", ())
_NAME = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class HttpRequestLine:
    """A method and an address with ``$id`` and ``$user`` as placeholders."""

    method: str
    address: str

    def fill_address(self, **values: str | float | None) -> str:
        """Insert values, quoted as one part of the address; a query parameter with None is dropped."""
        path, mark, query = self.address.partition("?")
        kept = [part for part in query.split("&") if not any(values.get(name) is None for name in _NAME.findall(part))]
        address = path + (mark + "&".join(kept) if kept and query else "")
        return _NAME.sub(lambda found: quote(str(values[found[1]]), safe=""), address)


@dataclass(frozen=True, slots=True)
class HttpEntity:
    shape: EntityShape
    list: HttpRequestLine
    get: HttpRequestLine | None
    create: HttpRequestLine | None
    delete: HttpRequestLine | None
    body: Any
    rows: ValuePath
    row: ValuePath
    next: ValuePath | None


def read_http_entity(name: str, given: object) -> HttpEntity:
    at = f"store.entities.{name}"
    base = given if isinstance(given, str) else f"/{name}"
    given = {"list": f"GET {given}"} if isinstance(given, str) else given or {}
    if not isinstance(given, Mapping):
        raise SuiteError(f"{at}: expected an address or a mapping, got {given!r}")
    shape = read_entity_shape(given, at, MEMBERS, reuses=True)
    listing = _read_template(given, at, "list", f"GET {base}", ("user",))
    if listing is None:
        raise SuiteError(f"{at}.list: rows must be listed somehow")
    return HttpEntity(
        shape,
        listing,
        _read_template(given, at, "get", f"GET {base}/$id", ("id",)),
        _read_template(given, at, "create", f"POST {base}", ()),
        _read_template(given, at, "delete", f"DELETE {base}/$id", ("id",)),
        given.get("body", "$data"),
        _read_path(given, at, "rows") or WHOLE,
        _read_path(given, at, "row") or WHOLE,
        _read_path(given, at, "next"),
    )


def _read_template(
    given: Mapping[str, Any], at: str, member: str, default: str, names: tuple[str, ...]
) -> HttpRequestLine | None:
    text = given.get(member, default)
    if text is None:
        return None
    method, _, address = str(text).strip().partition(" ")
    if method.upper() not in METHODS or not address.strip():
        raise SuiteError(f"{at}.{member}: expected a method and an address like {default!r}, got {text!r}")
    for name in _NAME.findall(address):
        if name not in names:
            allowed = ", ".join(f"${each}" for each in names) or "none"
            raise SuiteError(f"{at}.{member}: ${name} has no value here (there is {allowed})")
    if member != "list" and names and f"${names[0]}" not in address:
        raise SuiteError(f"{at}.{member}: {address!r} does not say where ${names[0]} goes")
    return HttpRequestLine(method.upper(), address.strip())


def _read_path(given: Mapping[str, Any], at: str, member: str) -> ValuePath | None:
    return None if given.get(member) is None else parse_value_path(str(given[member]), f"{at}.{member}")


def read_reset_request(text: str) -> HttpRequestLine:
    method, _, address = text.partition(" ")
    if not address.startswith("/"):
        raise SuiteError(f"store.reset.http: expected a method and an address like 'POST /reset', got {text!r}")
    return HttpRequestLine(method.upper(), address)


def fill_body(template: Any, data: Mapping[str, Any]) -> Any:
    if template == "$data":
        return data
    if isinstance(template, Mapping):
        return {name: fill_body(value, data) for name, value in template.items()}
    if isinstance(template, list):
        return [fill_body(value, data) for value in template]
    return template
