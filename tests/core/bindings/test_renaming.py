"""A recorded request in this run's words."""

from __future__ import annotations

import random

import pytest

from llmproxy.core.bindings import Bindings, rename_request
from llmproxy.core.bindings.fits import Renamer
from llmproxy.core.misses.nearest import conversation
from tests.support.renamings import REQUESTS, SLOTS, make_run, make_world


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_message_is_told_as_in_the_whole(operation: str) -> None:
    """Who speaks, and what a tool was asked and answered, stands in the message itself."""
    told = 0
    for seed in range(12):
        rng = random.Random(seed)
        run, made = make_run(rng)
        recorded, present = make_world(rng, made), make_world(rng, made)
        bindings = Bindings(recorded.run_variables(), present.run_variables(), SLOTS)
        tree = REQUESTS[operation](run, recorded)
        member, messages = conversation(tree)
        whole = rename_request(bindings, tree)
        assert isinstance(whole, dict)
        assert [Renamer(bindings).message(member, each) for each in messages] == whole[member]
        told += whole[member] != messages
    assert told > 3
