"""Thousands of agents of which it is known what they do: no assertion passes that is not true of them, none fails that is.

Of their calls, of what becomes of their histories, and of rows in databases and services.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import pytest

from llmproxy.report.events import Status
from tests.oracle.agents import World
from tests.oracle.history import Life, claim, recalls
from tests.oracle.places import PAGES, SIZE, Database, Service
from tests.oracle.product import Books, history, judge, judge_history, seen, store_of
from tests.oracle.rows import Clerk, Shape, claim_created, claim_rows, in_view, is_there, was_created
from tests.oracle.truth import holds, in_sight, think_of

RUNS = int(os.environ.get("ORACLE_RUNS", "160"))
"""How many agents; `scripts/lab/oracle` asks for thousands."""
FIRST = int(os.environ.get("ORACLE_FIRST", "0"))
ASSERTIONS = 12
"""Of each step about calls; half as many about a history, and of each kind about rows."""


def judged(
    what: str, true: bool | None, status: Status, tally: Counter[str], *, must: bool, kind: str = ""
) -> list[str]:
    """Count, and return what is wrong: passed and not true, failed and true, or not decided where it must be."""
    tally[f"{kind}{true} {status.value}"] += 1
    passes, fails = status is Status.PASSED, status is Status.FAILED
    bad = (passes and true is False) or (fails and true) or (must and true is not None and not (passes or fails))
    return [f"{what} is {true}, and {status.value}"] if bad else []


def wrong_of_calls(seed: int, tally: Counter[str]) -> list[str]:
    """Play an agent, assert things about its calls, and return where the product and the truth differ."""
    run, random = World(seed).play(), Random(seed)
    wire, found = seen(run.exchanges), list[str]()
    for number, step in enumerate(run.steps):
        measured = wire.build_step(step.after, step.until)
        for _ in range(ASSERTIONS):
            said = think_of(random)
            status, must = judge(said, measured), in_sight(said, step)
            found += judged(f"seed {seed}, step {number}: {said}", holds(said, step), status, tally, must=must)
    return found


def wrong_of_histories(seed: int, tally: Counter[str]) -> list[str]:
    """Play an agent, assert things about its history, and return where the product and the truth differ."""
    life, random, found = Life(seed), Random(seed), list[str]()
    memoir = life.play()
    wire = seen(memoir.exchanges)
    for number, step in enumerate(memoir.steps):
        shown = history(wire, step)
        for _ in range(ASSERTIONS // 2):
            said = claim(random, step)
            what = f"seed {seed} ({life.dialect.name}, {life.policy}), step {number}: {said}"
            found += judged(what, recalls(said, step), judge_history(said, shown), tally, must=step.clear)
    return found


def wrong_of_rows(seed: int, tally: Counter[str], folder: Path) -> list[str]:
    """Play an agent, assert things about rows, and return where the product and the truth differ."""
    random, found = Random(seed), list[str]()
    shape = Shape(random.choice(("again", "counted", "named")), random.random() < 0.7)
    place: Database | Service = Database(folder, shape)
    if random.random() < 0.5:
        place.close()
        shape = Shape(shape.keys, shape.owned, random.choice(PAGES))
        place = Service(shape)
    ledger = Clerk(seed, shape).play()
    place.put(ledger.start)
    with ExitStack() as stack:
        stack.callback(place.close)
        books = stack.enter_context(Books(store_of(place)))
        for number, moment in enumerate(ledger.steps):
            step = f"seed {seed} {shape}, step {number}"
            for _ in range(ASSERTIONS // 2):
                place.put(moment.before)
                said = claim_created(random)
                status = books.created(said, [partial(place.put, state) for state in moment.states])
                true = was_created(said, shape, moment)
                sure = moment.plain and all(in_view(shape, state, SIZE) for state in (moment.before, *moment.states))
                found += judged(f"{step}: created {said}", true, status, tally, must=sure, kind="created: ")
            place.put(moment.states[-1])
            for _ in range(ASSERTIONS // 2):
                said = claim_rows(random, list(moment.before))
                true, status = is_there(said, shape, moment.states[-1]), books.verify(said)
                must = in_view(shape, moment.states[-1], SIZE)
                found += judged(f"{step}: verify {said}", true, status, tally, must=must, kind="verify: ")
    return found


@pytest.mark.parametrize(("wrong", "runs", "kinds", "least"), [
    (wrong_of_calls, RUNS,
     ("True passed", "False failed", "False environment_error", "True environment_error"), RUNS // 10),
    (wrong_of_histories, RUNS // 2, ("True passed", "False failed"), RUNS // 2),
    pytest.param(
        wrong_of_rows, RUNS // 4,
        ("created: True passed", "created: False failed", "verify: True passed", "verify: False failed"), RUNS // 8,
        marks=pytest.mark.slow,
    ),
], ids=["calls", "histories", "rows"])  # fmt: skip
def test_nothing_passes_that_is_not_true_and_nothing_fails_that_is(
    wrong: Callable[..., list[str]], runs: int, kinds: tuple[str, ...], least: int, tmp_path: Path
) -> None:
    """And where everything is to be seen, everything is decided; other users' rows and pages that end early included."""
    tally: Counter[str] = Counter()
    given = (tmp_path,) if wrong is wrong_of_rows else ()
    found = [each for seed in range(FIRST, FIRST + runs) for each in wrong(seed, tally, *given)]
    print(dict(tally))
    assert not found, "\n".join([f"{len(found)} of {tally.total()}:", *found[:20]])
    for kind in kinds:
        assert tally[kind] > least, f"hardly any: {kind}; the agents have become too tame: {tally}"


@pytest.mark.parametrize(("wrong", "seed"), [
    (wrong_of_calls, 9000497),  # it hears enough of an answer and leaves, while another conversation goes on
    # It repeats a request whose history begins in the middle, beside a conversation with like calls and no ids.
    (wrong_of_calls, 31004593),
    (wrong_of_histories, 20000479),  # its prompt's summary is written anew, by nobody who was seen
    (wrong_of_histories, 20004417),  # so is one in the user's words
])  # fmt: skip
def test_agents_of_former_disagreements(wrong: Callable[..., list[str]], seed: int) -> None:
    """What product and oracle once judged otherwise stays settled."""
    assert not wrong(seed, Counter())
