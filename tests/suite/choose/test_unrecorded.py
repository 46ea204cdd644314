"""Where a recording is missing it is said once, with the command that makes it."""

from __future__ import annotations

import pytest

from llmproxy.errors import Exit
from llmproxy.suite.choose.unrecorded import advice, explain_miss, nothing_recorded, numbers_only, with_runs


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


def test_how_often_each_runs_is_kept() -> None:
    """The command records as many runs as were asked for."""
    assert with_runs("llmproxy test", None) == "llmproxy test"
    assert with_runs("llmproxy test", 3) == "llmproxy test --runs 3"


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
    assert explain_miss(text, "llmproxy test --id a").splitlines() == [
        "a request of the agent was never recorded; to add it: llmproxy test --id a --mode auto",
        "llmproxy: no recorded response",
        "  1. add it: llmproxy test --id a --mode auto",
        "  2. look: llmproxy why",
    ]


NUMBERS = """llmproxy: no recorded response for this request
nearest recording: #3, differs in 2 places:
  $.messages[2].content: "{\\"id\\": 7}" -> "{\\"id\\": 12}"
  $.messages[3].content: "task 7 is done" -> "task 12 is done"  [looks like a number]
What to do:
  1. keep it: llmproxy start --mode auto --cassette x"""


def test_a_counter_that_moved_is_said_with_what_to_do() -> None:
    """Where a request differs in numbers only, and the store counts keys up; nowhere else."""
    assert numbers_only(NUMBERS)
    assert not numbers_only(NUMBERS.replace("12 is done", "12 is open"))
    assert not numbers_only("llmproxy: no recorded response for this request")
    said = explain_miss(NUMBERS, "llmproxy test", counted=["tasks"])
    for word in ("keys of tasks", "reset: truncate", "ids: deterministic"):
        assert word in said
    assert "counter" not in explain_miss(NUMBERS, "llmproxy test")


def test_under_pytest_its_own_option_is_advised() -> None:
    """For a miss and for a run without any recording."""
    again = 'pytest "t.suite.yaml::a"'
    assert f"{again} --llmproxy-mode auto" in explain_miss(NUMBERS, again, flag="--llmproxy-mode")
    assert "llmproxy start" not in explain_miss(NUMBERS, again, flag="--llmproxy-mode")
    assert str(nothing_recorded("a", again, 1, 3, flag="--llmproxy-mode")).endswith(f"{again} --llmproxy-mode record")
