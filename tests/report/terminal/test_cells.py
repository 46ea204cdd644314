"""Text in the cells of a terminal."""

from __future__ import annotations

from llmproxy.report.terminal.cells import cut, fill, width


def test_wide_characters_take_two_cells_and_accents_none() -> None:
    """As terminals show them."""
    assert (width("abc"), width("東京"), width("e\u0301")) == (3, 4, 1)


def test_a_cut_is_marked_and_fits() -> None:
    """A character that would stand half outside is left out."""
    assert (cut("abc", 3), cut("abcd", 3), cut("東京都", 4), cut("abc", 0)) == ("abc", "ab…", "東…", "")


def test_columns_are_filled_by_cells() -> None:
    """From the right where numbers stand."""
    assert (fill("東", 4), fill("7", 3, right=True)) == ("東  ", "  7")
