"""Answers made by hand: what we write, we read as what was meant, whole and streamed; so do the providers' readers of endings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.dialects.conversation import read_answer
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.dialects.streams import ending
from llmproxy.core.dialects.table import CHAT
from llmproxy.core.dialects.usage import usage_of
from llmproxy.core.dialects.writing import can_write, write
from llmproxy.core.providers.routing import family_of
from llmproxy.core.providers.table import Family
from llmproxy.core.traffic.interaction import Ending, header

TEXT = Message("assistant", "Kühl: 5°.\nBring a coat.")
CALL = Message("assistant", "", (ToolCall(None, "get_weather", '{"city": "Oslo"}'),))
BOTH = Message(
    "assistant", "Let me see.", (ToolCall(None, "get_weather", '{"city": "Oslo"}'), ToolCall(None, "add", "{}"))
)
PROVIDER = {"messages": "anthropic", "generateContent": "gemini", "converse": "bedrock", "invoke": "bedrock", "api.chat": "ollama",
            "v1.chat": "cohere", "v2.chat": "cohere"}  # fmt: skip


def family(operation: str) -> Family:
    """Return the dialect of an operation at the provider that has it."""
    return family_of(PROVIDER.get(operation, "openai"), operation)


@pytest.mark.parametrize("said", [TEXT, CALL, BOTH, Message("assistant", "")], ids=["text", "call", "both", "empty"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("operation", sorted(filter(can_write, CHAT)))
def test_what_is_written_is_read(operation: str, stream: bool, said: Message) -> None:
    """Text, names and arguments; a stream with its terminator; no tokens were used."""
    made = write(operation, b'{"model": "m"}', "/x?alt=sse", "m", said, stream=stream, call=0)
    kind = header(made.headers, "content-type") or ""
    read = read_answer(family(operation), operation, kind, made.body)
    if read is None:  # an answer that says nothing has no pieces in some dialects
        assert not said.text
        assert not said.tool_calls
        return
    assert read.text == said.text
    assert [(each.name, json.loads(each.arguments)) for each in read.tool_calls] == [
        (each.name, json.loads(each.arguments)) for each in said.tool_calls
    ]
    assert ending(family(operation), operation, stream, 200, kind, made.body, http_ended=True) is Ending.COMPLETE
    usage = usage_of(family(operation), operation, kind, made.body, made.headers)
    assert (usage.input or 0, usage.output or 0) in ((0, 0), (0, 1))


def test_ids_are_those_of_the_override_and_of_its_call() -> None:
    """The same override gives the same bytes; two calls of a model never share an id. Mistral takes nine letters and digits only."""
    first, again, other = (
        write("chat.completions", b"{}", "", "m", BOTH, stream=False, call=n).body for n in (0, 0, 1)
    )
    assert first == again != other
    ids = [each["id"] for each in json.loads(first)["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(each) == 9 and each.isalnum() for each in ids)


def test_a_client_that_asked_for_usage_gets_it() -> None:
    """`include_usage`: the last chunk before [DONE] has it."""
    body = b'{"stream_options": {"include_usage": true}}'
    made = write("chat.completions", body, "", "m", TEXT, stream=True, call=0)
    assert json.loads(made.chunks[-2].data[6:])["usage"]["total_tokens"] == 0
    assert made.chunks[-1].data == b"data: [DONE]\n\n"


def test_gemini_without_sse_is_an_array() -> None:
    """As Gemini streams without `alt=sse`."""
    made = write("generateContent", b"{}", "/v1beta/models/m:streamGenerateContent", "m", TEXT, stream=True, call=0)
    assert json.loads(made.body)[0]["candidates"][0]["content"]["parts"] == [{"text": TEXT.text}]


def test_arguments_that_are_no_json_stay_what_they_are() -> None:
    """A model may write them so; where the dialect wants a value it is a text."""
    broken = Message("assistant", "", (ToolCall("mine", "f", "{broken"),))
    for operation in sorted(filter(can_write, CHAT)):
        assert b"{broken" in write(operation, b"{}", "", "m", broken, stream=False, call=0).body


@pytest.mark.parametrize(("offered", "namespace"), [
    ({"tools": [{"type": "namespace", "name": "mcp__t", "tools": []}]}, "mcp__t"),
    ({"input": [{"type": "tool_search_output", "tools": [{"type": "namespace", "name": "mcp__t"}]}]}, "mcp__t"),
    ({"tools": [{"type": "function", "name": "mcp__t__echo"}, {"type": "namespace", "name": "mcp__t"}]}, None),
    ({"tools": "odd", "input": "hi"}, None),
])  # fmt: skip
def test_a_tool_is_called_in_the_namespace_in_which_it_is_offered(
    offered: dict[str, Any], namespace: str | None
) -> None:
    """Responses: Codex runs nothing that is called without; whoever writes a name need not know."""
    said = Message("assistant", "", (ToolCall("c1", "mcp__t__echo", "{}"),))
    made = write("responses", json.dumps(offered).encode(), "", "m", said, stream=False, call=0)
    item = json.loads(made.body)["output"][0]
    assert (item.get("namespace"), item["name"]) == (namespace, "echo" if namespace else "mcp__t__echo")


def test_what_nobody_can_write_is_known() -> None:
    """Images, embeddings, sound."""
    assert not can_write("embeddings")
    assert can_write("responses")
