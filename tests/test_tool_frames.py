"""Frames between a shim and its proxy: what is written is read, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from llmproxy.tool_frames import ANSWER, HEAD, HEARD, frame, read_answer, read_heard, write_answer, write_heard

numbers = st.integers(0, (1 << 64) - 1)


def content(said: bytes, kind: int) -> bytes:
    """Take a frame apart."""
    assert HEAD.unpack_from(said) == (0, kind, len(said) - HEAD.size)
    return said[HEAD.size :]


@given(st.binary(), st.none() | st.integers(1, (1 << 64) - 1), st.floats(0, 1e9), st.booleans())
def test_what_becomes_of_a_line_comes_back(out: bytes, forward: int | None, late: float, gone: bool) -> None:
    """Any bytes, and no number at all."""
    assert read_heard(content(write_heard(out, forward, late, gone=gone), HEARD)) == (out, forward, late, gone)


@given(numbers, st.lists(st.tuples(numbers, st.binary())))
def test_an_answer_comes_back_line_by_line(number: int, lines: list[tuple[int, bytes]]) -> None:
    """Also one without lines, and with empty ones."""
    assert read_answer(content(write_answer(number, lines), ANSWER)) == (number, lines)


@given(st.lists(st.tuples(numbers, st.binary(min_size=1)), min_size=1), st.data())
def test_a_frame_that_lacks_something_is_no_answer(lines: list[tuple[int, bytes]], data: st.DataObject) -> None:
    """It is never read as a shorter one, but where a line ends."""
    whole = content(write_answer(1, lines), ANSWER)
    ends = {8 + sum(12 + len(line) for _, line in lines[:n]) for n in range(len(lines) + 1)}
    cut = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: at not in ends))
    with pytest.raises(ValueError, match=r"requires|longer"):
        read_answer(whole[:cut])
    with pytest.raises(ValueError, match="requires"):
        read_heard(b"\0" * 16)


def test_a_frame_begins_with_what_no_request_begins_with() -> None:
    """So both can be said on one connection."""
    assert frame(ANSWER, b"a", b"bc") == b"\0\2\0\0\0\3abc"
