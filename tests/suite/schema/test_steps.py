"""Steps are told by their one key."""

from __future__ import annotations

import pytest

from llmproxy.suite.schema.suite import STEPS, ChatStep, JudgeStep, SetupStep, SimulateStep, VerifyStep, WaitStep
from tests.suite.fragment import load_fragment


def test_every_kind_of_step_loads() -> None:
    made = load_fragment(
        "steps",
        """
- chat: hi
- simulate: {goal: get a refund, persona: {name: Ann, description: in a hurry}, maxTurns: 4, criteria: [polite]}
  tools: {refund: 1}
- judge: {criteria: [it is polite], judges: 3}
- judge: it is short
- verify: {entity: t, count: 1}
- wait: {ms: 5}
- setup: [{insert: t, data: {a: 1}, as: $a}]
""",
    )
    assert [type(step) for step in made] == [
        ChatStep, SimulateStep, JudgeStep, JudgeStep, VerifyStep, WaitStep, SetupStep,
    ]  # fmt: skip
    assert [step.kind for step in made] == ["chat", "simulate", "judge", "judge", "verify", "wait", "setup"]
    assert made[1].simulate.max_turns == 4
    assert made[1].simulate.persona.description == "in a hurry"
    assert made[3].judge.criteria == ("it is short",)
    assert set(STEPS) == {step.kind for step in made}


def test_a_step_says_what_it_asserts_about_the_wire() -> None:
    """Such assertions need the agent's traffic."""
    step = load_fragment("step", "{chat: hi, tools: {a: 0}, usage: {callCount: 1}, response: {contains: x}}")
    assert step.traffic_assertion_keys == ("tools", "usage")
    assert load_fragment("step", "{chat: hi, response: {contains: x}}").traffic_assertion_keys == ()


@pytest.mark.parametrize("tools", [
    "{book: {every: false, status: executed, after: book}}",
    "{a: {before: b}, b: {before: c}, c: {after: a}}",
    "{a: {count: 0, before: a}}",
])  # fmt: skip
def test_an_order_that_can_hold_is_taken(tools: str) -> None:
    """One call of a tool may come after another call of it."""
    assert load_fragment("step", f"{{chat: hi, tools: {tools}}}").kind == "chat"


def test_snapshots_are_asked_for_by_names() -> None:
    """All of a call, or its name only."""
    made = [
        load_fragment("step", f"{{chat: hi, toolsSnapshot: {value}}}").tools_snapshot
        for value in ("true", "names", "arguments")
    ]
    assert made == [True, "names", "arguments"]
