"""Spans from the wire: the tree, the numbers, retries, sub-agents, and what cannot be known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from llmproxy.core.traffic.interaction import Ending, Interaction, Key, Response, Usage
from llmproxy.trace import Span, SpanKind, TokenUsage
from llmproxy.trace.reading.span_builder import build_spans
from tests.support.messages import asks, call, result, said, user
from tests.trace.runs import NOW, SYSTEM, USAGE, Json, chat, loop, streamed


def tree(interactions: Iterable[Interaction]) -> list[str]:
    """Return spans as an indented tree: kind, tool or name, text."""
    spans = list(build_spans(interactions))
    lines: list[str] = []

    def walk(parent: str | None, depth: int) -> None:
        for span in spans:
            if span.parent_id == parent:
                said = span.output if span.kind is SpanKind.AGENT_OUTPUT else span.input
                words = span.tool_name or (said if isinstance(said, str) else "")
                named = span.name if span.kind is SpanKind.AGENT_STEP else span.kind.value
                lines.append("  " * depth + f"{named} {words}".rstrip())
                walk(span.id, depth + 1)

    walk(None, 0)
    assert len(lines) == len(spans), "a parent is missing"
    return lines


def of(spans: Iterable[Span], kind: SpanKind) -> list[Span]:
    return [span for span in spans if span.kind is kind]


def test_a_tool_loop() -> None:
    """What the user said, two calls of the model, the tool between them, the answer; in this order, and always the same."""
    assert tree(loop()) == [
        "conversation", "  user_input Weather in Paris?", "  llm_request", "    llm_response",
        "      tool_call get_weather", "        tool_result get_weather", "  llm_request", "    llm_response",
        "      agent_output 18 degrees.",
    ]  # fmt: skip
    assert [span.kind.value for span in build_spans(loop())] == [
        "agent_step", "user_input", "llm_request", "llm_response", "tool_call", "tool_result", "llm_request",
        "llm_response", "agent_output",
    ]  # fmt: skip
    assert list(build_spans(loop())) == list(build_spans(loop()))
    assert len({span.id for span in build_spans(loop())}) == 9


@pytest.mark.parametrize(("kind", "n", "carried", "noted"), [
    (SpanKind.TOOL_CALL, 0, {"tool_name": "get_weather", "tool_args": {"city": "Paris"}, "tool_result": {"temp": 18}, "output": {"temp": 18},
                             "timestamp": NOW + 1.5, "duration_ms": 500.0}, {"gen_ai.tool.call.id": "call_1"}),
    (SpanKind.LLM_RESPONSE, 0, {"token_usage": TokenUsage(70, 20, 120, 30, None), "duration_ms": 500.0, "timestamp": NOW + 1.5,
                                "model": "gpt-4o-2024-08-06", "output": None},
     {"gen_ai.response.finish_reasons": ["tool_calls"], "gen_ai.usage.reasoning.output_tokens": 5}),
    (SpanKind.LLM_REQUEST, 1, {}, {"gen_ai.request.temperature": 0, "llmproxy.tools": ["get_weather"]}),
], ids=str)  # fmt: skip
def test_what_a_span_carries(kind: SpanKind, n: int, carried: Json, noted: Json) -> None:
    """A call its arguments, the result from the next request and the time between; an answer tokens with the fresh ones apart."""
    found = of(build_spans(loop()), kind)[n]
    assert {name: getattr(found, name) for name in carried} == carried
    assert {name: found.metadata[name] for name in noted} == noted
    if kind is SpanKind.LLM_RESPONSE:
        assert found.cost_usd is not None
    if kind is SpanKind.LLM_REQUEST:
        assert [message["role"] for message in found.input] == ["system", "user", "assistant", "tool"]
        assert found.input[2]["tool_calls"] == [
            {"id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'}
        ]


def test_without_times_nothing_takes_time() -> None:
    """Unknown is None, not 0: durations of an imported recording, tokens and cost that the provider did not say."""
    bare = [
        dataclasses.replace(each, response=dataclasses.replace(each.response, head_offset=0, chunks=tuple(
            dataclasses.replace(chunk, offset=0) for chunk in each.response.chunks))) for each in loop()
    ]  # fmt: skip
    spans = list(build_spans(bare))
    assert {span.duration_ms for span in of(spans, SpanKind.LLM_RESPONSE)} == {None}
    assert {span.duration_ms for span in of(spans, SpanKind.TOOL_CALL)} == {None}
    (answer,) = of(build_spans([chat(1, [user("x")], said("y"), usage=Usage())]), SpanKind.LLM_RESPONSE)
    assert (answer.token_usage, answer.cost_usd) == (None, None)
    (answer,) = of(build_spans([chat(1, [user("x")], said("y"), model="nobody-knows-it")]), SpanKind.LLM_RESPONSE)
    assert answer.token_usage is not None


def test_a_retry_is_marked_and_not_counted_twice() -> None:
    """Three attempts are one request with one answer; the failed ones are steps under it."""
    key = Key("v1:same")
    attempts = [chat(n, [user("x")], None, status=429, key=key, occurrence=n) for n in (1, 2)]
    spans = list(build_spans([*attempts, chat(3, [user("x")], said("y"), key=key, occurrence=3)]))
    assert tree([*attempts, chat(3, [user("x")], said("y"), key=key, occurrence=3)]) == [
        "conversation", "  user_input x", "  llm_request", "    llm_attempt", "    llm_attempt", "    llm_response",
        "      agent_output y",
    ]  # fmt: skip
    (request,) = of(spans, SpanKind.LLM_REQUEST)
    failed = [span for span in spans if span.name == "llm_attempt"]
    assert request.metadata["llmproxy.attempts"] == 3
    assert [(span.error, span.token_usage) for span in failed] == [("HTTP 429: slow down", None)] * 2


def test_a_cut_answer_is_retried_too() -> None:
    """A broken stream counts as failed; what it cost is in the attempt's attributes, not in the totals."""
    key = Key("v1:same")
    cut = streamed(chat(1, [user("x")], said(""), key=key), (1000, {"choices": [{"index": 0, "delta": {"content": "ha"}}]}),
                   ending=Ending.CUT)  # fmt: skip
    spans = list(build_spans([cut, chat(2, [user("x")], said("half"), key=key, occurrence=2)]))
    (attempt,) = [span for span in spans if span.name == "llm_attempt"]
    assert (attempt.error, attempt.output) == ("the answer is cut", "ha")
    assert attempt.metadata["gen_ai.usage.input_tokens"] == USAGE.input
    assert len(of(spans, SpanKind.LLM_RESPONSE)) == 1


