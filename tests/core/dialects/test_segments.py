"""A request is read into the parts that people edit: nothing is left out, and each has its name."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.dialects.answer_writing import build_provider_answer, can_build_provider_answer, dump_json, sse
from llmproxy.core.dialects.conversation import (
    Kind,
    compare_requests,
    list_request_segments,
    parse_answer_body_as_message,
    read_request_messages,
)
from llmproxy.core.dialects.dialect_table import (
    CHAT,
    ERROR_HEADER,
    SpokenTurn,
    build_dialect_error_response,
    get_composer_for_model,
    get_miss_status,
)
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.dialects.stream_events import classify_response_ending
from llmproxy.core.dialects.usage_and_cost import read_usage
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.providers.routing import RoutedRequest, asks_for_stream, get_operation_dialect, route_by_host
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Ending, header
from llmproxy.core.traffic.json_diff import build_member_path
from llmproxy.errors import MissError
from tests.support.narrowing import known
from tests.support.traffic import exchanges

Json = dict[str, Any]
WORDS = st.sampled_from([
    "type", "text", "role", "content", "parts", "name", "id", "input", "arguments", "function", "tools", "messages",
    "system", "request", "toolUse", "toolResult", "functionCall", "functionResponse", "functionDeclarations",
    "tool_calls", "function_call", "tool_call_id", "tool_use", "tool_result", "thinking", "message", "contents",
    "instructions", "toolConfig", "prompt", "chat_history", "user", "assistant", "tool", "model", "image", "robot",
])  # fmt: skip
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)


def leaves(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield what a tree holds: its scalars and its empty containers."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from leaves(build_member_path(path, name), each)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from leaves(f"{path}[{number}]", each)
    else:
        yield path, json.dumps(value)


def assert_whole(operation: str, body: object) -> None:
    """Insist that each leaf of a body is in one segment."""
    found = Counter(leaf for each in list_request_segments(operation, body) for leaf in leaves(each.path, each.value))
    assert found == Counter(leaves("$", body))


@settings(max_examples=60)
@given(st.sampled_from(sorted(CHAT)), TREES)
def test_segments_hold_every_leaf_once(operation: str, body: object) -> None:
    assert_whole(operation, body)


def test_segments_hold_real_requests(traffic: Path) -> None:
    for exchange in exchanges(traffic):
        if exchange.route is not None and (body := parse_json_or_none(exchange.asked)) is not None:
            assert_whole(exchange.route.operation, body)


CHAT_BODY: Json = {
    "messages": [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "12"},
        {"role": "user", "content": [{"type": "robot", "x": 1}]},
    ],
    "model": "m",
    "temperature": 1,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}],
}  # fmt: skip
BODIES: dict[str, tuple[Json, list[tuple[str, str]]]] = {
    "chat.completions": (CHAT_BODY, [
        ("system", "system prompt"), ("tool", "tool f"), ("model", "model"), ("parameter", "parameter temperature"),
        ("user", "message 2 (user), part 1"), ("user", "message 2 (user), part 2"), ("assistant", "message 3 (assistant)"),
        ("call", "message 3, call of f"), ("result", "message 4, result of f"), ("unknown", "message 5, robot"),
    ]),
    "responses": (
        {"instructions": "Be brief.", "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "12"}, {"type": "robot", "x": 1}],
         "tools": [{"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}]}, {"type": "web_search"}]},
        [("system", "system prompt"), ("tool", "tool ns"), ("tool", "tool ns__f"), ("tool", "tool web_search"),
         ("user", "message 1 (user)"), ("thought", "message 2, thinking"), ("call", "message 3, call of f"),
         ("result", "message 4, result of f"), ("unknown", "message 5, robot")]),
    "messages": (
        {"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "max_tokens": 9, "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "12"}]}]},
        [("system", "system prompt, block 1"), ("system", "system prompt, block 2"), ("parameter", "parameter max_tokens"),
         ("user", "message 1 (user)"), ("thought", "message 2, thinking"), ("call", "message 2, call of f"),
         ("result", "message 3, result of f")]),
    "generateContent": (
        {"request": {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "tools": [{"functionDeclarations": [{"name": "f"}]}],
                     "contents": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
                                  {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}]}, "project": "p"},
        [("system", "system prompt"), ("tool", "tool f"), ("parameter", "parameter project"), ("user", "message 1 (user)"),
         ("call", "message 2, call of f"), ("result", "message 3, result of f")]),
    "converse": (
        {"system": [{"text": "Be brief."}], "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
         "toolConfig": {"tools": [{"toolSpec": {"name": "f"}}], "toolChoice": {"any": {}}}},
        [("system", "system prompt"), ("tool", "tool f"), ("parameter", "parameter toolChoice"), ("user", "message 1 (user)")]),
    "v1.chat": (
        {"preamble": "Be brief.", "chat_history": [{"role": "User", "message": "Hi"}], "message": "And?",
         "tool_results": [{"call": {"name": "f"}, "outputs": []}]},
        [("system", "system prompt"), ("user", "message 1 (user)"), ("user", "message (user)"), ("result", "result of f")]),
    "api.generate": ({"system": "Be brief.", "prompt": "Hi"}, [("system", "system prompt"), ("user", "prompt (user)")]),
}  # fmt: skip


@pytest.mark.parametrize("operation", BODIES)
def test_each_part_has_a_kind_and_a_name(operation: str) -> None:
    """In the order in which people edit; what stands beside the parts of a message is a member of it."""
    body, expected = BODIES[operation]
    found = [
        (str(each.kind), each.name) for each in list_request_segments(operation, body) if each.kind is not Kind.MEMBER
    ]
    assert list(dict.fromkeys(found)) == expected
    assert_whole(operation, body)


def changed(path: list[str | int], value: object) -> Json:
    made = copy.deepcopy(CHAT_BODY)
    at: Any = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return made


PROPERTIES: list[str | int] = ["tools", 0, "function", "parameters", "properties"]
CHANGES: dict[str, tuple[list[str | int], object]] = {
    "system prompt, line 2": (["messages", 0, "content"], "Be brief.\nBe very kind."),
    "tool f: parameter limit is new": ([*PROPERTIES, "limit"], {"type": "integer"}),
    "tool f: parameter city.type": ([*PROPERTIES, "city", "type"], "number"),
    "model": (["model"], "n"),
    "parameter temperature": (["temperature"], 0),
    "parameter seed is new": (["seed"], 7),
    "message 2 (user), part 1": (["messages", 1, "content", 0, "text"], "Rain?"),
    "message 3, call of f: function.arguments": (["messages", 2, "tool_calls", 0, "function", "arguments"], '{"a": 1}'),
    "message 4, result of f": (["messages", 3, "content"], "13"),
}


@pytest.mark.parametrize("where", CHANGES)
def test_a_difference_is_told_in_words(where: str) -> None:
    """By segment and line; what is new or gone is said."""
    (found,) = compare_requests("chat.completions", CHAT_BODY, changed(*CHANGES[where]), 9)
    assert found.where == where
    if where.endswith("is new"):
        (found,) = compare_requests("chat.completions", changed(*CHANGES[where]), CHAT_BODY, 9)
        assert found.where == where.removesuffix("new") + "gone"


def test_tools_are_compared_by_name_and_what_is_edited_first_is_told_first() -> None:
    """One that was put before the others leaves them what they are; another order is a difference too."""
    new = changed(["messages", 1, "content", 0, "text"], "Rain?")
    new["tools"] = [{"type": "function", "function": {"name": "g"}}, *new["tools"]]
    new["messages"][0]["content"] = "Be brief."
    found = compare_requests("chat.completions", CHAT_BODY, new, 9)
    assert [each.where for each in found] == ["system prompt, line 1", "tool g is new", "message 2 (user), part 1"]
    assert compare_requests("chat.completions", new, {**new, "tools": new["tools"][::-1]}, 9)
    assert compare_requests("/unknown", {"a": 1}, {"a": 2}, 9)[0].where == ""


CALL = ToolCall("call_1", "weather", '{"city":"Oslo"}')
TALK = [
    Message("system", "Be brief."), Message("user", "Weather?"), Message("assistant", "", (CALL,)),
    Message("tool", "12", tool_call_id="call_1"),
]  # fmt: skip
MODELS = ("gpt-4o-mini", "claude-sonnet-4-5", "gemini-2.5-flash")
COUNTS = {"prompt_tokens": 7, "completion_tokens": 3}


def route_of(url: str) -> RoutedRequest:
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}".rstrip("?")
    return known(route_by_host(parts.scheme, parts.hostname or "", None, target))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_requests_are_understood(model: str, stream: bool) -> None:
    """Route, stream flag and conversation of a made-up request are what was meant."""
    url, body = get_composer_for_model(model).ask(model, TALK, stream)
    route = route_of(url)
    assert route.known
    assert asks_for_stream(route, body) is stream
    assert model in (body.get("model"), route.model)
    found = read_request_messages(dump_json(body))
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
    dialect, said = get_composer_for_model(model), SpokenTurn(model, message, COUNTS)
    route = route_of(dialect.ask(model, TALK, stream)[0])
    kind = "text/event-stream" if stream else "application/json"
    body = sse(dialect.stream(said)) if stream else dump_json(dialect.answer(said))
    found = known(parse_answer_body_as_message(route.operation, kind, body))
    assert found.text == message.text
    said_calls, calls = (
        [(each.name, json.loads(each.arguments)) for each in one.tool_calls] for one in (message, found)
    )
    assert calls == said_calls
    assert classify_response_ending(route.operation, stream, 200, kind, body, http_ended=True) is Ending.COMPLETE
    if not stream:
        usage = read_usage(route.family, route.operation, kind, body)
        assert (usage.input, usage.output) == (7, 3)


@pytest.mark.parametrize("model", MODELS)
def test_errors_are_in_the_providers_envelope(model: str) -> None:
    """Each provider's SDK finds message and kind where it looks for them."""
    error = get_composer_for_model(model).error({"message": "Slow down", "type": "requests"}, 429)["error"]
    assert error["message"] == "Slow down"
    assert {error.get("type"), error.get("code"), error.get("status")} & {"requests", "rate_limit_error", 429}


