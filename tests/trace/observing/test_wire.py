"""What an agent did is read from its traffic: tools, tokens, retries; what is not known is not guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.trace.observing.agent_activity import ToolResult, list_tool_result_of_each_message
from tests.support.messages import asks, call, result, said, user
from tests.trace.observing.chats import Chats, Pair
from tests.trace.runs import decoded

CREATE = call("createTask", {"title": "Buy milk"})


def tool_loop(chats: Chats, answer: str = '{"id": 1}') -> None:
    """One step of an agent: it creates a task, then says so."""
    chats.chat([user("buy milk")], asks(CREATE))
    chats.chat([user("buy milk"), asks(CREATE), result(answer)], said("done"))


def test_a_server_of_tools_is_no_model() -> None:
    """What a tool returned may look like a model's call of another one; it counts for nothing, nor does the time that it took."""
    chats = Chats()
    tool_loop(chats)
    before = chats.wire.build_step(0).usage
    other = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "tool_use", "name": "x"}], "tool_calls": [{}]}}
    chats.add(
        "generic", "mcp:tools/call createTask", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, other
    )
    step = chats.wire.build_step(0)
    assert (len(step.tools), step.request_count, step.unreadable, step.usage) == (1, 2, (), before)


def test_history_is_never_counted() -> None:
    """A call belongs to the step that asked for it; what the user simulator and the judge ask is no behaviour of the agent."""
    chats = Chats()
    tool_loop(chats)
    history = [user("buy milk"), asks(CREATE), result("ok"), said("done"), user("thanks")]
    chats.chat(history, said("welcome"))
    assert [len(chats.wire.build_step(0, 2).tools), len(chats.wire.build_step(2).tools)] == [1, 0]
    chats = Chats()
    tool_loop(chats)
    chats.chat([user("judge this")], asks(call("verdict", {})), party="judge")
    step = chats.wire.build_step(0)
    assert ([use.name for use in step.tools], step.request_count, step.replayed) == (["createTask"], 2, True)


RESULTS = {
    '{"error": "no such task"}': True, '{"errors": [{"message": "no"}]}': True, '{"isError": true}': True,
    '{"is_error": true}': True, '{"success": false, "message": "no"}': True, '{"ok": false}': True,
    '{"exception": "KeyError"}': True, "Error: no such task": True,
    "An error occurred while running the tool. Please try again.": True, "Traceback (most recent call last):\n": True,
    "ToolException: no": True, "requests.exceptions.HTTPError: 404": True, "ValueError('no')": True,
    '{"error": null, "errors": [], "ok": true, "success": true, "isError": false}': False,
    '{"status": "failed"}': False, "No errors were found": False, "Exceptional: yes": False,
    "The errors(2) are old": False, '{"broken": ': False, "": False, '{"error": null, "id": 1}': False,
}  # fmt: skip


def test_results_that_say_error_are_errors() -> None:
    """An object with an error, a text that begins as those of frameworks, Anthropic's flag."""
    for text, errored in RESULTS.items():
        chats = Chats()
        tool_loop(chats, text)
        assert [use.errored for use in chats.wire.build_step(0).tools] == [errored], text
    anthropic = Chats()
    use = {"type": "tool_use", "id": "t1", "name": "createTask", "input": {}}
    usage = {"input_tokens": 1, "output_tokens": 1}
    answer = {"type": "message", "role": "assistant", "content": [use], "usage": usage}
    anthropic.add("anthropic", "messages", "/v1/messages", {"messages": [user("x")]}, answer)
    flagged = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "gone"}
    asked = [user("x"), {"role": "assistant", "content": [use]}, {"role": "user", "content": [flagged]}]
    done = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "sorry"}]}
    anthropic.add("anthropic", "messages", "/v1/messages", {"messages": asked}, done)
    assert [(use.executed, use.errored) for use in anthropic.wire.build_step(0).tools] == [(True, True)]


def test_failed_answers_are_not_counted() -> None:
    """Of a 429 that was asked again, tokens and calls are those of the answer."""
    chats = Chats()
    chats.chat([user("a")], said(""), status=429, usage={})
    chats.chat([user("a")], said("b"))
    step = chats.wire.build_step(0)
    assert (step.usage["callCount"].value, step.usage["inputTokens"].value) == (1, 10)


def test_equal_requests_with_whole_answers_all_count() -> None:
    """A card that was charged twice was charged twice, with whichever answer the conversation goes on."""
    chats = Chats()
    chats.chat([user("a")], asks(call("createTask", {"n": 1}, "first")))
    chats.chat([user("a")], asks(call("createTask", {"n": 2}, "second")))
    chats.chat([user("a"), asks(call("createTask", {"n": 1}, "first")), result("ok", "first")], said("done"))
    step = chats.wire.build_step(0)
    assert [(use.arguments, use.executed) for use in step.tools] == [({"n": 1}, True), ({"n": 2}, False)]
    assert (step.usage["callCount"].value, [each.replaced for each in step.seen]) == (3, [False] * 3)


def test_a_client_that_says_it_did_not_retry_is_believed() -> None:
    """The same question asked twice on purpose is two calls, the same question sent again is one."""
    for second, calls in ((0, 2), (1, 1)):
        chats = Chats()
        chats.chat([user("a")], said("one"), attempt=0)
        chats.chat([user("a")], said("two"), attempt=second)
        assert chats.wire.build_step(0).usage["callCount"].value == calls


