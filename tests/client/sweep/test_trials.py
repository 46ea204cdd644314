"""Which kinds a sweep takes."""

from __future__ import annotations

import pytest

from llmproxy.client.sweep import asked_kinds, is_sweep
from llmproxy.core.faults import BadFaults


def test_a_sweep_takes_what_differs_in_what_it_asks() -> None:
    """Not what meets everybody, nor what asks the same of an agent as another kind; names say otherwise."""
    usual = [kind.name for kind in asked_kinds("sweep")]
    assert {"http-429", "reset", "early-end", "truncated-arguments"} <= set(usual)
    assert not {"refused", "tls-failure", "http-503", "slow-start"} & set(usual)
    assert [kind.name for kind in asked_kinds("sweep:slow-start, reset")] == ["slow-start", "reset"]
    assert is_sweep("sweep:reset")
    assert not is_sweep("sweeping")


@pytest.mark.parametrize(
    ("asked", "said"), [("sweep:rset", "did you mean 'reset'"), ("sweep:refused", "meets a connection")]
)
def test_what_a_sweep_cannot_take_is_refused(asked: str, said: str) -> None:
    """Before anything runs."""
    with pytest.raises(BadFaults, match=said):
        asked_kinds(asked)
