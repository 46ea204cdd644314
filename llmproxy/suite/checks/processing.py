"""What a step says about the agent's history, checked against what the wire shows of it, with the evidence that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.matchers.table import check_number
from llmproxy.suite.matchers.values import Unknown, show
from llmproxy.trace.observing.histories.processing import EVIDENCE

if TYPE_CHECKING:
    from llmproxy.suite.matchers.variables import VariableScope
    from llmproxy.suite.schema.expect import MessageProcessing, Processor
    from llmproxy.trace.observing.histories.processing import Processing, ProcessingFinding

_COUNTS = ("condensedMessages", "recentMessages", "totalMessages", "partsRemoved", "droppedMessages")


def check_processing(wanted: MessageProcessing, found: Processing, scope: VariableScope) -> list[Assertion]:
    """Check every processor that the step speaks of."""
    made: list[Assertion] = []
    parts = (
        ("condenser", wanted.condenser, found.condenser),
        ("pruner", wanted.pruner, found.pruner),
        ("tokenLimiter", wanted.token_limiter, found.tokenLimiter),
    )
    for name, part, finding in parts:
        if part is not None:
            made += _Check(f"messageProcessing.{name}", name, part, finding, wanted.min_evidence, scope).check()
    return made


class _Check:
    def __init__(
        self, path: str, name: str, wanted: Processor, finding: ProcessingFinding, least: str, scope: VariableScope
    ) -> None:
        self.path, self.name, self.wanted, self.finding, self.least, self.scope = (
            path,
            name,
            wanted,
            finding,
            least,
            scope,
        )

    def check(self) -> list[Assertion]:
        """Check whether it was at work, then what it did."""
        wanted = self.wanted.activated
        made = [self._check_activated(wanted is not False)] if wanted is not None or self._details() else []
        if self.finding.activated is True and made and made[0].status is not Status.ENVIRONMENT_ERROR:
            for key, matcher in self._details().items():
                made += self._detail(key, matcher)
        elif self._details():
            reason = self.finding.reason or f"the {self.name} was not at work in this step"
            status = Status.FAILED if self.finding.activated is False else Status.ENVIRONMENT_ERROR
            made += [Assertion(name=f"{self.path}.{key}", status=status, message=reason) for key in self._details()]
        return made

    def _details(self) -> dict[str, object]:
        fields = type(self.wanted).model_fields
        return {
            field.alias or name: getattr(self.wanted, name)
            for name, field in fields.items()
            if (field.alias or name) in self.wanted.given - {"activated"}
        }

    def _check_activated(self, wanted: bool) -> Assertion:  # noqa: FBT001 - what is expected
        finding = self.finding
        made = Assertion(
            name=f"{self.path}.activated",
            status=Status.PASSED,
            expected=wanted,
            actual=finding.activated,
            where=finding.where,
            evidence=finding.evidence,
        )
        if finding.activated is None:
            return replace(made, status=Status.ENVIRONMENT_ERROR, message=finding.reason)
        if finding.activated and EVIDENCE.index(finding.evidence) < EVIDENCE.index(self.least):
            hint = f"it is only {finding.evidence}, and minEvidence is {self.least}"
            return replace(made, status=Status.ENVIRONMENT_ERROR, message=f"{finding.reason}; {hint}")
        if finding.activated is wanted:
            return made
        was = "was not at work" if wanted else "was at work"
        return replace(made, status=Status.FAILED, message=f"the {self.name} {was} in this step: {finding.reason}")

    def _detail(self, key: str, matcher: object) -> list[Assertion]:
        name, finding = f"{self.path}.{key}", self.finding
        if key in _COUNTS:
            value = finding.values.get(key)
            actual = Unknown(f"how many is not known: {finding.reason}") if value is None else value
            found = check_number(name, actual, matcher, self.scope, where=finding.where)
            return [replace(each, evidence=finding.evidence) for each in found]
        words = [
            str(self.scope.resolve(word))
            for word in (matcher if isinstance(matcher, Sequence) and not isinstance(matcher, str) else [matcher])
        ]
        return [self._summary(name, word, wanted=key == "summaryContains") for word in words]

    def _summary(self, name: str, word: str, *, wanted: bool) -> Assertion:
        finding = self.finding
        made = Assertion(name=name, status=Status.PASSED, expected=word, where=finding.where, evidence=finding.evidence)
        if not finding.summaries:
            reason = (
                "the summary is encrypted, nobody can read it" if finding.summaries is None else "no summary was seen"
            )
            return replace(
                made, status=Status.ENVIRONMENT_ERROR, message=f"{reason}: {finding.reason}", evidence="unobservable"
            )
        if not word:
            return replace(made, status=Status.ENVIRONMENT_ERROR, message="an empty text is in every text")
        text = "\n".join(finding.summaries)
        if (word.casefold() in text.casefold()) is wanted:
            return made
        what = "does not contain" if wanted else "contains"
        return replace(
            made, status=Status.FAILED, actual=text, message=f"the summary {what} {word!r}: {show(text, 300)}"
        )
