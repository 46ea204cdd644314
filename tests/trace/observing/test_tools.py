"""Tool calls on the wire: asked for and executed, parsed, counted once, in every dialect that matters."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.core.cassettes.anonymized_export import convert_interaction_to_json
from llmproxy.core.traffic.interaction import Chunk, Interaction, Key, Request, Response
from llmproxy.protocol import AGENT, Decision
from llmproxy.trace.observing.agent_activity import ModelCallObserver
from llmproxy.trace.observing.tool_calls import ToolUse
from tests.support.messages import asks, call as tool, result, said, user

Json = dict[str, Any]
SSE = "text/event-stream"


def call(
    seq: int,
    asked: Json,
    answered: Json | bytes,
    *,
    operation: str = "chat.completions",
    party: str = "agent",
    status: int = 200,
    kind: str = "application/json",
    key: str | None = None,
) -> Call:
    body = json.dumps(asked).encode()
    said = answered if isinstance(answered, bytes) else json.dumps(answered).encode()
    provider = {"messages": "anthropic"}.get(operation, "openai")
    key = key or f"v1:{hash(body) & (2**64 - 1):064x}"
    made = Interaction(
        provider=provider,
        operation=operation,
        key=Key(key),
        request=Request("POST", "/v1/x", (("content-type", "application/json"),), body),
        response=Response(status, "OK", (("content-type", kind),), (Chunk(100, said),)),
        started_at=1_800_000_000.0,  # of the recording: one that is played twice has the same
        party=party,
        id=100 + seq,
    )
    return Call(
        seq=seq, at=made.started_at, ms=5.0, first_ms=None, party=party, decision=Decision.RECORD, status=status, miss=False, note="",
        key=key, occurrence=1, provider=provider, operation=operation, model=None, interaction=made.id, recording=convert_interaction_to_json(made),
    )  # fmt: skip


def read_tool_uses(calls: Iterable[Call], party: str | None = AGENT) -> Sequence[ToolUse]:
    """Return the tool calls in answers to a party's calls; `party` None: everybody's."""
    wire = ModelCallObserver(party)
    wire.add_calls_with_recordings(calls)
    return wire.list_tool_uses()


def answer(message: Json) -> Json:
    return {"choices": [{"index": 0, "message": message}]}


WEATHER = asks(tool("get_weather", '{"city": "Oslo"}', "c1"))
USER, SAID = user("How warm is it?"), said("12 degrees.")
FIRST: Json = {"messages": [USER]}
SECOND: Json = {"messages": [USER, WEATHER, result('{"t": 12}', "c1")]}


def test_a_call_has_its_arguments_its_result_and_its_place() -> None:
    """Requested by one answer, executed because the next request carries the result; history is not counted again."""
    (found,) = read_tool_uses([call(1, FIRST, answer(WEATHER)), call(2, SECOND, answer(SAID))])
    assert (found.name, found.arguments, found.raw) == ("get_weather", {"city": "Oslo"}, '{"city": "Oslo"}')
    assert (found.id, found.seq, found.interaction, found.label) == ("c1", 1, 101, "interaction 101")
    assert (found.executed, found.hosted, found.errored) == (True, False, False)
    assert (found.output, found.result) == ('{"t": 12}', {"t": 12})


@pytest.mark.parametrize(
    ("raw", "arguments"), [("", {}), ("{not json", "{not json"), ("[1]", [1]), ('{"a": 1}', {"a": 1})]
)
def test_arguments_are_parsed_or_kept_as_they_came(raw: str, arguments: object) -> None:
    """What is no JSON is the text that the model wrote."""
    (found,) = read_tool_uses([call(1, FIRST, answer(asks(tool("f", raw, "c1"))))])
    assert (found.arguments, found.raw, found.has_json_arguments) == (arguments, raw, raw != "{not json")


def test_calls_come_in_the_order_in_which_they_were_asked_for() -> None:
    """Several in one answer, each with its own result."""
    both = asks(tool("one", "{}", "a"), tool("two", "{}", "b"))
    second = {"messages": [USER, both, result("B", "b"), result("A", "a")]}
    found = read_tool_uses([call(1, FIRST, answer(both)), call(2, second, answer(SAID))])
    assert [(each.name, each.result) for each in found] == [("one", "A"), ("two", "B")]


def test_other_parties_are_left_out_unless_asked_for() -> None:
    """A judge's verdict is a tool call, too."""
    verdict = call(1, FIRST, answer(asks(tool("finish_test", "{}", "j"))), party="judge")
    assert read_tool_uses([verdict]) == []
    assert [each.name for each in read_tool_uses([verdict], party="judge")] == ["finish_test"]
    assert [each.name for each in read_tool_uses([verdict], party=None)] == ["finish_test"]


