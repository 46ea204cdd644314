"""Reliability of a judge: agreement with people, and with itself when repeated.

The first verdict is compared with the labels. Compare order flips with repetition flips: an unsteady judge also flips
when the order changes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations
from typing import Any

from llmproxy.amount_formatting import format_count
from llmproxy.errors import LLMProxyError, MissError, SettingsError
from llmproxy.report.events import Status
from llmproxy.report.scenario_rows import ConfidenceInterval, wilson
from llmproxy.scenario.lab.human_labels import LabelledTranscript
from llmproxy.scenario.lab.judge_finished_conversation import CONCURRENCY, judge_transcript
from llmproxy.scenario.repeats.repeats import RunOutcome
from llmproxy.scenario.repeats.statistics import RESAMPLES, bootstrap_confidence_interval, kappa
from llmproxy.scenario.run_session import gather_with_limit
from llmproxy.scenario.types import CriterionResult

CLASSES = ("passed", "failed", "inconclusive")


@dataclass(frozen=True, slots=True)
class LabelDisagreement:
    id: str
    criterion: str
    human: str
    judge: str
    reason: str


@dataclass(frozen=True, slots=True)
class VerdictFlipRate:
    changed: int
    compared: int

    @property
    def rate(self) -> float | None:
        return self.changed / self.compared if self.compared else None

    def __str__(self) -> str:
        return f"{self.changed} of {self.compared} ({self.rate:.1%})" if self.compared else "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCalibration:
    conversations: int
    labels: int
    agreed: int
    interval: ConfidenceInterval | None  # of the agreement: Wilson, 95 %
    kappa: float | None  # None: one side uses a single class
    kappa_interval: ConfidenceInterval | None
    table: Mapping[str, Mapping[str, int]]  # by human label, then by the judge's
    repetition: VerdictFlipRate
    unsteady: int
    order: VerdictFlipRate
    disagreements: Sequence[LabelDisagreement] = ()
    errors: Mapping[str, str] = field(default_factory=dict)  # by id of conversations, which are left out
    missed: bool = False  # in replay: a verdict was never recorded

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.labels if self.labels else None

    def summary_lines(self) -> list[str]:
        told = [f"{format_count(self.conversations, 'conversation')}, {format_count(self.labels, 'label')}"]
        if self.agreement is not None:
            spread = f", 95 % interval {self.interval.low:.1%} to {self.interval.high:.1%}" if self.interval else ""
            told.append(f"agreement: {self.agreed} of {self.labels} ({self.agreement:.1%}{spread})")
        told.append(f"Cohen's kappa: {self._format_kappa()}")
        told += [
            f"  human {human}: " + ", ".join(f"judge {name} {n}" for name, n in row.items())
            for human, row in self.table.items()
        ]
        if self.repetition.compared:
            unsteady = format_count(self.unsteady, "criterion", "criteria")
            told.append(f"flips on repetition: {self.repetition} pairs of looks; {unsteady} not always the same")
        else:
            told.append("flips on repetition: not measured")
        told.append(f"flips on order: {self.order}" + (" with the criteria reversed" if self.order.compared else ""))
        names: dict[str, list[str]] = {}
        for name, why in self.errors.items():
            names.setdefault(why, []).append(name)
        return told + [" ".join(f"left out: {', '.join(several)}: {why}".split()) for why, several in names.items()]

    def _format_kappa(self) -> str:
        if self.kappa is None:
            why = "judge or people give one label only" if self.labels else "nothing to compare"
            return f"undefined ({why})"
        if self.kappa_interval is None:
            return f"{self.kappa:.3f} (too few conversations for an interval)"
        return f"{self.kappa:.3f}, 95 % interval {self.kappa_interval.low:.3f} to {self.kappa_interval.high:.3f}"


type JudgeOf = Callable[[Sequence[str]], Any]


async def calibrate_judge(
    labelled: Sequence[LabelledTranscript], judge_of: JudgeOf, *, repeats: int = 3, order: bool = True,
    rng: random.Random, name: str = "calibrate", proxy: str | bool | None = None, mode: str | None = None,
    max_concurrency: int = CONCURRENCY, resamples: int = RESAMPLES,
) -> JudgeCalibration:  # fmt: skip
    """Compare a judge with human labels and itself; `name` is the prefix of recordings. Raises SettingsError."""
    if repeats < 1 or not labelled:
        raise SettingsError(f"calibrating takes labelled conversations and repeats from 1 on (not {repeats}).")
    look = partial(judge_transcript, purpose=name, proxy=proxy, mode=mode)
    seen = [_JudgedConversation(each) for each in labelled]
    looks = [each.judge_and_store_sample(look, judge_of, sample) for each in seen for sample in range(1, repeats + 1)]
    if order:
        looks += [
            each.judge_and_store_sample(look, judge_of, 1, backwards=True) for each in seen if len(each.of.labels) > 1
        ]
    await gather_with_limit(looks, max_concurrency)
    return _sum_up_calibration(seen, rng, resamples)


def predict_calibration_call_count(labelled: Sequence[LabelledTranscript], repeats: int, *, order: bool) -> int:
    return len(labelled) * repeats + (sum(len(each.labels) > 1 for each in labelled) if order else 0)


@dataclass(eq=False)
class _JudgedConversation:
    of: LabelledTranscript
    forward: dict[int, Mapping[str, CriterionResult]] = field(default_factory=dict)
    reversed: Mapping[str, CriterionResult] | None = None
    error: str = ""
    missed: bool = False

    async def judge_and_store_sample(
        self, look: Callable[..., Awaitable[RunOutcome]], judge_of: JudgeOf, sample: int, *, backwards: bool = False
    ) -> None:
        texts = list(self.of.labels)
        judge = judge_of(texts[::-1] if backwards else texts)
        ended = await look(judge, self.of.transcript, sample, "reversed" if backwards else "")
        found = {each.text: each for each in ended.result.criteria}
        if ended.status not in {Status.PASSED, Status.FAILED} or set(found) != set(texts):
            self.error = self.error or _describe_error(ended)
            self.missed = self.missed or isinstance(ended.error, MissError)
        elif backwards:
            self.reversed = found
        else:
            self.forward[sample] = found

    def statuses_by_repeat(self, text: str) -> list[str]:
        return [self.forward[sample][text].status for sample in sorted(self.forward)]


def _describe_error(ended: RunOutcome) -> str:
    if isinstance(ended.error, LLMProxyError):
        return ended.error.message.split("\n")[0]
    return ended.result.error.split("\n")[0] or "the judge did not say something about every criterion"


def _sum_up_calibration(seen: Sequence[_JudgedConversation], rng: random.Random, resamples: int) -> JudgeCalibration:
    whole = [each for each in seen if not each.error]
    groups = [
        [(label, each.statuses_by_repeat(text)[0]) for text, label in each.of.labels.items() if label is not None]
        for each in whole
    ]
    pairs = [pair for group in groups for pair in group]
    agreement = kappa(pairs)
    agreed = sum(human == judge for human, judge in pairs)
    counts = Counter(pairs)
    used = [name for name in CLASSES if any(name in pair for pair in pairs)]
    steady = [each.statuses_by_repeat(text) for each in whole for text in each.of.labels]
    return JudgeCalibration(
        conversations=len(whole),
        labels=len(pairs),
        agreed=agreed,
        interval=wilson(agreed, len(pairs)),
        kappa=agreement,
        kappa_interval=None
        if agreement is None
        else bootstrap_confidence_interval(groups, lambda of: kappa([*chain(*of)]), rng, resamples),
        table={human: {judge: counts[human, judge] for judge in used} for human in used},
        repetition=_count_flips([pair for said in steady for pair in combinations(said, 2)]),
        unsteady=sum(len(set(said)) > 1 for said in steady),
        order=_count_flips(
            [
                (each.statuses_by_repeat(text)[0], each.reversed[text].status)
                for each in whole
                if each.reversed is not None
                for text in each.of.labels
            ]
        ),
        disagreements=[
            LabelDisagreement(each.of.transcript.id, text, label, first[text].status, first[text].reason)
            for each in whole
            for first in (each.forward[min(each.forward)],)
            for text, label in each.of.labels.items()
            if label is not None and label != first[text].status
        ],
        errors={each.of.transcript.id: each.error for each in seen if each.error},
        missed=any(each.missed for each in seen),
    )


def _count_flips(pairs: Sequence[tuple[str, str]]) -> VerdictFlipRate:
    return VerdictFlipRate(sum(one != other for one, other in pairs), len(pairs))
