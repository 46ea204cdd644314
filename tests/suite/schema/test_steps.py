"""Steps are told by their one key."""

from __future__ import annotations

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.schema.steps import STEPS, ChatStep, JudgeStep, SetupStep, SimulateStep, VerifyStep, WaitStep
from tests.suite.fragment import load_fragment


def test_every_kind_of_step_loads() -> None:
    """In one scenario."""
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
    assert step.about_wire == ("tools", "usage")
    assert load_fragment("step", "{chat: hi, response: {contains: x}}").about_wire == ()


@pytest.mark.parametrize(
    "tools",
    [
        "{book: {every: false, status: executed, after: book}}",
        "{a: {before: b}, b: {before: c}, c: {after: a}}",
        "{a: {count: 0, before: a}}",
    ],
)
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


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("{}", "a step has one of chat, simulate, judge, verify, wait, setup, and this has nothing"),
        ("{label: x}", "and this has label"),
        ("{Chat: hi}", "did you mean `chat`?"),
        ("{chat: hi, wait: {ms: 1}}", "this is `chat` and `wait` (make it several steps)"),
        ("{chat: ''}", "`chat` takes a text that is not empty"),
        ("{chat: hi, label: 5}", "`label` takes a text"),
        ("{chat: hi, tools: {a: {before: a}}}", "cannot all hold: a before a"),
        ("{chat: hi, tools: {a: {after: a}}}", "cannot all hold: a before a"),
        ("{chat: hi, tools: {a: {before: b}, b: {before: a}}}", "cannot all hold: "),
        ("{chat: hi, tools: {a: {before: b, after: b}}}", "cannot all hold: "),
        ("{chat: hi, tools: {a: {before: b}, b: {before: c}, a2: 1, c: {before: a}}}", "cannot all hold: "),
        ("{chat: hi, onlyTools: true}", "`onlyTools` needs `tools`"),
        ("{chat: hi, observe: no}", "takes one of 'wire' or 'none'"),
        ("{chat: hi, created: []}", "`created` takes at least one item, not an empty list"),
        ("{chat: hi, toolsSnapshot: yes}", "takes true, `names` or `arguments`"),
        ("{chat: hi, totalToolCalls: {lte: many}}", "takes a number that is not negative"),
        ("{simulate: {persona: x}}", "`goal` is missing"),
        ("{simulate: {goal: x, maxTurns: 0}}", "a whole number from 1"),
        ("{verify: {entity: t, count: 1}, tools: {a: 1}}", "unknown key `tools`"),
    ],
)
def test_what_is_no_step_is_refused(step: str, words: str) -> None:
    """With what was probably meant."""
    with pytest.raises(SuiteError) as caught:
        load_fragment("step", step)
    assert words in str(caught.value)
