"""aimock's fixtures: the smallest conversation that each matches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from llmproxy.core.cassettes.formats import Source, aimock
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteCorrupt
from llmproxy.trace.comparing.requests import turn_of

Adopt = Callable[[str, str], list[Interaction]]


def fixture(
    match: dict[str, Any] | None = None, response: dict[str, Any] | None = None, **more: object
) -> dict[str, Any]:
    asked = {"userMessage": "hi", "model": "gpt-4o"} | (match or {})
    return {"match": asked, "response": {"content": "hello"} if response is None else response, **more}


def read(*fixtures: object) -> list[Recorded]:
    return aimock.read(Source(json.dumps({"fixtures": fixtures}).encode(), "x"))


def test_what_it_recorded(interactions: Adopt, dialogue: list[Interaction]) -> None:
    """Of the dialogue that aimock recorded, every turn is there, plain and as a stream, with its texts and calls."""
    found = interactions("aimock", "aimock")
    assert [each.stream for each in found] == [False, True] * 6
    said = {(t.asked, t.text, tuple(c.arguments for c in t.calls)) for t in map(turn_of, found) if t.status == 200}
    assert said == {
        ("What is the capital of Norway?", "Oslo.", ()),
        ("Say it slowly: grüß Gott 👋", "Grüß … Gott 👋", ()),
        ("What is the weather in Oslo?", "", ('{"city":"Oslo","unit":"C"}',)),
        ("", "It is 12 degrees in Oslo.", ()),  # the tool's result: the fixture does not have it
    }
    plain = next(each for each in found if turn_of(each).text == "Oslo.")
    assert plain.key == dialogue[0].key  # no more in it than the fixture knows: it replays to the real request
    assert (plain.usage.input, plain.usage.output) == (23, 1)
    assert {each.response.status for each in found} == {200, 429}
    assert {each.provider for each in found} == {"openai", "anthropic"}


def test_earlier_turns_come_from_other_fixtures() -> None:
    """A turn after a tool's result has the call and the result before it."""
    call = {"toolCalls": [{"name": "f", "arguments": {"a": 1}, "id": "c1"}]}
    found = read(
        fixture({"turnIndex": 1, "hasToolResult": True, "toolResultContains": "12", "systemMessage": ["A", "B"]}),
        fixture({"turnIndex": 0}, call),
    )
    body = json.loads(found[2].body)
    assert [each["role"] for each in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][0]["content"] == "A B"
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert body["messages"][3] == {"role": "tool", "content": "12", "tool_call_id": "c1"}
    assert (found[0].number, found[2].number) == (2, 1)


def test_answers_of_blocks() -> None:
    """Blocks are text and calls as well."""
    blocks = [
        {"type": "toolCall", "name": "f", "arguments": "{}"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    choice = json.loads(read(fixture(response={"blocks": blocks}))[0].response_body)["choices"][0]["message"]
    assert (choice["content"], choice["tool_calls"][0]["id"]) == ("ab", "call_0")


def test_errors_and_times() -> None:
    """An error has its status, what to wait and the provider's envelope; recorded times are kept."""
    each = read(fixture(response={"error": {"message": "slow"}, "status": 429, "retryAfter": 2}))[0]
    assert (each.status, each.response_headers) == (429, (("content-type", "application/json"), ("retry-after", "2")))
    assert read(fixture(response={"error": {"message": "x"}}))[0].status == 500
    timed = read(fixture(recordedTimings={"ttftMs": 7, "totalDurationMs": 24}))[0]
    assert timed.extra == {"head_offset": 7000, "body_offset": 24000}


def test_a_fixture_for_any_model_is_taken_for_those_that_are_named() -> None:
    """Each in the dialect of its maker, plainly and as a stream; one that names its model keeps it."""
    source = Source(
        json.dumps({"fixtures": [fixture({"model": None}), fixture()]}).encode(), "x.json", ["gpt-4o", "claude-x"]
    )
    found = [each for each in aimock.read(source) if not each.problem]
    assert sorted([json.loads(each.body)["model"] for each in found]) == ["claude-x"] * 2 + ["gpt-4o"] * 4
    assert {each.uri.partition("/v1")[0] for each in found} == {"https://api.openai.com", "https://api.anthropic.com"}


@pytest.mark.parametrize(("made", "why"), [
    (fixture({"model": None}), "it names no model: say which your agent asks, --model NAME"),
    (fixture({"userMessage": None}), "it names no user message"),
    (fixture({"endpoint": "image"}), "it answers no conversation but image"),
    (fixture(response={"image": {}}), "neither text nor tool calls"),
    (fixture({"turnIndex": 2}), "earlier turns of its conversation are not among"),
])  # fmt: skip
def test_what_cannot_be_made_up_is_skipped(made: object, why: str) -> None:
    """A fixture without a request is skipped with the reason."""
    (each,) = read(made)
    assert why in each.problem


@pytest.mark.parametrize(("made", "said"), [
    (1, "fixture 1: `match` is missing"),
    ({"match": {}}, "fixture 1: `response` is missing"),
    (fixture(response={"content": 3}), "`content` is int"),
    (fixture(response={"toolCalls": [1]}), "it is int"),
    (fixture(response={"toolCalls": [{}]}), "`name` is missing"),
    (fixture(response={"error": 3}), "`response.error` is int"),
    (fixture(response={"content": "a", "status": 1}), "the status is 1"),
])  # fmt: skip
def test_what_is_wrong_is_said(made: object, said: str) -> None:
    """A damaged fixture is named by its number."""
    with pytest.raises(CassetteCorrupt, match=said):
        read(made)
    with pytest.raises(CassetteCorrupt, match="x: `fixtures` is int"):
        aimock.read(Source(b'{"fixtures": 1}', "x"))
