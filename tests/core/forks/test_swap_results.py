"""Results of tools are swapped in each dialect, found by id, by name or by place; nothing else of a request changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.forks.overrides import (
    AnswerOverrides,
    NthCallOfTool,
    OverrideError,
    OverrideNeedsCallArgumentsError,
    RequestWithReplacedToolResults,
    build_unused_mocks_error,
    parse_answer_override_options,
    parse_mocks,
    replace_tool_results,
)
from tests.support.messages import asks, call, result, user
from tests.support.narrowing import known

Json = Any
"""A value of JSON."""
COLD = parse_answer_override_options(['get_weather={"temp":5}'], [])


def swapped(body: Json, overrides: AnswerOverrides = COLD, **more: Any) -> tuple[Json, RequestWithReplacedToolResults]:
    done = replace_tool_results(json.dumps(body).encode(), overrides, **more)
    return json.loads(done.body), done


def chat(*results: tuple[str, str], calls: tuple[tuple[str, str], ...]) -> Json:
    """Return a chat with calls (name, id) and results (id, text)."""
    asked = asks(*(call(name, "{}", call_id) for name, call_id in calls))
    return {"model": "m", "messages": [user("hi"), asked, *(result(text, call_id) for call_id, text in results)]}


ANTHROPIC = {
    "messages": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True,
                                      "content": [{"type": "text", "text": "21"}], "cache_control": {"type": "ephemeral"}}]},
    ]
}  # fmt: skip
DIALECTS: dict[str, tuple[Json, list[str | int], Json]] = {
    "chat": (chat(("c1", "21"), calls=(("get_weather", "c1"),)), ["messages", 2, "content"], '{"temp":5}'),
    "chat, in parts": (
        {"messages": [{"role": "assistant", "tool_calls": [call("get_weather", "{}", "c")]},
                      {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "21"}]}]},
        ["messages", 1, "content"], [{"type": "text", "text": '{"temp":5}'}]),
    "old functions": (
        {"messages": [{"role": "assistant", "function_call": {"name": "get_weather", "arguments": "{}"}},
                      {"role": "function", "name": "get_weather", "content": "21"}]},
        ["messages", 1, "content"], '{"temp":5}'),
    "responses": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c", "output": "21"}]},
        ["input", 1, "output"], '{"temp":5}'),
    "responses, in parts": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "21"}]}]},
        ["input", 1, "output"], [{"type": "input_text", "text": '{"temp":5}'}]),
    "anthropic": (ANTHROPIC, ["messages", 1, "content", 0],
                  {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": '{"temp":5}'}],
                   "cache_control": {"type": "ephemeral"}}),
    "gemini": (
        {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "get_weather", "args": {}}}]},
                      {"role": "user", "parts": [{"functionResponse": {"name": "get_weather", "response": {"temp": 21}}}]}]},
        ["contents", 1, "parts", 0, "functionResponse", "response"], {"temp": 5}),
    "gemini, wrapped": (
        {"contents": [{"role": "user", "parts": [{"function_response": {"name": "get_weather", "response": {"result": "21"}}}]}]},
        ["contents", 0, "parts", 0, "function_response", "response"], {"result": '{"temp":5}'}),
    "code assist": (
        {"request": {"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "get_weather", "response": {"output": {}}}}]}]}},
        ["request", "contents", 0, "parts", 0, "functionResponse", "response"], {"output": {"temp": 5}}),
    "bedrock": (
        {"messages": [{"role": "assistant", "content": [{"toolUse": {"toolUseId": "u", "name": "get_weather", "input": {}}}]},
                      {"role": "user", "content": [{"toolResult": {"toolUseId": "u", "status": "error", "content": [{"text": "no"}]}}]}]},
        ["messages", 1, "content", 0, "toolResult"], {"toolUseId": "u", "status": "success", "content": [{"json": {"temp": 5}}]}),
    "ollama": (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {}}}]},
                      {"role": "tool", "tool_name": "get_weather", "content": "21"}]},
        ["messages", 1, "content"], '{"temp":5}'),
    "ollama, without a name": (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {}}}]},
                      {"role": "tool", "content": "21"}]},
        ["messages", 1, "content"], '{"temp":5}'),
    "cohere v2": (
        {"messages": [{"role": "assistant", "tool_calls": [call("get_weather", "{}", "c")]},
                      {"role": "tool", "tool_call_id": "c", "content": [{"type": "document", "document": {"id": "0", "data": "21"}}]}]},
        ["messages", 1, "content"], [{"type": "document", "document": {"id": "0", "data": '{"temp":5}'}}]),
    "cohere v1": (
        {"message": "", "tool_results": [{"call": {"name": "get_weather", "parameters": {}}, "outputs": [{"temp": 21}]}]},
        ["tool_results", 0, "outputs"], [{"temp": 5}]),
    "cohere v1, history": (
        {"message": "x", "chat_history": [{"role": "TOOL", "tool_results": [{"call": {"name": "get_weather"}, "outputs": [{}]}]}]},
        ["chat_history", 0, "tool_results", 0, "outputs"], [{"temp": 5}]),
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_its_result_swapped(name: str) -> None:
    """In the form that the result had; an error that is overridden is none any more; the rest of the request stays."""
    body, path, wanted = DIALECTS[name]
    before, (tree, done) = json.loads(json.dumps(body)), swapped(body)
    (swap,) = done.swaps
    assert (swap.place, swap.override.tool) == (NthCallOfTool("get_weather", 1), "get_weather")
    assert "get_weather" in done.seen
    node, old = tree, before
    for step in path[:-1]:
        node, old = node[step], old[step]
    assert node[path[-1]] == wanted
    node[path[-1]] = old[path[-1]]
    assert tree == before


@pytest.mark.parametrize("name", DIALECTS)
def test_what_matches_nothing_is_the_bytes_that_came(name: str) -> None:
    """Not written anew: white space and escapes count where a body is keyed raw."""
    body = json.dumps(DIALECTS[name][0], indent=3).encode()
    done = replace_tool_results(body, parse_answer_override_options(["another=1", "get_weather#2=x"], []))
    assert (done.body, done.swaps, set(done.seen)) == (body, (), {"get_weather"})


def test_calls_are_counted_by_name_in_their_conversation() -> None:
    """The second call of a tool, whatever is called between and in whatever order the results come."""
    calls = (("get_weather", "a"), ("add", "b"), ("get_weather", "c"))
    body = chat(("c", "third"), ("b", "sum"), ("a", "first"), calls=calls)
    tree, done = swapped(body, parse_answer_override_options(["get_weather#2=cold"], []))
    assert [message["content"] for message in tree["messages"][2:]] == ["cold", "sum", "first"]
    assert (done.seen, done.calls["c"]) == (("get_weather", "add"), NthCallOfTool("get_weather", 2))


def test_ids_that_come_again_are_those_of_the_latest_call() -> None:
    """Frameworks number calls from the start in each turn."""
    turn = chat(("call_1", "old"), calls=(("get_weather", "call_1"),))["messages"][1:]
    tree, done = swapped({"messages": [*turn, *turn]}, parse_answer_override_options(["get_weather#2=cold"], []))
    assert [each["content"] for each in tree["messages"] if each["role"] == "tool"] == ["old", "cold"]
    assert len(done.swaps) == 1


def test_a_call_that_only_the_server_knows_is_asked_for() -> None:
    """A request that goes on with `previous_response_id` has a result and no history."""
    body = {"previous_response_id": "r", "input": [{"type": "function_call_output", "call_id": "c9", "output": "21"}]}
    tree, done = swapped(body, known={"c9": NthCallOfTool("get_weather", 3)}.get)
    assert (tree["input"][0]["output"], done.swaps[0].place.nth) == ('{"temp":5}', 3)
    assert swapped(body)[1].swaps == ()


def test_gemini_counts_results_by_name_without_ids() -> None:
    """Two calls of one function in one turn: the second result is the second call's."""
    parts = [{"functionCall": {"name": "get_weather", "args": {"n": n}}} for n in (1, 2)]
    results = [{"functionResponse": {"name": "get_weather", "response": {"n": n}}} for n in (1, 2)]
    body = {"contents": [{"role": "model", "parts": parts}, {"role": "user", "parts": results}]}
    tree, _ = swapped(body, parse_answer_override_options(["get_weather#2=text"], []))
    said = [part["functionResponse"]["response"] for part in tree["contents"][1]["parts"]]
    assert said == [{"n": 1}, {"result": "text"}]


