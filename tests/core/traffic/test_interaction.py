"""The vocabulary: look-ups and joins."""

from __future__ import annotations

import pytest

from llmproxy.core.providers.table import Client, client_of
from llmproxy.core.traffic.interaction import Chunk, Cut, Headers, Response, header, without

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


BORDERS = ((5, 1), (6, 0), (6, 3))
CHUNKS = (Chunk(5, b"a"), Chunk(6, b""), Chunk(6, b"bcd"))


def test_a_body_that_is_cut_has_the_chunks_of_a_tuple() -> None:
    """Equal both ways, to be counted, sliced and gone through; the body itself is not copied."""
    body = b"abcd"
    cut = Cut(body, BORDERS)
    assert cut == CHUNKS
    assert cut == CHUNKS
    assert (tuple(cut), len(cut), cut[-1], cut[1:]) == (CHUNKS, 3, CHUNKS[-1], CHUNKS[1:])
    assert (hash(cut), repr(cut)) == (hash(CHUNKS), repr(CHUNKS))
    assert [(offset, bytes(data)) for offset, data in cut.views()] == [(each.offset, each.data) for each in CHUNKS]
    assert Response(200, "OK", (), cut) == Response(200, "OK", (), CHUNKS)
    assert Response(200, "OK", (), cut).body is body
    assert cut != CHUNKS[:2]
    assert cut != 3
    with pytest.raises(IndexError):
        cut[3]


@pytest.mark.parametrize("borders", [(), ((0, 3),), ((0, 5),), ((0, -1), (0, 5))])
def test_borders_are_those_of_the_body(borders: tuple[tuple[int, int], ...]) -> None:
    """Others are damage."""
    with pytest.raises(ValueError, match="chunk"):
        Cut(b"abcd", borders)


def test_what_is_put_in_place_of_a_body_is_as_long() -> None:
    """Cut at the same places."""
    cut = Cut(b"abcd", BORDERS)
    assert cut.replace_body(b"wxyz") == (Chunk(5, b"w"), Chunk(6, b""), Chunk(6, b"xyz"))
    with pytest.raises(ValueError, match="3 bytes for 4"):
        cut.replace_body(b"abc")


@pytest.mark.parametrize(("said", "client"), [
    ("claude-cli/2.1.332 (external, cli)", Client("Claude Code", "2.1.332")),
    ("codex_cli_rs/0.63.0 (Debian 12; x86_64) vt100", Client("Codex", "0.63.0")),
    ("AsyncOpenAI/Python 2.8.1", Client("AsyncOpenAI/Python", "2.8.1")),
    ("ai-sdk/openai/2.0.3 runtime/node", Client("ai-sdk/openai", "2.0.3")),
    ("my agent", None),
    ("", None),
])  # fmt: skip
def test_a_client_is_read_from_its_user_agent(said: str, client: Client | None) -> None:
    """Agents by the name that people call them; others by what they say; what has no version is nobody."""
    assert client_of((("User-Agent", said),)) == client
    assert client_of(()) is None
