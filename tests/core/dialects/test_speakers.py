"""What was said, in the words of a provider: as that provider's own traffic would be understood."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from llmproxy.core.dialects.conversation import read_answer, read_conversation
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.dialects.streams import ending
from llmproxy.core.dialects.table import SpokenTurn, speaker_of
from llmproxy.core.dialects.usage import usage_of
from llmproxy.core.dialects.writing import sse, write_json
from llmproxy.core.providers.routing import route_host, streams
from llmproxy.core.traffic.interaction import Ending

CALL = ToolCall("call_1", "weather", '{"city":"Oslo"}')
TALK = [
    Message("system", "Be brief."), Message("user", "Weather?"), Message("assistant", "", (CALL,)),
    Message("tool", "12", tool_call_id="call_1"),
]  # fmt: skip
MODELS = ("gpt-4o-mini", "claude-sonnet-4-5", "gemini-2.5-flash")
COUNTS = {"prompt_tokens": 7, "completion_tokens": 3}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_requests_are_understood(model: str, stream: bool) -> None:
    """Route, stream flag and conversation of a made-up request are what was meant."""
    url, body = speaker_of(model).ask(model, TALK, stream)
    parts = urlsplit(url)
    route = route_host(parts.scheme, parts.hostname or "", None, "POST", f"{parts.path}?{parts.query}".rstrip("?"), ())
    assert route is not None
    assert route.known
    assert streams(route, body) is stream
    assert model in (body.get("model"), route.model)
    found = read_conversation(route.family, route.operation, write_json(body))
    assert [each.role for each in found] == ["system", "user", "assistant", "tool"]
    assert [each.text for each in found[:3]] == ["Be brief.", "Weather?", ""]
    assert "12" in found[3].text
    assert found[3].tool_call_id == ("weather" if model.startswith("gemini") else "call_1")
    assert found[2].tool_calls[0].name == "weather"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("message", [Message("assistant", "Grüß"), Message("assistant", "So:", (CALL,))])
@pytest.mark.parametrize("model", MODELS)
def test_answers_are_understood(model: str, message: Message, stream: bool) -> None:
    """Text and tool calls of a made-up answer are what was meant, plain and streamed, with its proper end."""
    dialect, said = speaker_of(model), SpokenTurn(model, message, COUNTS)
    url, _ = dialect.ask(model, TALK, stream)
    parts = urlsplit(url)
    route = route_host("https", parts.hostname or "", None, "POST", f"{parts.path}?{parts.query}".rstrip("?"), ())
    assert route is not None
    kind = "text/event-stream" if stream else "application/json"
    body = sse(dialect.stream(said)) if stream else write_json(dialect.answer(said))
    found = read_answer(route.family, route.operation, kind, body)
    assert found is not None
    assert found.text == message.text
    assert [(each.name, each.arguments.replace(" ", "")) for each in found.tool_calls] == [
        (each.name, each.arguments) for each in message.tool_calls
    ]
    assert ending(route.family, route.operation, stream, 200, kind, body, http_ended=True) is Ending.COMPLETE
    if not stream:
        usage = usage_of(route.family, route.operation, kind, body)
        assert (usage.input, usage.output) == (7, 3)


@pytest.mark.parametrize("model", MODELS)
def test_errors_are_in_the_providers_envelope(model: str) -> None:
    """Each provider's SDK finds message and kind where it looks for them."""
    error = speaker_of(model).error({"message": "Slow down", "type": "requests"}, 429)["error"]
    assert error["message"] == "Slow down"
    assert {error.get("type"), error.get("code"), error.get("status")} & {"requests", "rate_limit_error", 429}


def test_arguments_that_are_no_json() -> None:
    """A model's broken arguments stay as it wrote them."""
    said = SpokenTurn("claude-x", Message("assistant", "", (ToolCall(None, "f", "{oops"),)))
    assert speaker_of("claude-x").answer(said)["content"] == [
        {"type": "tool_use", "id": "toolu_0", "name": "f", "input": "{oops"}
    ]


def test_nothing_depends_on_chance() -> None:
    """The same fixture is the same answer, ids included."""
    one, two = (SpokenTurn("m", Message("assistant", text)) for text in ("a", "b"))
    dialect = speaker_of("m")
    assert dialect.answer(one) == dialect.answer(SpokenTurn("m", Message("assistant", "a")))
    assert dialect.answer(one)["id"] != dialect.answer(two)["id"]
