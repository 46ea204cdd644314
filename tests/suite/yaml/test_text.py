"""Mistakes of syntax are told in plain words."""

from __future__ import annotations

import pytest

from llmproxy.suite.yaml.places import Problems
from llmproxy.suite.yaml.reader import read


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a:\n\tb: 1\n", "2:1", "indented with a tab, and YAML allows only spaces (replace the tab"),
        ("a:\n  b: 1\n \tc: 2\n", "3:2", "indented with a tab"),
        ("a: b: c", "1:5", "needs quotes around it"),
        ("a: 'x", "1:6", "a quote is opened and never closed"),
        ("a: {b: 1\nc: 2\n", "2:2", "which begins in line 1"),
        ("- a\nb: c\n", "2:1", "check the indentation"),
        ("a: @x", "1:4", "begins with @"),
        ("a: \x00", "1:4", "save the file as UTF-8"),
        ("a: 1\nb\n", "3:1", "a colon and a space"),
    ],
)
def test_syntax_is_explained(text: str, place: str, words: str) -> None:
    """Line and column, and what one usually has to do."""
    problems = Problems()
    read(text, "f.yaml", problems)
    (problem,) = problems
    assert str(problem).startswith(f"f.yaml:{place}: ")
    assert words in str(problem)


def test_utf_16_and_byte_order_marks_are_read() -> None:
    """Editors on Windows write them."""
    for text in ("a: ö".encode("utf-16"), "a: ö".encode("utf-8-sig"), "\ufeffa: ö"):
        problems = Problems()
        assert read(text, "f.yaml", problems)[0][0] == {"a": "ö"}
        assert not list(problems)


def test_bytes_that_are_no_text_are_placed() -> None:
    """The line that holds the first odd byte."""
    problems = Problems()
    assert read(b"a: 1\nb: \xe9\n", "f.yaml", problems) == []
    assert "f.yaml:2:4: the file is not UTF-8 text" in str(*problems)
