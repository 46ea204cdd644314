"""Results of tools in requests in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.suite.wire.results import results_of
from llmproxy.trace.reading.exchange import Exchange, opened
from llmproxy.trace.reading.history import History
from tests.suite.wire_chats import Chats, asks, call, result, user


def exchange(*pair: Any) -> Exchange:  # noqa: ANN401
    """Open what a call recorded."""
    assert pair[1] is not None
    return opened(pair[1], History())


def test_results_are_found_by_the_id_of_their_call() -> None:
    """OpenAI's chat: one message a result."""
    messages = [user("x"), asks(call("a", {}, "c1"), call("b", {}, "c2")), result("one", "c1"), result("two", "c2")]
    found = results_of(exchange(*Chats().chat(messages, {"role": "assistant", "content": "ok"})))
    assert {name: each.text for name, each in found.items()} == {"c1": "one", "c2": "two"}


@pytest.mark.parametrize(
    ("text", "errored"),
    [
        ('{"error": "gone"}', True),
        ('{"error": null, "id": 1}', False),
        ('{"isError": true}', True),
        ("Error: gone", True),
        ("No errors found", False),
        ('{"broken": ', False),
        ("", False),
    ],
)
def test_a_result_says_whether_the_tool_failed(text: str, errored: bool) -> None:
    """An object with an error, or a text that begins with the word; the word somewhere else means nothing."""
    messages = [user("x"), asks(call("a", {}, "c1")), result(text, "c1")]
    found = results_of(exchange(*Chats().chat(messages, {"role": "assistant", "content": "ok"})))
    assert found["c1"].errored is errored


def test_bedrock_declares_the_failure() -> None:
    """Its results have a status."""
    block = {"toolResult": {"toolUseId": "t1", "content": [{"text": "no"}], "status": "error"}}
    use = {"toolUse": {"toolUseId": "t1", "name": "a", "input": {}}}
    body = {"messages": [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]}
    answer = {"output": {"message": {"role": "assistant", "content": [{"text": "ok"}]}}}
    found = results_of(exchange(*Chats().add("bedrock", "converse", "/model/m/converse", body, answer)))
    assert found["t1"].errored is True
