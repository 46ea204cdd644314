"""Criteria by id: whatever is missing, unknown or invented is never a pass.

Checkpoints add up, and one without a verdict has failed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.report.events import Status
from llmproxy.scenario.values.criteria import (
    Criteria,
    CriterionStatus,
    JudgeFinding,
    conversation_contains_quote,
    mark_misquoted_findings_undecided,
)
from tests.scenario.people import Agent, Ear, Judge, User, executor, finished, play

TALK = '[1] user: Where is my order?\n[2] assistant: It is on its way.\n    calls track({"id": "A-1", "fast": true})\n[3] assistant: It arrives “tomorrow”.'


def passed(evidence: str = "") -> dict[str, str]:
    return {"status": "passed", "evidence": evidence, "reason": "seen"}


def statuses(criteria: Criteria, answer: object) -> list[str]:
    return [each.status for each in criteria.build_results(criteria.read_findings(answer)[0])]


def test_an_answer_in_another_order_means_the_same() -> None:
    """Row 12: criteria are told apart by id, not by position; models that flatten the answer, or list it, are understood."""
    two = Criteria(["first", "second"])
    assert statuses(two, {"c2": {"status": "failed"}, "c1": passed()}) == ["passed", "failed"]
    two = Criteria(["first", "second"])
    assert statuses(two, {"C1": "Passed", "c2": "failed"}) == ["passed", "failed"]
    assert statuses(two, [{"id": "c2", "status": "passed"}, {"id": "c1", "status": "failed"}]) == ["failed", "passed"]


def test_a_missing_criterion_is_inconclusive_and_named() -> None:
    """Row 12: what the judge did not speak of has not passed, and an extra key breaks nothing and passes nothing."""
    two = Criteria(["first", "second"])
    found, problems = two.read_findings({"c1": passed()})
    assert [each.status for each in two.build_results(found)] == ["passed", "inconclusive"]
    assert problems == ["c2 is missing"]
    found, problems = Criteria(["first"]).read_findings({"c9": passed(), "c1": {"status": "failed"}})
    assert (found, problems) == ({"c1": JudgeFinding(CriterionStatus.FAILED)}, [])


@pytest.mark.parametrize("status", [True, "true", "yes", None, 1, "success", ["passed"]])
def test_an_unknown_status_is_not_a_pass(status: object) -> None:
    """Row 12: only the words of the schema count; a boolean or another word is a problem to repair."""
    one = Criteria(["first"])
    found, problems = one.read_findings({"c1": {"status": status}})
    assert not found
    assert problems == ["the status of c1 is none of passed, failed, inconclusive"]
    assert one.build_results(found)[0].status == "inconclusive"


@pytest.mark.parametrize("answer", [None, "passed", 3, True])
def test_what_is_no_object_finds_nothing(answer: object) -> None:
    """A judge that answers anything but an object is told which members are wanted."""
    found, (problem,) = Criteria(["first"]).read_findings(answer)
    assert not found
    assert "c1" in problem


@pytest.mark.parametrize("other", ["failed", "maybe", None])
def test_a_criterion_with_two_statuses_has_none(other: object) -> None:
    """In a list, or under names that are one: the last word is no better than the first."""
    one = Criteria(["first"])
    twice = [{"id": "c1", "status": other}, {"id": "c1", "status": "passed"}]
    for answer in (twice, twice[::-1], {"C1": other, "c1": "passed"}):
        assert one.read_findings(answer) == ({}, ["c1 is there more than once, with more than one status"])
    assert statuses(one, [{"id": "c1", "status": "passed"}] * 2) == ["passed"]


@pytest.mark.parametrize(
    "texts",
    [
        ["same", "same"],
        ["客服必须道歉", "客服必须退款"],
        ["x" * 2000, "x" * 1999 + "y"],
        ["Agent's polite!", "Agents polite"],
        ["same", "same "],
    ],
    ids=["equal", "chinese", "2,000 characters", "punctuation", "white space"],
)
def test_criteria_never_collide(texts: list[str]) -> None:
    """Row 13: equal, foreign and long criteria have their own keys, and each its own status."""
    criteria = Criteria(texts)
    assert criteria.findings_schema()["required"] == ["c1", "c2"]
    judged = criteria.build_results(criteria.read_findings({"c1": passed(), "c2": {"status": "failed"}})[0])
    found = [(each.id, each.text, each.status) for each in judged]
    assert found == [("c1", texts[0], "passed"), ("c2", texts[1], "failed")]
    assert all(text in criteria.format_lines() for text in texts)


def test_the_schema_has_string_enums_only() -> None:
    """Gemini makes an object of an enum with mixed types; every enum here is of strings, every object closed."""
    seen: list[Any] = []

    def walk(node: Any) -> None:
        seen.append(node)
        if node["type"] == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
            for each in node["properties"].values():
                walk(each)
        else:
            assert node["type"] == "string"
            assert all(isinstance(word, str) for word in node.get("enum", []))

    walk(Criteria(["a", "b"]).findings_schema())
    assert {"passed", "failed", "inconclusive"} in [set(node.get("enum", ())) for node in seen]


def test_criteria_that_are_none_are_refused_at_once() -> None:
    """An empty criterion is true of everything; a text instead of a list would be judged letter by letter."""
    with pytest.raises(ValueError, match=r"criteria\[1\] is '  '"):
        Criteria(["fine", "  "])
    with pytest.raises(ValueError, match=r"criteria=\['polite'\]"):
        Criteria("polite")
    with pytest.raises(ValueError, match=r"criteria\[0\] is 3"):
        Criteria([3])  # type: ignore[list-item]
    assert len(Criteria([])) == 0


@pytest.mark.parametrize("quote", [
    "",
    "N/A",
    "It is on its way.",
    '"it is ON its   way"',
    "assistant: It is on its way",
    "[2] assistant: It is on its way.",
    'It arrives "tomorrow"',
    "**It arrives tomorrow**".replace("tomorrow", "“tomorrow”"),
    "Where is ... on its way",
    "Where is my […] arrives",
    'track({"id":"A-1","fast":true})',
    "Where is my order?\n[2] assistant: It is on its way.",
])  # fmt: skip
def test_a_quotation_is_found(quote: str) -> None:
    """Case, white space, quotation marks, emphasis, the speaker's name and left-out middles do not matter."""
    assert conversation_contains_quote(quote, TALK)


