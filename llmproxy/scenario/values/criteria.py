"""Criteria of a conversation, identified by id, and judges' findings about each.

A criterion is passed, failed or inconclusive. A missing or unknown finding, or one with evidence that is not in the
conversation, is inconclusive: never a pass. Mid-script verdicts (`scenario.judge(criteria=[...])`) are checkpoints;
one without any verdict has failed: its criteria are inconclusive.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from llmproxy.scenario.types import CriterionResult, ScenarioResult

_HINTED = 120
"""Characters of a criterion repeated in the schema; the whole text is in the message."""
_DOTS = re.compile(r"\s*(?:\.{3}|…|\[…\]|\[\.{3}\])\s*")
_SPEAKER = re.compile(r"^(?:\[\d+\]\s*)?(?:user|assistant|agent|system|tool(?: \S+)?)\s*:\s*", re.IGNORECASE)
_QUOTES = str.maketrans("“”„«»‘’", '"""""\'\'', "`*")
_MARKS = " \t\r\n\"'“”„«»‘’`"
_SHORTEST_PART = 2
"""Minimum characters between two omissions of a quotation."""
_EDGES = " \t\r\n\"'.,;:!"
_NO_QUOTE = frozenset({"", "none", "n/a", "na", "null", "-", "empty", "(none)", "(empty)"})
UNPROVEN = "the quoted evidence does not occur in the conversation"


class CriterionStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class JudgeFinding:
    status: CriterionStatus
    evidence: str = ""
    reason: str = ""


