"""Small runs for tests: cassettes made by hand, and recordings in real stores."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Key, Request, Response, Usage
from llmproxy.trace import Cassette, Span, SpanKind, TokenUsage
from llmproxy.trace.reading.decoded_exchange import DecodedExchange, RequestMessageCache, decode_interaction_to_messages
from tests.support.messages import asks, call, result, said, user
from tests.support.narrowing import known

Json = Any
"""A value of JSON; a name of its own because any type will do."""
NOW = 1_800_000_000.0
JSON = "application/json"
SSE = "text/event-stream"


def span(kind: SpanKind, n: int, **members: Json) -> Span:
    return Span(id=f"s{n}", kind=kind, timestamp=NOW + n, **members)


def weather(**changes: Json) -> Cassette:
    """Return the run of the documents: one tool call, then the answer."""
    cassette = Cassette(id="c", name="weather", created_at=NOW, agent_name="agent", input_text="Weather in Paris?",
                        output_text="It's 18°C and cloudy in Paris.")  # fmt: skip
    call = {
        "tool_name": "get_weather", "tool_args": {"city": "Paris"}, "tool_result": {"temp": 18}, "output": {"temp": 18},
    }  # fmt: skip
    for each in (
        span(SpanKind.USER_INPUT, 1, name="user_input", input="Weather in Paris?"),
        span(SpanKind.LLM_REQUEST, 2, name="llm", model="gpt-4o", input="Weather in Paris?"),
        span(SpanKind.LLM_RESPONSE, 3, name="llm", model="gpt-4o", output="", token_usage=TokenUsage(40, 5, 45),
             cost_usd=0.0002, duration_ms=300.5, parent_id="s2"),
        span(SpanKind.TOOL_CALL, 4, name="tool:get_weather", duration_ms=20.0, **call),
        span(SpanKind.TOOL_RESULT, 5, tool_name="get_weather", tool_result={"temp": 18}),
        span(SpanKind.LLM_REQUEST, 6, name="llm", model="gpt-4o", input="..."),
        span(SpanKind.LLM_RESPONSE, 7, name="llm", model="gpt-4o", output="It's 18°C and cloudy in Paris.",
             token_usage=TokenUsage(60, 10, 90, 20, 0), cost_usd=0.0003, duration_ms=400.0, parent_id="s6"),
        span(SpanKind.AGENT_OUTPUT, 8, name="agent_output", output="It's 18°C and cloudy in Paris."),
    ):  # fmt: skip
        cassette.add_span(each)
    for name, value in changes.items():
        setattr(cassette, name, value)
    cassette.compute_fingerprint()
    return cassette


def tools(*calls: str | tuple[str, Any] | tuple[str, Any, Any], **changes: Json) -> Cassette:
    """Return a run of tool calls: name, (name, arguments), or (name, arguments, result)."""
    cassette = Cassette(id="c", name="run", created_at=NOW, **changes)
    for n, each in enumerate(calls):
        name, args, given = (each, None, None) if isinstance(each, str) else (*each, None, None)[:3]
        cassette.add_span(span(SpanKind.TOOL_CALL, n, tool_name=name, tool_args=args, tool_result=given))
    return cassette


SYSTEM = {"role": "system", "content": "Be brief."}
USAGE = Usage(input=100, output=20, cached=30, cache_written=None, reasoning=5)


def chat(n: int, messages: list[Any], answer: dict[str, Any] | None, *, names: tuple[str, ...] = ("get_weather",),
         status: int = 200, **changes: Json) -> Interaction:  # fmt: skip
    """Return the n-th exchange of a recording, a second after the one before; `answer` None gives an error body."""
    functions = [{"type": "function", "function": {"name": name}} for name in names]
    asked = json.dumps({"model": "gpt-4o", "messages": messages, "tools": functions, "temperature": 0}).encode()
    body: dict[str, Any] = {"error": {"message": "slow down"}}
    if answer is not None:
        choice = {"index": 0, "finish_reason": "tool_calls" if "tool_calls" in answer else "stop", "message": answer}
        body = {"id": f"chatcmpl-{n}", "model": "gpt-4o-2024-08-06", "choices": [choice]}
    made = Interaction(
        provider="openai",
        operation="chat.completions",
        key=Key(f"v1:{n:064x}"),
        request=Request("POST", "/v1/chat/completions", (("content-type", JSON),), asked),
        response=Response(status, "", (("content-type", JSON),), (Chunk(500_000, json.dumps(body).encode()),),
                          head_offset=400_000),
        started_at=NOW + n,
        model="gpt-4o",
        usage=USAGE if answer is not None else Usage(),
        upstream="https://api.openai.com",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def streamed(made: Interaction, *pieces: tuple[int, object], ending: Ending = Ending.COMPLETE) -> Interaction:
    """Return an exchange whose answer is a stream: (microseconds, JSON value) pieces."""
    chunks = tuple(Chunk(at, b"data: " + json.dumps(value).encode() + b"\n\n") for at, value in pieces)
    response = Response(200, "OK", (("content-type", SSE),), chunks, ending, head_offset=1)
    return dataclasses.replace(made, stream=True, response=response)


def loop() -> list[Interaction]:
    """Return the exchanges of an agent that calls one tool and answers."""
    first = [SYSTEM, user("Weather in Paris?")]
    return [chat(1, first, asks(call())), chat(2, [*first, asks(call()), result()], said("18 degrees."))]


def decoded(made: Interaction | None) -> DecodedExchange:
    """Return an interaction as messages, read for the first time."""
    return decode_interaction_to_messages(known(made), RequestMessageCache())


def store(path: Path, *interactions: Interaction) -> Path:
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as opened:
        for each in interactions:
            opened.add_interaction(each, supersede=False)
    return path


def recorded(path: Path) -> Cassette:
    """Return the trace of the tool loop, recorded in a store at `path`."""
    return Cassette.from_store(store(path, *loop()), cassette="default")
