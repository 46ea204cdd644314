"""Which requests an entity is spoken about with."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.stores.http import HttpRequestLine, read_http_entity


def test_the_usual_addresses_need_not_be_written() -> None:
    """A name is enough where the service is as most are; an address moves all of them."""
    made = read_http_entity("tasks", None)
    assert (made.list, made.get) == (HttpRequestLine("GET", "/tasks"), HttpRequestLine("GET", "/tasks/$id"))
    assert (made.create, made.delete) == (HttpRequestLine("POST", "/tasks"), HttpRequestLine("DELETE", "/tasks/$id"))
    assert read_http_entity("tasks", "/api/v2/todo").get == HttpRequestLine("GET", "/api/v2/todo/$id")
    assert read_http_entity("tasks", {"get": None, "delete": None}).get is None


def test_values_are_one_piece_of_an_address() -> None:
    """A slash or a question mark in an id does not lead elsewhere; a parameter without a value is left out."""
    assert HttpRequestLine("GET", "/tasks/$id").fill_address(id="a/b?c") == "/tasks/a%2Fb%3Fc"
    listed = HttpRequestLine("GET", "/tasks?userId=$user&all=1")
    assert listed.fill_address(user="anna & bert") == "/tasks?userId=anna%20%26%20bert&all=1"
    assert listed.fill_address(user=None) == "/tasks?all=1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lst": "GET /x"}, "unknown key 'lst'; did you mean 'list'?"),
        ({"list": "/tasks"}, "expected a method and an address"),
        ({"list": None}, "must be listed somehow"),
        ({"get": "GET /tasks"}, "does not say where $id goes"),
        ({"delete": "DELETE /tasks/$user"}, "$user has no value here (there is $id)"),
        ({"rows": "$.items["}, "is not a path that is understood"),
        ({"id": 5}, "names of members"),
        ({"columns": "title"}, "expected a list of names"),
        (7, "expected an address or a mapping"),
    ],
)
def test_what_is_not_understood_is_refused(given: Any, said: str) -> None:
    """When it is read, not when it is first asked."""
    with pytest.raises(SuiteError) as caught:
        read_http_entity("tasks", given)
    assert said in str(caught.value)
