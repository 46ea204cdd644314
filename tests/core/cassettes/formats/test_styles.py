"""How JSON is written: a style is found only if it gives the very bytes back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.cassettes.formats.styles import MAX_BYTES, STYLES, by_length, style_of, write_tree

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_is_found(style: str) -> None:
    """A body in any style is a tree and a style that give it back."""
    body = write_tree({"a": [1, {"b": "ü"}], "c": None, "d": 1.5}, style)
    found = style_of(body)
    assert found is not None
    assert write_tree(*found) == body


@settings(deadline=None)
@given(TREES, st.sampled_from(sorted(STYLES)))
def test_what_is_found_is_exact(tree: object, style: str) -> None:
    """Whatever was written how, what is found gives the bytes back, and other bytes are never found."""
    try:
        body = write_tree([tree], style)
    except UnicodeEncodeError:  # a lone surrogate, in a style that does not escape it
        return
    found = style_of(body)
    assert found is not None
    assert write_tree(*found) == body


@pytest.mark.parametrize(
    "body",
    [
        b"", b"7", b'"x"', b"{", b'{"a":1,"a":2}', b'{"a":1.00}', b'{"a":1e3}', b'{"a":NaN}', b'{"a" :1}', b'{"a":"\\/"}',
        b'{"a":"\xff"}', b'{"a": 1,"b":2}', b' {"a":1}', b'{"a":-0}', b"[" * 100 + b"]" * 100, b'{"a":"\\u00FC"}',
        b'{\r\n  "a": 1\r\n}', b'{\n       "a": 1\n}', b"[" + b"1," * MAX_BYTES + b"1]", b"[" + b"9" * 5000 + b"]",
    ],
    ids=lambda body: repr(body[:16]),
)  # fmt: skip
def test_what_no_style_gives_back_has_none(body: bytes) -> None:
    """Bytes that a tree would lose something of stay text."""
    assert style_of(body) is None


def test_lost_bytes_are_written_by_length() -> None:
    """Of a tree whose bytes are lost, the style with the recorded length is taken, else the compact one."""
    tree = {"a": [1, 2], "b": "ü"}
    for text in (json.dumps(tree), json.dumps(tree, indent=2), json.dumps(tree, separators=(",", ":"))):
        assert by_length(tree, str(len(text.encode()))) == text.encode()
    assert by_length(tree, "3") == by_length(tree, None) == write_tree(tree, "compact")
    with pytest.raises(ValueError, match="JSON compliant"):
        by_length(float("nan"), None)