@pytest.mark.parametrize("body", [b"", b"\xff", b"[1]", b'"x"', b"{}", b'{"messages": 5}', b'{"messages": [1, null, "x", {"role": "tool"}]}',
                                  b'{"contents": {"parts": [{"functionResponse": 3}]}}', b"[" * 100_000])  # fmt: skip
def test_odd_bodies_come_back_as_they_are(body: bytes) -> None:
    assert replace_tool_results(body, COLD).body == body


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
    asked = asks(*(call("search", json.dumps(each), f"c{i}") for i, each in enumerate(arguments)))
    results = [result("21", f"c{i}") for i in range(len(arguments))]
    return json.dumps({"messages": [asked, *results]}).encode()


def read(sent: bytes, mocks: Any) -> list[str]:
    made = json.loads(replace_tool_results(sent, AnswerOverrides(parse_mocks(mocks))).body)
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
    with pytest.raises(OverrideNeedsCallArgumentsError, match="came without the call"):
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
    with pytest.raises(OverrideError) as caught:
        parse_mocks(given)
    assert said in caught.value.message


def told(tool: str, *, used: int = 0, **more: object) -> dict[str, Any]:
    """Return a row of a session's report."""
    return {"tool": tool, "nth": None, "result": "", "used": used, "inherited": False, **more}


def test_a_mock_that_changed_nothing_is_named_with_what_was_called() -> None:
    """One rule of a tool that did something is enough for it; what its cassette brought is nobody's mock."""
    used = {"tools": [told("a", used=1), told("a"), told("b", inherited=True)], "seen": []}
    assert build_unused_mocks_error(used) is None
    assert build_unused_mocks_error(None) is None
    rows = [told("get_wether"), told("b", when={"x": 1}), told("c")]
    found = known(build_unused_mocks_error({"tools": rows, "seen": ["get_weather", "b", "c"]}))
    assert found.message.splitlines() == [
        "mock of 'get_wether' changed nothing: the tool was never called (called: get_weather, b, c); did you mean 'get_weather'?",
        "mock of 'b' changed nothing: it was called, and no rule is for a call of it",
        "mock of 'c' changed nothing: it was called, and no result of it was sent to the model",
    ]
