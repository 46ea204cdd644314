"""Values that look volatile, planted by the hundred into random runs: what asks something else in one of them is a miss that names the place."""

from __future__ import annotations

import random

import pytest

from llmproxy.core.bindings import Fit, Mismatch, create_expectations, fit_request
from llmproxy.core.bindings.volatile_learning import learn_volatile_fields
from tests.support.duplicates import bind, differing, list_duplicates, plant, prefixes
from tests.support.renamings import REQUESTS, make_run, make_world

SEEDS = (1, 5)
"""`scripts/lab/bindings` takes thousands."""


@pytest.mark.parametrize("operation", REQUESTS)
def test_nothing_that_asks_something_else_is_served(operation: str) -> None:
    """With the volatile fields of the cassette and with learned ones, for the first and the last request of a run; compared once and again."""
    learned = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        run, made = make_run(rng)
        run = plant(rng, run)
        recorded, present = make_world(rng, made), make_world(rng, made)
        parts = list(prefixes(run))
        for part in (parts[0], parts[-1]):
            before, now = (REQUESTS[operation](part, world) for world in (recorded, present))
            lessons = learn_volatile_fields(bind(recorded, present, ()), before, now)
            assert not isinstance(lessons, Mismatch), str(lessons)
            learned += len(lessons)
            for bindings in (bind(recorded, present), bind(recorded, present, [each.slot for each in lessons])):
                expectations = create_expectations(bindings)
                for _ in range(3):
                    fit = fit_request(bindings, before, now, None, expectations)
                    assert isinstance(fit, Fit), (seed, str(fit))
                for each in list_duplicates(rng, operation, part, recorded, present):
                    result = fit_request(bindings, before, each.tree, None, expectations)
                    assert isinstance(result, Mismatch), (seed, each.why)
                    places = list(differing(now, each.tree))
                    assert any(result.path.startswith(place) for place in places), (each.why, str(result), places)
    assert learned > 0