def test_arguments_that_are_no_json() -> None:
    """A model's broken arguments stay as it wrote them."""
    said = SpokenTurn("claude-x", Message("assistant", "", (ToolCall(None, "f", "{oops"),)))
    (block,) = get_composer_for_model("claude-x").answer(said)["content"]
    assert block == {"type": "tool_use", "id": "toolu_0", "name": "f", "input": "{oops"}


def test_nothing_depends_on_chance() -> None:
    """The same fixture is the same answer, ids included."""
    one, two = (SpokenTurn("m", Message("assistant", text)) for text in ("a", "b"))
    dialect = get_composer_for_model("m")
    assert dialect.answer(one) == dialect.answer(SpokenTurn("m", Message("assistant", "a")))
    assert dialect.answer(one)["id"] != dialect.answer(two)["id"]


CODE = MissError.code
TEXT = "llmproxy: no recorded response."
BEDROCK_NAMES = {404: "ResourceNotFoundException", 400: "ValidationException", 502: "InternalServerException"}
"""Boto reads the error's name from a header, and none of ours is one that it retries."""


@pytest.mark.parametrize(("family", "status", "expected"), [
    *((family, 404, {"error": {"message": TEXT, "type": CODE, "param": None, "code": CODE}}) for family in ("openai", "generic", "http")),
    ("anthropic", 404, {"type": "error", "error": {"type": "not_found_error", "message": TEXT}, "request_id": CODE}),
    ("anthropic", 400, {"type": "error", "error": {"type": "invalid_request_error", "message": TEXT}, "request_id": CODE}),
    ("anthropic", 413, {"type": "error", "error": {"type": "request_too_large", "message": TEXT}, "request_id": CODE}),
    ("anthropic", 502, {"type": "error", "error": {"type": "api_error", "message": TEXT}, "request_id": CODE}),
    ("gemini", 404, {"error": {"code": 404, "message": TEXT, "status": "NOT_FOUND"}}),
    ("gemini", 400, {"error": {"code": 400, "message": TEXT, "status": "INVALID_ARGUMENT"}}),
    ("gemini", 500, {"error": {"code": 500, "message": TEXT, "status": "INTERNAL"}}),
    ("gemini", 502, {"error": {"code": 502, "message": TEXT, "status": "UNAVAILABLE"}}),
    *(("bedrock", status, {"message": TEXT}) for status in BEDROCK_NAMES),
    ("ollama", 404, {"error": TEXT}),
    ("cohere", 404, {"message": TEXT}),
])  # fmt: skip
def test_shape(family: Family, status: int, expected: object) -> None:
    """Every family gets the body that its SDKs take the message from, type by type: JSON that forbids retries and names the code."""
    headers, body = build_dialect_error_response(family, status, CODE, TEXT)
    assert json.loads(body) == expected
    names = ("content-type", "x-should-retry", ERROR_HEADER)
    assert [header(headers, name) for name in names] == ["application/json", "false", CODE]
    assert header(headers, "x-amzn-errortype") == (BEDROCK_NAMES[status] if family == "bedrock" else None)


