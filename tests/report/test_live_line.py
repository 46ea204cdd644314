"""Text in the cells of a terminal."""

from __future__ import annotations

from datetime import UTC

import pytest

from llmproxy.protocol import Decision
from llmproxy.proxy_calls import Call
from llmproxy.report.proxy_console import (
    clip_cells,
    clip_middle,
    count_cells,
    describe_request_handling,
    format_column_headings,
    format_request_line,
    pad_cells,
    wrap_to_cells,
)
from tests.report.test_console import HIT, MISS

TALK = HIT._replace(asked="Do I need an umbrella in Oslo? " * 9, answered="It rains: take one. " * 9)


def test_a_hit_is_one_aligned_line() -> None:
    """Time, what happened, provider, model, operation, status, duration, tokens, row."""
    assert format_request_line(HIT, zone=UTC) == (
        "12:34:56  REPLAY   openai     gpt-4o-mini               chat.completions  200         3 ms        412>38  #7"
    )
    assert format_column_headings().split() == [
        *("time", "what", "provider", "model", "operation", "status", "took", "tokens"),
        *("recording,", "session", "prompt", "->", "answer"),
    ]


def test_a_miss_stands_out_and_stays_one_line() -> None:
    """The long text is what `llmproxy why` prints."""
    assert format_request_line(MISS, zone=UTC) == (
        "12:34:56  MISS     openai     gpt-4o-mini               chat.completions  404       0.0 ms"
        "                01234567  weather  nearest #7"
    )
    assert "\x1b[1;31mMISS" in format_request_line(MISS, colour=True, zone=UTC)


def test_what_came_over_the_wire_cannot_move_the_cursor() -> None:
    """Control characters are replaced or escaped, overlong names cut."""
    evil = Call(decision=Decision.PASS, method="GET", target="/\r\nfake", status=200, model="a\x1b[2J" + "x" * 300)
    evil = evil._replace(note="\x07", asked="\x1b[2J\u202e", answered="\ud800")
    shown = format_request_line(evil, zone=UTC)
    assert shown.isprintable()
    assert len(shown) < 300
    assert all(text.isprintable() for text in describe_request_handling(evil))


@pytest.mark.parametrize("room", [80, 100, 120, 160, 200])
def test_prompt_and_answer_fill_the_width_and_no_more(room: int) -> None:
    """Columns stand under their heads; what tells lines apart is never cut for a text."""
    for outcome in (
        TALK,
        TALK._replace(asked="東京の天気は？" * 40),
        TALK._replace(answered=""),
        MISS._replace(asked="?"),
    ):
        shown = format_request_line(outcome, zone=UTC, room=room)
        assert count_cells(shown) <= room
        assert ("#7" if outcome.interaction else "nearest #7") in shown
    head, shown = format_column_headings(room), format_request_line(TALK, zone=UTC, room=room)
    assert head.index("model") == shown.index("gpt-4o-mini")
    assert head.index("status") == shown.index("200")
    assert "Do I" in shown


def test_both_texts_get_room_and_a_short_one_leaves_its_share() -> None:
    shown = format_request_line(TALK, zone=UTC, room=200)
    assert "umbrella" in shown
    assert "It rains" in shown
    assert format_request_line(TALK._replace(answered="No."), zone=UTC, room=200).endswith("-> No.")


def test_a_note_is_whole_whatever_the_width() -> None:
    """What must be read is not cut; the terminal breaks the line."""
    note = "NOT RECORDED: the disk is full, and what came since then is lost for good"
    assert note in format_request_line(TALK._replace(note=note), zone=UTC, room=80)


@pytest.mark.parametrize("room", [80, 100, 120, 200])
def test_a_long_name_of_a_session_is_cut_in_its_middle(room: int) -> None:
    """The line fits, and the end, which tells sessions apart, is there; a pipe gets the whole name."""
    session = "tests/agents/test_weather.py::test_what_to_wear[Paris-in-the-rain]"
    for outcome in (TALK, MISS._replace(party="judge")):
        long = outcome._replace(session=session)
        shown = format_request_line(long, zone=UTC, room=room)
        assert count_cells(shown) <= room or (
            room == 80 and outcome is not TALK
        )  # who asked and what is nearest are never cut
        assert "rain]" in shown
        assert session in format_request_line(long, zone=UTC)
    assert "Do I" in format_request_line(TALK._replace(session=session), zone=UTC, room=200)


def test_wide_characters_take_two_cells_and_accents_none() -> None:
    assert (count_cells("abc"), count_cells("東京"), count_cells("e\u0301")) == (3, 4, 1)


def test_a_cut_is_marked_and_fits() -> None:
    """A character that would stand half outside is left out."""
    assert (clip_cells("abc", 3), clip_cells("abcd", 3), clip_cells("東京都", 4), clip_cells("abc", 0)) == (
        "abc",
        "ab…",
        "東…",
        "",
    )


def test_columns_are_filled_by_cells() -> None:
    assert (pad_cells("東", 4), pad_cells("7", 3, right=True)) == ("東  ", "  7")


def test_a_name_cut_in_its_middle_keeps_both_ends() -> None:
    """Long names begin alike and part at their ends: most of what is kept is the end."""
    shown = clip_middle("tests/test_weather.py::test_paris", 17)
    assert (shown, count_cells(shown)) == ("tests…:test_paris", 17)
    assert clip_middle("short", 16) == "short"
    assert count_cells(clip_middle("東京都" * 9, 16)) <= 16


def test_a_folded_text_is_whole() -> None:
    """Broken behind a border where one is near, in the middle of a word otherwise, never within a character."""
    assert wrap_to_cells("tests/agents/test_weather.py::test_paris", 16) == [
        "tests/agents/", "test_weather.py:", ":test_paris",
    ]  # fmt: skip
    assert wrap_to_cells("x" * 20, 8) == ["xxxxxxxx", "xxxxxxxx", "xxxx"]
    for text in ("東京都" * 9, "e\u0301" * 30, "a b " * 9):
        lines = wrap_to_cells(text, 7)
        assert "".join(lines) == text
        assert max(map(count_cells, lines)) <= 7
    assert wrap_to_cells("", 8) == [""]