@pytest.mark.parametrize(("results", "executed"), [([], (False, None)), ([""], (True, ""))])
def test_a_call_without_a_result_was_only_requested(results: list[str], executed: tuple[bool, str | None]) -> None:
    """An agent that asks and never runs the tool; one that has nothing to say was executed."""
    calls = [call(2, {"messages": [USER, WEATHER, result(text, "c1")]}, answer(SAID)) for text in results]
    (found,) = read_tool_uses([call(1, FIRST, answer(WEATHER)), *calls])
    assert (found.executed, found.result) == executed


@pytest.mark.parametrize(("order", "found"), [
    ("asked, told, asked, told otherwise", [(1, {"t": 12}), (3, "13")]),
    ("asked, asked, told, told otherwise", [(1, {"t": 12}), (2, "13")]),
    ("asked, asked, told", [(1, {"t": 12}), (2, None)]),
])  # fmt: skip
def test_one_recording_that_is_played_again_is_another_call(order: str, found: list[Any]) -> None:
    """Equal ids do not make two calls one, one after the other or interleaved; without a result one was not run."""
    other = {"messages": [USER, WEATHER, result("13", "c1")]}
    plays = {"asked": (FIRST, WEATHER), "told": (SECOND, SAID), "told otherwise": (other, SAID)}
    calls = [call(seq, plays[word][0], answer(plays[word][1])) for seq, word in enumerate(order.split(", "), 1)]
    assert [(each.seq, each.result) for each in read_tool_uses(calls)] == found
    assert [each.executed for each in read_tool_uses(calls)] == [result is not None for _, result in found]


def test_failed_and_unrecorded_answers_ask_for_nothing() -> None:
    """A 500 with tool calls in it, a call that was passed through, an answer without any, no call at all."""
    failed = call(1, FIRST, answer(WEATHER), status=500)
    passed = call(2, FIRST, answer(WEATHER))._replace(recording=None)
    assert read_tool_uses([failed, passed]) == []
    assert read_tool_uses([]) == []
    assert read_tool_uses([call(1, FIRST, answer(SAID))]) == []


def test_a_streamed_call_is_put_together() -> None:
    deltas = [
        {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"city":'}},
        {"index": 0, "function": {"arguments": '"Oslo"}'}},
    ]
    events = [json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [each]}}]}) for each in deltas]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
    (found,) = read_tool_uses([call(1, {**FIRST, "stream": True}, body, kind=SSE)])
    assert (found.name, found.arguments) == ("get_weather", {"city": "Oslo"})


def test_a_tool_that_the_provider_runs_is_hosted_and_executed() -> None:
    """Anthropic's server tools, beside one of the agent's own."""
    content = [
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "Oslo"}},
        {"type": "tool_use", "id": "own", "name": "get_weather", "input": {"city": "Oslo"}},
    ]
    said = {"type": "message", "role": "assistant", "content": content}
    found = read_tool_uses([call(1, FIRST, said, operation="messages")])
    told = [(each.name, each.hosted, each.executed) for each in found]
    assert told == [("web_search", True, True), ("get_weather", False, False)]


def test_responses_have_hosted_calls_without_a_name() -> None:
    """`web_search_call` is the tool web_search; function calls are the agent's."""
    output = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "Oslo"}},
        {
            "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather",
            "arguments": '{"city": "Oslo"}',
        },
    ]  # fmt: skip
    first = call(1, {"input": "How warm?"}, {"object": "response", "id": "r1", "output": output}, operation="responses")
    then = {"previous_response_id": "r1", "input": [{"type": "function_call_output", "call_id": "c1", "output": "12"}]}
    done = {
        "object": "response",
        "id": "r2",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "12"}]}],
    }
    found = read_tool_uses([first, call(2, then, done, operation="responses")])
    told = sorted((each.name, each.hosted, each.executed) for each in found)
    assert told == [("get_weather", False, True), ("web_search", True, True)]


def test_a_call_can_be_written_as_a_message_lists_it() -> None:
    """For whoever looks for tool calls in messages."""
    (found,) = read_tool_uses([call(1, FIRST, answer(WEATHER))])
    assert found.to_message() == WEATHER["tool_calls"][0]


def test_an_answer_whose_letters_are_escaped_is_read_all_the_same() -> None:
    """Answers without any word of a tool call are not looked into; an escape, or bytes that are compressed, may hide it."""
    said = (
        json.dumps(answer(WEATHER))
        .replace("tool_calls", "\\u0074ool_c\\u0061lls")
        .replace("function", "f\\u0075nction")
    )
    assert "tool" not in said
    assert [each.name for each in read_tool_uses([call(1, {"messages": [USER]}, said.encode())])] == ["get_weather"]
    packed = gzip.compress(json.dumps(answer(WEATHER)).encode(), mtime=0)
    made = call(1, {"messages": [USER]}, packed)
    assert made.recording is not None
    made.recording["response_headers"].append(["content-encoding", "gzip"])
    assert isinstance(made.recording["response_body"], dict)
    read_tool_uses([made, call(2, {"messages": [USER]}, answer(WEATHER))])  # no error; what is in it, the decoder says
