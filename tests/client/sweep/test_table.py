"""The findings as a table."""

from __future__ import annotations

from llmproxy.client.sweep import SweepFinding, SweepOutcome, as_json, lines_of, summary_of
from tests.client.sweep.cases import trial

FINDINGS = [
    SweepFinding(trial("http-429", 1), SweepOutcome.RECOVERED, "1 retry, +0.5 s", weak=False),
    SweepFinding(trial("http-429", 2), SweepOutcome.RECOVERED, "1 retry, +1.5 s", weak=False),
    SweepFinding(trial("http-429", 4), SweepOutcome.RECOVERED, "1 retry, +0.2 s", weak=False),
    SweepFinding(trial("http-429", 5), SweepOutcome.RECOVERED, "2 retries, +0.2 s", weak=False),
    SweepFinding(trial("length", 2), SweepOutcome.QUIET, "says 'a', not 'b'", weak=True),
]


def test_alike_findings_share_a_row() -> None:
    """With the longest time of them; what breaks the agent is marked."""
    assert lines_of(FINDINGS) == [
        "fault     call      what the agent did",
        "http-429  1-2,4     recovered: 1 retry, +1.5 s",
        "http-429  5         recovered: 2 retries, +0.2 s",
        "length    2      !  wrong but quiet: says 'a', not 'b'",
    ]


def test_what_it_comes_to() -> None:
    """How many of each, which break it, what a sound agent does, how to see it again."""
    assert summary_of(FINDINGS, "llmproxy run --faults FAULT -- x") == [
        "5 faults, one at a time: 4 recovered, 1 wrong but quiet",
        "1 of them breaks the agent: length",
        "A sound agent takes the half for no answer: asks for the rest or again, or says that it was cut short.",
        "Again, alone: llmproxy run --faults length@2 -- x",
    ]
    assert summary_of(FINDINGS[:2], "")[-1] == "None of them breaks the agent."
    unsure = [SweepFinding(trial("length", 2), SweepOutcome.WENT_ON, "at call 3", weak=False)]
    assert "of length@2 this recording cannot say" in summary_of(unsure, "x FAULT")[1]
    assert summary_of([], "") == ["0 faults, one at a time: none"]


def test_as_plain_values() -> None:
    """For programs."""
    assert as_json(FINDINGS)[-1] == {
        "kind": "length",
        "call": 2,
        "outcome": "wrong but quiet",
        "detail": "says 'a', not 'b'",
        "weak": True,
    }
