"""Thousands of agents whose behaviour is known: no assertion passes that is not true of them, none fails that is."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from llmproxy.report.events import Status
from tests.oracle.agents import World
from tests.oracle.product import judge, seen
from tests.oracle.truth import holds, in_sight, think_of

RUNS = int(os.environ.get("ORACLE_RUNS", "300"))
"""How many agents; `scripts/lab/oracle` asks for thousands."""
FIRST = int(os.environ.get("ORACLE_FIRST", "0"))
ASSERTIONS = 12
"""Of each step."""
NAMED = {
    9000497: "it hears enough of an answer and leaves, while another conversation goes on",
    31004593: "it repeats a request whose history begins in the middle, beside a conversation with like calls and no ids",
}
"""Agents about whom product and oracle once disagreed."""


def wrong(seed: int, tally: Counter[str]) -> list[str]:
    """Play an agent, assert things about it, and return where the product and the truth differ."""
    run, random = World(seed).play(), Random(seed)
    wire, found = seen(run.exchanges), list[str]()
    for number, step in enumerate(run.steps):
        measured = wire.step(step.after, step.until)
        for _ in range(ASSERTIONS):
            said = think_of(random)
            true, status = holds(said, step), judge(said, measured)
            tally[f"{true} {status.value}"] += 1
            passes, fails = status is Status.PASSED, status is Status.FAILED
            decides = passes or fails or true is None or not in_sight(said, step)
            if (passes and true is False) or (fails and true) or not decides:
                found.append(f"seed {seed}, step {number}: {said} is {true}, and {status.value}")
    return found


def test_nothing_passes_that_is_not_true_and_nothing_fails_that_is() -> None:
    """And where everything is to be seen on the wire, everything is decided."""
    tally: Counter[str] = Counter()
    found = [each for seed in range(FIRST, FIRST + RUNS) for each in wrong(seed, tally)]
    print(dict(tally))
    assert not found, "\n".join([f"{len(found)} of {tally.total()}:", *found[:20]])
    for kind in ("True passed", "False failed", "False environment_error", "True environment_error"):
        assert tally[kind] > RUNS // 10, f"hardly any: {kind}; the agents have become too tame: {tally}"


@pytest.mark.parametrize("seed", NAMED, ids=NAMED.get)
def test_agents_of_former_disagreements(seed: int) -> None:
    """What was once judged otherwise stays settled."""
    assert not wrong(seed, Counter())
