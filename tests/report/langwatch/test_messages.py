"""Messages as an endpoint takes them; nothing is refused."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.report.langwatch.messages import convert_messages_to_api_client_messages


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ({"role": "user", "content": "hi", "id": "m1"}, {"id": "m1", "role": "user", "content": "hi"}),
        ({"role": "user", "content": ""}, {"id": "scenariomsg_0", "role": "user", "content": ""}),
        ({"role": "system", "content": None}, {"id": "scenariomsg_0", "role": "system", "content": ""}),
        ({"role": "developer", "content": [1]}, {"id": "scenariomsg_0", "role": "developer", "content": "[1]"}),
        ({"role": "critic", "content": "x"}, {"id": "scenariomsg_0", "role": "critic", "content": "x"}),
        ({"role": "tool", "content": "12", "tool_call_id": "c1"},
         {"id": "scenariomsg_0", "role": "tool", "content": "12", "toolCallId": "c1"}),
        ({"role": "tool"}, {"id": "scenariomsg_0", "role": "tool", "content": "", "toolCallId": ""}),
        ({"role": "assistant", "content": "a", "tool_calls": None},
         {"id": "scenariomsg_0", "role": "assistant", "content": "a", "toolCalls": []}),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}, {}]},
         {"id": "scenariomsg_0", "role": "assistant", "content": "", "toolCalls": [
             {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
             {"id": "call_1", "type": "function", "function": {"name": "unknown", "arguments": "{}"}}]}),
    ],
)  # fmt: skip
def test_every_role(message: dict[str, Any], want: dict[str, Any]) -> None:
    """Empty content and unknown roles crashed the original's snapshot."""
    assert [each.to_dict() for each in convert_messages_to_api_client_messages([message])] == [want]


def test_ids_are_places_and_not_random() -> None:
    """The same conversation is the same snapshot."""
    twice = [convert_messages_to_api_client_messages([{"role": "user", "content": "x"}] * 2) for _ in range(2)]
    assert twice[0] == twice[1]
    assert [each.id for each in twice[0]] == ["scenariomsg_0", "scenariomsg_1"]
