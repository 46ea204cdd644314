"""A judge beside people and beside itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import MachineError, SettingsError
from llmproxy.report.scenario_rows import wilson
from llmproxy.scenario.lab.human_labels import LabelledTranscript
from llmproxy.scenario.lab.judge_calibration import (
    JudgeCalibration,
    VerdictFlipRate,
    calibrate_judge,
    predict_calibration_call_count,
)
from llmproxy.scenario.lab.judge_finished_conversation import Transcript
from tests.scenario.people import Judge

type Says = Callable[[str, str, int, bool], str]
"""What a judge says: of a conversation, a criterion, a sample, with the criteria reversed or not."""


def labelled(**conversations: Mapping[str, str | None]) -> list[LabelledTranscript]:
    return [
        LabelledTranscript(Transcript(id=id_, messages=[{"role": "user", "content": id_}]), labels)
        for id_, labels in conversations.items()
    ]


def measured(says: Says, of: Sequence[LabelledTranscript], **given: Any) -> JudgeCalibration:
    """Calibrate a judge that says what it is told to."""

    def judge_of(texts: Sequence[str]) -> Judge:
        def decide(given: scenario.AgentInput) -> Any:
            sample = given.scenario_state.executor.options.sample
            name, backwards = given.messages[0]["content"], texts[0] > texts[-1]
            about = {f"c{n}": (text, says(name, text, sample, backwards)) for n, text in enumerate(texts, 1)}
            criteria = [
                scenario.CriterionResult(id=id_, text=text, status=status, reason=f"about {text}")
                for id_, (text, status) in about.items()
            ]
            return scenario.ScenarioResult(success=False, messages=[], criteria=criteria)

        return Judge(decide)

    return asyncio.run(calibrate_judge(of, judge_of, rng=random.Random(1), proxy=False, **given))


HUMAN = labelled(
    t1={"a": "passed", "b": "failed"},
    t2={"a": "passed", "b": "passed"},
    t3={"a": "failed", "b": None},
    t4={"a": "failed", "b": "failed"},
)


def test_agreement_and_kappa_against_people() -> None:
    """Only what has a label; the disagreements are listed with the judge's reason."""
    told = {"t1": "pf", "t2": "pf", "t3": "fp", "t4": "ff"}
    found = measured(lambda name, text, *_: {"p": "passed", "f": "failed"}[told[name]["ab".index(text)]], HUMAN)
    assert (found.conversations, found.labels, found.agreed, found.interval) == (4, 7, 6, wilson(6, 7))
    # By hand: people 3 of 7 passed, the judge 2 of 7; by chance (3*2 + 4*5) / 49.
    assert found.kappa == pytest.approx((6 / 7 - 26 / 49) / (1 - 26 / 49))
    assert found.table == {"passed": {"passed": 2, "failed": 1}, "failed": {"passed": 0, "failed": 4}}
    (wrong,) = found.disagreements
    assert (wrong.id, wrong.criterion, wrong.human, wrong.judge, wrong.reason) == (
        "t2", "b", "passed", "failed", "about b",
    )  # fmt: skip
    assert (found.repetition, found.order, found.unsteady) == (VerdictFlipRate(0, 24), VerdictFlipRate(0, 8), 0)
    text = "\n".join(found.summary_lines())
    assert "agreement: 6 of 7 (85.7%, 95 % interval" in text
    assert "flips on order: 0 of 8 (0.0%)" in text


def test_kappa_has_an_interval_over_conversations() -> None:
    """Criteria of one conversation belong together; the same generator gives the same."""
    of = labelled(**{f"t{n}": {"a": "passed" if n % 2 else "failed", "b": "passed"} for n in range(20)})

    def noisy(name: str, text: str, _sample: int, _backwards: bool) -> str:
        wrong = name in {"t1", "t2", "t4"} and text == "a"
        return "failed" if wrong or (text == "a" and not int(name[1:]) % 2) else "passed"

    found = measured(noisy, of, repeats=1, order=False)
    assert found.kappa is not None
    assert found.kappa_interval is not None
    assert found.kappa_interval.low <= found.kappa <= found.kappa_interval.high
    assert found.kappa_interval == measured(noisy, of, repeats=1, order=False).kappa_interval
    assert (str(found.repetition), str(found.order)) == ("not measured", "not measured")


def test_kappa_is_undefined_where_one_side_knows_one_answer() -> None:
    """Not 0 and not 1: with one class chance explains everything."""
    found = measured(lambda *_: "passed", HUMAN)
    assert (found.kappa, found.kappa_interval, found.agreement) == (None, None, 3 / 7)
    assert "Cohen's kappa: undefined" in "\n".join(found.summary_lines())


def test_flips_on_repetition_and_on_order_are_told_apart() -> None:
    """A judge that changes its mind, and one that likes what comes first."""
    moody = measured(
        lambda name, text, sample, _: "passed" if (name, text, sample) != ("t1", "a", 2) else "failed", HUMAN
    )
    assert (moody.repetition, moody.unsteady, moody.order) == (VerdictFlipRate(2, 24), 1, VerdictFlipRate(0, 8))
    biased = measured(
        lambda _name, text, _sample, backwards: "passed" if (text == "a") != backwards else "failed", HUMAN
    )
    assert (biased.repetition, biased.unsteady, biased.order) == (VerdictFlipRate(0, 24), 0, VerdictFlipRate(8, 8))


def test_what_could_not_be_judged_is_left_out_and_shown() -> None:
    """Its other looks too: half a conversation would be a choice."""

    def says(name: str, _text: str, sample: int, _backwards: bool) -> str:
        if (name, sample) == ("t4", 3):
            raise MachineError("no model\nsecond line")
        return "passed" if name != "t3" else "failed"

    found = measured(says, HUMAN)
    assert (found.conversations, found.labels, found.errors, found.missed) == (3, 5, {"t4": "no model"}, False)
    assert found.summary_lines()[-1] == "left out: t4: no model"


def test_a_judge_that_forgets_a_criterion_has_not_judged() -> None:
    judge = Judge(scenario.ScenarioResult(success=True, messages=[]))
    found = asyncio.run(
        calibrate_judge(HUMAN, lambda _: judge, rng=random.Random(1), proxy=False, repeats=1, order=False)
    )
    assert set(found.errors.values()) == {"the judge did not say something about every criterion"}
    assert (found.agreement, found.kappa, found.labels) == (None, None, 0)
    assert "nothing to compare" in "\n".join(found.summary_lines())
    assert found.summary_lines()[0] == "0 conversations, 0 labels"
    assert found.summary_lines()[2:] == [
        "flips on repetition: not measured",
        "flips on order: not measured",
        "left out: t1, t2, t3, t4: the judge did not say something about every criterion",
    ]


def test_the_number_of_looks_is_known_before() -> None:
    """A single criterion has no other order; no conversations or no looks are refused."""
    of = [*HUMAN, *labelled(t5={"a": "passed"})]
    assert (predict_calibration_call_count(of, 3, order=True), predict_calibration_call_count(of, 3, order=False)) == (
        5 * 3 + 4,
        15,
    )
    for of, repeats in (([], 3), (HUMAN, 0)):
        with pytest.raises(SettingsError, match="calibrating takes"):
            measured(lambda *_: "passed", of, repeats=repeats)
