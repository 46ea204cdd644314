"""What is said about history needs evidence; what cannot be observed passes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.chat_step_assertions import check_history_edit_assertions
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import AgentHistoryEditAssertions
from llmproxy.trace.observing.history_edits import HistoryEditFindings, HistoryProcessing

PASSED, FAILED, ERROR = Status.PASSED, Status.FAILED, Status.ENVIRONMENT_ERROR
QUIET = HistoryProcessing(activated=False, evidence="proven", reason="every request carried its whole history")
BLIND = HistoryProcessing(activated=None, evidence="unobservable", reason="the provider keeps it")


def active(evidence: str = "proven", **more: Any) -> HistoryProcessing:
    values = {"condensedMessages": 4, "recentMessages": 2, "totalMessages": 7}
    told: dict[str, Any] = {"values": values, "summaries": ["The Task was created."]} | more
    return HistoryProcessing(activated=True, evidence=evidence, reason="4 messages are missing", **told)


def check(finding: HistoryProcessing, least: str = "proven", **wanted: Any) -> list[Assertion]:
    said = AgentHistoryEditAssertions.model_validate({"condenser": wanted, "minEvidence": least})
    return check_history_edit_assertions(said, HistoryEditFindings(finding, QUIET, QUIET), CaseVariables())


@pytest.mark.parametrize(("finding", "activated", "status"), [
    (active(), True, PASSED), (active(), False, FAILED), (QUIET, True, FAILED), (QUIET, False, PASSED),
    (BLIND, True, ERROR), (BLIND, False, ERROR), (active("inferred"), True, ERROR), (active("inferred"), False, ERROR),
    (active("declared"), True, PASSED),
])  # fmt: skip
def test_activated(finding: HistoryProcessing, activated: bool, status: Status) -> None:
    """Unobservable is an error either way; what is only inferred decides nothing."""
    (found,) = check(finding, activated=activated)
    assert (found.status, found.evidence) == (status, finding.evidence)
    assert bool(found.message) is (status is not PASSED)


def test_less_evidence_can_be_enough() -> None:
    assert check(active("inferred"), "inferred", activated=True)[0].status is PASSED


def test_numbers_and_words_of_a_summary() -> None:
    words: dict[str, Any] = {"summaryContains": ["task", "CREATED"], "summaryNotContains": ["bread"]}
    found = check(active(), activated=True, condensedMessages={"gte": 4}, **words)
    assert [each.status for each in found] == [PASSED] * 5
    assert check(active(), summaryContains="bread")[-1].status is FAILED
    assert check(active(), condensedMessages=9)[-1].status is FAILED


def test_details_of_what_was_not_at_work_do_not_hold() -> None:
    """A number of condensed messages implies a condenser."""
    assert {each.status for each in check(QUIET, condensedMessages={"lte": 100})} == {FAILED}
    assert {each.status for each in check(BLIND, summaryContains="x")} == {ERROR}


def test_what_nobody_can_read_is_an_error() -> None:
    """An encrypted summary, a number that the provider does not tell."""
    hidden = active("declared", summaries=None, values={"condensedMessages": None})
    assert check(hidden, summaryContains="x")[-1].status is ERROR
    assert check(hidden, summaryNotContains="x")[-1].status is ERROR
    assert check(active(summaries=["key [REDACTED]"]), summaryNotContains="ghp_")[-1].status is ERROR
    assert check(hidden, condensedMessages={"lte": 100})[-1].status is ERROR
