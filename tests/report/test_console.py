"""The lines on the terminal, letter by letter."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from llmproxy.calls_and_totals import Call, Totals, UsageSums
from llmproxy.core.traffic.interaction import Key
from llmproxy.protocol import Decision, Mode
from llmproxy.report.proxy_console import (
    ProxyConsole,
    ProxyStartInfo,
    clip_middle,
    clip_to_terminal_cells,
    count_terminal_cells,
    describe_how_call_was_handled,
    format_console_call_line,
    format_console_call_table_header,
    format_proxy_call_totals,
    get_width_if_terminal,
    pad_to_terminal_cells,
    wants_colour,
    wrap_to_terminal_cells,
)

ASKED = partial(
    Call, method="POST", target="/v1/chat/completions", provider="openai", operation="chat.completions",
    model="gpt-4o-mini", key=Key("v1:0123456789abcdef"), at=45296.0,
)  # fmt: skip
HIT = ASKED(decision=Decision.REPLAY, status=200, ms=3.2, input=412, output=38, interaction=7)
MISS = ASKED(decision=Decision.REFUSE, status=404, session="weather", nearest=7, miss=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


def test_a_pipe_gets_no_colour_and_a_terminal_may_refuse(tmp_path: Path) -> None:
    """NO_COLOR and TERM=dumb are obeyed; a file and a closed stream have no width."""
    assert wants_colour(Terminal(), {})
    assert not wants_colour(io.StringIO(), {})
    assert not wants_colour(Terminal(), {"NO_COLOR": "1"})
    assert not wants_colour(Terminal(), {"TERM": "dumb"})
    with (tmp_path / "out").open("w") as stream:
        assert get_width_if_terminal(stream) is None
    assert get_width_if_terminal(stream) is None


def test_quiet_leaves_misses_and_the_summary() -> None:
    """What somebody must look at is never left out."""
    stream = io.StringIO()
    console = ProxyConsole(stream, quiet=True, zone=UTC)
    console.on_start(ProxyStartInfo(url="http://127.0.0.1:8080", mode=Mode.REPLAY, store="x.db", cassette="default"))
    console.on_call(HIT)
    console.on_call(MISS)
    console.on_end(Totals(hits=1, misses=1), None)
    lines = stream.getvalue().splitlines()
    assert lines[0].split("  ")[1].strip() == "MISS"
    assert lines[1] == "1 hit, 1 miss, 0 recorded"
    assert "llmproxy why" in lines[2]


def test_heads_stand_above_the_lines_and_again_where_they_scroll_away() -> None:
    for room, times in ((None, 1), (80, 3)):
        stream = io.StringIO()
        console = ProxyConsole(stream, zone=UTC, room=partial(int, room) if room else lambda: None)
        for _ in range(81):
            console.on_call(HIT)
        heads = [text for text in stream.getvalue().splitlines() if text.startswith("time")]
        assert len(heads) == times
        assert stream.getvalue().startswith("time      what")


def test_who_asks_for_all_gets_the_steps() -> None:
    """Below each format_console_call_line, how it came to its end."""
    stream = io.StringIO()
    ProxyConsole(stream, verbose=True, zone=UTC).on_call(MISS)
    steps = [" ".join(text.split()[:2]) for text in stream.getvalue().splitlines()[2:]]
    assert steps == ["came POST", "placed call", "key v1:0123456789abcdef", "found nothing;", "answer REFUSE"]


def test_lines_of_one_turn_are_written_together_and_none_is_lost() -> None:
    """They wait for the end of the turn; whatever else is said comes after them, and an end writes them."""
    stream, jobs = io.StringIO(), list[Callable[[], None]]()
    console = ProxyConsole(stream, zone=UTC, later=lambda _, job: jobs.append(job))
    console.on_call(HIT)
    console.on_call(HIT)
    assert (stream.getvalue(), len(jobs)) == ("", 1)
    jobs.pop()()
    assert stream.getvalue().count("REPLAY") == 2
    console.on_call(HIT)
    console.note("after it")
    assert stream.getvalue().splitlines()[-1] == "llmproxy: after it"
    assert stream.getvalue().count("REPLAY") == 3
    console.on_call(HIT)
    console.flush()
    assert stream.getvalue().count("REPLAY") == 4


def test_a_line_says_its_own_time_and_duration() -> None:
    """Requests that are alike but for these share the rest of their line; nothing of one is said of another."""
    for room in (None, 100, 200):
        line = partial(format_console_call_line, zone=UTC, room=room)
        first, second = (line(HIT._replace(at=at, ms=ms)) for at, ms in ((0, 3.2), (61, 750_000)))
        assert (first[:16], second[:16]) == ("00:00:00  REPLAY", "00:01:01  REPLAY")
        assert "    3 ms  " in first
        assert ("12 min 30 s  " if room is None else "  12 min…  ") in second
        assert line(HIT._replace(model="other")).split()[3 if room != 100 else 2] == "other"


def test_a_reader_who_leaves_does_not_hurt_the_proxy() -> None:
    """A closed pipe silences the console; a model's name that the terminal cannot show is no error."""
    console = ProxyConsole(Closed())
    console.on_call(HIT)
    console.note("still here")
    raw = io.BytesIO()
    console = ProxyConsole(io.TextIOWrapper(raw, encoding="ascii"))
    console.note("caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    assert b"caf\\xe9" in raw.getvalue()


def test_the_first_lines_say_where_and_what_to_type() -> None:
    """Address, mode, store, cassette, upstreams with their source, variables."""
    stream = io.StringIO()
    upstreams = (("openai", "https://gateway.example/v1", "environment OPENAI_BASE_URL"),)
    info = ProxyStartInfo(
        url="http://127.0.0.1:8080", mode=Mode.RECORD, store="x.db", cassette="default", upstreams=upstreams
    )
    ProxyConsole(stream).on_start(info)
    assert stream.getvalue() == (
        "llmproxy: http://127.0.0.1:8080  mode record  store x.db  cassette default\n"
        "  upstream openai = https://gateway.example/v1 (environment OPENAI_BASE_URL)\n"
        "  export OPENAI_BASE_URL=http://127.0.0.1:8080/v1 ANTHROPIC_BASE_URL=http://127.0.0.1:8080\n"
    )


@pytest.mark.parametrize(("totals", "unused", "text"), [
    (Totals(hits=12, misses=1, saved=UsageSums(12, 3000, 412, Decimal("0.04211"), 2)), 2,
     "12 hits, 1 miss, 0 recorded, 2 unused; 3,412 tokens, $0.0421 not spent (2 calls whose price or tokens are not known)"),
    (Totals(recorded=3, spent=UsageSums(3, 9, 1, Decimal("0.02"), 1)), None,
     "0 hits, 0 misses, 3 recorded; 10 tokens, $0.0200 spent (1 call whose price or tokens are not known)"),
    (Totals(hits=1, saved=UsageSums(1, 1, 0, Decimal("0.0000012"))), None,
     "1 hit, 0 misses, 0 recorded; 1 token, $0.0000012 not spent"),
    (Totals(hits=1, saved=UsageSums(1, 5, 0, None, 1)), None,
     "1 hit, 0 misses, 0 recorded; 5 tokens not spent (1 call whose price or tokens are not known)"),
    (Totals(hits=1, saved=UsageSums(1, unpriced=1)), None, "1 hit, 0 misses, 0 recorded; 1 call whose price or tokens are not known"),
    (Totals(passed=2, refused=1), 0, "0 hits, 0 misses, 0 recorded, 2 passed, 1 refused"),
])  # fmt: skip
def test_the_summary_is_one_sentence(totals: Totals, unused: int | None, text: str) -> None:
    assert format_proxy_call_totals(totals, unused)[0] == text


@pytest.mark.parametrize(("totals", "said"), [
    (Totals(failed=1), "1 answer could not be recorded: this recording is incomplete."),
    (Totals(served_failures=1), "1 answer had failed or been cut when recorded: --mode auto asks again"),
])  # fmt: skip
def test_a_loss_is_said_loudly(totals: Totals, said: str) -> None:
    """A recording that lacks an answer must not look complete."""
    assert format_proxy_call_totals(totals, None)[1] == said


TALK = HIT._replace(asked="Do I need an umbrella in Oslo? " * 9, answered="It rains: take one. " * 9)


def test_a_hit_is_one_aligned_line() -> None:
    """Time, what happened, provider, model, operation, status, duration, tokens, row."""
    assert format_console_call_line(HIT, zone=UTC) == (
        "12:34:56  REPLAY   openai     gpt-4o-mini               chat.completions  200         3 ms        412>38  #7"
    )
    assert format_console_call_table_header().split() == [
        *("time", "what", "provider", "model", "operation", "status", "took", "tokens"),
        *("recording,", "session", "prompt", "->", "answer"),
    ]


def test_a_miss_stands_out_and_stays_one_line() -> None:
    """The long text is what `llmproxy why` prints."""
    assert format_console_call_line(MISS, zone=UTC) == (
        "12:34:56  MISS     openai     gpt-4o-mini               chat.completions  404       0.0 ms"
        "                01234567  weather  nearest #7"
    )
    assert "\x1b[1;31mMISS" in format_console_call_line(MISS, colour=True, zone=UTC)


def test_what_came_over_the_wire_cannot_move_the_cursor() -> None:
    """Control characters are replaced or escaped, overlong names cut."""
    evil = Call(decision=Decision.PASS, method="GET", target="/\r\nfake", status=200, model="a\x1b[2J" + "x" * 300)
    evil = evil._replace(note="\x07", asked="\x1b[2J\u202e", answered="\ud800")
    shown = format_console_call_line(evil, zone=UTC)
    assert shown.isprintable()
    assert len(shown) < 300
    assert all(text.isprintable() for text in describe_how_call_was_handled(evil))


@pytest.mark.parametrize("room", [80, 100, 120, 160, 200])
def test_prompt_and_answer_fill_the_width_and_no_more(room: int) -> None:
    """Columns stand under their heads; what tells lines apart is never cut for a text."""
    for outcome in (
        TALK,
        TALK._replace(asked="東京の天気は？" * 40),
        TALK._replace(answered=""),
        MISS._replace(asked="?"),
    ):
        shown = format_console_call_line(outcome, zone=UTC, room=room)
        assert count_terminal_cells(shown) <= room
        assert ("#7" if outcome.interaction else "nearest #7") in shown
    head, shown = format_console_call_table_header(room), format_console_call_line(TALK, zone=UTC, room=room)
    assert head.index("model") == shown.index("gpt-4o-mini")
    assert head.index("status") == shown.index("200")
    assert "Do I" in shown


def test_both_texts_get_room_and_a_short_one_leaves_its_share() -> None:
    shown = format_console_call_line(TALK, zone=UTC, room=200)
    assert "umbrella" in shown
    assert "It rains" in shown
    assert format_console_call_line(TALK._replace(answered="No."), zone=UTC, room=200).endswith("-> No.")


def test_a_note_is_whole_whatever_the_width() -> None:
    """What must be read is not cut; the terminal breaks the line."""
    note = "NOT RECORDED: the disk is full, and what came since then is lost for good"
    assert note in format_console_call_line(TALK._replace(note=note), zone=UTC, room=80)


@pytest.mark.parametrize("room", [80, 100, 120, 200])
def test_a_long_name_of_a_session_is_cut_in_its_middle(room: int) -> None:
    """The line fits, and the end, which tells sessions apart, is there; a pipe gets the whole name."""
    session = "tests/agents/test_weather.py::test_what_to_wear[Paris-in-the-rain]"
    for outcome in (TALK, MISS._replace(party="judge")):
        long = outcome._replace(session=session)
        shown = format_console_call_line(long, zone=UTC, room=room)
        assert count_terminal_cells(shown) <= room or (
            room == 80 and outcome is not TALK
        )  # who asked and what is nearest are never cut
        assert "rain]" in shown
        assert session in format_console_call_line(long, zone=UTC)
    assert "Do I" in format_console_call_line(TALK._replace(session=session), zone=UTC, room=200)


def test_wide_characters_take_two_cells_and_accents_none() -> None:
    assert (count_terminal_cells("abc"), count_terminal_cells("東京"), count_terminal_cells("e\u0301")) == (3, 4, 1)


def test_a_cut_is_marked_and_fits() -> None:
    """A character that would stand half outside is left out."""
    cuts = {("abc", 3): "abc", ("abcd", 3): "ab…", ("東京都", 4): "東…", ("abc", 0): ""}
    assert {each: clip_to_terminal_cells(*each) for each in cuts} == cuts


def test_columns_are_filled_by_cells() -> None:
    assert (pad_to_terminal_cells("東", 4), pad_to_terminal_cells("7", 3, right=True)) == ("東  ", "  7")


def test_a_name_cut_in_its_middle_keeps_both_ends() -> None:
    """Long names begin alike and part at their ends: most of what is kept is the end."""
    shown = clip_middle("tests/test_weather.py::test_paris", 17)
    assert (shown, count_terminal_cells(shown)) == ("tests…:test_paris", 17)
    assert clip_middle("short", 16) == "short"
    assert count_terminal_cells(clip_middle("東京都" * 9, 16)) <= 16


def test_a_folded_text_is_whole() -> None:
    """Broken behind a border where one is near, in the middle of a word otherwise, never within a character."""
    assert wrap_to_terminal_cells("tests/agents/test_weather.py::test_paris", 16) == [
        "tests/agents/", "test_weather.py:", ":test_paris",
    ]  # fmt: skip
    assert wrap_to_terminal_cells("x" * 20, 8) == ["xxxxxxxx", "xxxxxxxx", "xxxx"]
    for text in ("東京都" * 9, "e\u0301" * 30, "a b " * 9):
        lines = wrap_to_terminal_cells(text, 7)
        assert "".join(lines) == text
        assert max(map(count_terminal_cells, lines)) <= 7
    assert wrap_to_terminal_cells("", 8) == [""]
