"""Equal JSON values get equal bytes, different ones different bytes; what cannot be told apart safely is refused."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.traffic.json_bytes import DEPTH, NotLossless, dump, parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


def canonical(text: str | bytes) -> bytes:
    """Parse and write."""
    return dump(parse(text))


@pytest.mark.parametrize(("one", "other"), [
    ('{"a":1,"b":2}', ' { "b" : 2 ,\n"a":1 } '), ("1", "1.0"), ("1", "1e0"), ("100", "1E2"), ("0", "-0.0"),
    ("0.5", "5e-1"), ("0.1", "0.10"), ('"é/"', '"\\u00e9\\/"'), ('"\U0001f600"', '"\\ud83d\\ude00"'),
    ("100000000000000000000000", "1e23"),
])  # fmt: skip
def test_equal_values_written_differently_are_equal(one: str, other: str) -> None:
    """Order, white space, escapes and the form of a number are syntax."""
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(("one", "other"), [
    ("[1,2]", "[2,1]"), ("1", "true"), ("0", "false"), ("0", "null"), ('"1"', "1"),
    ("9007199254740993", "9007199254740992"), ('"\\ud800"', '"\\udbff"'), ('"\\ud800"', '"\\ufffd"'),
    ('"e\u0301"', '"\u00e9"'), ("{}", "[]"), ('{"a":null}', "{}"), ("99999999999999991611392", "1e23"),
    ("0.1", "0.10000000000000002"),
])  # fmt: skip
def test_different_values_stay_different(one: str, other: str) -> None:
    """Nothing is rounded, reordered or unified that could be meant."""
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize("text", [
    "", "nope", "{", '{"a":1,"a":2}', "NaN", "[Infinity]", "1e400", "0.1000000000000000055511151231257827",
    "9007199254740992.5", "9" * 5000, "[" * 100_000, "[" * (DEPTH + 2) + "]" * (DEPTH + 2), b"\xff",
    b"\xef\xbb\xbf{}", '{"a":1} x',
])  # fmt: skip
def test_what_cannot_be_canonicalised_is_refused(text: str | bytes) -> None:
    """The caller keys the raw bytes instead; there is no other exception."""
    with pytest.raises(NotLossless):
        parse(text)


def test_the_depth_that_is_taken_is_exact() -> None:
    """Whether a body is taken must not depend on the stack of the moment."""
    assert canonical("[" * DEPTH + "]" * DEPTH) == b"[" * DEPTH + b"]" * DEPTH


@given(JSON, st.randoms(use_true_random=False))
def test_writing_is_independent_of_style_and_stable(value: object, chance: random.Random) -> None:
    """Any way of writing a value leads to the same bytes, and those lead to themselves."""

    def shuffled(node: object) -> object:
        if isinstance(node, dict):
            names = list(node)
            chance.shuffle(names)
            return {name: shuffled(node[name]) for name in names}
        return [shuffled(child) for child in node] if isinstance(node, list) else node

    plain = canonical(json.dumps(value))
    styled = canonical(
        json.dumps(shuffled(value), ensure_ascii=False, indent=2)
        .encode("utf-8", "surrogatepass")
        .decode("utf-8", "surrogatepass")
    )
    assert plain == styled == canonical(plain)
