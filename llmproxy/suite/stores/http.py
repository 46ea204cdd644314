"""A store behind a REST service, called directly, ignoring proxy variables: its traffic is not the agent's.

A reading request is retried once after a broken connection; a request that may have written is not. Of the mapping,
`get: null` finds a row in the list; `create: null` and `delete: null` mean that the service does not support them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpx

from llmproxy.did_you_mean import normalize_name_spelling
from llmproxy.errors import SuiteError
from llmproxy.scenario.values.messages import ParsedJsonPath, parse_value_path, require_value_at_path
from llmproxy.suite.stores.protocol import (
    DeclaredEntityColumns,
    EntityInfo,
    Id,
    Row,
    Rows,
    StoreBase,
    StoreError,
    StoreLost,
    StoreOperationRejectedError,
    build_unknown_entity_error,
    filter_sort_and_limit_rows,
    parse_declared_entity,
)

MEMBERS = ("list", "get", "create", "delete", "body", "rows", "row", "next", "id", "user", "columns", "reuses")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
WHOLE = ParsedJsonPath("$", ())
_NAME = re.compile(r"\$(\w+)")
_PARTIAL = 206
_NEXT = ("next", "nextpage", "nextpageurl", "nexturl", "nextlink", "@odata.nextlink", "nextcursor", "nextpagetoken",
         "nexttoken", "cursornext", "continuationtoken", "continue", "nextmarker", "nextoffset", "nextstart",
         "nextpagestart", "nextrecordsurl", "lastevaluatedkey")  # fmt: skip
"""Members with the next page, without case, underscores and hyphens; empty or null on the last one."""
_MORE = ("hasmore", "hasnext", "hasnextpage", "more", "truncated", "istruncated", "incompleteresults")
"""Members that are true if there is a next page."""
_OVER = ("islast", "islastpage", "last", "lastpage")
"""Members that are false if there is a next page."""
_PAGES = ("pages", "totalpages", "pagecount", "numpages", "lastpage", "pagestotal")
"""Members with the number of pages."""
_SIZE = ("limit", "pagesize", "perpage", "pagelimit")
"""Members with the maximum rows of a page: a full one may have a successor."""
_TOTAL = (
    "total", "totalcount", "totalitems", "totalresults", "totalrows", "totalelements", "totalsize", "count",
    "@odata.count",
)  # fmt: skip
_HOLDERS = (
    "links", "_links", "meta", "_meta", "metadata", "paging", "pagination", "pageinfo", "page", "cursors",
    "responsemetadata",
)  # fmt: skip
_TOTAL_HEADERS = (
    "x-total-count", "x-total", "x-wp-total", "x-total-results", "total-count", "x-pagination-total-count",
)  # fmt: skip
_PAGES_HEADERS = ("x-total-pages", "x-wp-totalpages", "x-pages", "x-page-count", "x-pagination-page-count")
_NEXT_HEADERS = ("x-next-page", "x-next-cursor", "x-continuation-token", "x-ms-continuation")
_LINK = re.compile(r"<([^>]*)>((?:\s*;\s*[\w!#$&+\-.^`|~*]+\s*(?:=\s*(?:\"(?:\\.|[^\"\\])*\"|[^\s;,\"]*))?)*)")
_REL = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,]*))", re.IGNORECASE)
NOT_FOUND = (404, 410)
PAGES = 1000
"""Maximum pages read of one list: an endless service must not block a test for ever."""


@dataclass(frozen=True, slots=True)
class StoreRequestTemplate:
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
class EntityHttpEndpoints:
    shape: DeclaredEntityColumns
    list: StoreRequestTemplate
    get: StoreRequestTemplate | None
    create: StoreRequestTemplate | None
    delete: StoreRequestTemplate | None
    body: Any
    rows: ParsedJsonPath
    row: ParsedJsonPath
    next: ParsedJsonPath | None


def parse_entity_http_endpoints(name: str, given: object) -> EntityHttpEndpoints:
    at = f"store.entities.{name}"
    base = given if isinstance(given, str) else f"/{name}"
    given = {"list": f"GET {given}"} if isinstance(given, str) else given or {}
    if not isinstance(given, Mapping):
        raise SuiteError(f"{at}: expected an address or a mapping, got {given!r}")
    shape = parse_declared_entity(given, at, MEMBERS, reuses=True)
    listing = _read_template(given, at, "list", f"GET {base}", ("user",))
    if listing is None:
        raise SuiteError(f"{at}.list: rows must be listed somehow")
    return EntityHttpEndpoints(
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
) -> StoreRequestTemplate | None:
    if (text := given.get(member, default)) is None:
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
    return StoreRequestTemplate(method.upper(), address.strip())


def _read_path(given: Mapping[str, Any], at: str, member: str) -> ParsedJsonPath | None:
    return None if given.get(member) is None else parse_value_path(str(given[member]), f"{at}.{member}")


def parse_reset_http_template(text: str) -> StoreRequestTemplate:
    """Read the request of `reset: {http: ...}`. Raises SuiteError."""
    method, _, address = text.partition(" ")
    if not address.startswith("/"):
        raise SuiteError(f"store.reset.http: expected a method and an address like 'POST /reset', got {text!r}")
    return StoreRequestTemplate(method.upper(), address)


def fill_entity_body_template(template: Any, data: Mapping[str, Any]) -> Any:
    if template == "$data":
        return data
    if isinstance(template, Mapping):
        return {name: fill_entity_body_template(value, data) for name, value in template.items()}
    if isinstance(template, list):
        return [fill_entity_body_template(value, data) for value in template]
    return template


def parse_next_link(header: str) -> str:
    """Return the next page's address from a ``Link`` header, alone or among relations; or ""."""
    for address, parameters in _LINK.findall(header):
        if (said := _REL.search(parameters)) and "next" in (said[1] or said[2] or "").casefold().split():
            return str(address)
    return ""


