"""A REST service as a store: shapes of answers, answers that are none, and the requests that an entity is spoken about with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.stores import StoreAdapter, StoreError, StoreLost, StoreOperationRejectedError, build_suite_store
from llmproxy.suite.stores.http import HttpEntityStore, StoreRequestTemplate, parse_entity_http_endpoints
from tests.suite.stores.places import Rest

WRAPPED = {"rows": "$.items", "row": "$.item", "next": "$.next", "body": {"item": "$data"}}


@pytest.fixture
def rest() -> Iterator[Rest]:
    made = Rest()
    yield made
    made.stop()


Opened = Callable[..., StoreAdapter]


@pytest.fixture
def opened(rest: Rest) -> Iterator[Opened]:
    """Make stores of the service, which are closed at the end."""
    with ExitStack() as stack:

        def make(tasks: object = None, **more: object) -> StoreAdapter:
            store = build_suite_store({"http": rest.url, "entities": {"tasks": tasks}, **more}, Path())
            stack.callback(store.close)
            return store

        yield make


@pytest.mark.parametrize("wrapped", [True, False], ids=["by a member", "by the header Link"])
def test_rows_and_pages(rest: Rest, opened: Opened, wrapped: bool) -> None:
    """Rows are where the paths say, and a list is followed to its last page; by a header without a word in the suite."""
    rest.wrapped, rest.links, rest.page = wrapped, not wrapped, 2
    store = opened(WRAPPED if wrapped else None)
    for number in range(5):
        store.insert("tasks", {"title": f"t{number}"})
    assert [row["title"] for row in store.list("tasks")] == ["t0", "t1", "t2", "t3", "t4"]
    assert store.get("tasks", 3) == {"id": 3, "title": "t2"}


def test_a_row_is_found_in_the_list_where_it_cannot_be_asked_for(rest: Rest, opened: Opened) -> None:
    """`get: null`: one request more, the same answer."""
    store = opened({"get": None})
    row = store.insert("tasks", {"title": "t"})
    assert store.get("tasks", str(row["id"])) == row
    assert not any(each.startswith("GET /tasks/") for each in rest.seen)


@pytest.mark.parametrize(("answer", "kind", "said"), [
    ((200, "text/html", "<html>Login</html>"), StoreError, "with no JSON (text/html)"),
    ((200, "application/json", '{"items": []}'), StoreError, "no list of rows at $, but an object with items"),
    ((200, "application/json", "[1]"), StoreError, "no list of rows"),
    ((500, "text/plain", "it broke"), StoreError, "(500): it broke"),
    ((403, "text/plain", "not yours"), StoreOperationRejectedError, "(403): not yours"),
    ((404, "text/plain", "where?"), StoreOperationRejectedError, "(404)"),
])  # fmt: skip
def test_an_answer_that_is_none_is_an_error(
    rest: Rest, opened: Opened, answer: tuple[int, str, str], kind: type, said: str
) -> None:
    """Never an empty list: the test would pass for the wrong reason."""
    store = opened()
    rest.answer = answer
    with pytest.raises(kind) as caught:
        store.list("tasks")
    assert said in str(caught.value)


def test_a_path_that_leads_nowhere_is_an_error(rest: Rest, opened: Opened) -> None:
    """A misspelt path finds no rows at all, which is not the same as none."""
    rest.wrapped = True
    store = opened({**WRAPPED, "rows": "$.itmes[*]"})
    with pytest.raises(StoreError, match=r"there is no \$\.itmes"):
        store.list("tasks")


def test_rows_on_a_page_that_nobody_names_are_an_error(rest: Rest, opened: Opened) -> None:
    """Not rows that are not there: the message says what to write."""
    rest.wrapped, rest.page = True, 2
    store = opened({**WRAPPED, "next": None})
    for number in range(3):
        rest.add("tasks", {"title": f"t{number}"})
    with pytest.raises(StoreError, match=r"the list of tasks goes on.*\$\.next is '/tasks\?from=2'") as caught:
        store.snapshot(["tasks"])
    assert "store.entities.tasks.next" in str(caught.value)


def test_a_next_page_elsewhere_is_not_followed(rest: Rest, opened: Opened) -> None:
    """A service does not send us to another host, nor round in a circle."""
    store = opened(WRAPPED)
    rest.answer = (200, "application/json", '{"items": [], "next": "http://127.0.0.2/x"}')
    with pytest.raises(StoreError, match="on another host"):
        store.list("tasks")
    rest.answer = (200, "application/json", '{"items": [], "next": "?again"}')
    with pytest.raises(StoreError, match="leads back to a page that was read"):
        store.list("tasks")


def test_a_row_on_two_pages_is_an_error() -> None:
    """The list moved while it was read: a row may have gone past us."""

    def ask(request: httpx.Request) -> httpx.Response:
        page = int(request.url.params.get("page", 1))
        link = {"link": '</tasks?page=2>; rel="next last"'} if page == 1 else {}
        return httpx.Response(200, headers=link, json=[{"id": page}, {"id": 2}])

    client = httpx.Client(transport=httpx.MockTransport(ask))
    store = HttpEntityStore("http://rows", {"tasks": parse_entity_http_endpoints("tasks", "/tasks")}, client=client)
    with pytest.raises(StoreError, match="tasks id=2 is on two pages of the list, 1 and 2"):
        store.list("tasks")


def test_a_service_that_is_gone_is_an_error(rest: Rest, opened: Opened) -> None:
    """In the middle of a run: the environment's fault, and nothing is written twice."""
    store = opened()
    store.insert("tasks", {"title": "t"})
    rest.stop()
    for act in (lambda: store.list("tasks"), lambda: store.insert("tasks", {})):
        with pytest.raises(StoreLost, match="cannot be reached"):
            act()