@pytest.mark.parametrize(("family", "operation", "status"), [
    ("anthropic", "messages", 400), ("anthropic", "messages.count_tokens", 400), ("openai", "responses", 400),
    ("openai", "chat.completions", 404), ("gemini", "generateContent", 404), ("bedrock", "converse", 404),
    ("generic", "", 404),
])  # fmt: skip
def test_each_dialect_has_the_status_that_its_clients_take_best(family: Family, operation: str, status: int) -> None:
    """Where a coding agent tells them apart its row decides; every SDK takes 400 as it takes 404."""
    assert get_miss_status(family, operation) == status


@pytest.mark.parametrize(("family", "field", "status"), [
    ("anthropic", ("user-agent", "claude-cli/2.1.332 (external)"), 501),
    ("openai", ("user-agent", "claude-cli/2.1.332 (external)"), 404),
    ("openai", ("x-interaction-type", "conversation-user"), 422),
    ("openai", ("user-agent", "OpenAI/JS 5.20.1"), 422),
    ("openai", ("user-agent", "OpenAI/JS 6.0.0"), 404),
    ("anthropic", ("x-interaction-type", "conversation-user"), 422),
    ("anthropic", ("user-agent", "Anthropic/JS 0.94.0"), 400),
])  # fmt: skip
def test_a_client_that_takes_another_status_better_gets_it(family: Family, field: tuple[str, str], status: int) -> None:
    """Claude Code asks once at 501, Copilot CLI hides a 404."""
    assert get_miss_status(family, "", (field,)) == status


