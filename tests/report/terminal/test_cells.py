"""Text in the cells of a terminal."""

from __future__ import annotations

from llmproxy.report.terminal.cells import cut, cut_middle, fill, fold_text, width


def test_wide_characters_take_two_cells_and_accents_none() -> None:
    """As terminals show them."""
    assert (width("abc"), width("東京"), width("e\u0301")) == (3, 4, 1)


def test_a_cut_is_marked_and_fits() -> None:
    """A character that would stand half outside is left out."""
    assert (cut("abc", 3), cut("abcd", 3), cut("東京都", 4), cut("abc", 0)) == ("abc", "ab…", "東…", "")


def test_columns_are_filled_by_cells() -> None:
    """From the right where numbers stand."""
    assert (fill("東", 4), fill("7", 3, right=True)) == ("東  ", "  7")


def test_a_name_cut_in_its_middle_keeps_both_ends() -> None:
    """Long names begin alike and part at their ends: most of what is kept is the end."""
    shown = cut_middle("tests/test_weather.py::test_paris", 17)
    assert (shown, width(shown)) == ("tests…:test_paris", 17)
    assert cut_middle("short", 16) == "short"
    assert width(cut_middle("東京都" * 9, 16)) <= 16


def test_a_folded_text_is_whole() -> None:
    """Broken behind a border where one is near, in the middle of a word otherwise, never within a character."""
    assert fold_text("tests/agents/test_weather.py::test_paris", 16) == [
        "tests/agents/",
        "test_weather.py:",
        ":test_paris",
    ]
    assert fold_text("x" * 20, 8) == ["xxxxxxxx", "xxxxxxxx", "xxxx"]
    for text in ("東京都" * 9, "e\u0301" * 30, "a b " * 9):
        lines = fold_text(text, 7)
        assert "".join(lines) == text
        assert max(map(width, lines)) <= 7
    assert fold_text("", 8) == [""]
