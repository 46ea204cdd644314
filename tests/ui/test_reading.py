"""What a call says for the first time, and what its tools answered."""

from __future__ import annotations

import dataclasses

from llmproxy.ui.calls import ExchangeLinker
from tests.ui import samples


def test_what_is_new_is_told_from_what_is_sent_again() -> None:
    """The history is known, the results of tools are new; a sub-agent begins a conversation of its own."""
    reader = ExchangeLinker()
    told = [reader.read(each) for each in samples.agent()]
    new = [[message.role for message in each.exchange.messages[each.known :]] for each in told]
    assert new == [["system", "user"], ["tool"], [], ["system", "user"], ["tool", "tool"]]
    assert [each.previous is None for each in told] == [True, False, False, True, False]
    assert [each.retry for each in told] == [False, False, True, False, False]


def test_results_find_the_call_that_asked_for_them() -> None:
    """Those of the retried answer, not of the one that failed."""
    path = [dataclasses.replace(each, id=n) for n, each in enumerate(samples.agent(), 1)]
    reader = ExchangeLinker()
    results = [result for each in path for result in reader.read(each).results]
    found = [(each.caller, each.call, each.told_in) for each in results]
    assert found == [(1, "toolu_1", 2), (3, "toolu_2", 5), (3, "toolu_3", 5)]
