"""The parts that formats share: whatever a parser returned is read or refused in words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from llmproxy.core.cassettes.formats import parts
from llmproxy.core.cassettes.formats.recorded import ReadingProblem


def test_mappings_and_texts() -> None:
    """What is missing or of another type is named by its path."""
    tree = {"a": {"b": {"c": "x", "n": 1, "e": ""}}, "l": [1]}
    assert parts.mapping(tree, "a", "b")["c"] == "x"
    assert parts.text(tree["a"]["b"], "c") == "x"  # type: ignore[index]
    assert parts.text({}, "c", "usual") == "usual"
    assert parts.array(tree, "l") == [1]
    assert parts.array(tree, "none") == []
    for call, said in [
        (lambda: parts.mapping(tree, "a", "x"), "`a.x` is missing"),
        (lambda: parts.mapping([1]), "it is list"),
        (lambda: parts.text({"n": 1}, "n"), "`n` is int, not a text"),
        (lambda: parts.text({"e": ""}, "e"), "`e` is empty"),
        (lambda: parts.array({"l": 1}, "l"), "`l` is int, not a list"),
        (lambda: parts.status(True), "the status is True"),
        (lambda: parts.status("200"), "the status is '200'"),
        (lambda: parts.status(99), "the status is 99"),
        (lambda: parts.header_map([]), "`headers` is list"),
        (lambda: parts.header_map({"a": [{}]}), "the header 'a' is dict"),
        (lambda: parts.header_pairs([{"value": 1}]), "a field without a name"),
        (lambda: parts.base64_bytes("a"), "base64 is damaged"),
    ]:
        with pytest.raises(ReadingProblem, match=said):
            call()  # type: ignore[no-untyped-call]


def test_headers() -> None:
    """Repetitions and numbers are kept, HTTP/2's pseudo fields are not."""
    assert parts.header_map({"a": ["1", "2"], "b": 3}) == (("a", "1"), ("a", "2"), ("b", "3"))
    assert parts.header_map(None) == ()
    assert parts.header_pairs([{"name": ":path", "value": "/"}, {"name": "a", "value": "1"}]) == (("a", "1"),)
    assert parts.header_pairs(None) == ()


def test_times() -> None:
    """Times in any form are Unix time, durations are microseconds; nonsense is nothing."""
    assert parts.seconds("2026-11-20T00:00:00Z") == parts.seconds("2026-11-20T01:00:00+01:00") == 1795132800.0
    assert parts.seconds(datetime(2026, 11, 20, tzinfo=UTC)) == parts.seconds(1795132800) == 1795132800.0
    assert parts.seconds("soon") == parts.seconds(None) == parts.seconds(True) == 0.0
    assert parts.microseconds(1.5) == 1_500_000
    assert parts.microseconds(1.5, 1000) == 1500
    assert [parts.microseconds(value) for value in (-1, None, "1", True, float("nan"), 1e12)] == [0] * 6


def test_bytes() -> None:
    """White space in base64 is no damage; a lone surrogate is kept."""
    assert parts.base64_bytes("YW\n Jj") == b"abc"
    assert parts.utf8("ü\ud800") == b"\xc3\xbc\xed\xa0\x80"


@pytest.mark.parametrize("status", [100, 102, 103, 199, 0, 600, True, "200", 99.5, None])
def test_an_interim_status_is_no_answer(status: object) -> None:
    """Replayed, it would leave every client waiting for the real one; 101 begins a WebSocket."""
    with pytest.raises(ReadingProblem, match="not one of 200 to 599, or 101"):
        parts.status(status)
    assert [parts.status(each) for each in (101, 200, 599)] == [101, 200, 599]
