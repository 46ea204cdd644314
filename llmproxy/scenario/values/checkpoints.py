"""What verdicts in mid-script add up to: `scenario.judge(criteria=[...])`, once or several times.

    checkpoint passes   the script goes on; what passed counts in the result of the run, whoever ends it
    checkpoint fails    its verdict, with what passed before, ends the run
    script ends         after checkpoints only: passed

A checkpoint that got no verdict at all has failed: its criteria are inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmproxy.scenario.types import CriterionResult, ScenarioResult

ALL_PASSED = "All inline criteria checkpoints passed"


def added_up(checkpoints: Sequence[ScenarioResult], result: ScenarioResult) -> ScenarioResult:
    """Return a result with what the checkpoints before it found, in order; ids of criteria are numbered anew."""
    if not checkpoints:
        return result
    parts = [*checkpoints, result]
    found = [each for part in parts for each in part.criteria]
    return result.model_copy(
        update={
            "passed_criteria": [text for part in parts for text in part.passed_criteria],
            "failed_criteria": [text for part in parts for text in part.failed_criteria],
            "inconclusive_criteria": [text for part in parts for text in part.inconclusive_criteria],
            "criteria": [
                CriterionResult(
                    id=f"c{number}",
                    criterion=each.text,
                    requirement=getattr(each, "requirement", ""),
                    status=each.status,
                    evidence=each.evidence,
                    reasoning=each.reason,
                    votes=each.votes,
                )
                for number, each in enumerate(found, 1)
            ],
        }
    )


def no_verdict(criteria: Sequence[str]) -> ScenarioResult:
    """Return what a checkpoint comes to whose judge said nothing."""
    return ScenarioResult(
        success=False,
        messages=[],
        reasoning="The judge was asked at a checkpoint and gave no verdict",
        inconclusive_criteria=list(criteria),
    )
