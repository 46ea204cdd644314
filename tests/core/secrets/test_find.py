"""Finding and replacing keeps offsets right."""

from __future__ import annotations

import json
import zlib

from hypothesis import given, strategies as st

from llmproxy.core.secrets.find import (
    disjoint,
    in_base64,
    overwrite_spans,
    replace_spans,
    unescape_text,
    with_checksums,
)


def test_spans_that_overlap_become_one() -> None:
    """And come in order; empty ones vanish."""
    assert disjoint([(5, 9), (1, 3), (2, 4), (4, 5), (7, 7)]) == [(1, 4), (4, 5), (5, 9)]


def test_overwriting_keeps_the_length_and_tells_secrets_apart() -> None:
    """Equal secrets get equal placeholders; the shortest still ends in an asterisk."""
    text = "12345678 abcdefghijklm 12345678 ABCDEFGHIJKLM"
    spans = [(0, 8), (9, 22), (23, 31), (32, 45)]
    assert overwrite_spans(text, spans) == "REDACTE* REDACTED-2*** REDACTE* REDACTED-3***"
    assert replace_spans("abc", [(1, 2)], str.upper) == "aBc"


def test_a_key_inside_base64_is_chance() -> None:
    """Only beyond 200 characters, and only if it is a part of the run."""
    key = "AKIAABCDEFGHIJKLMNOP"
    long = "QUJD" * 60
    assert in_base64(f"{long}/{key}/{long}", 241, 261)
    assert not in_base64(f'"{key}" {long}', 1, 21)


@given(st.text(alphabet='ab/\\"é\n\u0001', max_size=30))
def test_the_view_without_escapes_maps_back(text: str) -> None:
    """Each character of the view stands at its offset in the text."""
    written = json.dumps(text).replace("/", "\\/").replace("a", "\\u0061")
    view, offset = unescape_text(written)
    assert view.count("a") == text.count("a")
    for index, char in enumerate(view):
        assert written[offset(index)] in (char, "\\")
    assert offset(len(view)) == len(written)


def test_an_escaped_backslash_is_no_escape() -> None:
    r"""``\\u0061`` in JSON is a backslash and letters."""
    assert unescape_text(r"\\u0061")[0] == r"\\u0061"
    assert unescape_text(r"\\\u0061")[0] == r"\\a"


def test_frames_of_an_event_stream_get_their_checksum() -> None:
    """A frame that was cut stays as it is."""
    frame = (20).to_bytes(4) + bytes(8) + b"body" + bytes(4)
    fixed = with_checksums(frame + frame[:7])
    assert fixed == frame[:16] + zlib.crc32(frame[:16]).to_bytes(4) + frame[:7]
