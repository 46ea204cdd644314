"""What providers say themselves about a history."""

from __future__ import annotations

import json

from llmproxy.core.traffic.interaction import Chunk
from llmproxy.trace.observing.processing import declared_by, hidden_history
from llmproxy.trace.reading.exchange import History, open_exchange
from tests.trace.observing.chats import Chats, user


def test_a_streamed_edit_is_found() -> None:
    """Anthropic tells it in the last events of a stream."""
    _, made = Chats().add("anthropic", "messages", "/v1/messages", {"messages": [user("x")]}, {})
    assert made is not None
    edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2}
    events: list[dict[str, object]] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "So far: milk."}},
        {"type": "message_delta", "delta": {}, "context_management": {"applied_edits": [edit]}},
    ]
    data = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events).encode()
    headers = (("content-type", "text/event-stream"),)
    streamed = open_exchange(_with(made, data, headers), History())
    found = {each.processor: each for each in declared_by(streamed)}
    assert found["pruner"].values == {"partsRemoved": 2}
    assert found["condenser"].summaries == ["So far: milk."]


def _with(made: object, data: bytes, headers: tuple[tuple[str, str], ...]):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from dataclasses import replace

    from llmproxy.core.traffic.interaction import Interaction

    assert isinstance(made, Interaction)
    return replace(made, response=replace(made.response, headers=headers, chunks=(Chunk(0, data),)))


def test_histories_that_the_provider_keeps() -> None:
    """An earlier answer named by its id, or a conversation: the request does not carry the history."""
    for member in ({"previous_response_id": "resp_1"}, {"conversation": {"id": "conv_1"}}, {"truncation": "auto"}):
        _, made = Chats().add("openai", "responses", "/v1/responses", {"input": "x"} | member, {"output": []})
        assert made is not None
        assert hidden_history(open_exchange(made, History())), member
    _, made = Chats().add(
        "openai", "responses", "/v1/responses", {"input": "x", "truncation": "disabled"}, {"output": []}
    )
    assert made is not None
    assert hidden_history(open_exchange(made, History())) == ""


def test_an_ordinary_answer_declares_nothing() -> None:
    """Silence is no declaration."""
    _, made = Chats().chat([user("x")], {"role": "assistant", "content": "y"})
    assert made is not None
    assert list(declared_by(open_exchange(made, History()))) == []
