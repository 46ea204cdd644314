"""A suite at the terminal."""

from __future__ import annotations

import pytest

from llmproxy.report.events import (
    Assertion,
    Completed,
    Event,
    Finished,
    Message,
    PartyUse,
    Selected,
    Started,
    Status,
    Step,
)
from llmproxy.report.run_console import SuiteConsole
from tests.report import samples

STARTED = Started(run_id="r", scenario="s-1", name="Name", sample=2, runs=3, rerun="llmproxy test --id s-1")


def shown(*events: Event, **options: bool) -> str:
    written: list[str] = []
    samples.feed(SuiteConsole(written.append, **options), events)
    return "".join(written)


def failed(message: str = "expected 1, found 0") -> list[Event]:
    wrong = Assertion(name="tools.a", status=Status.FAILED, message=message, where="interaction 7", evidence="proven")
    right = Assertion(name="tools.b", status=Status.PASSED)
    return [
        STARTED,
        Message(run_id="r", message={"role": "assistant", "content": "I did it"}),
        Step(run_id="r", index=0, kind="chat", label="first", status=Status.FAILED, assertions=[right, wrong]),
        Finished(
            run_id="r",
            scenario="s-1",
            status=Status.FAILED,
            usage={"agent": PartyUse(calls=1, input_tokens=1000, output_tokens=1)},
            replayed=True,
            total_seconds=1.5,
        ),
    ]


def test_a_run_that_passed_is_a_line() -> None:
    """And nothing more; a bar only where somebody looks, and it is gone at the end."""
    text = shown(STARTED, Finished(run_id="r", scenario="s-1", status=Status.PASSED, total_seconds=0.2))
    assert text == "PASS  s-1 [2/3]  Name  (200 ms)\n"
    events: list[Event] = [Selected(title="t", scenarios=2, runs=2), STARTED]
    assert "\r" not in shown(*events)
    live = shown(*events, live=True)
    assert "0/2 s-1" in live
    assert live.endswith("\r\x1b[K")


def test_everything_that_did_not_hold_is_shown() -> None:
    """With where it was seen, what the agent said, and how to run it again; what held only counts."""
    text = shown(*failed())
    assert "FAIL  s-1 [2/3]  Name  (1.5 s, 1,001 tokens, replayed)" in text
    assert "step 1 chat 'first': failed, 1 of 2 assertions held" in text
    assert "!! tools.a: expected 1, found 0  (evidence: proven, interaction 7)" in text
    assert "tools.b" not in text
    assert "the agent said last: I did it" in text
    assert "run it again: llmproxy test --id s-1" in text
    assert "tools.b" in shown(*failed(), verbose=True)


def test_an_answer_cannot_drive_the_terminal() -> None:
    """Control characters are made visible, with colours or without."""
    for colour in (False, True):
        text = shown(*failed("\x1b]0;owned\x07\x1b[2J"), colour=colour)
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text


def test_the_end_sums_up() -> None:
    rows = [
        {"scenario": "s-1", "status": "flaky", "rate": 0.5, "runs": 2, "told": "1 of 2 runs passed"},
        {"scenario": "s-2", "status": "passed", "runs": 1},
    ]
    text = shown(
        Selected(title="t", scenarios=2, runs=3, mode="replay"),
        Completed(exit_code=1, seconds=2, notes=["mind this"], scenarios=rows),
    )
    assert (
        text
        == "t: 2 scenarios, 3 runs, mode replay\n  s-1: 1 of 2 runs passed\nmind this\n1 flaky, 1 passed in 2.0 s\n"
    )


def broken(run_id: str, error: str, *, unrecorded: bool = False) -> list[Event]:
    """Return a run about which nothing can be said, after the user spoke."""
    return [
        Started(run_id=run_id, scenario=run_id, name="", rerun=f"llmproxy test --id {run_id}"),
        Message(run_id=run_id, message={"role": "user", "content": "my own words"}),
        Finished(run_id=run_id, scenario=run_id, status=Status.ENVIRONMENT_ERROR, error=error, unrecorded=unrecorded),
    ]


def test_a_case_without_a_name_is_named_once() -> None:
    """Its name is its id then, but for a space."""
    ended = Finished(run_id="r", scenario="a[rome]", status=Status.PASSED)
    assert "PASS  a[rome]\n" in shown(Started(run_id="r", scenario="a[rome]", name="a [rome]"), ended)
    assert "PASS  a[rome]  Rome\n" in shown(Started(run_id="r", scenario="a[rome]", name="Rome"), ended)


def test_the_users_words_are_not_the_agents() -> None:
    """An agent that said nothing is not quoted."""
    assert "my own words" not in shown(*broken("a", "a miss"))


def test_the_same_error_is_shown_once() -> None:
    """Two hundred scenarios without a store are one mistake; numbers of samples do not make it another one."""
    text = shown(*broken("a", "no store\nStart it"), *broken("b", "no store\nStart it"), *broken("c", "another"))
    assert text.count("Start it") == 1
    assert "ERROR b\n      the same as a\n" in text
    assert "another" in text
    miss = 'no response in session "t/a{}"{}'
    text = shown(*broken("a", miss.format("", "")), *broken("b", miss.format("~2", "")))
    assert "the same as a" in text


def test_what_is_not_recorded_is_said_at_the_end_alone() -> None:
    """No line for each run: the note names them all, with one command."""
    rows = [{"scenario": each, "status": "environment_error", "runs": 1} for each in "ab"]
    end = Completed(exit_code=4, seconds=1, notes=["nothing is recorded for 2 of 2"], scenarios=rows)
    text = shown(*broken("a", "x", unrecorded=True), *broken("b", "x", unrecorded=True), end)
    assert text == "nothing is recorded for 2 of 2\n2 environment errors in 1.0 s\n"


@pytest.mark.parametrize(("status", "said"), [
    (Status.PASSED, "failed as expected: bug 1"),
    (Status.FAILED, "it was expected to fail, and passed; remove `xfail`"),
])  # fmt: skip
def test_an_expected_failure_says_so(status: Status, said: str) -> None:
    """A green line for a scenario that does not work, or a red one for one that does, explains itself."""
    text = shown(
        STARTED, Finished(run_id="r", scenario="s-1", status=status, reasoning=f"{said}\nstep 1: x", xfail=True)
    )
    assert f"      {said}\n" in text
    assert "step 1: x" not in text
