"""Messages of gRPC are cut where their lengths say, and an error of ours survives its head."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from llmproxy.core.traffic.grpc import count_messages, is_grpc, refusal, split_messages

ONE, TWO = b"\0\0\0\0\3abc", b"\1\0\0\0\0"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;x=1", True),
        ("application/grpc-web", False),
    ],
)
def test_gRPC_is_told_by_its_type(kind: str, *, said: bool) -> None:  # noqa: N802 - the protocol's name
    """gRPC-Web is HTTP as any other."""
    assert is_grpc(kind) is said


@pytest.mark.parametrize(
    ("body", "messages", "count"),
    [
        (b"", [], 0),
        (ONE, [(False, b"abc")], 1),
        (ONE + TWO, [(False, b"abc"), (True, b"")], 2),
        (ONE + TWO + ONE, [(False, b"abc"), (True, b""), (False, b"abc")], 2),
        (ONE[:-1], [], 0),
        (ONE[:4], [], 0),
        (ONE + TWO[:2], [(False, b"abc")], 2),
    ],
)
def test_messages_are_cut_where_they_say(body: bytes, messages: list[tuple[bool, bytes]], count: int) -> None:
    """One that is not whole is not read, but has begun."""
    assert list(split_messages(body)) == messages
    assert count_messages(body) == count


def test_a_refusal_is_a_head_that_any_client_can_read() -> None:
    """Percent-encoded, ASCII, without a line break, and not longer than clients take."""
    fields = dict(refusal(404, "llmproxy_cache_miss", "100 % größer\nwhat to do", miss=True))
    assert (fields["grpc-status"], fields["x-llmproxy-cache"]) == ("9", "miss")
    said = fields["grpc-message"]
    assert said.isascii()
    assert said.isprintable()
    assert unquote(said) == "100 % größer\nwhat to do"
    assert len(dict(refusal(404, "x", "ä" * 10_000))["grpc-message"]) < 7000