def find_sign_of_more_rows_in_response(
    value: Any, headers: Mapping[str, str], status: int, here: int, so_far: int, pages: int = 1
) -> str:
    """Describe the evidence for more rows than `so_far`, of which `here` are on this page; empty if there is none."""
    for names, known in ((_TOTAL_HEADERS, so_far), (_PAGES_HEADERS, pages)):
        for name in names:
            if (text := headers.get(name, "")).isdecimal() and int(text) > known:
                return f"{name}: {text}"
    for name in _NEXT_HEADERS:
        if headers.get(name, "") and here:
            return f"{name}: {headers[name]:.80}"
    total = headers.get("content-range", "").rpartition("/")[2]
    if total.isdecimal() and int(total) > so_far:
        return f"content-range: {headers['content-range']}"
    if status == _PARTIAL:
        return "status 206, partial content"
    return next(_find_paging_signs(value, here, so_far, pages), "")


def _find_paging_signs(value: Any, here: int, so_far: int, pages: int) -> Iterator[str]:
    members = [(path, normalize_name_spelling(name), found) for path, name, found in _walk_members(value)]
    over = any((name in _MORE and found is False) or (name in _OVER and found is True) for _, name, found in members)
    for path, folded, found in members:
        more = (folded in _MORE and found is True) or (folded in _OVER and found is False and bool(here))
        if more or (folded in _NEXT and _refers_to_next_page(found) and here and not over):
            yield f"{path} is {found!r:.80}"
        elif type(found) is int and ((folded in _TOTAL and found > so_far) or (folded in _PAGES and found > pages)):
            yield f"{path} is {found}"
    ends = over or any(folded in (*_NEXT, *_TOTAL, *_PAGES) for _, folded, _ in members)
    for path, folded, found in members if not ends else ():
        if folded in _SIZE and type(found) is int and here and found == here:
            yield f"{path} is {found}, and as many rows are on the page"


def _refers_to_next_page(found: object) -> bool:
    """Return whether a value refers to a page: an address, a token, a number, or an object with one."""
    if isinstance(found, Mapping):
        return any(
            _refers_to_next_page(found.get(name))
            for name in ("href", "url", "link", "after", "cursor", "token", "offset", "page")
        )
    return isinstance(found, str | int) and not isinstance(found, bool) and found not in ("", 0)


