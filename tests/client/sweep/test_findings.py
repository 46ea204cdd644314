"""What an agent made of a fault is read off its calls, its output and its end."""

from __future__ import annotations

import pytest

from llmproxy.client.sweep import SweepOutcome, Went, find
from llmproxy.client.sweep.findings import last_words
from tests.client.sweep.cases import BASELINE, call, miss, struck, trial

RETRIED = [call(1, "a"), struck(2, "b"), struck(3, "b"), call(4, "b"), call(5, "c")]
ACCEPTED = [call(1, "a"), struck(2, "b"), call(3, "c")]


def went(calls: object, said: str = BASELINE.said, **more: object) -> Went:
    """Return a run that took two seconds."""
    return Went(calls=calls, said=said, seconds=2.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run", "outcome", "detail", "mark"),
    [
        (went(RETRIED), SweepOutcome.RECOVERED, "2 retries, +1.0 s", " "),
        (went(ACCEPTED), SweepOutcome.RECOVERED, "not disturbed, +1.0 s", " "),
        (went(ACCEPTED, said="one\n"), SweepOutcome.QUIET, "says nothing, not 'took 3 ms'", "!"),
        (went(ACCEPTED, said="one\ntook 3 ms\nthree\n"), SweepOutcome.QUIET, "says 'three', not 'two'", "!"),
        (went(ACCEPTED, said=BASELINE.said + "oops\n"), SweepOutcome.QUIET, "says 'oops' besides", "!"),
        (went([call(1, "a"), struck(2, "b")]), SweepOutcome.QUIET, "ended well, without call 3", "!"),
        (went(RETRIED[:3], failed="Error: 500"), SweepOutcome.GAVE_UP, "Error: 500", "!"),
        (went([*ACCEPTED[:2], miss(3)]), SweepOutcome.WENT_ON, "to something that is not recorded, at call 3", "?"),
        (
            went([*ACCEPTED[:2], miss(3)], failed="404"),
            SweepOutcome.WENT_ON,
            "to something that is not recorded, at call 3",
            "?",
        ),
        (went([*RETRIED[:4], miss(5)]), SweepOutcome.WENT_ON, "to something that is not recorded, at call 3", "?"),
        (went(RETRIED[:2], hung=True, failed="killed"), SweepOutcome.HUNG, "had not ended after 2.0 s", "!"),
        (went(BASELINE.calls), SweepOutcome.UNMET, "the call did not come", "?"),
        (went(ACCEPTED, wrong="step 1: nope"), SweepOutcome.QUIET, "step 1: nope", "!"),
    ],
)
def test_what_the_agent_did(run: Went, outcome: SweepOutcome, detail: str, mark: str) -> None:
    """Each way to end has a name; only what a sound agent would not do breaks it."""
    found = find(trial(), run, [BASELINE])
    assert (found.outcome, found.detail, found.mark) == (outcome, detail, mark)


def test_giving_up_is_sound_where_asking_again_is_no_cure() -> None:
    """With a message; an error that nobody caught breaks the agent there too."""
    refused = went(ACCEPTED[:2], failed="the model declined")
    assert not find(trial("refusal"), refused, [BASELINE]).weak
    crashed = went(ACCEPTED[:2], failed="KeyError: 'x'", crashed=True)
    assert find(trial("refusal"), crashed, [BASELINE]).weak


def test_what_differs_from_run_to_run_counts_for_nothing() -> None:
    """Lines that undisturbed runs do not agree on, and the numbers in those that they do."""
    more = Went(calls=BASELINE.calls, seconds=1.0, said="one\ntook 41 ms\ntwo\n")
    other = went(ACCEPTED, said="one\ntook 5 ms\ntwo\n")
    assert find(trial(), other, [BASELINE]).outcome is SweepOutcome.QUIET
    assert find(trial(), other, [BASELINE, more]).outcome is SweepOutcome.RECOVERED
    assert find(trial(), went(ACCEPTED, said="one\ntook 5 ms\n"), [BASELINE, more]).outcome is SweepOutcome.QUIET


@pytest.mark.parametrize(
    ("err", "said", "crashed"),
    [
        (
            "Traceback (most recent call last):\n  File x\nopenai.RateLimitError: 429\n",
            "openai.RateLimitError: 429",
            True,
        ),
        ("throw e\n^\n\nError: boom\n    at f (a.mjs:1:2)\n\nNode.js v22.1.0\n", "Error: boom", True),
        ("agent: giving up\n", "agent: giving up", False),
        ("", "out of ideas", False),
        ("   \n", "out of ideas", False),
        (
            "  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: errors\n  +-+---- 1 ----\n    | McpError: Internal error\n    +-----\n",
            "McpError: Internal error",
            True,
        ),
    ],
)
def test_last_words(err: str, said: str, crashed: bool) -> None:
    """The message that a person would look for: the error's own line, else the last one."""
    assert last_words("out of ideas\n", err, 1) == (said, crashed)
    assert last_words("", "", 3) == ("exit code 3", False)