def test_a_failure_that_nobody_retried_stays_an_answer() -> None:
    spans = list(build_spans([chat(1, [user("x")], None, status=500), chat(2, [user("z")], said("y"))]))
    failed = of(spans, SpanKind.LLM_RESPONSE)[0]
    assert (failed.error, failed.output) == ("HTTP 500: slow down", None)
    assert failed.metadata["error.type"] == "500"


def test_the_same_question_again_is_a_new_conversation() -> None:
    """After a good answer it is no retry but another run."""
    twice = [chat(n, [user("x")], said("y"), key=Key("v1:same"), occurrence=n) for n in (1, 2)]
    assert tree(twice).count("conversation") == 2


def test_overlapping_conversations_are_told_apart() -> None:
    """Two agents' requests alternate; each result finds its own call, though the ids are the same."""
    a, b = [SYSTEM, user("A?")], [SYSTEM, user("B?")]
    for_a, for_b = asks(call(arguments='{"city": "A"}')), asks(call(arguments='{"city": "B"}'))
    spans = list(build_spans([
        chat(1, a, for_a), chat(2, b, for_b),
        chat(3, [*b, for_b, result('{"r": "b"}')], said("b.")), chat(4, [*a, for_a, result('{"r": "a"}')], said("a.")),
    ]))  # fmt: skip
    assert [(span.tool_args, span.tool_result) for span in of(spans, SpanKind.TOOL_CALL)] == [
        ({"city": "A"}, {"r": "a"}), ({"city": "B"}, {"r": "b"}),
    ]  # fmt: skip
    by = {span.output: span.metadata["gen_ai.conversation.id"] for span in of(spans, SpanKind.AGENT_OUTPUT)}
    assert by == {"b.": "2", "a.": "1"}


