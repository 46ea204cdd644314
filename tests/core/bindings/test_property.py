"""Random conversations, random one-to-one renamings: the replay of the renamed run equals the renamed recording."""

from __future__ import annotations

import json
import random

import pytest

from llmproxy.core.bindings import Bindings, Fit, Misfit, Mismatch, bound_key, fit_request, rewrite_answer
from llmproxy.core.keys.normalize import canonicalize
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.providers.routing import Route, route
from llmproxy.core.traffic.interaction import Request
from tests.support.renamings import (
    REQUESTS,
    SLOTS,
    Forgetful,
    Run,
    World,
    is_named_again,
    list_alike,
    make_run,
    make_world,
    said,
    swap_ids,
    write_answer,
)

SEEDS = range(24)
"""Each in five dialects, whole and streamed; `scripts/lab/bindings` runs ten thousand."""


def _worlds(seed: int) -> tuple[Run, list[str], World, World, Bindings]:
    rng = random.Random(seed)
    run, made = make_run(rng)
    recorded, present = make_world(rng, made), make_world(rng, made)
    return run, made, recorded, present, Bindings(recorded.run_variables(), present.run_variables(), SLOTS)


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_renamed_run_gets_the_renamed_answer(operation: str) -> None:
    """Whatever the folders, days and ids: what the tools made this time stands in the answer, and nothing of the recorded run."""
    differed = 0
    for seed in SEEDS:
        run, made, recorded, present, bindings = _worlds(seed)
        if seed % 4 == 0:
            present = swap_ids(made, recorded, present)
        fit = fit_request(bindings, REQUESTS[operation](run, recorded), REQUESTS[operation](run, present))
        assert isinstance(fit, Fit), (seed, str(fit))
        for stream in (False, True):
            before, wanted = (
                write_answer(operation, run, world, stream=stream, seed=seed) for world in (recorded, present)
            )
            if not before.body:
                continue
            got = rewrite_answer(bindings, fit, before)
            assert not isinstance(got, Mismatch), (seed, stream, str(got))
            assert said(operation, got) == said(operation, wanted), (seed, stream)
            differed += said(operation, before) != said(operation, wanted)
    assert differed > len(SEEDS)


@pytest.mark.parametrize("operation", REQUESTS)
def test_what_is_not_one_to_one_fits_nothing(operation: str) -> None:
    """Two recorded ids that are one now, or one that became two, are a miss."""
    seen = 0
    for seed in SEEDS:
        run, made, recorded, present, bindings = _worlds(seed)
        for one, other in list_alike(made):
            joined = World({**present.values, one: present.values[other]}, present.shuffled)
            parted = World({**recorded.values, one: recorded.values[other]}, recorded.shuffled)
            for before, now in ((recorded, joined), (parted, present)):
                result = fit_request(bindings, REQUESTS[operation](run, before), REQUESTS[operation](run, now))
                assert isinstance(result, Mismatch), (seed, one, other)
                assert result.why is Misfit.NOT_ONE_TO_ONE, str(result)
                seen += 1
    assert seen > 3


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_value_that_was_left_behind_is_a_leak(operation: str) -> None:
    """A later turn that names an id of the recorded run is a miss that says so."""
    seen = 0
    for seed in SEEDS:
        run, made, recorded, present, bindings = _worlds(seed)
        for name in made:
            if not is_named_again(run, name):
                continue
            leaky = Forgetful(present, name, recorded.values[name])
            result = fit_request(bindings, REQUESTS[operation](run, recorded), REQUESTS[operation](run, leaky))
            assert isinstance(result, Mismatch), (seed, name)
            assert result.why is Misfit.LEAKED, str(result)
            seen += 1
    assert seen > 2


TARGETS = {
    "chat.completions": "/v1/chat/completions", "messages": "/anthropic/v1/messages", "responses": "/v1/responses",
    "generateContent": "/gemini/v1beta/models/gemini-3:generateContent", "converse": "/bedrock/model/nova/converse",
}  # fmt: skip


@pytest.mark.parametrize("operation", TARGETS)
def test_the_bound_key_is_the_same_in_every_world(operation: str) -> None:
    """Nothing that can be bound is in the key that finds candidates, and another number of turns is another key."""
    where = route("POST", TARGETS[operation], (), {})
    for seed in SEEDS[:20]:
        run, _, recorded, present, _ = _worlds(seed)
        keys = {_key(where, REQUESTS[operation](run, world)) for world in (recorded, present)}
        assert len(keys) == 1, seed
        if run.turns:
            shorter = Run(run.system, run.question, run.turns[:-1])
            assert _key(where, REQUESTS[operation](shorter, recorded)) not in keys


def _key(where: Route, body: object) -> str:
    request = Request("POST", "/x", (), json.dumps(body).encode())
    return bound_key(canonicalize(request, where, Rules(), lambda _: None))
