"""Results of tools in requests in every dialect."""

from __future__ import annotations

from typing import Any

from llmproxy.trace.observing.wire import Result, results_of
from llmproxy.trace.reading.exchange import History, OpenedExchange, open_exchange
from tests.trace.observing.chats import Chats, asks, call, result, user


def exchange(*pair: Any) -> OpenedExchange:  # noqa: ANN401
    """Open what a call recorded."""
    assert pair[1] is not None
    return open_exchange(pair[1], History())


def test_each_message_has_its_result() -> None:
    """OpenAI's chat: one message a result; what is no result has none."""
    messages = [user("x"), asks(call("a", {}, "c1"), call("b", {}, "c2")), result("one", "c1"), result("two", "c2")]
    found = results_of(exchange(*Chats().chat(messages, {"role": "assistant", "content": "ok"})))
    assert [each and each.text for each in found] == [None, None, "one", "two"]


def test_bedrock_declares_the_failure() -> None:
    """Its results have a status."""
    block = {"toolResult": {"toolUseId": "t1", "content": [{"text": "no"}], "status": "error"}}
    use = {"toolUse": {"toolUseId": "t1", "name": "a", "input": {}}}
    body = {"messages": [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]}
    answer = {"output": {"message": {"role": "assistant", "content": [{"text": "ok"}]}}}
    found = results_of(exchange(*Chats().add("bedrock", "converse", "/model/m/converse", body, answer)))
    assert found[-1] == Result("no", errored=True)


def test_an_id_that_comes_again_has_a_result_of_its_own() -> None:
    """Some servers number the calls of each answer anew: the first one failed, the second did not."""

    def turn(failed: bool) -> list[dict[str, Any]]:
        use = {"type": "tool_use", "id": "t0", "name": "a", "input": {}}
        block = {"type": "tool_result", "tool_use_id": "t0", "content": "said", "is_error": failed}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]

    body = {"messages": [user("x"), *turn(failed=True), *turn(failed=False)]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "ok"}]}
    found = results_of(exchange(*Chats().add("anthropic", "messages", "/v1/messages", body, answer)))
    assert [each.errored for each in found if each] == [True, False]