def test_text_says_who_speaks() -> None:
    """A text that does not start with our name gets it; one that does is left alone."""
    assert json.loads(build_dialect_error_response("ollama", 500, CODE, "disk full")[1]) == {
        "error": "llmproxy: disk full"
    }


def test_lone_surrogates_do_not_break_the_answer() -> None:
    """A message that quotes a damaged text is still valid UTF-8 JSON."""
    _, body = build_dialect_error_response("openai", 404, CODE, "llmproxy: \ud83d")
    assert json.loads(body)["error"]["message"] == "llmproxy: \\ud83d"


TEXT_WRITING = Message("assistant", "Kühl: 5°.\nBring a coat.")
CALL_WRITING = Message("assistant", "", (ToolCall(None, "get_weather", '{"city": "Oslo"}'),))
BOTH = Message("assistant", "Let me see.", (*CALL_WRITING.tool_calls, ToolCall(None, "add", "{}")))
PROVIDER = {"messages": "anthropic", "generateContent": "gemini", "converse": "bedrock", "invoke": "bedrock", "api.chat": "ollama",
            "v1.chat": "cohere", "v2.chat": "cohere"}  # fmt: skip


def family(operation: str) -> Family:
    """Return the dialect of an operation at the provider that has it."""
    return get_operation_dialect(PROVIDER.get(operation, "openai"), operation)