def test_what_may_have_been_written_is_not_sent_again(rest: Rest, opened: Opened) -> None:
    """A connection that breaks in the middle: a question is asked once more, a new row is not."""
    store = opened()
    rest.mute = True
    for act in (lambda: store.insert("tasks", {}), lambda: store.delete("tasks", 1), lambda: store.list("tasks")):
        with pytest.raises(StoreLost):
            act()
    assert rest.seen == ["POST /tasks", "DELETE /tasks/1", "GET /tasks", "GET /tasks"]


def test_columns_are_those_that_were_seen(rest: Rest, opened: Opened) -> None:
    """Without a declaration any name is taken, and what rows have had is known."""
    store = opened()
    assert not store.describe("tasks").closed
    store.insert("tasks", {"title": "t"})
    assert set(store.describe("tasks").columns) == {"id", "title"}


def test_a_service_can_be_reset_and_may_refuse_writing(rest: Rest, opened: Opened) -> None:
    """`reset: {http: POST /reset}` empties it; `create: null` says that rows cannot be put there."""
    store = opened(reset={"http": "POST /reset"})
    store.insert("tasks", {"title": "t"})
    store.reset()
    assert store.list("tasks") == []
    store = opened({"create": None, "delete": None})
    for act, said in ((lambda: store.insert("tasks", {}), "inserted"), (lambda: store.delete("tasks", 1), "deleted")):
        with pytest.raises(SuiteError, match=f"cannot be {said}"):
            act()


def test_the_usual_addresses_need_not_be_written() -> None:
    """A name is enough where the service is as most are; an address moves all of them."""
    made = parse_entity_http_endpoints("tasks", None)
    assert (made.list, made.get) == (StoreRequestTemplate("GET", "/tasks"), StoreRequestTemplate("GET", "/tasks/$id"))
    assert (made.create, made.delete) == (
        StoreRequestTemplate("POST", "/tasks"),
        StoreRequestTemplate("DELETE", "/tasks/$id"),
    )
    assert parse_entity_http_endpoints("tasks", "/api/v2/todo").get == StoreRequestTemplate("GET", "/api/v2/todo/$id")
    assert parse_entity_http_endpoints("tasks", {"get": None, "delete": None}).get is None


def test_values_are_one_piece_of_an_address() -> None:
    """A slash or a question mark in an id does not lead elsewhere; a parameter without a value is left out."""
    assert StoreRequestTemplate("GET", "/tasks/$id").fill_address(id="a/b?c") == "/tasks/a%2Fb%3Fc"
    listed = StoreRequestTemplate("GET", "/tasks?userId=$user&all=1")
    assert listed.fill_address(user="anna & bert") == "/tasks?userId=anna%20%26%20bert&all=1"
    assert listed.fill_address(user=None) == "/tasks?all=1"


@pytest.mark.parametrize(("given", "said"), [
    ({"lst": "GET /x"}, "unknown key 'lst'; did you mean 'list'?"),
    ({"list": "/tasks"}, "expected a method and an address"),
    ({"list": None}, "must be listed somehow"),
    ({"get": "GET /tasks"}, "does not say where $id goes"),
    ({"delete": "DELETE /tasks/$user"}, "$user has no value here (there is $id)"),
    ({"rows": "$.items["}, "is not a path that is understood"),
    ({"id": 5}, "names of members"),
    ({"columns": "title"}, "expected a list of names"),
    (7, "expected an address or a mapping"),
])  # fmt: skip
def test_what_is_not_understood_is_refused(given: Any, said: str) -> None:
    """When it is read, not when it is first asked."""
    with pytest.raises(SuiteError) as caught:
        parse_entity_http_endpoints("tasks", given)
    assert said in str(caught.value)
