"""One exchange of a file, and the parts that formats share: whatever a parser returned is read or refused in words."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from llmproxy.core.cassettes.formats import recorded
from llmproxy.core.cassettes.formats.recorded import ReadingProblem
from llmproxy.core.cassettes.formats.vcr import recorded_of

REQUEST = {"method": "post", "uri": "http://a/b", "headers": {"A": ["1", 2, b"\xff", None]}, "body": None}
RESPONSE = {"status": {"code": 200, "message": None}, "headers": {}, "body": {"string": "x"}}


def test_values_of_every_kind() -> None:
    """Methods are in upper case, header values are texts whatever YAML made of them, and nothing is no reason."""
    found = recorded_of({"request": REQUEST, "response": RESPONSE}, 7)
    assert (found.number, found.method, found.reason) == (7, "POST", "")
    assert found.headers == (("A", "1"), ("A", "2"), ("A", "ÿ"), ("A", ""))


@pytest.mark.parametrize(("body", "expected"), [
    ("é", "é".encode()), (b"\xff", b"\xff"), (io.BytesIO(b"f"), b"f"), (iter([b"a", "b"]), b"ab"),
    ({"string": ""}, b""),
])  # fmt: skip
def test_bodies(body: object, expected: bytes) -> None:
    """A body may be text, bytes, a file, pieces or a mapping."""
    assert recorded_of({"request": {**REQUEST, "body": body}, "response": RESPONSE}, 1).body == expected


@pytest.mark.parametrize(("item", "what"), [
    (None, "`request` is missing"),
    ([], "`request` is missing"),
    ({"response": RESPONSE}, "`request` is missing"),
    ({"request": REQUEST, "response": "x"}, "`response` is str"),
    ({"request": {**REQUEST, "body": 7}, "response": RESPONSE}, "request: `body` is int"),
    ({"request": REQUEST, "response": {**RESPONSE, "status": {"code": True}}}, "no code of 200 to 599"),
    ({"request": REQUEST, "response": {**RESPONSE, "status": {"code": 100}}}, "or 101 .100."),
    ({"request": REQUEST, "response": {**RESPONSE, "body": {"base64_string": "a"}}}, "not base64"),
    ({"request": REQUEST, "response": RESPONSE, "llmproxy": 7}, "`llmproxy` is not a mapping"),
])  # fmt: skip
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


def test_mappings_and_texts() -> None:
    """What is missing or of another type is named by its path."""
    tree = {"a": {"b": {"c": "x", "n": 1, "e": ""}}, "l": [1]}
    assert recorded.mapping(tree, "a", "b")["c"] == "x"
    assert recorded.text(tree["a"]["b"], "c") == "x"  # type: ignore[index]
    assert recorded.text({}, "c", "usual") == "usual"
    assert recorded.array(tree, "l") == [1]
    assert recorded.array(tree, "none") == []
    for call, said in [
        (lambda: recorded.mapping(tree, "a", "x"), "`a.x` is missing"),
        (lambda: recorded.mapping([1]), "it is list"),
        (lambda: recorded.text({"n": 1}, "n"), "`n` is int, not a text"),
        (lambda: recorded.text({"e": ""}, "e"), "`e` is empty"),
        (lambda: recorded.array({"l": 1}, "l"), "`l` is int, not a list"),
        (lambda: recorded.status(True), "the status is True"),
        (lambda: recorded.status("200"), "the status is '200'"),
        (lambda: recorded.status(99), "the status is 99"),
        (lambda: recorded.header_map([]), "`headers` is list"),
        (lambda: recorded.header_map({"a": [{}]}), "the header 'a' is dict"),
        (lambda: recorded.header_pairs([{"value": 1}]), "a field without a name"),
        (lambda: recorded.base64_bytes("a"), "base64 is damaged"),
    ]:
        with pytest.raises(ReadingProblem, match=said):
            call()  # type: ignore[no-untyped-call]


def test_headers() -> None:
    """Repetitions and numbers are kept, HTTP/2's pseudo fields are not."""
    assert recorded.header_map({"a": ["1", "2"], "b": 3}) == (("a", "1"), ("a", "2"), ("b", "3"))
    assert recorded.header_map(None) == ()
    assert recorded.header_pairs([{"name": ":path", "value": "/"}, {"name": "a", "value": "1"}]) == (("a", "1"),)
    assert recorded.header_pairs(None) == ()


def test_times() -> None:
    """Times in any form are Unix time, durations are microseconds; nonsense is nothing."""
    assert recorded.seconds("2026-11-20T00:00:00Z") == recorded.seconds("2026-11-20T01:00:00+01:00") == 1795132800.0
    assert recorded.seconds(datetime(2026, 11, 20, tzinfo=UTC)) == recorded.seconds(1795132800) == 1795132800.0
    assert recorded.seconds("soon") == recorded.seconds(None) == recorded.seconds(True) == 0.0
    assert recorded.microseconds(1.5) == 1_500_000
    assert recorded.microseconds(1.5, 1000) == 1500
    assert [recorded.microseconds(value) for value in (-1, None, "1", True, float("nan"), 1e12)] == [0] * 6


def test_bytes() -> None:
    """White space in base64 is no damage; a lone surrogate is kept."""
    assert recorded.base64_bytes("YW\n Jj") == b"abc"
    assert recorded.utf8("ü\ud800") == b"\xc3\xbc\xed\xa0\x80"


@pytest.mark.parametrize("status", [100, 102, 103, 199, 0, 600, True, "200", 99.5, None])
def test_an_interim_status_is_no_answer(status: object) -> None:
    """Replayed, it would leave every client waiting for the real one; 101 begins a WebSocket."""
    with pytest.raises(ReadingProblem, match="not one of 200 to 599, or 101"):
        recorded.status(status)
    assert [recorded.status(each) for each in (101, 200, 599)] == [101, 200, 599]
