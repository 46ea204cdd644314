"""What tells that a list goes on, in the words of many services."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.suite.stores.http import find_sign_of_more_rows_in_response, parse_next_link

ROWS = [{"id": 1}, {"id": 2}]
GOES_ON: list[tuple[Any, dict[str, str], int]] = [
    (ROWS, {"x-total-count": "3"}, 200),
    (ROWS, {"x-wp-total": "3"}, 200),
    (ROWS, {"content-range": "items 0-1/3"}, 206),
    (ROWS, {}, 206),
    ({"items": ROWS, "next": "/tasks?page=2"}, {}, 200),
    ({"items": ROWS, "next_page": 2}, {}, 200),
    ({"items": ROWS, "nextPageToken": "abc"}, {}, 200),
    ({"data": ROWS, "has_more": True}, {}, 200),
    ({"data": ROWS, "hasMore": True}, {}, 200),
    ({"items": ROWS, "total": 3}, {}, 200),
    ({"items": ROWS, "totalCount": 3, "page": 1}, {}, 200),
    ({"results": ROWS, "count": 3}, {}, 200),
    ({"value": ROWS, "@odata.nextLink": "https://x/y"}, {}, 200),
    ({"items": ROWS, "_links": {"next": {"href": "/tasks?page=2"}}}, {}, 200),
    ({"items": ROWS, "links": {"next": "/tasks?page=2"}}, {}, 200),
    ({"data": ROWS, "meta": {"pagination": {"total": 3}}}, {}, 200),
    ({"nodes": ROWS, "pageInfo": {"hasNextPage": True, "endCursor": "c"}}, {}, 200),
    (ROWS, {"x-total-pages": "2"}, 200),
    (ROWS, {"x-next-page": "2"}, 200),
    ({"items": ROWS, "page": 1, "totalPages": 2}, {}, 200),
    ({"content": ROWS, "last": False}, {}, 200),
    ({"values": ROWS, "isLastPage": False, "nextPageStart": 2}, {}, 200),
    ({"results": ROWS, "paging": {"next": {"after": "abc"}}}, {}, 200),
    ({"items": ROWS, "metadata": {"continue": "abc"}}, {}, 200),
    ({"records": ROWS, "done": False, "nextRecordsUrl": "/query/01g"}, {}, 200),
    ({"items": ROWS, "limit": 2, "offset": 0}, {}, 200),
    ({"items": ROWS, "response_metadata": {"next_cursor": "c"}}, {}, 200),
]
OVER: list[tuple[Any, dict[str, str], int]] = [
    (ROWS, {}, 200),
    (ROWS, {"x-total-count": "2"}, 200),
    (ROWS, {"content-range": "items 0-1/2"}, 200),
    (ROWS, {"content-range": "items 0-1/*", "x-total-count": "many"}, 200),
    ({"items": ROWS, "next": None}, {}, 200),
    ({"items": ROWS, "next": ""}, {}, 200),
    ({"items": [], "next": "/tasks?page=9"}, {}, 200),
    ({"data": ROWS, "has_more": False, "next_cursor": "kept for later"}, {}, 200),
    ({"items": ROWS, "total": 2, "count": 2}, {}, 200),
    ({"items": ROWS, "_links": {"self": {"href": "/tasks"}, "next": {}}}, {}, 200),
    ({"nodes": ROWS, "pageInfo": {"hasNextPage": False, "endCursor": "c"}}, {}, 200),
    (ROWS, {"x-total-pages": "1", "x-next-page": ""}, 200),
    ({"items": ROWS, "page": 1, "totalPages": 1}, {}, 200),
    ({"content": ROWS, "last": True, "size": 2}, {}, 200),
    ({"items": ROWS, "limit": 2, "total": 2}, {}, 200),
    ({"items": ROWS, "limit": 2, "next": None}, {}, 200),
    ({"items": ROWS, "limit": 20}, {}, 200),
    ({"data": ROWS, "paging": {"cursors": {"before": "a", "after": "b"}}}, {}, 200),
    ({"items": [{"id": 1, "next": "x", "has_more": True, "total": 99}]}, {}, 200),
]


@pytest.mark.parametrize(("value", "headers", "status"), GOES_ON, ids=[str(n) for n in range(len(GOES_ON))])
def test_a_list_that_goes_on_is_noticed(value: object, headers: dict[str, str], status: int) -> None:
    """By a header, a member, or what stands below `meta` and the like."""
    assert find_sign_of_more_rows_in_response(value, headers, status, 2, 2)


@pytest.mark.parametrize(("value", "headers", "status"), OVER, ids=[str(n) for n in range(len(OVER))])
def test_a_list_that_is_over_is_not_doubted(value: object, headers: dict[str, str], status: int) -> None:
    """Nor is one whose rows have members of such names."""
    here = len(ROWS) if value == ROWS else len(next(iter(value.values())))  # type: ignore[attr-defined]
    assert find_sign_of_more_rows_in_response(value, headers, status, here, here) == ""


def test_as_many_pages_as_there_are_said_to_be_are_all() -> None:
    """Where they were read one after the other."""
    assert find_sign_of_more_rows_in_response({"items": ROWS, "totalPages": 2}, {}, 200, 2, 4, pages=2) == ""


@pytest.mark.parametrize(("header", "address"), [
    ('</tasks?page=2>; rel="next"', "/tasks?page=2"),
    ("</tasks?page=2>; rel=next", "/tasks?page=2"),
    ('</a>; rel="prev", </b>; rel="next last"', "/b"),
    ('</a>; rel="first prev";title="x, y", </b>;REL="NEXT";type="a/b"', "/b"),
    ("</a;b?ids=1,2>; rel=next", "/a;b?ids=1,2"),
    ('</a>; title="rel=next"; rel="last"', ""),
    ('</a>; rel="nextish"', ""),
    ("", ""),
])  # fmt: skip
def test_the_next_page_of_a_link_header(header: str, address: str) -> None:
    """Whatever else stands in it: several relations of one address, several addresses, commas in them."""
    assert parse_next_link(header) == address
