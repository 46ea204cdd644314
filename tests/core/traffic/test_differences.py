"""Where two JSON trees differ."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.traffic.differences import SHOWN, Difference, count, differences, short
from llmproxy.errors import printable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def message(text: str, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": text}


def paths(old: object, new: object) -> list[str]:
    return [difference.path for difference in differences(old, new)]


@given(JSON)
def test_equal_trees_have_none(tree: object) -> None:
    """A tree differs in nothing from its copy."""
    assert differences(tree, copy.deepcopy(tree)) == []


@given(JSON, JSON)
def test_unequal_trees_have_some(old: object, new: object) -> None:
    """Whatever is unequal is reported, and the count agrees with the list."""
    found = differences(old, new, 100)
    assert bool(found) or old == new
    assert count(old, new, 100) == len(found)


def test_changed_member_has_its_path() -> None:
    """A changed value is named by its JSON path, old and new."""
    old = {"model": "a", "messages": [message("x"), message("y")]}
    new = {"model": "a", "messages": [message("x"), message("z")]}
    assert differences(old, new) == [Difference("$.messages[1].content", '"y"', '"z"')]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_inserted_message_is_one_difference(at: int) -> None:
    """A message put in anywhere does not make the later ones differ; dropping it is one difference too."""
    old = [message("a"), message("b", "assistant"), message("c")]
    new = [*old[:at], message("new"), *old[at:]]
    assert paths(old, new) == [f"$[{at}]"]
    assert differences(old, new)[0].old == ""
    assert paths(new, old) == [f"$[{at}]"]
    assert differences(new, old)[0].new == ""


def test_insertion_and_change_are_told_apart() -> None:
    """Beside an inserted message a changed one is still compared with its own older form."""
    old = [message("you are helpful today", "system"), message("hello")]
    new = [message("you are helpful tonight", "system"), message("wait", "assistant"), message("hello")]
    assert paths(old, new) == ["$[0].content", "$[1]"]


def test_true_is_not_one() -> None:
    """JSON's true and 1 are different requests, though Python calls them equal."""
    assert paths({"a": True, "b": [1]}, {"a": 1, "b": [True]}) == ["$.a", "$.b[0]"]


def test_long_texts_are_shown_where_they_differ() -> None:
    """Of a long text the surroundings of its first differing place are shown, with some context before."""
    text = "word " * 5000
    found = differences({"t": text + "the cat sat" + text}, {"t": text + "the dog sat" + text})[0]
    assert found.old.startswith('"…')
    assert "the cat sat" in found.old
    assert "the dog sat" in found.new
    assert max(len(found.old), len(found.new)) < SHOWN + 10


def test_values_are_shortened_and_escaped() -> None:
    """A terminal or log can show every value: no control characters, no long lines."""
    found = differences({"a": 1}, {"a": "\x1b[31mred\nline\u202e" + "x" * 500})[0]
    assert "\\u001b[31mred\\nline\\u202e" in found.new
    assert found.new.isprintable()
    assert len(found.new) < SHOWN + 10


def test_odd_names_are_quoted_in_paths() -> None:
    """A member whose name is not a word is quoted, so that the path can be pasted into `ignore`."""
    assert paths({"a b": 1}, {"a b": 2}) == ['$["a b"]']


def test_limit() -> None:
    """No more differences than asked for are made."""
    assert len(differences({str(n): n for n in range(50)}, {}, 5)) == 5


def test_deep_and_wide_trees_are_bounded() -> None:
    """Very deep or very long trees are compared coarsely, without an error."""
    deep_old: object = 1
    deep_new: object = 2
    for _ in range(5000):
        deep_old, deep_new = [deep_old], [deep_new]
    assert len(differences(deep_old, deep_new)) == 1
    assert differences([*range(20_000)], [*range(1, 20_001)], 3)


def test_short_and_printable() -> None:
    """Shortening keeps the start and marks the cut."""
    assert short("abcdef", 4) == "abc…"
    assert printable("naïve 日本") == "naïve 日本"
