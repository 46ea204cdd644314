"""Objects with a name and `invoke` as agents; the turns themselves are compared in test_today."""

# ruff: noqa: ANN401

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.scenario.running.connected import ConnectedAgentAdapter
from tests.scenario.people import User, play, said


class Plain:
    """Not callable, and not async."""

    name = "plain"

    def invoke(self, call: Any) -> Any:
        """Answer with a mapping."""
        return {"output": f"{len(call.messages)} heard", "session": len(call.messages)}


def test_it_need_not_be_callable_or_async() -> None:
    """A name and `invoke` are enough."""
    assert said(play(User("hi"), Plain(), script=[scenario.user(), scenario.agent(), scenario.succeed()])) == [
        "hi",
        "1 heard",
    ]


def test_sessions_belong_to_a_conversation() -> None:
    """A clone begins without any."""
    adapter = ConnectedAgentAdapter(Plain())
    given = scenario.AgentInput(thread_id="t", messages=[], new_messages=[], scenario_state=None)
    assert asyncio.run(adapter.call(given)) == "0 heard"
    assert (adapter.session_for("t"), adapter.session_for("u"), adapter.clone().session_for("t")) == (0, None, None)


def test_anything_else_is_refused() -> None:
    """With what it was."""
    with pytest.raises(TypeError, match="takes an object with a name and a method invoke"):
        ConnectedAgentAdapter(object())
