"""The line of one request, letter by letter and at several widths."""

from __future__ import annotations

from datetime import UTC

import pytest

from llmproxy.calls import Call
from llmproxy.protocol import Decision
from llmproxy.report.terminal.cells import width
from llmproxy.report.terminal.live_line import heads, line, steps
from tests.report.terminal.test_console import HIT, MISS

TALK = HIT._replace(asked="Do I need an umbrella in Oslo? " * 9, answered="It rains: take one. " * 9)


def test_a_hit_is_one_aligned_line() -> None:
    """Time, what happened, provider, model, operation, status, duration, tokens, row."""
    assert line(HIT, zone=UTC) == (
        "12:34:56  REPLAY   openai     gpt-4o-mini               chat.completions  200         3 ms        412>38  #7"
    )
    assert heads().split() == [
        *("time", "what", "provider", "model", "operation", "status", "took", "tokens"),
        *("recording,", "session", "prompt", "->", "answer"),
    ]


def test_a_miss_stands_out_and_stays_one_line() -> None:
    """The long text is what `llmproxy why` prints."""
    assert line(MISS, zone=UTC) == (
        "12:34:56  MISS     openai     gpt-4o-mini               chat.completions  404       0.0 ms"
        "                01234567  weather  nearest #7"
    )
    assert "\x1b[1;31mMISS" in line(MISS, colour=True, zone=UTC)


def test_what_came_over_the_wire_cannot_move_the_cursor() -> None:
    """Control characters are replaced or escaped, overlong names cut."""
    evil = Call(
        decision=Decision.PASS,
        method="GET",
        target="/\r\nfake",
        status=200,
        model="a\x1b[2J" + "x" * 300,
        note="\x07",
        asked="\x1b[2J\u202e",
        answered="\ud800",
    )
    shown = line(evil, zone=UTC)
    assert shown.isprintable()
    assert len(shown) < 300
    assert all(text.isprintable() for text in steps(evil))


@pytest.mark.parametrize("room", [80, 100, 120, 160, 200])
def test_prompt_and_answer_fill_the_width_and_no_more(room: int) -> None:
    """Columns stand under their heads; what tells lines apart is never cut for a text."""
    for outcome in (
        TALK,
        TALK._replace(asked="東京の天気は？" * 40),
        TALK._replace(answered=""),
        MISS._replace(asked="?"),
    ):
        shown = line(outcome, zone=UTC, room=room)
        assert width(shown) <= room
        assert ("#7" if outcome.interaction else "nearest #7") in shown
    head, shown = heads(room), line(TALK, zone=UTC, room=room)
    assert head.index("model") == shown.index("gpt-4o-mini")
    assert head.index("status") == shown.index("200")
    assert "Do I" in shown


def test_both_texts_get_room_and_a_short_one_leaves_its_share() -> None:
    """On a wide terminal both are there."""
    shown = line(TALK, zone=UTC, room=200)
    assert "umbrella" in shown
    assert "It rains" in shown
    assert line(TALK._replace(answered="No."), zone=UTC, room=200).endswith("-> No.")


def test_a_note_is_whole_whatever_the_width() -> None:
    """What must be read is not cut; the terminal breaks the line."""
    note = "NOT RECORDED: the disk is full, and what came since then is lost for good"
    assert note in line(TALK._replace(note=note), zone=UTC, room=80)


@pytest.mark.parametrize("room", [80, 100, 120, 200])
def test_a_long_name_of_a_session_is_cut_in_its_middle(room: int) -> None:
    """The line fits, and the end, which tells sessions apart, is there; a pipe gets the whole name."""
    session = "tests/agents/test_weather.py::test_what_to_wear[Paris-in-the-rain]"
    for outcome in (TALK, MISS._replace(party="judge")):
        long = outcome._replace(session=session)
        shown = line(long, zone=UTC, room=room)
        assert width(shown) <= room or (
            room == 80 and outcome is not TALK
        )  # who asked and what is nearest are never cut
        assert "rain]" in shown
        assert session in line(long, zone=UTC)
    assert "Do I" in line(TALK._replace(session=session), zone=UTC, room=200)
