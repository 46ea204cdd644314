"""One interaction of a cassette file; the forms as YAML are tested with the file's format."""

from __future__ import annotations

import io

import pytest

from llmproxy.core.cassettes.formats.recorded import ReadingProblem, recorded_of

REQUEST = {"method": "post", "uri": "http://a/b", "headers": {"A": ["1", 2, b"\xff", None]}, "body": None}
RESPONSE = {"status": {"code": 200, "message": None}, "headers": {}, "body": {"string": "x"}}


def test_values_of_every_kind() -> None:
    """Methods are in upper case, header values are texts whatever YAML made of them, and nothing is no reason."""
    found = recorded_of({"request": REQUEST, "response": RESPONSE}, 7)
    assert (found.number, found.method, found.reason) == (7, "POST", "")
    assert found.headers == (("A", "1"), ("A", "2"), ("A", "ÿ"), ("A", ""))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("é", "é".encode()),
        (b"\xff", b"\xff"),
        (io.BytesIO(b"f"), b"f"),
        (iter([b"a", "b"]), b"ab"),
        ({"string": ""}, b""),
    ],
)
def test_bodies(body: object, expected: bytes) -> None:
    """A body may be text, bytes, a file, pieces or a mapping."""
    assert recorded_of({"request": {**REQUEST, "body": body}, "response": RESPONSE}, 1).body == expected


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (None, "interaction is missing"),
        ([], "the interaction is list"),
        ({"response": RESPONSE}, "request is missing"),
        ({"request": REQUEST, "response": "x"}, "response is str"),
        ({"request": {**REQUEST, "body": 7}, "response": RESPONSE}, "request: `body` is int"),
        ({"request": REQUEST, "response": {**RESPONSE, "status": {"code": True}}}, "no code of 200 to 599"),
        ({"request": REQUEST, "response": {**RESPONSE, "status": {"code": 100}}}, "or 101 .100."),
        ({"request": REQUEST, "response": {**RESPONSE, "body": {"base64_string": "a"}}}, "not base64"),
        ({"request": REQUEST, "response": RESPONSE, "llmproxy": 7}, "`llmproxy` is not a mapping"),
    ],
)
def test_problems(item: object, what: str) -> None:
    """What cannot be read is said in words."""
    with pytest.raises(ReadingProblem, match=what):
        recorded_of(item, 1)


def test_aliases_are_not_changed() -> None:
    """Two interactions that share a response through an alias are both read: reading changes nothing."""
    shared = {**RESPONSE, "body": {"string": "x"}}
    item = {"request": REQUEST, "response": shared}
    assert recorded_of(item, 1).response_body == recorded_of(item, 2).response_body == b"x"
    assert shared["body"] == {"string": "x"}
