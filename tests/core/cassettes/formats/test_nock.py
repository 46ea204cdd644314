"""Fixtures of nock, as nock 14 records them and as nock 13 wrote header fields."""

from __future__ import annotations

import gzip
import json

import pytest

from llmproxy.core.cassettes.formats import Source, nock, recognise
from llmproxy.errors import CassetteCorrupt

GOOD = {
    "scope": "https://api.openai.com:443", "method": "post", "path": "/v1/chat/completions?x=1", "body": {"a": "é"},
    "status": 201, "response": {"b": [1]}, "rawHeaders": {"content-type": "application/json"},
    "reqheaders": {"accept": "*/*"}, "responseIsBinary": False,
}  # fmt: skip


def read(**change: object) -> object:
    """Read one exchange."""
    source = Source(json.dumps([GOOD | change]).encode(), "x")
    assert recognise(source).name == "nock"  # type: ignore[union-attr]
    return nock.read(source)[0]


def test_an_exchange_is_read() -> None:
    """Bodies that are trees, header fields, and an origin without its scheme's own port."""
    found = nock.read(Source(json.dumps([GOOD]).encode(), "x"))[0]
    assert (found.method, found.uri) == ("POST", "https://api.openai.com/v1/chat/completions?x=1")
    assert (found.body.decode(), found.response_body, found.status) == ('{"a":"é"}', b'{"b":[1]}', 201)
    assert (found.headers, found.response_headers) == ((("accept", "*/*"),), (("content-type", "application/json"),))


@pytest.mark.parametrize(("change", "name", "value"), [
    ({"response": "event: x\n"}, "response_body", b"event: x\n"),
    ({"response": [gzip.compress(b"x", mtime=0).hex()]}, "response_body", gzip.compress(b"x", mtime=0)),
    ({"body": ""}, "body", b""),
    ({"rawHeaders": ["A", "1", "A", "2"]}, "response_headers", (("A", "1"), ("A", "2"))),
    ({"scope": "http://127.0.0.1:99"}, "uri", "http://127.0.0.1:99/v1/chat/completions?x=1"),
])  # fmt: skip
def test_other_forms(change: dict[str, object], name: str, value: object) -> None:
    """Text, pieces in hexadecimal, an empty body, flat header fields, a port of its own."""
    assert getattr(read(**change), name) == value


@pytest.mark.parametrize(("change", "said"), [
    ({"scope": 3}, "`scope` is int"),
    ({"status": "x"}, "status"),
    ({"response": ["zz"]}, "not hexadecimal"),
    ({"rawHeaders": ["a"]}, "`rawHeaders` has no value for its last name"),
    ({"scope": "http://[::1:x"}, "`scope` is no origin"),
])  # fmt: skip
def test_what_is_wrong_is_said(change: dict[str, object], said: str) -> None:
    """A damaged exchange is named with what is wrong in it."""
    with pytest.raises(CassetteCorrupt, match=f"x: .*\n.*exchange 1: .*{said}"):
        read(**change)
