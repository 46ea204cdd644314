"""Thousands of agents of which it is known what they do to rows, in databases and services, and what suites may say about that."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import pytest

from llmproxy.report.events import Status
from tests.oracle.places import PAGES, SIZE, Database, Service
from tests.oracle.product import Books, store_of
from tests.oracle.rows import Clerk, Shape, claim_created, claim_rows, in_view, is_there, was_created
from tests.oracle.test_behaviour import FIRST, RUNS

ASSERTIONS = 6
"""Of each kind and step."""


def wrong(seed: int, folder: Path, tally: Counter[str]) -> list[str]:
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
            for _ in range(ASSERTIONS):
                place.put(moment.before)
                said = claim_created(random)
                status = books.created(said, [partial(place.put, state) for state in moment.states])
                true = was_created(said, shape, moment)
                sure = moment.plain and all(in_view(shape, state, SIZE) for state in (moment.before, *moment.states))
                found += judged(f"seed {seed} {shape}, step {number}: created {said}", true, status, tally, must=sure)
            place.put(moment.states[-1])
            for _ in range(ASSERTIONS):
                said = claim_rows(random, list(moment.before))
                true, status = is_there(said, shape, moment.states[-1]), books.verify(said)
                must = in_view(shape, moment.states[-1], SIZE)
                found += judged(f"seed {seed} {shape}, step {number}: verify {said}", true, status, tally, must=must)
    return found


def judged(what: str, true: bool | None, status: Status, tally: Counter[str], *, must: bool) -> list[str]:
    """Count, and return what is wrong."""
    kind = "created" if ": created " in what else "verify"
    tally[f"{kind}: {true} {status.value}"] += 1
    passes, fails = status is Status.PASSED, status is Status.FAILED
    bad = (passes and true is False) or (fails and true) or (must and true is not None and not (passes or fails))
    return [f"{what} is {true}, and {status.value}"] if bad else []


@pytest.mark.slow
def test_what_is_said_of_rows_passes_only_if_it_is_true(tmp_path: Path) -> None:
    """Other users' rows, numbers that come again, rows that change hands, pages that nobody can follow, rows that come late."""
    tally: Counter[str] = Counter()
    found = [each for seed in range(FIRST, FIRST + RUNS // 4) for each in wrong(seed, tmp_path, tally)]
    print(dict(tally))
    assert not found, "\n".join([f"{len(found)} of {tally.total()}:", *found[:20]])
    for kind in ("created: True passed", "created: False failed", "verify: True passed", "verify: False failed"):
        assert tally[kind] > RUNS // 8, f"hardly any: {kind}; the agents have become too tame: {tally}"
