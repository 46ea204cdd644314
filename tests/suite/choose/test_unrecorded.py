"""Where a recording is missing it is said once, with the command that makes it."""

from __future__ import annotations

import pytest

from llmproxy.errors import Exit
from llmproxy.suite.choose.unrecorded import advice, explained, nothing_recorded


@pytest.mark.parametrize(
    ("cases", "selected", "partly", "said"),
    [
        (["a"], 1, False, "nothing is recorded for a; record it: llmproxy test --mode record"),
        (["a"], 1, True, "nothing is recorded for a; record it: llmproxy test --id a --mode record"),
        (
            ["a", "b c"],
            2,
            True,
            "nothing is recorded for 2 of 2 scenarios: a, b c; record them: llmproxy test --id a --id 'b c' --mode record",
        ),
        (
            ["a", "b"],
            5,
            False,
            "nothing is recorded for 2 of 5 scenarios: a, b; record them: llmproxy test --mode auto",
        ),
    ],
)
def test_one_command_for_all(cases: list[str], selected: int, partly: bool, said: str) -> None:
    """What is recorded already is kept, and what was not asked for is not recorded."""
    assert advice(cases, selected, "llmproxy test", partly=partly) == said


def test_a_long_list_is_cut() -> None:
    """And the command stays one that can be typed."""
    said = advice([f"s-{n}" for n in range(200)], 200, "llmproxy test", partly=True)
    assert "and 190 more; record them: llmproxy test --last-failed --mode auto" in said


def test_one_run() -> None:
    """By itself it says which run, and ends with 4."""
    error = nothing_recorded("a", "llmproxy test --id a", 2, 3)
    assert str(error) == "nothing is recorded for a, run 2; record it: llmproxy test --id a --mode record --runs 3"
    assert error.exit_code is Exit.MISS


def test_a_miss_leads_with_the_command_of_the_test() -> None:
    """The proxy's own way, which starts a proxy, is replaced; what else it says stays."""
    text = "llmproxy: no recorded response\n  1. add it: llmproxy start --mode auto --cassette a/b --store x.db\n  2. look: llmproxy why"
    assert explained(text, "llmproxy test --id a").splitlines() == [
        "a request of the agent was never recorded; to add it: llmproxy test --id a --mode auto",
        "llmproxy: no recorded response",
        "  1. add it: llmproxy test --id a --mode auto",
        "  2. look: llmproxy why",
    ]
