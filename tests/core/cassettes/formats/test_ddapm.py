"""Recordings of ddapm-test-agent."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from llmproxy.core.cassettes.formats import Source, ddapm
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteCorrupt

GOOD = {
    "request": {"method": "get", "url": "http://h/", "headers": {"a": "b"}, "body": ""},
    "response": {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": "base64:AP8="},
}


def test_bytes(interactions: Callable[[str, str], list[Interaction]], dialogue: list[Interaction]) -> None:
    """Bodies are those of the wire, one exchange for each distinct request."""
    found = {each.key: each for each in interactions("ddapm", "ddapm")}
    assert len(found) == 6
    for each in dialogue:
        assert len(found[each.key].response.body) == len(each.response.body)  # ids differ, each run has its own
        assert found[each.key].response.status == each.response.status


def test_binary_bodies() -> None:
    """What is no text stands there as base64."""
    (found,) = ddapm.read(Source(json.dumps(GOOD).encode(), "x"))
    assert (found.method, found.response_body, found.headers) == ("GET", b"\x00\xff", (("a", "b"),))


@pytest.mark.parametrize(("change", "said"), [
    ({"response": None}, "exchange 1: `response` is missing"),
    ({"response": {**GOOD["response"], "status": 200}}, "`response.status` is int"),
    ({"response": {**GOOD["response"], "body": 3}}, "`body` is int"),
    ({"response": {**GOOD["response"], "body": "base64:?"}}, "its base64 is damaged"),
    ({"request": {**GOOD["request"], "url": ""}}, "`url` is empty"),
])  # fmt: skip
def test_what_is_wrong_is_said(change: dict[str, object], said: str) -> None:
    """A damaged file is named with what is wrong in it."""
    with pytest.raises(CassetteCorrupt, match=f"x: .*\n.*{said}"):
        ddapm.read(Source(json.dumps(GOOD | change).encode(), "x"))