def _walk_members(value: Any) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(value, Mapping):
        return
    for name, found in value.items():
        yield f"$.{name}", str(name), found
        if isinstance(found, Mapping) and normalize_name_spelling(str(name)) in map(normalize_name_spelling, _HOLDERS):
            yield from ((f"$.{name}{path[1:]}", inner, each) for path, inner, each in _walk_members(found))


class HttpEntityStore(StoreBase):
    def __init__(
        self, base: str, entities: Mapping[str, EntityHttpEndpoints], *, headers: Mapping[str, str] | None = None,
        timeout: float = 10, reset: StoreRequestTemplate | None = None, client: httpx.Client | None = None,
    ) -> None:  # fmt: skip
        """Prepare, unconnected. `timeout`: seconds; `reset`: the reset request; `client` replaces the default one."""
        self._base = base.rstrip("/")
        self._entities = dict(entities)
        self._reset = reset
        self._seen: dict[str, dict[str, None]] = {}
        self._client = client or httpx.Client(
            headers={"accept": "application/json", **(headers or {})}, timeout=timeout, trust_env=False
        )

    def describe(self, entity: str) -> EntityInfo:
        return self._find_entity(entity).shape.describe(entity, self._seen.get(entity, ()))

    def _find_entity(self, name: str) -> EntityHttpEndpoints:
        if name not in self._entities:
            raise build_unknown_entity_error(
                name, self._entities, f"Say how it is listed: store.entities: {{{name}: /{name}}}"
            )
        return self._entities[name]

    def get(self, entity: str, id: Id) -> Row | None:  # noqa: A002 - the word that suites use
        spoken = self._find_entity(entity)
        if spoken.get is None:
            return next((row for row in self.list(entity) if str(row.get(spoken.shape.key)) == str(id)), None)
        answer = self._send_request(spoken.get.method, self._base + spoken.get.fill_address(id=id))
        if answer.status_code in NOT_FOUND:
            return None
        return self._require_row(entity, spoken.row, self._parse_json(answer), answer)

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        info, spoken = self.describe(entity), self._find_entity(entity)
        info.check(filters or {}, "filters")
        owner = (filters or {}).get(info.user) if info.user else None
        url: str | None = self._base + spoken.list.fill_address(user=owner)
        rows: Rows = []
        read: set[str] = set()
        where: dict[Id, int] = {}
        while url is not None:
            if url in read or len(read) >= PAGES:
                why = "leads back to a page that was read" if url in read else f"has more than {PAGES} pages"
                raise StoreError(f"the list of {entity} {why}; the next would be {url}")
            read.add(url)
            answer = self._send_request(spoken.list.method, url)
            value = self._parse_json(answer)
            here = self._pick_rows(entity, spoken, value, answer)
            rows += here
            for key in [row[info.key] for row in here if isinstance(row.get(info.key), str | int)]:
                if where.setdefault(key, len(read)) != len(read):
                    raise StoreError(
                        f"{entity} {info.key}={key!r} is on two pages of the list, {where[key]} and {len(read)}: it"
                        f" changed while it was read, so others may be missing"
                    )
            url = self._find_next_page(spoken, value, answer)
            if url is None and (
                why := find_sign_of_more_rows_in_response(
                    value, answer.headers, answer.status_code, len(here), len(rows), len(read)
                )
            ):
                raise StoreError(
                    f"the list of {entity} goes on, and nothing says where: {why} ({_describe_answer(answer)},"
                    f" {len(rows)} rows so far)",
                    hint=f"Say where it names its next page: store.entities.{entity}.next: $.links.next; or let one"
                    f" page hold them all: store.entities.{entity}.list: {spoken.list.method} "
                    f"{spoken.list.address.partition('?')[0]}?limit=1000",
                )
        return filter_sort_and_limit_rows(rows, filters or {}, info.key, limit)

    def _pick_rows(self, entity: str, spoken: EntityHttpEndpoints, value: Any, answer: httpx.Response) -> Rows:
        rows, what = value, ""
        try:
            rows = require_value_at_path(spoken.rows, value)
        except LookupError as error:
            what = f": {error}"
        if what or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            there = f"an object with {', '.join(rows)}" if isinstance(rows, dict) else f"{rows!r:.100}"
            raise StoreError(
                f"{_describe_answer(answer)} has no list of rows at {spoken.rows.text}, but {there}{what}",
                hint=f"Say where the rows are: store.entities.{entity}.rows: $.items",
            )
        for row in rows:
            self._seen.setdefault(entity, {}).update(dict.fromkeys(row))
        return rows

    def _find_next_page(self, spoken: EntityHttpEndpoints, value: Any, answer: httpx.Response) -> str | None:
        here = str(answer.url)
        try:
            found = require_value_at_path(spoken.next, value) if spoken.next is not None else None
        except LookupError:
            found = None  # the last page need not say so
        found = found or parse_next_link(answer.headers.get("link", ""))
        if not found:
            return None
        url = urljoin(here, str(found))
        if urlsplit(url).netloc != urlsplit(here).netloc:
            raise StoreError(f"the next page of {here} is on another host: {url}")
        return url

    def _require_row(self, entity: str, path: ParsedJsonPath, value: Any, answer: httpx.Response) -> Row:
        try:
            row = require_value_at_path(path, value)
        except LookupError:
            row = None
        if not isinstance(row, dict):
            raise StoreError(
                f"{_describe_answer(answer)} has no row at {path.text}: {value!r:.200}",
                hint=f"Say where it is: store.entities.{entity}.row: $.task",
            )
        self._seen.setdefault(entity, {}).update(dict.fromkeys(row))
        return dict(row)

    def insert(self, entity: str, data: Mapping[str, Any]) -> Row:
        info, spoken = self.describe(entity), self._find_entity(entity)
        info.check(data, "insert")
        if spoken.create is None:
            raise SuiteError(f"store.entities.{entity}.create is null: rows cannot be inserted")
        url = self._base + spoken.create.fill_address()
        answer = self._send_request(spoken.create.method, url, fill_entity_body_template(spoken.body, dict(data)))
        row = self._require_row(entity, spoken.row, self._parse_json(answer), answer)
        again = self.get(entity, self.key(info, row))
        if again is None:
            raise StoreError(f"a row created by {_describe_answer(answer)} is not there ({info.key}={row[info.key]!r})")
        return again

    def delete(self, entity: str, id: Id) -> bool:  # noqa: A002 - the word that suites use
        """Delete a row; a missing one is no error."""
        spoken = self._find_entity(entity)
        if spoken.delete is None:
            raise SuiteError(f"store.entities.{entity}.delete is null: rows cannot be deleted")
        answer = self._send_request(spoken.delete.method, self._base + spoken.delete.fill_address(id=id))
        return answer.status_code not in NOT_FOUND and self._require_success(answer).is_success

    def reset(self) -> None:
        if self._reset is not None:
            self._require_success(self._send_request(self._reset.method, self._base + self._reset.fill_address()))

    def close(self) -> None:
        self._client.close()

    def _send_request(self, method: str, url: str, body: object = None) -> httpx.Response:
        for left in (1, 0) if method == "GET" else (0,):
            try:
                return self._client.request(method, url, json=body)
            except httpx.TransportError as error:
                if not left:
                    why = str(error) or type(error).__name__
                    raise StoreLost(
                        f"the store cannot be reached ({method} {url}): {why}",
                        hint="Is it running? Nothing was written twice.",
                    ) from error
            except httpx.InvalidURL as error:
                raise SuiteError(f"store.http: {url!r} is no address: {error}") from None
        raise AssertionError("unreachable")

    @staticmethod
    def _require_success(answer: httpx.Response) -> httpx.Response:
        if not answer.is_success:
            kind = StoreOperationRejectedError if answer.is_client_error else StoreError
            raise kind(f"{_describe_answer(answer)}: {answer.text[:300]}")
        return answer

    def _parse_json(self, answer: httpx.Response) -> Any:
        self._require_success(answer)
        try:
            return answer.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            kind = answer.headers.get("content-type", "no content-type")
            raise StoreError(f"{_describe_answer(answer)} with no JSON ({kind}): {answer.text[:200]!r}") from None


def _describe_answer(answer: httpx.Response) -> str:
    return f"the answer of {answer.request.method} {answer.request.url} ({answer.status_code})"
