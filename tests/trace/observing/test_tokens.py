"""Tokens of a step are added up in one arithmetic; what was not reported is unknown, or roughly known."""

from __future__ import annotations

from decimal import Decimal

from llmproxy.trace.observing.agent_activity import estimate_tokens_used_by_step
from tests.support.messages import said, user
from tests.trace.observing.chats import Chats
from tests.trace.observing.test_wire import tool_loop


def test_tokens_are_added_up() -> None:
    """Every prompt token is input, cached or not; the fresh ones are told apart."""
    chats = Chats()
    tool_loop(chats)
    usage = chats.wire.build_step(0).usage
    found = {name: usage[name].value for name in ("callCount", "inputTokens", "outputTokens", "totalTokens")}
    assert found == {"callCount": 2, "inputTokens": 20, "outputTokens": 10, "totalTokens": 30}
    assert (usage["cacheReadTokens"].value, usage["uncachedInputTokens"].value) == (8, 12)
    assert usage["costUsd"].value is not None
    assert Decimal(0) < usage["costUsd"].value < Decimal("0.01")


def test_anthropic_counts_cached_tokens_as_input() -> None:
    """Its input tokens leave them out; here they are in."""
    chats = Chats()
    counts = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 7}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "hi"}], "usage": counts}
    chats.add("anthropic", "messages", "/v1/messages", {"messages": [user("x")]}, answer)
    usage = chats.wire.build_step(0).usage
    assert (usage["inputTokens"].value, usage["cacheReadTokens"].value, usage["cacheCreationTokens"].value) == (
        125, 100, 20,
    )  # fmt: skip


def test_what_was_not_reported_is_unknown_and_not_zero() -> None:
    """A sum with an unknown part has no value, only a lower bound."""
    chats = Chats()
    chats.chat([user("a")], said("b"))
    chats.chat([user("c")], said("d"), usage={})
    usage = chats.wire.build_step(0).usage
    assert (usage["inputTokens"].value, usage["inputTokens"].known) == (None, 10)
    assert usage["cacheCreationTokens"] == usage["reasoningTokens"]
    assert usage["cacheCreationTokens"].known is None


def test_a_step_without_calls_took_nothing() -> None:
    """No calls is known to be no tokens."""
    usage = Chats().wire.build_step(0).usage
    assert (usage["callCount"].value, usage["totalTokens"].value) == (0, 0)


def test_embeddings_take_tokens_and_are_no_answers() -> None:
    chats = Chats()
    value = {"data": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    chats.add("openai", "embeddings", "/v1/embeddings", {"input": "x", "model": "text-embedding-3-small"}, value)
    usage = chats.wire.build_step(0).usage
    assert (usage["callCount"].value, usage["inputTokens"].value) == (0, 9)


def test_four_characters_are_a_token() -> None:
    """Of what was asked and answered; what was reported is taken as it is."""
    chats = Chats()
    chats.chat([user("x" * 40)], said("y" * 8), usage={})
    chats.chat([user("z" * 40)], said("y" * 8), usage={"prompt_tokens": 7, "completion_tokens": 1})
    step = chats.wire.build_step(0)
    assert (
        estimate_tokens_used_by_step("inputTokens", step), estimate_tokens_used_by_step("outputTokens", step), estimate_tokens_used_by_step("totalTokens", step),
    ) == (17, 3, 20)  # fmt: skip


def test_what_cannot_be_estimated_is_none() -> None:
    """Cached tokens; and anything that nobody recorded."""
    chats = Chats()
    chats.chat([user("x")], said("y"), recorded=False)
    assert estimate_tokens_used_by_step("inputTokens", chats.wire.build_step(0)) is None
    assert estimate_tokens_used_by_step("cacheReadTokens", Chats().wire.build_step(0)) is None