def test_answers_that_nobody_kept_are_known_to_be_unknown() -> None:
    """In passthrough a call is counted, and what it asked for is not known."""
    chats = Chats()
    chats.chat([user("a")], asks(CREATE), recorded=False, decision="PASS")
    step = chats.wire.build_step(0)
    assert (len(step.unrecorded_answers), step.tools, step.usage["callCount"].value) == (1, (), 1)
    assert step.usage["inputTokens"].value is None


def test_a_result_is_found_though_the_history_was_rewritten() -> None:
    """The id tells it, where only one answer has that id."""
    chats = Chats()
    chats.chat([user("one"), said("two"), user("buy milk")], asks(CREATE))
    chats.chat([user("summary of all"), asks(CREATE), result(json.dumps({"id": 1}))], said("done"), tools=())
    assert [use.executed for use in chats.wire.build_step(0).tools] == [True]


def results(*added: Any) -> list[ToolResult | None]:
    return list_tool_result_of_each_message(decoded(Chats().add(*added)[1]))


def test_each_message_has_its_result() -> None:
    """OpenAI's chat: one message a result; Bedrock's results have a status."""
    messages = [user("x"), asks(call("a", {}, "c1"), call("b", {}, "c2")), result("one", "c1"), result("two", "c2")]
    found = list_tool_result_of_each_message(decoded(Chats().chat(messages, said("ok"))[1]))
    assert [each and each.text for each in found] == [None, None, "one", "two"]
    block = {"toolResult": {"toolUseId": "t1", "content": [{"text": "no"}], "status": "error"}}
    use = {"toolUse": {"toolUseId": "t1", "name": "a", "input": {}}}
    body = {"messages": [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]}
    answer = {"output": {"message": {"role": "assistant", "content": [{"text": "ok"}]}}}
    found = results("bedrock", "converse", "/model/m/converse", body, answer)
    assert found[-1] == ToolResult("no", errored=True)


def test_an_id_that_comes_again_has_a_result_of_its_own() -> None:
    """Some servers number the calls of each answer anew: the first one failed, the second did not."""

    def turn(failed: bool) -> list[dict[str, Any]]:
        use = {"type": "tool_use", "id": "t0", "name": "a", "input": {}}
        block = {"type": "tool_result", "tool_use_id": "t0", "content": "said", "is_error": failed}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]

    body = {"messages": [user("x"), *turn(failed=True), *turn(failed=False)]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "ok"}]}
    found = results("anthropic", "messages", "/v1/messages", body, answer)
    assert [each.errored for each in found if each] == [True, False]


def why(*pairs: Pair) -> list[str]:
    chats = Chats()
    chats.calls += pairs
    return [each.unread_reason for each in chats.wire.build_step(0).unreadable]


def added(operation: str, value: Any, **more: Any) -> Pair:
    return Chats().add("openai", operation, "/v1/x", {"messages": [user("x")]}, value, **more)


def test_a_whole_answer_is_known() -> None:
    """Words, calls, and a model that says nothing and ends."""
    assert why(Chats().chat([user("x")], said("hi"))) == []
    assert why(Chats().chat([user("x")], asks(call("f", {})))) == []
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    assert why(added("messages", ended)) == []


@pytest.mark.parametrize("value", ["<html>busy</html>", {"message": "see other"}, [1, 2], {}])
def test_an_answer_that_is_no_answer_of_a_model_is_not_known(value: object) -> None:
    """A gateway's page, another service's JSON: the status is 200, and nobody knows what the agent read in it."""
    (found,) = why(added("chat.completions", value))
    assert found.startswith("could not be read as an answer of chat.completions")


def test_kinds_that_no_table_knows_are_not_known() -> None:
    """The kind is named; of an answer that broke off after a search nobody knows whether its client took it."""
    (found,) = why(added("responses", {"object": "response", "output": [{"type": "robot_call"}]}))
    assert found == "holds what is not known, and may call a tool: robot_call"
    search = {"type": "web_search_call", "id": "s", "status": "completed", "action": {"query": "x"}}
    (found,) = why(added("responses", {"object": "response", "output": [search]}, ending="cut"))
    assert found == "was cut off while it asked for web_search"


@pytest.mark.parametrize(
    "operation", ["realtime", "threads.runs", "threads/t1/runs/r1", "responses/resp_1", "interactions", "batches"]
)
def test_operations_that_can_call_tools_and_are_not_read_are_not_known(operation: str) -> None:
    assert why(added(operation, {"id": "x"})) == [f"went to {operation}, whose answers are not read"]
    assert why(added(operation, {"error": {"message": "no"}}, status=500)) == []


@pytest.mark.parametrize("operation", ["embeddings", "models", "moderations", "count_tokens", "/v1/unknown", "rerank"])
def test_other_operations_are_no_conversations(operation: str) -> None:
    """Unless their answer looks as if it called a tool."""
    assert why(added(operation, {"data": [{"embedding": [0.1]}]})) == []
    calling = {"choices": [{"message": {"tool_calls": [{"function": {"name": "f"}}]}}]}
    assert why(added(operation, calling)) == [f"went to {operation}, whose answers are not read"]
    assert why(added(operation, {"text": '{"tool_calls": [{"a": 1}]}'})) == []  # somebody speaks of one


def test_failures_ask_for_nothing() -> None:
    """A 429 is no answer; one that a retry replaced is in test_retries."""
    assert why(Chats().chat([user("x")], said(""), status=429, usage={})) == []