class Criteria:
    def __init__(self, texts: Sequence[str]) -> None:
        """Assign ids c1, c2, ... Raises ValueError for anything but a list of texts, and for an empty text."""
        if isinstance(texts, str):
            raise ValueError(f"criteria takes a list of texts; write criteria=[{texts!r}]")  # noqa: TRY004 (a value)
        for place, text in enumerate(texts):
            if not str(text).strip() or type(text) is not str:
                raise ValueError(f"criteria[{place}] is {text!r}; a criterion is a sentence that is true or not.")
        self.texts = tuple(texts)
        self.ids = tuple(f"c{number}" for number in range(1, len(self.texts) + 1))

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(zip(self.ids, self.texts, strict=True))

    def format_lines(self) -> str:
        return "\n".join(f"{id_}: {text}" for id_, text in self)

    def findings_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the findings by id; strings and objects only, which every provider accepts."""
        quoted = "Words quoted exactly from the conversation; empty if there are none."
        schema = object_schema(
            {
                "evidence": {"type": "string", "description": quoted},
                "reason": {"type": "string", "description": "One sentence."},
                "status": {"type": "string", "enum": [each.value for each in CriterionStatus]},
            }
        )
        hints = {id_: text if len(text) <= _HINTED else text[:_HINTED] + "..." for id_, text in self}
        return object_schema({id_: {"description": hint, **schema} for id_, hint in hints.items()})

    def read_findings(self, given: object) -> tuple[dict[str, JudgeFinding], list[str]]:
        """Return the findings of an answer by id, and its problems; unknown ids are ignored.

        Accepts ``{id: {status, evidence, reason}}``, ``{id: status}`` and ``[{id, status, ...}]``.
        """
        if isinstance(given, list):
            pairs = [(each.get("id"), each) for each in given if isinstance(each, Mapping)]
        elif isinstance(given, Mapping):
            pairs = list(given.items())
        else:
            return {}, [f"criteria must be an object with the members {', '.join(self.ids)}"]
        said: dict[str, list[object]] = {}
        for name, value in pairs:
            said.setdefault(str(name).strip().lower(), []).append(value)
        found, problems = {}, []
        for id_ in self.ids:
            if id_ not in said:
                problems.append(f"{id_} is missing")
                continue
            finding, *others = map(_read_finding, said[id_])
            if any(other is None or finding is None or other.status is not finding.status for other in others):
                problems.append(f"{id_} is there more than once, with more than one status")
            elif finding is None:
                problems.append(f"the status of {id_} is none of {', '.join(CriterionStatus)}")
            else:
                found[id_] = finding
        return found, problems

    def build_results(
        self, findings: Mapping[str, JudgeFinding], votes: Mapping[str, Sequence[str]] | None = None
    ) -> list[CriterionResult]:
        nothing = JudgeFinding(CriterionStatus.INCONCLUSIVE, reason="the judge said nothing about it")
        return [
            CriterionResult(
                id=id_,
                text=text,
                status=(found := findings.get(id_, nothing)).status.value,
                evidence=found.evidence,
                reason=found.reason,
                votes=tuple((votes or {}).get(id_, ())),
            )
            for id_, text in self
        ]


def mark_misquoted_findings_undecided(
    findings: Mapping[str, JudgeFinding], conversation: str
) -> dict[str, JudgeFinding]:
    found = {}
    for id_, finding in findings.items():
        if conversation_contains_quote(finding.evidence, conversation):
            found[id_] = finding
            continue
        reason = f"{finding.reason} ({finding.status.value}, but {UNPROVEN})".strip()
        found[id_] = JudgeFinding(CriterionStatus.INCONCLUSIVE, f"[not in the conversation] {finding.evidence}", reason)
    return found


def conversation_contains_quote(quote: str, conversation: str) -> bool:
    """Return whether a conversation contains a quotation, ignoring case, white space, quotes, emphasis, omissions.

    Dots without words, or between single letters, quote nothing.
    """
    if quote.strip(_MARKS).lower() in _NO_QUOTE:
        return True
    text, start = _fold_text(conversation), 0
    parts = [_fold_text(_SPEAKER.sub("", part.strip(_MARKS))).strip(_EDGES) for part in _DOTS.split(quote)]
    parts = [part for part in parts if part]
    if not parts or (len(parts) > 1 and min(map(len, parts)) < _SHORTEST_PART):
        return False
    for wanted in parts:
        if (place := text.find(wanted, start)) < 0:
            return False
        start = place + len(wanted)
    return True


def _fold_text(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text.translate(_QUOTES)).casefold().split())


def object_schema(members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def _read_finding(value: object) -> JudgeFinding | None:
    given = value if isinstance(value, Mapping) else {"status": value}
    status = given.get("status")
    if not isinstance(status, str) or status.strip().lower() not in list(CriterionStatus):
        return None
    evidence, reason = (given.get(name) for name in ("evidence", "reason"))
    if not isinstance(evidence, str):  # no quotation: as JSON it is in no conversation
        evidence = json.dumps(evidence, ensure_ascii=False) if evidence else ""
    return JudgeFinding(CriterionStatus(status.strip().lower()), evidence, reason if isinstance(reason, str) else "")


def reject_contradictory_verdict(who: str, result: ScenarioResult) -> None:
    """Refuse a passing result with a failed criterion as contradictory. Raises ValueError."""
    if type(result.success) is not bool:
        raise ValueError(f"{who} returned a result with success={result.success!r}; it is True or False.")
    found = [each.text for each in result.criteria if each.status != CriterionStatus.PASSED]
    wrong = dict.fromkeys([*result.failed_criteria, *result.inconclusive_criteria, *found])
    if result.success and wrong:
        said = ", ".join(repr(each) for each in wrong)
        raise ValueError(
            f"{who} returned a result with success=True in which these criteria did not pass: {said}. "
            "It is success=False, or they are no criteria of it."
        )


ALL_PASSED = "All inline criteria checkpoints passed"


def prepend_checkpoint_findings(checkpoints: Sequence[ScenarioResult], result: ScenarioResult) -> ScenarioResult:
    """Return a result with the findings of earlier checkpoints, in order; criterion ids are renumbered."""
    if not checkpoints:
        return result
    parts = [*checkpoints, result]
    found = [each for part in parts for each in part.criteria]
    return result.model_copy(
        update={
            "passed_criteria": [text for part in parts for text in part.passed_criteria],
            "failed_criteria": [text for part in parts for text in part.failed_criteria],
            "inconclusive_criteria": [text for part in parts for text in part.inconclusive_criteria],
            "criteria": [each.model_copy(update={"id": f"c{number}"}) for number, each in enumerate(found, 1)],
        }
    )
