"""A rough number of tokens, where somebody asked for one."""

from __future__ import annotations

from llmproxy.trace.observing.wire import estimate_usage
from tests.trace.observing.chats import Chats, said, user


def test_four_characters_are_a_token() -> None:
    """Of what was asked and answered; what was reported is taken as it is."""
    chats = Chats()
    chats.chat([user("x" * 40)], said("y" * 8), usage={})
    chats.chat([user("z" * 40)], said("y" * 8), usage={"prompt_tokens": 7, "completion_tokens": 1})
    step = chats.wire.step(0)
    assert (
        estimate_usage("inputTokens", step), estimate_usage("outputTokens", step), estimate_usage("totalTokens", step),
    ) == (17, 3, 20)  # fmt: skip


def test_what_cannot_be_estimated_is_none() -> None:
    """Cached tokens; and anything that nobody recorded."""
    chats = Chats()
    chats.chat([user("x")], said("y"), recorded=False)
    assert estimate_usage("inputTokens", chats.wire.step(0)) is None
    assert estimate_usage("cacheReadTokens", Chats().wire.step(0)) is None
