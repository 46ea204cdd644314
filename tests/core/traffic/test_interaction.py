"""The vocabulary: look-ups and joins."""

from __future__ import annotations

from llmproxy.core.traffic.interaction import Chunk, Headers, Response, header, without

FIELDS: Headers = (("Content-Type", "a"), ("X", "1"), ("x", "2"))


def test_a_header_is_found_whatever_its_case() -> None:
    """The first one counts."""
    assert header(FIELDS, "content-type") == "a"
    assert header(FIELDS, "x") == "1"
    assert header(FIELDS, "y") is None


def test_headers_are_taken_out_by_name() -> None:
    """All of that name; the order of the others stays."""
    assert without(FIELDS, "x") == (("Content-Type", "a"),)
    assert without(FIELDS) == FIELDS


def test_a_body_is_its_chunks() -> None:
    """Joined in order."""
    assert Response(200, "OK", (), (Chunk(1, b"a"), Chunk(2, b"b"))).body == b"ab"
