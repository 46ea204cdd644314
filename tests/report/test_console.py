"""The lines on the terminal, letter by letter."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from llmproxy.core.traffic.interaction import Key
from llmproxy.protocol import Decision, Mode
from llmproxy.proxy_calls import Call, Totals, Use
from llmproxy.report.proxy_console import (
    Console,
    ProxyStarted,
    format_request_line,
    format_totals,
    get_width_if_terminal,
    wants_colour,
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
    console = Console(stream, quiet=True, zone=UTC)
    console.on_start(ProxyStarted(url="http://127.0.0.1:8080", mode=Mode.REPLAY, store="x.db", cassette="default"))
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
        console = Console(stream, zone=UTC, room=partial(int, room) if room else lambda: None)
        for _ in range(81):
            console.on_call(HIT)
        heads = [text for text in stream.getvalue().splitlines() if text.startswith("time")]
        assert len(heads) == times
        assert stream.getvalue().startswith("time      what")


def test_who_asks_for_all_gets_the_steps() -> None:
    """Below each format_request_line, how it came to its end."""
    stream = io.StringIO()
    Console(stream, verbose=True, zone=UTC).on_call(MISS)
    steps = [" ".join(text.split()[:2]) for text in stream.getvalue().splitlines()[2:]]
    assert steps == ["came POST", "placed call", "key v1:0123456789abcdef", "found nothing;", "answer REFUSE"]


def test_lines_of_one_turn_are_written_together_and_none_is_lost() -> None:
    """They wait for the end of the turn; whatever else is said comes after them, and an end writes them."""
    stream, jobs = io.StringIO(), list[Callable[[], None]]()
    console = Console(stream, zone=UTC, later=lambda _, job: jobs.append(job))
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
    """Requests that are alike but for these share the rest of their format_request_line; nothing of one is said of another."""
    for room in (None, 100, 200):
        first, second = (
            format_request_line(HIT._replace(at=at, ms=ms), zone=UTC, room=room) for at, ms in ((0, 3.2), (61, 750_000))
        )
        assert (first[:16], second[:16]) == ("00:00:00  REPLAY", "00:01:01  REPLAY")
        assert "    3 ms  " in first
        assert ("12 min 30 s  " if room is None else "  12 min…  ") in second
        found = format_request_line(HIT._replace(model="other"), zone=UTC, room=room).split()[3 if room != 100 else 2]
        assert found == "other"


def test_a_reader_who_leaves_does_not_hurt_the_proxy() -> None:
    """A closed pipe silences the console; a model's name that the terminal cannot show is no error."""
    console = Console(Closed())
    console.on_call(HIT)
    console.note("still here")
    raw = io.BytesIO()
    console = Console(io.TextIOWrapper(raw, encoding="ascii"))
    console.note("caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    assert b"caf\\xe9" in raw.getvalue()


def test_the_first_lines_say_where_and_what_to_type() -> None:
    """Address, mode, store, cassette, upstreams with their source, variables."""
    stream = io.StringIO()
    upstreams = (("openai", "https://gateway.example/v1", "environment OPENAI_BASE_URL"),)
    info = ProxyStarted(
        url="http://127.0.0.1:8080", mode=Mode.RECORD, store="x.db", cassette="default", upstreams=upstreams
    )
    Console(stream).on_start(info)
    assert stream.getvalue() == (
        "llmproxy: http://127.0.0.1:8080  mode record  store x.db  cassette default\n"
        "  upstream openai = https://gateway.example/v1 (environment OPENAI_BASE_URL)\n"
        "  export OPENAI_BASE_URL=http://127.0.0.1:8080/v1 ANTHROPIC_BASE_URL=http://127.0.0.1:8080\n"
    )


@pytest.mark.parametrize(("totals", "unused", "text"), [
    (Totals(hits=12, misses=1, saved=Use(12, 3000, 412, Decimal("0.04211"), 2)), 2,
     "12 hits, 1 miss, 0 recorded, 2 unused; 3,412 tokens, $0.0421 not spent (2 calls whose price or tokens are not known)"),
    (Totals(recorded=3, spent=Use(3, 9, 1, Decimal("0.02"), 1)), None,
     "0 hits, 0 misses, 3 recorded; 10 tokens, $0.0200 spent (1 call whose price or tokens are not known)"),
    (Totals(hits=1, saved=Use(1, 1, 0, Decimal("0.0000012"))), None,
     "1 hit, 0 misses, 0 recorded; 1 token, $0.0000012 not spent"),
    (Totals(hits=1, saved=Use(1, 5, 0, None, 1)), None,
     "1 hit, 0 misses, 0 recorded; 5 tokens not spent (1 call whose price or tokens are not known)"),
    (Totals(hits=1, saved=Use(1, unpriced=1)), None, "1 hit, 0 misses, 0 recorded; 1 call whose price or tokens are not known"),
    (Totals(passed=2, refused=1), 0, "0 hits, 0 misses, 0 recorded, 2 passed, 1 refused"),
])  # fmt: skip
def test_the_summary_is_one_sentence(totals: Totals, unused: int | None, text: str) -> None:
    assert format_totals(totals, unused)[0] == text


@pytest.mark.parametrize(("totals", "said"), [
    (Totals(failed=1), "1 answer could not be recorded: this recording is incomplete."),
    (Totals(served_failures=1), "1 answer had failed or been cut when recorded: --mode auto asks again"),
])  # fmt: skip
def test_a_loss_is_said_loudly(totals: Totals, said: str) -> None:
    """A recording that lacks an answer must not look complete."""
    assert format_totals(totals, None)[1] == said
