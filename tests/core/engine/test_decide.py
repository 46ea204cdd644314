"""Hit or miss: every mode against every state of the tape, as one table."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from llmproxy.core.engine.decide import Situation, decide, describe_failure, exhausted_of, is_perfect, playable
from llmproxy.core.sessions.interceptor import Decided, MissReason
from llmproxy.core.sessions.session import Session, SessionSettings
from llmproxy.core.traffic.interaction import Ending
from llmproxy.protocol import Channel, Decision, Exhausted, Mode, ModePolicy


@dataclass(frozen=True)
class Take:
    """One recording."""

    name: str
    status: int = 200
    ending: Ending = Ending.COMPLETE
    occurrence: int = 1


A, B = Take("A"), Take("B")
LIMIT, BROKEN, DENIED = Take("429", 429), Take("500", 500), Take("401", 401)
CUT, OPEN = Take("cut", ending=Ending.CUT), Take("open", ending=Ending.UNTERMINATED)
LEFT = Take("left", ending=Ending.LEFT)
AGAIN = Take("left again", ending=Ending.LEFT, occurrence=3)
WRONG = Take("400", 400)

REPLAY, AUTO, RECORD, ONCE, PASS = Mode.REPLAY, Mode.AUTO, Mode.RECORD, Mode.ONCE, Mode.PASSTHROUGH

# mode, recordings, then what the 1st, 2nd, ... arrival gets: a recording's name, "live" (recorded), "pass", or why it is refused.
TABLE: list[tuple[Mode, list[Take], list[str]]] = [
    (REPLAY, [], ["NEVER"]),
    (REPLAY, [A], ["A", "A", "A"]),
    (REPLAY, [A, B], ["A", "B", "B"]),
    (REPLAY, [LIMIT, A], ["429", "A", "A"]),
    (REPLAY, [A, BROKEN], ["A", "500", "A"]),
    (REPLAY, [A, CUT], ["A", "cut", "A"]),
    (REPLAY, [CUT], ["cut", "cut"]),
    (REPLAY, [LIMIT, BROKEN], ["429", "500", "500"]),
    (REPLAY, [WRONG], ["400", "400"]),
    (AUTO, [], ["live", "live"]),
    (AUTO, [A], ["A", "live"]),
    (AUTO, [A, B], ["A", "B", "live"]),
    (AUTO, [LIMIT, A], ["A", "live"]),
    (AUTO, [DENIED], ["live"]),
    (AUTO, [BROKEN], ["live"]),
    (AUTO, [CUT, A, OPEN, B], ["A", "B", "live"]),
    (AUTO, [WRONG], ["400", "live"]),
    (RECORD, [], ["live"]),
    (RECORD, [A, B], ["live", "live"]),
    (ONCE, [], ["live", "live"]),
    (ONCE, [A], ["A", "live"]),
    (ONCE, [LIMIT, A], ["A", "live"]),
    (ONCE, [CUT, A, OPEN, B, LEFT], ["A", "B", "live"]),
    (ONCE, [DENIED], ["live"]),
    (ONCE, [WRONG], ["400", "live"]),
    (AUTO, [LEFT], ["live"]),
    (AUTO, [AGAIN], ["left again", "live"]),
    (ONCE, [AGAIN], ["left again", "live"]),
    (ONCE, [A, AGAIN], ["A", "left again", "live"]),
    (AUTO, [Take("429 left", 429, Ending.LEFT, 3)], ["live"]),
    (RECORD, [AGAIN], ["live"]),
    (REPLAY, [AGAIN], ["left again", "left again"]),
    (PASS, [], ["pass"]),
    (PASS, [A], ["pass", "pass"]),
]

COMPLETE: list[tuple[list[Take], list[str]]] = [
    ([], ["NEVER"]), ([A], ["A", "A"]), ([LIMIT, A], ["429", "A", "A"]), ([CUT, A], ["cut", "A", "A"]),
    ([CUT], ["cut", "cut"]), ([OPEN, LEFT], ["open", "left", "left"]), ([DENIED], ["401", "401"]),
]  # fmt: skip


def policy_of(mode: Mode, *, complete: bool) -> ModePolicy:
    """Return what a session of this mode does."""
    return Session("s", "s", 1, SessionSettings(mode), complete=complete).policy


def told(verdict: Decided[Take]) -> str:
    """Return a verdict in a word."""
    match verdict.decision:
        case Decision.REPLAY:
            assert verdict.recording is not None
            return verdict.recording.name
        case Decision.REFUSE | Decision.FAULT:
            assert verdict.reason is not None
            return verdict.reason.name
        case Decision.RECORD:
            return "live"
        case Decision.PASS:
            return "pass"


@pytest.mark.parametrize(("mode", "takes", "expected"), TABLE)
def test_modes(mode: Mode, takes: list[Take], expected: list[str]) -> None:
    """The table of the design."""
    assert [told(decide(Situation(mode.policy, takes, nth))) for nth in range(1, len(expected) + 1)] == expected


@pytest.mark.parametrize(("takes", "expected"), COMPLETE)
def test_once_on_a_complete_cassette(takes: list[Take], expected: list[str]) -> None:
    """It plays as replay does, and never goes live."""
    got = [told(decide(Situation(policy_of(ONCE, complete=True), takes, nth))) for nth in range(1, len(expected) + 1)]
    assert got == expected


@pytest.mark.parametrize(("exhausted", "expected"), [
    (Exhausted.LAST, ["A", "429", "B", "B", "B"]),
    (Exhausted.CYCLE, ["A", "429", "B", "A", "429"]),
    (Exhausted.MISS, ["A", "429", "B", "EXHAUSTED", "EXHAUSTED"]),
])  # fmt: skip
@pytest.mark.parametrize("mode", [REPLAY, ONCE])
def test_after_the_last_recording(mode: Mode, exhausted: Exhausted, expected: list[str]) -> None:
    """The rule for exhausted tapes counts in the modes that play them."""
    takes = [A, LIMIT, B]
    got = [told(decide(Situation(policy_of(mode, complete=True), takes, nth, exhausted))) for nth in range(1, 6)]
    assert got == expected


def test_a_key_first_met_in_this_session_is_asked_again() -> None:
    """So that a first run in auto equals one in record."""
    assert told(decide(Situation(AUTO.policy, [A, B], 1, recorded_here=True))) == "live"
    assert told(decide(Situation(REPLAY.policy, [A], 1, recorded_here=True))) == "A"


@pytest.mark.parametrize("status", [200, 201, 302, 400, 404, 422])
def test_answers_that_stay_what_they_are(status: int) -> None:
    """A wrong request stays wrong."""
    assert is_perfect(Take("", status))


@pytest.mark.parametrize(
    "take", [*(Take("", s) for s in (401, 403, 408, 409, 425, 429, 500, 502, 503, 529)), CUT, OPEN]
)
def test_answers_that_may_be_others_tomorrow(take: Take) -> None:
    """Transient, about the key, or not whole."""
    assert not is_perfect(take)


@pytest.mark.parametrize("take", [A, WRONG, LIMIT, DENIED, CUT, LEFT, AGAIN, OPEN])
def test_a_failure_that_is_served_says_so(take: Take) -> None:
    """Whatever is no good answer has a word for the log; a good one has none."""
    assert bool(describe_failure(take)) != is_perfect(take)


def test_each_mode_plays_what_it_may() -> None:
    """One function says it, for the decision and for counting what is used up."""
    takes = [A, LIMIT, CUT, B]
    whole, good = ["A", "429", "cut", "B"], ["A", "B"]
    expected = {
        (REPLAY, False): whole, (ONCE, True): whole, (ONCE, False): good, (AUTO, True): good, (AUTO, False): good,
    }  # fmt: skip
    for (mode, complete), names in expected.items():
        assert [take.name for take in playable(policy_of(mode, complete=complete), takes)] == names


def test_every_reason_is_a_sentence() -> None:
    """They stand in the miss."""
    assert all(" " in reason for reason in MissReason)


@pytest.mark.parametrize(("channel", "method", "operation", "what"), [
    (Channel.LLM, "POST", "chat.completions", Exhausted.LAST),
    (Channel.HTTP, "GET", "/invoices", Exhausted.LAST),
    (Channel.HTTP, "POST", "/invoices", Exhausted.MISS),
    (Channel.MCP, "POST", "mcp:tools/call pay", Exhausted.MISS),
    (Channel.MCP, "POST", "mcp:tools/list", Exhausted.LAST),
])  # fmt: skip
def test_what_may_change_something_is_not_answered_twice(
    channel: Channel, method: str, operation: str, what: Exhausted
) -> None:
    """By default a call more than was recorded is a miss where it may do something; who asks for a cycle gets one."""
    assert exhausted_of(Exhausted.LAST, channel, method, operation) is what
    assert exhausted_of(Exhausted.CYCLE, channel, method, operation) is Exhausted.CYCLE
