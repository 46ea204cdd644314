"""What cannot be read is known to be unknown, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trace.observing.chats import Chats, Pair, asks, call, said, user


def why(*pairs: Pair) -> list[str]:
    """Return why exchanges are not known."""
    chats = Chats()
    chats.calls += pairs
    return [each.unread for each in chats.wire.step(0).unread]


def added(operation: str, value: Any, **more: Any) -> Pair:  # noqa: ANN401
    return Chats().add("openai", operation, "/v1/x", {"messages": [user("x")]}, value, **more)


def test_a_whole_answer_is_known() -> None:
    """Words, calls, and a model that says nothing and ends."""
    assert why(Chats().chat([user("x")], said("hi"))) == []
    assert why(Chats().chat([user("x")], asks(call("f", {})))) == []
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    assert why(added("messages", ended)) == []


def test_what_the_provider_ran_does_not_tell_who_went_on() -> None:
    """An answer broke off in which the provider had searched the web: whether its client took it, nobody knows."""
    search = {"type": "web_search_call", "id": "s", "status": "completed", "action": {"query": "x"}}
    (found,) = why(added("responses", {"object": "response", "output": [search]}, ending="cut"))
    assert found == "was cut off while it asked for web_search"


@pytest.mark.parametrize("value", ["<html>busy</html>", {"message": "see other"}, [1, 2], {}])
def test_an_answer_that_is_no_answer_of_a_model_is_not_known(value: object) -> None:
    """A gateway's page, another service's JSON: the status is 200, and nobody knows what the agent read in it."""
    (found,) = why(added("chat.completions", value))
    assert found.startswith("could not be read as an answer of chat.completions")


def test_kinds_that_no_table_knows_are_not_known() -> None:
    """The kind is named."""
    (found,) = why(added("responses", {"object": "response", "output": [{"type": "robot_call"}]}))
    assert found == "holds what is not known, and may call a tool: robot_call"


@pytest.mark.parametrize(
    "operation", ["realtime", "threads.runs", "threads/t1/runs/r1", "responses/resp_1", "interactions", "batches"]
)
def test_operations_that_can_call_tools_and_are_not_read_are_not_known(operation: str) -> None:
    """Polled answers, sockets, assistants."""
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
    """A 429 is no answer, and an answer that a retry replaced does not count."""
    assert why(Chats().chat([user("x")], said(""), status=429, usage={})) == []
    chats = Chats()
    chats.chat([user("x")], asks(call("f", {})), ending="cut")
    chats.chat([user("x")], said("hi"))
    assert chats.wire.step(0).unread == ()
