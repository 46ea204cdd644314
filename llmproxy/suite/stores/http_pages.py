"""What tells that a list is not all there is: a service that gives pages says so somewhere, and each in another way.

Rows on a page that nobody fetched would be rows that are not there: a count of 0, "no row was added", a clean-up that leaves them. So
where a list says that it goes on, and it is not known where, that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_PARTIAL = 206
_NEXT = ("next", "nextpage", "nextpageurl", "nexturl", "nextlink", "@odata.nextlink", "nextcursor", "nextpagetoken", "nexttoken",
         "cursornext", "continuationtoken", "continue", "nextmarker", "nextoffset", "nextstart", "nextpagestart", "nextrecordsurl",
         "lastevaluatedkey")  # fmt: skip
"""Members that lead to the next page, without case, underscores and hyphens; empty or null on the last one."""
_MORE = ("hasmore", "hasnext", "hasnextpage", "more", "truncated", "istruncated", "incompleteresults")
"""Members that are true where there is a next page."""
_OVER = ("islast", "islastpage", "last", "lastpage")
"""Members that are false where there is a next page."""
_PAGES = ("pages", "totalpages", "pagecount", "numpages", "lastpage", "pagestotal")
"""Members that say how many pages there are."""
_SIZE = ("limit", "pagesize", "perpage", "pagelimit")
"""Members that say how many rows a page holds at most: one that is full may go on."""
_TOTAL = (
    "total",
    "totalcount",
    "totalitems",
    "totalresults",
    "totalrows",
    "totalelements",
    "totalsize",
    "count",
    "@odata.count",
)
"""Members that say how many rows there are."""
_HOLDERS = (
    "links",
    "_links",
    "meta",
    "_meta",
    "metadata",
    "paging",
    "pagination",
    "pageinfo",
    "page",
    "cursors",
    "responsemetadata",
)
"""Objects in which such members stand."""
_TOTAL_HEADERS = (
    "x-total-count",
    "x-total",
    "x-wp-total",
    "x-total-results",
    "total-count",
    "x-pagination-total-count",
)


_PAGES_HEADERS = ("x-total-pages", "x-wp-totalpages", "x-pages", "x-page-count", "x-pagination-page-count")
_NEXT_HEADERS = ("x-next-page", "x-next-cursor", "x-continuation-token", "x-ms-continuation")
_LINK = re.compile(r"<([^>]*)>((?:\s*;\s*[\w!#$&+\-.^`|~*]+\s*(?:=\s*(?:\"(?:\\.|[^\"\\])*\"|[^\s;,\"]*))?)*)")
_REL = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,]*))", re.IGNORECASE)


def next_link(header: str) -> str:
    """Return the address that a ``Link`` header names as the next page, by itself or among other relations; empty if there is none."""
    for address, parameters in _LINK.findall(header):
        said = _REL.search(parameters)
        if said and "next" in (said[1] or said[2] or "").casefold().split():
            return str(address)
    return ""


def more_rows(value: Any, headers: Mapping[str, str], status: int, here: int, so_far: int, pages: int = 1) -> str:  # noqa: ANN401 - JSON
    """Say what tells that there are more rows than those read; empty if nothing does.

    Args:
        value: The answer, parsed.
        headers: Of the answer; names in any case.
        status: Of the answer.
        here: Rows of this page.
        so_far: Rows of all pages so far.
        pages: How many pages these were.

    """
    for name in _TOTAL_HEADERS:
        text = headers.get(name, "")
        if text.isdecimal() and int(text) > so_far:
            return f"{name}: {text}"
    for name in _PAGES_HEADERS:
        if (text := headers.get(name, "")).isdecimal() and int(text) > pages:
            return f"{name}: {text}"
    for name in _NEXT_HEADERS:
        if headers.get(name, "") and here:
            return f"{name}: {headers[name]:.80}"
    total = headers.get("content-range", "").rpartition("/")[2]
    if total.isdecimal() and int(total) > so_far:
        return f"content-range: {headers['content-range']}"
    if status == _PARTIAL:
        return "status 206, partial content"
    return next(_signs(value, here, so_far, pages), "")


def _signs(value: Any, here: int, so_far: int, pages: int) -> Iterator[str]:  # noqa: ANN401 - JSON
    members = [(path, _fold_name(name), found) for path, name, found in _members(value)]
    over = any((name in _MORE and found is False) or (name in _OVER and found is True) for _, name, found in members)
    for path, folded, found in members:
        more = (folded in _MORE and found is True) or (folded in _OVER and found is False and bool(here))
        if more or (folded in _NEXT and _leads(found) and here and not over):
            yield f"{path} is {found!r:.80}"
        elif _is_number(found) and ((folded in _TOTAL and found > so_far) or (folded in _PAGES and found > pages)):
            yield f"{path} is {found}"
    ends = over or any(folded in (*_NEXT, *_TOTAL, *_PAGES) for _, folded, _ in members)
    for path, folded, found in members if not ends else ():
        if folded in _SIZE and _is_number(found) and here and found == here:
            yield f"{path} is {found}, and as many rows are on the page"


def _is_number(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def _leads(found: object) -> bool:
    """Tell whether a member names a page: an address, a token, a number, an object with an address or a token."""
    if isinstance(found, Mapping):
        return any(
            _leads(found.get(name)) for name in ("href", "url", "link", "after", "cursor", "token", "offset", "page")
        )
    return isinstance(found, str | int) and not isinstance(found, bool) and found not in ("", 0)


def _members(value: Any) -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401 - JSON
    """Give path, name and value of the members beside the rows, and of the objects that hold what is said about pages."""
    if not isinstance(value, Mapping):
        return
    for name, found in value.items():
        yield f"$.{name}", str(name), found
        if isinstance(found, Mapping) and _fold_name(str(name)) in map(_fold_name, _HOLDERS):
            yield from ((f"$.{name}{path[1:]}", inner, each) for path, inner, each in _members(found))


def _fold_name(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()