@pytest.mark.parametrize(
    "quote",
    ["It was delivered", "on its way ... Where is", "user: It is gone", "Your order is on its way", "...", "w...h...e"],
)
def test_an_invented_quotation_is_not_found(quote: str) -> None:
    """Words that nobody said, and parts in the wrong order, are no quotation."""
    assert not conversation_contains_quote(quote, TALK)


@pytest.mark.parametrize("status", list(CriterionStatus))
def test_invented_evidence_makes_a_criterion_inconclusive(status: CriterionStatus) -> None:
    """A finding whose evidence does not occur is marked, and neither passes nor fails."""
    found = mark_misquoted_findings_undecided({"c1": JudgeFinding(status, "it was delivered", "so he says")}, TALK)[
        "c1"
    ]
    assert found.status is CriterionStatus.INCONCLUSIVE
    assert found.evidence == "[not in the conversation] it was delivered"
    assert f"so he says ({status}, but the quoted evidence" in found.reason
    given = Criteria(["a"]).read_findings({"c1": {"status": str(status), "evidence": ["on its way"]}})[0]
    assert mark_misquoted_findings_undecided(given, TALK)["c1"].status is CriterionStatus.INCONCLUSIVE


def test_true_evidence_changes_nothing() -> None:
    """A finding with a real quotation, or with none, stays as it is."""
    given = {"c1": JudgeFinding(CriterionStatus.PASSED, "on its way"), "c2": JudgeFinding(CriterionStatus.FAILED)}
    assert mark_misquoted_findings_undecided(given, TALK) == given


def verdict(*texts: str, success: bool = True) -> scenario.ScenarioResult:
    """Return what a judge says about criteria that all pass, or all fail."""
    kept: dict[str, Any] = {"passed_criteria" if success else "failed_criteria": list(texts)}
    status = "passed" if success else "failed"
    found = [scenario.CriterionResult(id="c1", criterion=text, status=status, reasoning="seen") for text in texts]
    return scenario.ScenarioResult(success=success, messages=[], reasoning="so", criteria=found, **kept)


def test_ids_are_numbered_anew() -> None:
    """Two checkpoints have a c1 each, the result has it once."""
    result = play(Agent(), Judge(verdict("a"), verdict("b")), script=[scenario.judge(["a"]), scenario.judge(["b"])])
    found = [(each.id, each.criterion, each.reasoning) for each in result.criteria]
    assert found == [("c1", "a", "seen"), ("c2", "b", "seen")]
    assert result.status is Status.PASSED


def test_a_judge_that_says_nothing_has_not_passed() -> None:
    """A checkpoint fails closed: the script does not go on."""
    result = play(Agent(), Judge([]), script=[scenario.judge(["a"]), scenario.succeed()])
    assert (result.success, result.inconclusive_criteria) == (False, ["a"])
    assert result.reasoning == "The judge was asked at a checkpoint and gave no verdict"


def test_what_passed_is_told_when_the_turns_run_out() -> None:
    """The result of a run that nobody decided has the checkpoints, too."""
    script = [scenario.judge(["a"]), scenario.proceed()]
    result = play(User(), Agent(), Judge(verdict("a"), []), script=script, max_turns=2)
    assert (result.success, result.passed_criteria) == (False, ["a"])


def test_one_list_of_criteria_is_meant() -> None:
    """Two are an error, and so is a text."""
    with pytest.raises(ValueError, match="one list of criteria"):
        scenario.judge(["a"], criteria=["b"])
    with pytest.raises(ValueError, match="takes a list of criteria"):
        scenario.judge(criteria="a")


def test_an_assertion_in_a_step_is_a_failed_criterion() -> None:
    """Of the events and the report; it is raised as well. One in the agent is the agent's error."""

    def check(_state: Any) -> None:
        raise AssertionError("no refund")

    ear = Ear()
    run = executor(Agent(), Judge(verdict("a")), script=[scenario.judge(["a"]), check], ear=ear)
    with pytest.raises(AssertionError, match="no refund"):
        asyncio.run(run.run())
    told = finished(ear)
    assert told.status is Status.FAILED
    assert [(each.text, each.status) for each in told.criteria] == [("a", "passed"), ("no refund", "failed")]
    assert run.outcome is not None
    assert run.outcome.failed_criteria == ["no refund"]
