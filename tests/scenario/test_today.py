"""What users of LangWatch Scenario 1.6 write does here what it does there: `today.jsonl` has what came out there, `today.py` plays it.

Where langwatch-scenario 1.6.0 is installed beside us, the file itself is checked as well.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from tests.scenario.today import CASES, played

THERE: dict[str, Any] = {
    each["case"]: each["out"]
    for each in map(json.loads, Path(__file__).with_name("today.jsonl").read_text(encoding="utf-8").splitlines())
}
ABSENT = {
    name
    for name, where in (
        line.split("\t") for line in Path(__file__).with_name("surface.tsv").read_text(encoding="utf-8").splitlines()
    )
    if where == "- refused"
}
FIRST = "what is answered to the first message is scored, and taken back, too"
DIFFERENCES: dict[str, tuple[str, Any]] = {
    "an_open_checkpoint": (
        "what is inconclusive is not listed as failed as well",
        THERE["an_open_checkpoint"]
        | {"failed_criteria": [], "events": [["started", {"name": "n", "description": "d"}], ["finished", "FAILED", "failure", ["a"], []]]},
    ),
    "crescendo_plans_and_scores": (FIRST, [*THERE["crescendo_plans_and_scores"][:2], 0, True, [], None]),
    "a_refusal_is_taken_back": (FIRST, [*THERE["a_refusal_is_taken_back"][:2], 0, True, [], None]),
    "a_refusal_of_the_first_message": (FIRST, [[["hello"], ["again"]], 0, 0, True, [], None]),
    "an_attack_that_reached_its_goal_ends_early": (
        "an attack that reached its goal does not pass: the judge decides",
        [THERE["an_attack_that_reached_its_goal_ends_early"][0][:3], 3, 3, False, ["no password is told"], None],
    ),
    "every_name": (
        "what is voice, or needs LangWatch's servers, is not here",
        [[name for name in THERE["every_name"][0] if name not in ABSENT], False],
    ),
    "a_judge_that_contradicts_itself": ("success with a criterion that failed is an error", [None, True]),
    "what_a_judge_returns_as_messages": (
        "a result's messages are the conversation, whatever a judge of one's own returns as such",
        [["hi", "answer"], ["hi", "answer"]],
    ),
    "run_and_arun": ("times are on every result", [[*each[:4], [True]] for each in THERE["run_and_arun"]]),
    "what_a_state_knows": (
        "messages hold what their author wrote, and no trace_id",
        [[*THERE["what_a_state_knows"][0][:8], False, *THERE["what_a_state_knows"][0][9:]], *THERE["what_a_state_knows"][1:]],
    ),
    "what_users_and_judges_are_made_with": (
        "a judge is shown no spans, and so not what the simulated user was told",
        [THERE["what_users_and_judges_are_made_with"][0], [[0.5, 77, user, other, False] if n % 2 == 0 else [0.5, 77, False, False, True] for n, (user, other) in enumerate([(True, False), (0, 0), (False, True), (0, 0)])], THERE["what_users_and_judges_are_made_with"][2]],
    ),
    "strategies": (
        "the catalogue of GOAT is another: six techniques in their order of success, and the opposite in place of an authority",
        [
            *THERE["strategies"][:-1],
            ["refusal_suppression", "dual_response", "response_priming", "persona_modification", "hypothetical", "topic_splitting", "opposite_intent"],
        ],
    ),
    "who_raises_is_told": (
        "what an adapter raises is raised as it is, so that who waits for it catches it; there a RuntimeError quotes it",
        [[cause if cause != "NoneType" else kind, text.removeprefix("[Broken] ").removeprefix("TimeoutError"), "NoneType", event]
         for kind, text, cause, event in THERE["who_raises_is_told"]],
    ),
    "a_request_is_true": ("AgentInput(judgment_request=True), which was right before 1.6, still builds", [True, False, True]),
}  # fmt: skip
"""Where ours differs on purpose: why, and what comes out here."""


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return played("llmproxy.scenario", "ours")


@pytest.mark.parametrize("name", list(CASES))
def test_it_does_what_it_does_there(name: str, here: dict[str, Any]) -> None:
    """Same results, events and errors, or a row under the differences, which must be one."""
    _, wanted = DIFFERENCES.get(name, ("", THERE[name]))
    assert here[name] == wanted
    assert (name in DIFFERENCES) == (wanted != THERE[name])


def test_every_case_was_played_there() -> None:
    assert THERE.keys() == CASES.keys() | {"package"}
    assert THERE["package"] == "langwatch-scenario 1.6.0"


def test_the_file_says_what_the_original_does() -> None:
    """Where it is installed; where it is not, this says so."""
    try:
        found = version("langwatch-scenario")
    except PackageNotFoundError:
        pytest.skip("langwatch-scenario is not installed: what it does is taken from tests/scenario/today.jsonl")
    assert played("scenario", f"langwatch-scenario {found}") == THERE
