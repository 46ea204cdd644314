"""What is printed of recorded text."""

from __future__ import annotations

import pytest

from llmproxy.cli.parts.printing import (
    escape_all_but_line_breaks,
    format_body_for_reading,
    format_size,
    format_table_lines,
    to_safe_line,
    wrap_text,
)
from llmproxy.report.proxy_console import count_terminal_cells


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x07b", "\u202ereversed", "\udc80", "\x9b2J", "a\rb"])
def test_nothing_recorded_drives_the_terminal(text: str) -> None:
    """Escape sequences, direction marks and lone surrogates come out as escapes."""
    assert to_safe_line(text).isprintable()
    assert escape_all_but_line_breaks(f"{text}\n{text}").replace("\n", "").isprintable()
    assert format_body_for_reading(text.encode("utf-8", "surrogatepass")).replace("\n", "").isprintable()


def test_a_line_stays_one_line() -> None:
    """Line breaks and runs of space become one space; paragraphs keep their breaks."""
    assert to_safe_line(" a\n\t b ") == "a b"
    assert escape_all_but_line_breaks("a\r\n\tb") == "a\n    b"


def test_bodies_read_as_what_they_are() -> None:
    """JSON is indented, text stays text, binary is told by size."""
    assert format_body_for_reading(b'{"a":1}') == '{\n  "a": 1\n}'
    assert format_body_for_reading(b"data: x") == "data: x"
    assert format_body_for_reading(b"\xff" * 40) == f"(40 bytes of binary: {bytes([255]) * 32!r}...)"
    assert format_body_for_reading(b"[" * 100_000).startswith("[[[")


def test_a_table_in_a_pipe_is_whole() -> None:
    """Columns are aligned, what is empty is a dash, nothing is cut off."""
    lines = format_table_lines(("id", "text"), [("1", "x" * 300), ("12", "")], None)
    assert list(lines) == ["id  text", f"1   {'x' * 300}", "12  -"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (-2048, "-2.0 KB"), (5e6, "5.0 MB"), (7e9, "7.0 GB")]
)
def test_sizes_are_said_as_people_do(count: int, text: str) -> None:
    assert format_size(count) == text


HEAD = ("id", "cassette", "party", "model", "ms", "text")
ROWS = [
    ("1", "tests/test_a.py::test_first", "agent", "gpt-4o-mini", "120", "How are you? " * 20),
    ("2", "tests/test_a.py::test_second", "agent", "gpt-4o", "20", "天気は？" * 30),
]


@pytest.mark.parametrize("room", [40, 60, 80, 100, 120, 200])
def test_a_table_fits_its_terminal_and_drops_nothing_that_tells_rows_apart(room: int) -> None:
    """First goes what all rows share, then measures; then the text gets a line of its own, and long names go on below themselves."""
    lines = list(format_table_lines(HEAD, ROWS, room, alike=("party", "model"), measures=("ms",)))
    text = "\n".join(lines)
    assert all(cells in text for row in ROWS for cells in (row[1], row[3])) or room == 40
    assert "How are you" in text
    assert max(map(count_terminal_cells, lines)) <= room
    assert ("ms" in lines[0], "party" in lines[0]) == (room >= 76, room >= 83)


def test_a_long_name_goes_on_below_itself() -> None:
    name = "tests/agents/test_weather.py::test_what_to_wear[Paris-in-the-rain-and-in-the-snow]"
    lines = list(format_table_lines(("cassette", "live", "state"), [(name, "12", "complete")], 60))
    assert max(map(count_terminal_cells, lines)) <= 60
    first, live, state = lines[1].split()
    assert (first + "".join(row.strip() for row in lines[2:]), live, state) == (name, "12", "complete")


def test_columns_stay_where_there_is_room_for_them() -> None:
    """A short table is whole, whatever may be left out."""
    found = list(format_table_lines(("id", "ms", "text"), [("1", "5", "x")], 80, measures=("ms",)))
    assert found == ["id  ms  text", "1   5   x"]


def test_a_text_is_broken_between_words() -> None:
    """By cells, a word that is longer in its middle; in a pipe not at all."""
    text = "It rains in Bergen, so take an umbrella with you.\n\n" + "x" * 50 + "\n" + "東京" * 20
    rows = list(wrap_text(text, 40, 10))
    assert rows[:3] == ["It rains in Bergen, so take", "an umbrella with you.", ""]
    assert rows[3:5] == ["x" * 30, "x" * 20]
    assert max(map(count_terminal_cells, rows)) == 30
    assert list(wrap_text(text, None)) == text.split("\n")


def test_a_time_that_has_no_room_breaks_between_day_and_clock() -> None:
    """Where a long name takes a second line anyway; beside it a model stays whole."""
    name = "refund-agent/a-scenario-with-a-long-name"
    rows = [
        ("1", "2027-01-15 08:00:00", name, "claude-sonnet-4-5", "messages", "hi"),
        ("2", *["2027-01-15 08:00:01", "x", "gpt", "chat", "ho"]),
    ]
    lines = list(
        format_table_lines(
            ("id", "started", "cassette", "model", "operation", "text"), rows, 70, breaks={"started": 11}
        )
    )
    assert lines[1].startswith("1   2027-01-15   ")
    assert lines[2].startswith("    08:00:00     ")
    assert "claude-sonnet-4-5" in lines[1]
    wide = list(
        format_table_lines(("id", "started", "text"), [("1", "2027-01-15 08:00:00", "hi")], 60, breaks={"started": 11})
    )
    assert wide[1] == "1   2027-01-15 08:00:00  hi"