@pytest.mark.parametrize(
    "said", [TEXT_WRITING, CALL_WRITING, BOTH, Message("assistant", "")], ids=["text", "call", "both", "empty"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("operation", sorted(filter(can_build_provider_answer, CHAT)))
def test_what_is_written_is_read(operation: str, stream: bool, said: Message) -> None:
    """Text, names and arguments; a stream with its terminator; no tokens were used."""
    made = build_provider_answer(operation, b'{"model": "m"}', "/x?alt=sse", "m", said, stream=stream, call=0)
    kind = header(made.headers, "content-type") or ""
    read = parse_answer_body_as_message(operation, kind, made.body)
    if read is None:  # an answer that says nothing has no pieces in some dialects
        assert not said.text
        assert not said.tool_calls
        return
    assert read.text == said.text
    assert [(each.name, json.loads(each.arguments)) for each in read.tool_calls] == [
        (each.name, json.loads(each.arguments)) for each in said.tool_calls
    ]
    assert classify_response_ending(operation, stream, 200, kind, made.body, http_ended=True) is Ending.COMPLETE
    usage = read_usage(family(operation), operation, kind, made.body, made.headers)
    assert (usage.input or 0, usage.output or 0) in ((0, 0), (0, 1))


def test_ids_are_those_of_the_override_and_of_its_call() -> None:
    """The same override gives the same bytes; two calls of a model never share an id. Mistral takes nine letters and digits only."""
    first, again, other = (
        build_provider_answer("chat.completions", b"{}", "", "m", BOTH, stream=False, call=n).body for n in (0, 0, 1)
    )
    assert first == again != other
    ids = [each["id"] for each in json.loads(first)["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(each) == 9 and each.isalnum() for each in ids)


def test_a_client_that_asked_for_usage_gets_it() -> None:
    """`include_usage`: the last chunk before [DONE] has it."""
    body = b'{"stream_options": {"include_usage": true}}'
    made = build_provider_answer("chat.completions", body, "", "m", TEXT_WRITING, stream=True, call=0)
    assert json.loads(made.chunks[-2].data[6:])["usage"]["total_tokens"] == 0
    assert made.chunks[-1].data == b"data: [DONE]\n\n"


def test_gemini_without_sse_is_an_array() -> None:
    """As Gemini streams without `alt=sse`."""
    target = "/v1beta/models/m:streamGenerateContent"
    made = build_provider_answer("generateContent", b"{}", target, "m", TEXT_WRITING, stream=True, call=0)
    assert json.loads(made.body)[0]["candidates"][0]["content"]["parts"] == [{"text": TEXT_WRITING.text}]


def test_arguments_that_are_no_json_stay_what_they_are() -> None:
    """A model may write them so; where the dialect wants a value it is a text."""
    broken = Message("assistant", "", (ToolCall("mine", "f", "{broken"),))
    for operation in sorted(filter(can_build_provider_answer, CHAT)):
        assert b"{broken" in build_provider_answer(operation, b"{}", "", "m", broken, stream=False, call=0).body


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
    made = build_provider_answer("responses", json.dumps(offered).encode(), "", "m", said, stream=False, call=0)
    item = json.loads(made.body)["output"][0]
    assert (item.get("namespace"), item["name"]) == (namespace, "echo" if namespace else "mcp__t__echo")


def test_what_nobody_can_write_is_known() -> None:
    assert not can_build_provider_answer("embeddings")
    assert can_build_provider_answer("responses")
