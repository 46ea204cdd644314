"""A result belongs to the call that the request itself says it is for; ids and names alone tell little."""

from __future__ import annotations

from typing import Any

from llmproxy.trace.observing.tools import ToolUse
from tests.trace.observing.chats import Chats, asks, call, result, said, user


def outputs(chats: Chats) -> list[tuple[Any, str | None]]:
    """Return each call's argument, and what it returned."""
    return [(_n(tool), tool.output) for tool in chats.wire.step(0).tools]


def _n(tool: ToolUse) -> object:
    return tool.arguments.get("n")


def test_ids_that_come_again_belong_to_the_latest_answer() -> None:
    """A server numbers the calls of each answer anew, and the first was never run."""
    chats = Chats()
    first, second = asks(call("f", {"n": 1}, "c0")), asks(call("f", {"n": 2}, "c0"))
    chats.chat([user("a")], first)
    chats.chat([user("a"), first, user("b")], second)
    chats.chat([user("a"), first, user("b"), second, result("two", "c0")], said("done"))
    assert outputs(chats) == [(1, None), (2, "two")]


def test_a_result_in_the_history_is_not_given_to_a_later_call() -> None:
    """The same call with the same id once more: what is repeated from before is not its result."""
    chats = Chats()
    ask = asks(call("f", {"n": 1}, "c0"))
    history = [user("a"), ask, result("one", "c0"), said("ok"), user("b"), ask]
    chats.chat(history[:1], ask)
    chats.chat(history[:3], said("ok"))
    chats.chat(history[:5], ask)
    chats.chat([*history, user("never mind")], said("fine"))
    assert outputs(chats) == [(1, "one"), (1, None)]


def test_parallel_calls_of_one_name_without_ids_have_their_own_results() -> None:
    """Gemini tells them apart by their order."""
    chats = Chats()
    parts = [{"functionCall": {"name": "f", "args": {"n": n}}} for n in (1, 2)]
    answers = [{"functionResponse": {"name": "f", "response": {"said": n}}} for n in (1, 2)]
    asked: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": "x"}]}]
    path = "/v1beta/models/m:generateContent"
    value = {"candidates": [{"content": {"role": "model", "parts": parts}}]}
    chats.add("gemini", "generateContent", path, {"contents": asked}, value)
    more = [*asked, {"role": "model", "parts": parts}, {"role": "user", "parts": answers}]
    done = {"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]}}]}
    chats.add("gemini", "generateContent", path, {"contents": more}, done)
    assert outputs(chats) == [(1, '{"said": 1}'), (2, '{"said": 2}')]


def test_a_request_that_is_sent_again_brings_nothing_new() -> None:
    """Its results were heard the first time; another call like theirs still waits."""
    chats = Chats()
    ask = asks(call("f", {"n": 1}, "c0"))
    chats.chat([user("a")], ask)
    chats.chat([user("a"), ask, result("one", "c0")], ask)
    chats.chat([user("a"), ask, result("one", "c0")], said("ok"))
    assert outputs(chats) == [(1, "one"), (1, None)]
