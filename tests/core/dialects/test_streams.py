"""Streams: parsed alike however they were cut, and whole only when their own terminator says so."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from llmproxy.core.dialects.conversation import list_server_made_ids, parse_answer_body_as_message
from llmproxy.core.dialects.stream_events import (
    BEGINNING,
    LONG,
    MOST_REMEMBERED,
    MOST_WEIGHT,
    ServerSentEvent,
    SSEParser,
    classify_response_ending,
    cut_streamed_body_to_megabyte,
    detect_framing,
    estimate_parsed_size,
    iter_aws_event_frames,
    iter_stream_events,
    list_stream_events,
    parse_events_cached,
    shorten_json_strings_and_lists,
    split_json_array,
)
from llmproxy.core.dialects.usage_and_cost import read_model_named_in_answer, read_usage
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Ending
from tests.core.dialects.heavy import HEAVY
from tests.provider.say_bedrock import frame as aws_frame
from tests.support.narrowing import known
from tests.support.process import ROOT
from tests.support.traffic import exchanges

SSE = "text/event-stream; charset=utf-8"
AWS = "application/vnd.amazon.eventstream"
NDJSON = "application/x-ndjson"
JSON = "application/json"


def frame(payload: bytes, **headers: str) -> bytes:
    return aws_frame({f":{name.replace('_', '-')}": value for name, value in headers.items()}, payload)


def event(kind: str, payload: object) -> bytes:
    return frame(json.dumps(payload).encode(), event_type=kind, message_type="event")


def parse(pieces: list[bytes]) -> list[ServerSentEvent]:
    parser = SSEParser()
    return [found for piece in pieces for found in parser.parse_bytes(piece)] + parser.flush_last_event()


@pytest.mark.parametrize(("data", "expected"), [
    (b"data: a\n\n", [ServerSentEvent(None, "a")]),
    (b"event: x\r\ndata:a\r\ndata: b\r\n\r\n", [ServerSentEvent("x", "a\nb")]),
    (b"data: a\r\rdata: b\r\r", [ServerSentEvent(None, "a"), ServerSentEvent(None, "b")]),
    (b"\xef\xbb\xbfdata: a\n\n", [ServerSentEvent(None, "a")]),
    (b": comment\n\nevent: lost\n\nid: 1\ndata\n\n", [ServerSentEvent(None, "")]),
    (b"data:  two\n\n", [ServerSentEvent(None, " two")]),
    (b"data: \xff\n\n", [ServerSentEvent(None, "\ufffd")]),
    (b"data: unfinished", [ServerSentEvent(None, "unfinished")]),
    (b"", []),
])  # fmt: skip
def test_sse_rules(data: bytes, expected: list[ServerSentEvent]) -> None:
    """Line ends, comments, names, several data lines and a byte order mark follow the standard."""
    assert parse([data]) == expected
    assert parse([data[index : index + 1] for index in range(len(data))]) == expected


@given(
    st.lists(
        st.sampled_from([b"data: ", b"event: x", b"\r", b"\n", b"\r\n", b": c", b"\xef\xbb\xbf", b"\xc3", b"\xa9"])
    ),
    st.lists(st.integers(0, 80)),
)
@settings(max_examples=150, deadline=None)
def test_sse_is_independent_of_chunking(parts: list[bytes], cuts: list[int]) -> None:
    """The same bytes give the same events however the network cut them."""
    data = b"".join(parts)
    marks = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    assert parse([data[a:b] for a, b in pairwise(marks)]) == parse([data])


def test_aws_frames() -> None:
    """Frames come with headers and payload; an unfinished last one is left out, a damaged one is an error."""
    data = frame(b"{}", event_type="chunk", message_type="event") + frame(b"x", event_type="y")
    assert list(iter_aws_event_frames(data)) == [
        ({":event-type": "chunk", ":message-type": "event"}, b"{}"),
        ({":event-type": "y"}, b"x"),
    ]
    for end in range(len(data)):
        assert len(list(iter_aws_event_frames(data[:end]))) <= 1
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1
        with pytest.raises(ValueError, match="event stream"):
            list(iter_aws_event_frames(bytes(broken)))


LINES = st.sampled_from([
    b"data: 1", b"data:2", b'data: {"a": 3}', b"data", b"event: x", b": c", b"", b"", b"data: \xff",
    b"\xef\xbb\xbfdata: 4",
])  # fmt: skip


@given(st.lists(LINES, max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
@example(lines=[b"data: 1", b"", b"\xef\xbb\xbfdata: 4"], end=b"\n", ended=False)
def test_a_whole_stream_has_the_events_of_its_pieces(lines: list[bytes], end: bytes, ended: bool) -> None:
    """Whoever has all of it takes a shorter way through it, to the same events."""
    body = end.join(lines) + (end if ended else b"")
    parser = SSEParser()
    found = [*parser.parse_bytes(body), *parser.flush_last_event()]
    assert list_stream_events(SSE, body) == [
        value for event in found if (value := parse_json_or_none(event.data)) is not None
    ]


def test_events_once_makes_the_values_of_a_body_once() -> None:
    """The same body has the same values, those of answers that are stored together too; another body, or another type, has its own."""
    first = parse_events_cached(JSON, b'{"a": 1}')
    assert first == [{"a": 1}]
    assert parse_events_cached(JSON, bytes(bytearray(b'{"a": 1}'))) is first
    assert parse_events_cached(JSON, b'{"a": 2}') == [{"a": 2}]
    assert parse_events_cached(SSE, b'{"a": 2}') == []
    assert parse_events_cached(JSON, b'{"a": 1}') is first
    for number in range(MOST_REMEMBERED):
        parse_events_cached(JSON, b"[%d]" % number)
    assert parse_events_cached(JSON, b'{"a": 1}') is not first


def test_events_once_holds_little() -> None:
    """However long the bodies are, what is remembered of them is bounded; one that is longer than that is not kept at all."""
    bodies = [b"[%d%s]" % (number, b",[]" * (MOST_WEIGHT // 3 // estimate_parsed_size(b",[]"))) for number in range(4)]
    made = [parse_events_cached(JSON, body) for body in bodies]
    for body, values in zip(bodies[2:], made[2:], strict=True):
        assert parse_events_cached(JSON, body) is values
    assert parse_events_cached(JSON, bodies[0]) is not made[0]
    for long in (b'"%s"' % (b"x" * LONG), b"[1%s]" % (b",[]" * (MOST_WEIGHT // estimate_parsed_size(b",[]") + 1))):
        assert parse_events_cached(JSON, long) is not parse_events_cached(JSON, long)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
@pytest.mark.parametrize(
    ("kind", "size"),
    [*((kind, MOST_WEIGHT // 16) for kind in HEAVY), ("members", LONG * 2), ("deeper and deeper", LONG * 2)],
)
def test_no_answer_is_parsed_into_many_times_its_size(kind: str, size: int) -> None:
    """Tiny events, deep and long ones, in each framing: what reading them holds at once is bounded, whatever they are made of."""
    command = [sys.executable, "-m", "tests.core.dialects.heavy", kind, str(size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * size + MOST_WEIGHT * 2, f"{int(done.stdout) / size:.1f} times the size"


@pytest.mark.parametrize(
    ("line", "end"), [("data: {0}\n", "\n"), ("data: {0}\r\n", "\r\n"), ("data: {0}\n", ""), ("\ufeffdata:{0}\n", "\n")]
)
@pytest.mark.parametrize("split", [1, 50_000])
def test_a_long_event_is_held_once(line: str, end: str, split: int) -> None:
    """One document of megabytes, in one line of data or in many, however they end; it is read as its short form."""
    document = f'{{"usage":{{"total_tokens":7}},"text":"{"x" * LONG}"}}'
    size = len(document) // split + 1
    pieces = [document[at : at + size] for at in range(0, len(document), size)]
    body = "".join(line.format(each) if at else f"{line.format(each)}" for at, each in enumerate(pieces))
    body = body.replace("\ufeff", "") if "\ufeff" not in line else "\ufeff" + body.replace("\ufeff", "")
    stream = (body + end).encode()
    tracemalloc.start()
    try:
        found = list(parse_events_cached(SSE, stream))
        classify_response_ending("chat.completions", True, 200, SSE, stream, True)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 1.3 * len(stream) + (1 << 20), f"{held / len(stream):.1f} times the size"
    if split == 1:
        assert [each["usage"] for each in found if isinstance(each, dict)] == [{"total_tokens": 7}]


def test_the_beginning_of_a_stream_is_enough_to_show() -> None:
    """A megabyte of a stream; all of anything else, which has no beginning that can be read alone."""
    long = b"data: {}\n\n" * (BEGINNING // 10 + 10)
    assert cut_streamed_body_to_megabyte(SSE, long) == long[:BEGINNING]
    assert cut_streamed_body_to_megabyte(JSON, long) == long


def test_events_of_every_framing() -> None:
    """Each framing gives its JSON values in order; what is no JSON is left out; a cut gives what came before."""
    assert list_stream_events(SSE, b'data: {"a":1}\n\ndata: [DONE]\n\n: c\n\ndata: {"b":') == [{"a": 1}]
    assert list_stream_events(NDJSON, b'{"a":1}\n{"b":2}\n{"c"') == [{"a": 1}, {"b": 2}]
    assert list_stream_events("application/stream+json", b'{"a":1}\n{"b":2}\n') == [{"a": 1}, {"b": 2}]
    assert list_stream_events(JSON, b'[{"a":1}\n,\r\n{"b":2}]') == [{"a": 1}, {"b": 2}]
    assert list_stream_events(JSON, b'[{"a":1},\n{"b":[{"c"') == [{"a": 1}]
    inner = {"bytes": base64.b64encode(b'{"type":"ping"}').decode()}
    whole = event("chunk", inner) + event("metadata", {"usage": {}})
    assert list_stream_events(AWS, whole) == [{"type": "ping"}, {"metadata": {"usage": {}}}]
    assert list_stream_events(AWS, whole[:-1]) == [{"type": "ping"}]
    assert list_stream_events(AWS, b"not a frame at all") == []
    assert list_stream_events(JSON, b'\n\n {"a":1}') == [{"a": 1}]
    assert list_stream_events("", b'{"a":1}') == [{"a": 1}]
    assert list_stream_events("text/html", b"<html>") == []
    assert list_stream_events(JSON, b"[" * 100_000) == []


@given(st.binary(max_size=80), st.sampled_from([SSE, AWS, NDJSON, JSON, "", "text/plain"]))
@settings(max_examples=100, deadline=None)
def test_events_of_never_raises(body: bytes, content_type: str) -> None:
    """Whatever bytes came under whatever name, looking at them raises nothing."""
    list_stream_events(content_type, body)
    classify_response_ending("chat.completions", True, 200, content_type, body, True)


C, U, X = Ending.COMPLETE, Ending.UNTERMINATED, Ending.CUT
CHAT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
BEFORE = (b'data: {"n": 1}\n\n', b": nothing\n\n\n", b'event: x\ndata: {"n":\ndata: 1}\n\n\n\n')
PROGRESS = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"error":1}}\n\n'
# family, operation, content type, body -> ending if HTTP ended properly, ending if not
STREAMS: list[tuple[Family, str, str, bytes, Ending, Ending]] = [
    ("openai", "chat.completions", SSE, CHAT + b"data: [DONE]\n\n", C, C),
    ("openai", "chat.completions", SSE, CHAT + b"data: [DONE]", C, C),
    ("openai", "chat.completions", SSE, CHAT, U, X),
    ("openai", "chat.completions", SSE, b"", U, X),
    ("openai", "chat.completions", SSE, CHAT + b'data: {"error":{"message":"overloaded"}}\n\n', C, C),
    ("openai", "chat.completions", SSE, b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n', U, X),
    ("openai", "chat.completions", "", CHAT + b"data: [DONE]\n\n", C, C),
    ("openai", "chat.completions", JSON, b'{"choices":[]}', C, X),
    ("openai", "responses", SSE, b'event: response.completed\ndata: {"type":"response.completed"}\n\n', C, C),
    ("openai", "responses", SSE, b'data: {"type":"response.failed","response":{}}\n\n', C, C),
    ("openai", "responses", SSE, b'event: error\ndata: {"type":"error","code":"x"}\n\n', C, C),
    ("openai", "responses", SSE, b'data: {"type":"response.output_text.done","text":"response.completed"}\n\n', U, X),
    ("openai", "threads/thread_1/runs", SSE, b"event: done\ndata: [DONE]\n\n", C, C),
    ("openai", "threads/thread_1/runs", SSE, b'event: thread.run.created\ndata: {"id":"r"}\n\n', U, X),
    ("openai", "writer.chat", SSE, CHAT, C, X),
    ("openai", "/nobody/knows", SSE, CHAT, C, X),
    ("anthropic", "messages", SSE, b'event: message_stop\ndata: {"type":"message_stop"}\n\n', C, C),
    ("anthropic", "messages", SSE, b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n', C, C),
    ("anthropic", "messages", SSE, b'event: message_delta\ndata: {"type":"message_delta"}\n\n', U, X),
    ("ollama", "api.chat", NDJSON, b'{"message":{"content":"a"},"done":false}\n{"done":true}\n', C, C),
    ("ollama", "api.chat", NDJSON, b'{"message":{"content":"a"},"done":false}\n', U, X),
    ("ollama", "api.chat", NDJSON, b'{"done":false}\n{"error":"out of memory"}\n', C, C),
    ("ollama", "api.chat", NDJSON, b'{"done":false}\n{"done":tru', U, X),
    ("cohere", "v2.chat", SSE, b'event: message-end\ndata: {"type":"message-end"}\n\n', C, C),
    ("cohere", "v2.chat", SSE, b'event: message-start\ndata: {"type":"message-start"}\n\n', U, X),
    ("cohere", "v1.chat", "application/stream+json", b'{"is_finished":true,"event_type":"stream-end"}\n', C, C),
    ("cohere", "v1.chat", "application/stream+json", b'{"is_finished":false}\n', U, X),
    ("bedrock", "converse", AWS, event("messageStop", {}) + event("metadata", {"usage": {}}), C, C),
    ("bedrock", "converse", AWS, event("messageStop", {}), U, X),
    ("bedrock", "converse", AWS, (event("messageStop", {}) + event("metadata", {}))[:-1], U, X),
    ("bedrock", "converse", AWS, frame(b"{}", message_type="exception", exception_type="throttlingException"), C, C),
    ("gemini", "generateContent", SSE, b'data: {"candidates":[{"finishReason":"STOP"}]}\r\n\r\n', C, X),
    ("gemini", "generateContent", SSE, b'data: {"candidates":[{"content":{}}]}\r\n\r\n', U, X),
    ("gemini", "generateContent", SSE, b'data: {"promptFeedback":{"blockReason":"SAFETY"}}\r\n\r\n', C, X),
    ("gemini", "generateContent", SSE, b'data: {"error":{"code":503}}\r\n\r\n', C, C),
    ("gemini", "generateContent", JSON, b'[{"candidates":[{"finishReason":"STOP"}]}]', C, X),
    ("gemini", "generateContent", JSON, b'[{"candidates":[{"content":{}}]}', U, X),
    ("gemini", "generateContent", JSON, b'{"error":{"code":400}}', C, X),
    ("openai", "mcp:tools/call echo", SSE, PROGRESS + b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n', C, X),
    ("openai", "mcp:tools/call echo", SSE, b'data: {"jsonrpc":"2.0","id":1,"error":{"code":-1}}\n\n', C, X),
    ("openai", "mcp:tools/call echo", SSE, b'data: [{"jsonrpc":"2.0","id":1,"result":{}}]\n\n', C, X),
    ("openai", "mcp:tools/call echo", SSE, PROGRESS, U, X),
    ("openai", "mcp:tools/call echo", SSE, b'data: {"jsonrpc":"2.0","id":1,"result":{"conte', U, X),
    ("openai", "mcp:tools/list", SSE, b"", U, X),
    ("openai", "mcp:tools/call echo", SSE, b"id: 7\nretry: 500\ndata:\n\n", C, X),
    ("openai", "mcp:stream", SSE, PROGRESS, C, X),
    ("openai", "mcp:notifications/initialized", SSE, b"", C, X),
]  # fmt: skip


@pytest.mark.parametrize(("family", "operation", "content_type", "body", "ended", "broken"), STREAMS)
def test_endings_of_streams(
    family: Family, operation: str, content_type: str, body: bytes, ended: Ending, broken: Ending
) -> None:
    """A stream is whole when its terminator or an error event came, whatever HTTP says; else HTTP decides. Of a long one only the end counts."""
    for before in (b"", *BEFORE) if content_type == SSE else (b"",):
        long = before * (80_000 // (len(before) or 1)) + body
        assert classify_response_ending(operation, True, 200, content_type, long, True) is ended, before
        assert classify_response_ending(operation, True, 200, content_type, long, False) is broken, before


def test_endings_of_the_rest() -> None:
    """Plain answers, errors and unknown operations are whole exactly when HTTP ended properly."""
    for status, operation, stream in ((200, "embeddings", False), (429, "messages", True), (200, "/unknown", True)):
        assert classify_response_ending(operation, stream, status, JSON, b"{}", True) is C
        assert classify_response_ending(operation, stream, status, JSON, b"{", False) is X
    assert classify_response_ending("messages", True, 529, SSE, b"event: error\n", False) is X


@pytest.mark.slow
def test_real_streams(traffic: Path) -> None:
    """Every recorded stream of a family with a terminator is whole, also where the client hung up right after it."""
    seen: Counter[str] = Counter()
    for exchange in exchanges(traffic):
        route, kind = exchange.route, exchange.content_type
        if route is None or detect_framing(kind, exchange.body) not in ("sse", "ndjson", "aws"):
            continue
        # Writer's and Replicate's streams have no terminator of their own: HTTP's end is all there is.
        unmarked = route.provider.name in ("writer", "replicate")
        name, body = exchange.name, exchange.body
        assert classify_response_ending(route.operation, True, 200, kind, body, True) is C, name
        without = X if unmarked else C
        assert classify_response_ending(route.operation, True, 200, kind, body, False) is without, name
        assert classify_response_ending(route.operation, True, 200, kind, body[: len(body) // 2], False) is X, name
        if detect_framing(kind, body) == "sse":
            head = body[:9000]
            for size in (1, 7, 1000):
                assert parse([head[i : i + size] for i in range(0, len(head), size)]) == parse([head]), name
        seen[route.provider.name] += 1
    assert sum(seen.values()) >= 120, seen


# --- answers of many megabytes are read in parts, and what is read is the same ----------------------------------------

FILLING = 'ab\\"\n\tü€😀' * 250
"""Longer than any string that is kept."""

trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just(FILLING),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
)


def without_filling(tree: Any, *, kept: bool = False) -> Any:
    """Return a tree with its long strings cut off at the same place; `kept`: those that were cut before."""
    match tree:
        case dict():
            return {name: without_filling(value, kept=kept) for name, value in tree.items()}
        case list():
            return [without_filling(value, kept=kept) for value in tree]
        case str() if len(tree) > 300 and FILLING.startswith(tree) if kept else len(tree) > 2000:
            return tree[:100]
        case _:
            return tree


@settings(max_examples=40)
@given(trees, st.booleans())
def test_a_document_keeps_everything_but_the_ends_of_long_strings(tree: object, ascii_only: bool) -> None:
    """Whatever escapes and characters stand where it is cut."""
    body = json.dumps({"tree": tree}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if b"\xed" in body:  # a lone surrogate, which UTF-8 does not have
        return
    assert without_filling(json.loads(shorten_json_strings_and_lists(body)), kept=True) == without_filling(
        {"tree": tree}
    )


@pytest.mark.parametrize("escape", ["\\", "\\\\", '\\"', "\\u00e9", "\\ud83d\\ude00", "€", "😀"])
@pytest.mark.parametrize("before", range(12))
def test_a_string_is_cut_between_two_characters(escape: str, before: int) -> None:
    """Wherever an escape or a character of several bytes meets the cut."""
    raw = "x" * before + (escape if escape != "\\" else "\\n") * 3_000
    body = f'{{"a": "{raw}", "b": 1}}'.encode()
    left = json.loads(shorten_json_strings_and_lists(body))
    assert left["b"] == 1
    assert json.loads(body)["a"].startswith(left["a"])
    assert len(left["a"]) > 150


def test_long_lists_are_left_out_and_what_stands_around_them_stays() -> None:
    """Vectors are nothing that is asked about; a list of a million small things is empty, its neighbours are not."""
    vectors = ",".join(['{"object":"embedding","embedding":[' + ",".join(["0.12345"] * 1500) + '],"index":0}'] * 100)
    scores = ",".join(['{"token":"a","logprob":-1}'] * 45_000)
    body = f'{{"model":"m","data":[{vectors}],"x":{{"deep":[[{scores}],2]}},"usage":{{"prompt_tokens":3,"total_tokens":3}}}}'
    assert json.loads(shorten_json_strings_and_lists(body.encode())) == {
        "model": "m", "data": [], "x": {"deep": [[], 2]}, "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }  # fmt: skip


@pytest.mark.parametrize("body", [
    b"", b'"' * 9, b"[" * 5_000_000, b"]" * 100, b'{"a": "' + b"x" * 5_000_000,
    b"{" + b'"%s":1,' % (b"a" * 100) * 50_000, b'{"a": [1, "\\"',
])  # fmt: skip
def test_what_is_no_document_is_none_afterwards(body: bytes) -> None:
    assert list(iter_stream_events(JSON, body)) == []


def test_of_a_long_document_the_same_is_known_as_of_a_short_one() -> None:
    said = {"model": "gpt-4o", "id": "resp_1", "object": "response", "output": [{"type": "function_call", "id": "fc_1", "call_id": "call_1"}],
            "usage": {"input_tokens": 3, "output_tokens": 4}}  # fmt: skip
    short, long = (json.dumps({"filling": "x" * length, **said}).encode() for length in (0, LONG))
    for read in (read_usage, list_server_made_ids):
        assert read("openai", "responses", JSON, long) == read("openai", "responses", JSON, short)
        assert read("openai", "responses", JSON, long)
    assert read_model_named_in_answer(JSON, long) == read_model_named_in_answer(JSON, short) == "gpt-4o"
    text = {"choices": [{"message": {"role": "assistant", "content": "word " * LONG}}]}
    message = known(parse_answer_body_as_message("chat.completions", JSON, json.dumps(text).encode()))
    assert message.text.startswith("word " * 300)


EVENTS = [{"model": "m", "choices": [{"delta": {"content": f"{n} " + "x" * 900}}]} for n in range(5_000)]
DOCUMENTS = [json.dumps(event).encode() for event in EVENTS]
SSE_BODY = b"".join(b"data: %s\n\n" % document for document in DOCUMENTS)
LONG_BODIES = {
    "text/event-stream": SSE_BODY + b"data: [DONE]\n\n",
    "text/event-stream; crlf": SSE_BODY.replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
    "application/x-ndjson": b"\n".join([*DOCUMENTS, b""]),
    "application/json; lines": b"\n".join([*DOCUMENTS, b""]),
    "application/json; array": b"[" + b",\r\n".join(DOCUMENTS) + b"]",
    "application/json; cut": b"[" + b",\r\n".join([*DOCUMENTS, b'{"model": "cut']),
    "text/plain": b"word " * LONG,
}


@pytest.mark.parametrize("kind", LONG_BODIES)
def test_events_in_is_events_of(kind: str) -> None:
    body = LONG_BODIES[kind]
    assert len(body) > LONG
    assert list(iter_stream_events(kind, body)) == list_stream_events(kind, body)


def test_the_end_of_a_long_stream_is_seen() -> None:
    sse, lines = "text/event-stream", "application/x-ndjson"
    for kind in ("text/event-stream", "text/event-stream; crlf"):
        assert classify_response_ending("chat.completions", True, 200, sse, LONG_BODIES[kind], False) is Ending.COMPLETE
        assert (
            classify_response_ending("chat.completions", True, 200, sse, LONG_BODIES[kind][:-16], False) is Ending.CUT
        )
    done = LONG_BODIES[lines] + b'{"done": true, "filling": "%s"}' % (b"x" * LONG)
    assert classify_response_ending("api.chat", True, 200, lines, done, False) is Ending.COMPLETE
    assert classify_response_ending("api.chat", True, 200, lines, LONG_BODIES[lines], False) is Ending.CUT


def test_elements_of_an_array_are_documents() -> None:
    values = [{"a": "]},{[\\"}, [1, [2]], {"b": {"c": '"'}}]
    assert [json.loads(element) for element in split_json_array(json.dumps(values).encode())] == values
