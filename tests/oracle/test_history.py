"""Thousands of agents of which it is known what they do to their history, and what suites may say about that."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from llmproxy.report.events import Status
from tests.oracle.history import Life, claim, recalls
from tests.oracle.product import history, judge_history, seen
from tests.oracle.test_behaviour import FIRST, RUNS

ASSERTIONS = 6
"""Of each step."""
NAMED = {
    20000479: "its prompt's summary is written anew, by nobody who was seen",
    20004417: "so is one in the user's words",
}
"""Agents about whom product and oracle once disagreed."""


def wrong(seed: int, tally: Counter[str]) -> list[str]:
    """Play an agent, assert things about its history, and return where the product and the truth differ."""
    life, random, found = Life(seed), Random(seed), list[str]()
    memoir = life.play()
    wire = seen(memoir.exchanges)
    for number, step in enumerate(memoir.steps):
        shown = history(wire, step)
        for _ in range(ASSERTIONS):
            said = claim(random, step)
            true, status = recalls(said, step), judge_history(said, shown)
            tally[f"{true} {status.value}"] += 1
            passes, fails = status is Status.PASSED, status is Status.FAILED
            decides = passes or fails or true is None or not step.clear
            if (passes and true is False) or (fails and true) or not decides:
                found.append(
                    f"seed {seed} ({life.dialect.name}, {life.policy}), step {number}: {said} is {true}, and {status.value}"
                )
    return found


def test_what_is_said_of_a_history_passes_only_if_it_is_true() -> None:
    """And it is decided where the requests show it."""
    tally: Counter[str] = Counter()
    found = [each for seed in range(FIRST, FIRST + RUNS // 2) for each in wrong(seed, tally)]
    print(dict(tally))
    assert not found, "\n".join([f"{len(found)} of {tally.total()}:", *found[:20]])
    for kind in ("True passed", "False failed"):
        assert tally[kind] > RUNS // 2, f"hardly any: {kind}; the agents have become too tame: {tally}"


@pytest.mark.parametrize("seed", NAMED, ids=NAMED.get)
def test_histories_of_former_disagreements(seed: int) -> None:
    """What was once judged otherwise stays settled."""
    assert not wrong(seed, Counter())
