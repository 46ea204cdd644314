"""Bodies as the page gets them, and as what they add to earlier ones."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import given, strategies as st

from llmproxy.ui.calls import encode_body_for_json, encode_viewer_text_from_base


def rebuilt(base: str, made: dict[str, Any]) -> str:
    """Do what `infile.js` does, in UTF-16 units."""
    if "of" not in made:
        return str(made["text"])
    units = base.encode("utf-16-le")
    front = units[: made["prefix"] * 2]
    back = units[len(units) - made["suffix"] * 2 :] if made["suffix"] else b""
    whole: bytes = front + made["text"].encode("utf-16-le") + back
    return whole.decode("utf-16-le")


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_what_was_added_gives_the_whole_back(front: str, old: str, new: str, back: str) -> None:
    """Whatever letters there are: JavaScript counts other units than Python."""
    base, text = (f"{'😀é' * 200}{front}{middle}{back}{'ü😀' * 200}" for middle in (old, new))
    made = encode_viewer_text_from_base((7, base), text)
    assert made["of"] == 7
    assert rebuilt(base, made) == text


def test_requests_that_have_little_in_common_stand_for_themselves() -> None:
    """Another request's name would cost more than it saves."""
    assert encode_viewer_text_from_base((1, "abc"), "abd") == {"text": "abd"}


def test_bytes_that_are_no_text_come_as_base64() -> None:
    assert encode_body_for_json(b"\xff\x00") == {"base64": base64.b64encode(b"\xff\x00").decode()}
    assert encode_body_for_json("é".encode()) == {"text": "é"}