def test_a_sub_agent_hangs_under_the_call_that_started_it() -> None:
    """Found by its words in the call's arguments."""
    start, delegate = (
        [SYSTEM, user("Write a report on rivers.")],
        asks(call("delegate", '{"task": "Find long rivers"}')),
    )
    sub = [{"role": "system", "content": "You research."}, user("Find long rivers")]
    assert tree([
        chat(1, start, delegate, names=("delegate",)),
        chat(2, sub, asks(call("search", "{}", "call_s")), names=("search",)),
        chat(3, [*sub, asks(call("search", "{}", "call_s")), result("Nile", "call_s")], said("Nile"), names=("search",)),
        chat(4, [*start, delegate, result("Nile")], said("The Nile is long."), names=("delegate",)),
    ]) == [
        "conversation", "  user_input Write a report on rivers.", "  llm_request", "    llm_response",
        "      tool_call delegate", "        sub-agent", "          user_input Find long rivers",
        "          llm_request", "            llm_response", "              tool_call search",
        "                tool_result search", "          llm_request", "            llm_response",
        "              agent_output Nile", "        tool_result delegate", "  llm_request", "    llm_response",
        "      agent_output The Nile is long.",
    ]  # fmt: skip


def test_a_result_whose_call_was_never_seen() -> None:
    """It is kept, marked, named from the request's own history, and no call is invented."""
    history = [user("x"), asks(call("lookup", "{}", "call_9")), result("found", "call_9"), result("lost", "call_0")]
    spans = list(build_spans([chat(1, history, said("y"))]))
    results = of(spans, SpanKind.TOOL_RESULT)
    assert [(span.tool_name, span.tool_result) for span in results] == [("lookup", "found"), (None, "lost")]
    assert all(span.metadata["llmproxy.call_unseen"] for span in results)
    assert of(spans, SpanKind.TOOL_CALL) == []


@pytest.mark.parametrize(("text", "args", "said", "mark"), [
    ('{"city": "Par', None, '{"city": "Par', "not JSON"),
    ("just words", None, "just words", "not JSON"),
    ('{"a": NaN}', None, '{"a": NaN}', "not JSON"),
    ('{"a": 1e999}', None, '{"a": 1e999}', "not JSON"),
    ("[1, 2]", None, [1, 2], "not an object"),
    pytest.param("[" * 100_000, None, "[" * 100_000, "not JSON", id="of any depth"),
    ("", {}, None, None),
    ("{}", {}, None, None),
])  # fmt: skip
def test_arguments_that_are_no_object_are_kept(text: str, args: Json, said: Json, mark: str | None) -> None:
    """As they came, and marked; a call that nobody answers has no result and no duration."""
    (called,) = of(build_spans([chat(1, [user("x")], asks(call(arguments=text)))]), SpanKind.TOOL_CALL)
    assert (called.tool_args, called.input, called.metadata.get("llmproxy.arguments")) == (args, said, mark)
    assert (called.tool_result, called.duration_ms) == (None, None)


def test_parallel_calls_are_answered_by_id_in_any_order() -> None:
    """Two calls, their results the other way round."""
    both = asks(call(call_id="call_a"), call(call_id="call_b"))
    spans = list(build_spans([chat(1, [user("x")], both),
                        chat(2, [user("x"), both, result("b", "call_b"), result("a", "call_a")], said("y"))]))  # fmt: skip
    assert [span.tool_result for span in of(spans, SpanKind.TOOL_CALL)] == ["a", "b"]


def test_other_calls_of_models_are_steps() -> None:
    """Embeddings take tokens and are no conversation; what takes none (a list of files) is left out."""
    embedded = chat(1, [], said(""), operation="embeddings", model="text-embedding-3-small", usage=Usage(10, 0))
    listed = chat(2, [], said(""), operation="files", usage=Usage())
    (step,) = build_spans([embedded, listed])
    assert (step.kind, step.name) == (SpanKind.AGENT_STEP, "embeddings text-embedding-3-small")
    assert step.token_usage == TokenUsage(10, 0, 10, None, None)
    assert step.metadata["gen_ai.operation.name"] == "embeddings"


def test_a_body_that_nobody_understands_still_gives_spans() -> None:
    odd = chat(1, [], said(""))
    odd = dataclasses.replace(odd, request=dataclasses.replace(odd.request, body=b"\xff{"),
                              response=Response(200, "OK", (), ()))  # fmt: skip
    assert [span.kind.value for span in build_spans([odd])] == ["agent_step", "llm_request", "llm_response"]
