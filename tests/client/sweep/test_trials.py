"""Which kinds a sweep takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmproxy.client.sweep import asked_kinds, is_sweep, trials_of
from llmproxy.core.cassettes.plain import to_json
from llmproxy.core.faults import BadFaults
from tests.trace.observing.chats import asks, call, said, user
from tests.trace.observing.test_servers import Tools


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


def test_calls_of_tools_are_swept_with_numbers_of_their_own() -> None:
    """`http-500@2` is the second call of a model, `mcp-error@2` that of a tool; initialize and lists are let alone."""
    chats = Tools()
    chats.lists("echo")
    chats.chat([user("x")], asks(call("echo", {"n": 1})))
    chats.serve("echo", {"n": 1})
    chats.serve("echo", {"n": 2})
    chats.chat([user("y")], said("done"))
    walk = [replace(told, recording=to_json(made)) for told, made in chats.calls if made is not None]
    trials = trials_of(walk, asked_kinds("sweep:http-500,mcp-error,mcp-gone"))
    assert [(each.again, each.rule["recording"]) for each in trials] == [
        ("http-500@1", 102),
        ("http-500@2", 105),
        ("mcp-error@1", 103),
        ("mcp-error@2", 104),
        ("mcp-gone@1", 103),
        ("mcp-gone@2", 104),
    ]
    usual = {each.kind.name for each in trials_of(walk, asked_kinds("sweep"))}
    assert {"mcp-error", "mcp-tool-error", "mcp-silent", "mcp-gone", "http-429"} <= usual
