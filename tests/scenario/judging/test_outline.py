"""A judge of a long conversation: an outline, what it looks up, and what ends that."""

from __future__ import annotations

import asyncio
from typing import Any

from llmproxy.scenario.judge_agent import JudgeAgent
from llmproxy.scenario.judging.outline import EXPAND, GREP, Lookup, estimated_tokens
from tests.provider import step
from tests.scenario.parties import bodies, finish, model, refusal, shown

LONG = "The refund of 40 EUR is paid. " + "So it goes. " * 400
TALK: Any = [{"role": "user", "content": "Where is my lamp?"}, {"role": "assistant", "content": LONG + "Bye, Ada."}]


def looks(name: str, **arguments: Any) -> Any:  # noqa: ANN401
    """Return the step in which a judge looks something up."""
    return step(call=[{"name": name, "arguments": arguments}])


def judged(*steps: Any, forced: bool = True, **how: Any) -> tuple[Any, list[dict[str, Any]]]:  # noqa: ANN401
    """Return what a judge of a long conversation says, and what it was asked."""
    with model(*steps) as (config, provider):
        judge = JudgeAgent(model=config, criteria=["polite"], **({"token_threshold": 100} | how))
        said = asyncio.run(judge.call(shown(*TALK, forced=forced)))
        provider.finish()
        return said, bodies(provider)


def names(request: dict[str, Any]) -> list[str]:
    """Return the tools that a request offers."""
    return [each["function"]["name"] for each in request["tools"]]


def test_it_looks_up_what_it_needs_and_quotes_it() -> None:
    """The words that it quotes stand where the outline ends; they are evidence all the same."""
    result, asked = judged(
        looks(GREP, pattern="ada"), looks(EXPAND, indices=[2]), finish("passed", evidence=["Bye, Ada."])
    )
    assert result.success
    first, second, third = (request["messages"] for request in asked)
    assert "Bye, Ada" not in first[1]["content"]
    assert (
        "[2] ...So it goes" in second[-1]["content"].replace("... ", "...").replace("...o", "...So")
        or "Bye, Ada" in second[-1]["content"]
    )
    assert third[-1]["content"].endswith("Bye, Ada.")
    assert names(asked[0]) == [EXPAND, GREP, "finish_test"]
    assert asked[0]["tool_choice"] == "required"


def test_a_short_conversation_is_shown_whole() -> None:
    """Below the threshold nothing changes."""
    _, (asked,) = judged(finish("passed"), token_threshold=8192)
    assert names(asked) == ["finish_test"]
    assert "Bye, Ada." in asked["messages"][1]["content"]


def test_who_only_looks_has_to_decide_in_the_end() -> None:
    """After so many look-ups the verdict is demanded, also where the conversation could go on; what is open then ends it."""
    result, asked = judged(
        looks(EXPAND, indices=[9]), looks(GREP, pattern=""), finish("inconclusive"), forced=False, max_discovery_steps=2
    )
    assert names(asked[0]) == [EXPAND, GREP, "continue_test", "finish_test"]
    assert names(asked[2]) == ["finish_test"]
    assert (result.success, result.inconclusive_criteria) == (False, ["polite"])
    assert "numbered 1 to 2" in asked[1]["messages"][-1]["content"]


def test_a_model_without_tools_gets_all_of_it() -> None:
    """It cannot look anything up, so nothing is kept from it."""
    no = refusal("tools are not supported by this model: tool_choice")
    answer = step('{"decision": "finish_test", "criteria": {"c1": {"status": "passed"}}, "reasoning": ""}')
    result, asked = judged(no, answer)
    assert result.success
    assert "Bye, Ada." in asked[-1]["messages"][1]["content"]


def test_look_ups_are_no_larger_than_the_outline_saves() -> None:
    """What is cut says so; a pattern is words, never an expression that runs for hours."""
    lookup = Lookup(["[1] user: " + "a" * 50_000, *(f"[{n}] user: needle {n}" for n in range(2, 40))])
    assert "more characters: ask for fewer messages" in lookup.answer(EXPAND, '{"indices": [1, 1, "x"]}')
    assert "(18 more matches)" in lookup.answer(GREP, '{"pattern": "NEEDLE"}')
    assert lookup.answer(GREP, '{"pattern": "(a+)+$"}') == "No message has '(a+)+$'."
    assert "no JSON" in lookup.answer(GREP, "{")
    assert "longer than" in lookup.answer(GREP, '{"pattern": "' + "x" * 300 + '"}')
    assert estimated_tokens("abcd" * 10) == 10
    assert len(lookup.outline().splitlines()) == 40
