"""Mocks of tools are read strictly, chosen by call and by arguments, and named where they changed nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.forks.mocks import find_unused_mocks, read_mocks
from llmproxy.core.forks.overrides import OverrideError, Overrides, UnknownArguments
from llmproxy.core.forks.swap_results import swap_results

RULES = {
    "search": [
        {"when": {"city": "Oslo"}, "returns": ["a"]},
        {"when": {"city": "Oslo", "n": 1}, "returns": "never: an earlier rule is for it"},
        {"nth": 3, "returns": "third"},
        {"returns": {"none": True}},
    ]
}


def body(*arguments: object) -> bytes:
    """Return a chat in which `search` was called with each of these arguments, and returned 21."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "search", "arguments": json.dumps(each)}}
        for i, each in enumerate(arguments)
    ]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": "21"} for i in range(len(calls))]
    return json.dumps({"messages": [{"role": "assistant", "tool_calls": calls}, *results]}).encode()


def read(sent: bytes, mocks: Any) -> list[str]:  # noqa: ANN401 - JSON
    """Return what the model reads."""
    made = json.loads(swap_results(sent, Overrides(read_mocks(mocks))).body)
    return [each["content"] for each in made["messages"] if each["role"] == "tool"]


def test_rules_are_chosen_by_call_then_by_arguments_then_for_all() -> None:
    """Of two the first; 1 is 1.0, and true is no number."""
    sent = body({"city": "Oslo", "n": 1.0}, {"city": "Rome"}, {"city": "Oslo"})
    assert read(sent, RULES) == ['["a"]', '{"none": true}', "third"]
    assert read(body({"n": 1.0}, {"n": True}), {"search": [{"when": {"n": 1}, "returns": "one"}]}) == ["one", "21"]


def test_a_plain_result_is_for_every_call() -> None:
    """As a text as it stands, anything else as JSON."""
    assert read(body({}, {}), {"search": {"temp": 5}}) == ['{"temp": 5}'] * 2
    assert read(body({}), {"search": "cold", "another": 1}) == ["cold"]


def test_a_result_whose_call_nobody_has_seen_is_refused_where_arguments_decide() -> None:
    """Which mock it would have is not guessed."""
    alone = json.dumps({"messages": [{"role": "tool", "name": "search", "content": "21"}]}).encode()
    assert read(alone, {"search": "x"}) == ["x"]
    with pytest.raises(UnknownArguments, match="came without the call"):
        read(alone, RULES)


@pytest.mark.parametrize(("given", "said"), [
    ({}, "takes tools and what they return"),
    ([1], "takes tools and what they return"),
    ({"": 1}, "names no tool by"),
    ({"t": []}, "an empty list has no rules"),
    ({"t": ["a", "b"]}, '"a" is no rule'),
    ({"t": [{"when": {"a": 1}}]}, "does not say what it `returns`"),
    ({"t": [{"wen": {}, "returns": 1}]}, "no 'wen'; did you mean 'when'?"),
    ({"t": [{"when": {}, "returns": 1}]}, "when is {}"),
    ({"t": [{"nth": 0, "returns": 1}]}, "nth is 0"),
    ({"t": {"x": float("nan")}}, "is no JSON"),
    ({"t": object()}, "is no JSON"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(given: object, said: str) -> None:
    """With the tool that it stands at."""
    with pytest.raises(OverrideError) as caught:
        read_mocks(given)
    assert said in caught.value.message


def told(tool: str, *, used: int = 0, **more: object) -> dict[str, Any]:
    """Return a row of a session's report."""
    return {"tool": tool, "nth": None, "result": "", "used": used, "inherited": False, **more}


def test_a_mock_that_changed_nothing_is_named_with_what_was_called() -> None:
    """One rule of a tool that did something is enough for it; what its cassette brought is nobody's mock."""
    assert find_unused_mocks({"tools": [told("a", used=1), told("a"), told("b", inherited=True)], "seen": []}) is None
    assert find_unused_mocks(None) is None
    found = find_unused_mocks(
        {"tools": [told("get_wether"), told("b", when={"x": 1}), told("c")], "seen": ["get_weather", "b", "c"]}
    )
    assert found is not None
    assert found.message.splitlines() == [
        "mock of 'get_wether' changed nothing: the tool was never called (called: get_weather, b, c); did you mean 'get_weather'?",
        "mock of 'b' changed nothing: it was called, and no rule is for a call of it",
        "mock of 'c' changed nothing: it was called, and no result of it was sent to the model",
    ]
