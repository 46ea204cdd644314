"""Files of other test tools: aimock's fixtures, cassettes of cassetter, recordings of ddapm-test-agent and nock."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from llmproxy.core.cassettes.formats import (
    FORMATS,
    Recorded,
    Source,
    aimock_reader,
    cassetter_reader,
    ddapm_reader,
    find_matching_format,
    nock_reader,
)
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteCorrupt, CassetteError
from llmproxy.trace.comparing.recording_diff import summarize_recorded_call

Adopt = Callable[[str, str], list[Interaction]]


def fixture(
    match: dict[str, Any] | None = None, response: dict[str, Any] | None = None, **more: object
) -> dict[str, Any]:
    asked = {"userMessage": "hi", "model": "gpt-4o"} | (match or {})
    return {"match": asked, "response": {"content": "hello"} if response is None else response, **more}


def read(*fixtures: object) -> list[Recorded]:
    return aimock_reader.read(Source(json.dumps({"fixtures": fixtures}).encode(), "x"))


def test_what_it_recorded(interactions: Adopt, dialogue: list[Interaction]) -> None:
    """Of the dialogue that aimock recorded, every turn is there, plain and as a stream, with its texts and calls."""
    found = interactions("aimock", "aimock")
    assert [each.stream for each in found] == [False, True] * 6
    said = {
        (t.asked, t.text, tuple(c.arguments for c in t.calls))
        for t in map(summarize_recorded_call, found)
        if t.status == 200
    }
    assert said == {
        ("What is the capital of Norway?", "Oslo.", ()),
        ("Say it slowly: grüß Gott 👋", "Grüß … Gott 👋", ()),
        ("What is the weather in Oslo?", "", ('{"city":"Oslo","unit":"C"}',)),
        ("", "It is 12 degrees in Oslo.", ()),  # the tool's result: the fixture does not have it
    }
    plain = next(each for each in found if summarize_recorded_call(each).text == "Oslo.")
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
    found = [each for each in aimock_reader.read(source) if not each.problem]
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


BINARY = """version: 1
interactions:
- request:
    method: POST
    uri: https://x/y
    headers:
      a:
      - b
    body:
      type: binary
      content: >-
        00ff0100ff
  response:
    status: 200
    headers: {}
    body:
      type: none
  recorded_at: 2026-02-20T10:30:01Z
"""
"""Written by cassetter 0.16.1, shortened."""


def read_cassetter(text: str) -> list[Recorded]:
    return cassetter_reader.read(Source(text.encode(), "x"))


def test_both_forms_are_the_same(interactions: Adopt) -> None:
    """The YAML and the TOML of one cassette give the same interactions."""
    assert interactions("cassetter", "cassetter.yaml") == interactions("cassetter", "cassetter.toml")


def test_bytes(interactions: Adopt, dialogue: list[Interaction]) -> None:
    """Requests and streams are the bytes of the wire; JSON answers those that cassetter itself serves."""
    found = {each.key: each for each in interactions("cassetter", "cassetter.yaml")}
    plain = [
        found[each.key].request.body == each.request.body for each in dialogue if "call_" not in str(each.request.body)
    ]
    assert plain == [True] * 6
    answer = interactions("cassetter", "cassetter.yaml")[0].response.body
    assert answer.startswith(b'{"id": "chatcmpl-000008", "created": 1790000008, ')
    assert len(answer) == 419  # its content-length, which cassetter restates for what it serves


def test_order(interactions: Adopt) -> None:
    """Exchanges are put in the order of their requests; cassetter writes them as answers end."""
    found = interactions("cassetter", "cassetter.yaml")
    assert [each.started_at for each in found] == sorted(each.started_at for each in found)
    assert [each.occurrence for each in found] == [1] * 6 + [2]


def test_binary_bodies_are_hexadecimal() -> None:
    """Binary is read as it was, no body is none."""
    (found,) = read_cassetter(BINARY)
    assert (found.body, found.response_body, found.headers) == (b"\x00\xff\x01\x00\xff", b"", (("a", "b"),))


def test_what_is_not_http_is_skipped() -> None:
    """Calls of gRPC and WebSockets are listed with the reason."""
    found = read_cassetter(BINARY + "grpc_interactions:\n- {}\nws_interactions:\n- {}\n")
    assert [each.problem for each in found] == ["", "it is a gRPC call, not HTTP", "it is a WebSocket, not HTTP"]
    assert [each.number for each in found] == [1, 2, 3]


GOOD = {
    "request": {"method": "get", "url": "http://h/", "headers": {"a": "b"}, "body": ""},
    "response": {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": "base64:AP8="},
}


def test_ddapm_bytes(interactions: Callable[[str, str], list[Interaction]], dialogue: list[Interaction]) -> None:
    """Bodies are those of the wire, one exchange for each distinct request."""
    found = {each.key: each for each in interactions("ddapm", "ddapm")}
    assert len(found) == 6
    for each in dialogue:
        assert len(found[each.key].response.body) == len(each.response.body)  # ids differ, each run has its own
        assert found[each.key].response.status == each.response.status


def test_binary_bodies() -> None:
    """What is no text stands there as base64."""
    (found,) = ddapm_reader.read(Source(json.dumps(GOOD).encode(), "x"))
    assert (found.method, found.response_body, found.headers) == ("GET", b"\x00\xff", (("a", "b"),))


GOOD_NOCK = {
    "scope": "https://api.openai.com:443", "method": "post", "path": "/v1/chat/completions?x=1", "body": {"a": "é"},
    "status": 201, "response": {"b": [1]}, "rawHeaders": {"content-type": "application/json"},
    "reqheaders": {"accept": "*/*"}, "responseIsBinary": False,
}  # fmt: skip


def test_an_exchange_is_read() -> None:
    """Bodies that are trees, header fields, and an origin without its scheme's own port."""
    found = nock_reader.read(Source(json.dumps([GOOD_NOCK]).encode(), "x"))[0]
    assert (found.method, found.uri) == ("POST", "https://api.openai.com/v1/chat/completions?x=1")
    assert (found.body.decode(), found.response_body, found.status) == ('{"a":"é"}', b'{"b":[1]}', 201)
    assert (found.headers, found.response_headers) == ((("accept", "*/*"),), (("content-type", "application/json"),))


@pytest.mark.parametrize(("change", "name", "value"), [
    ({"response": "event: x\n"}, "response_body", b"event: x\n"),
    ({"response": [gzip.compress(b"x", mtime=0).hex()]}, "response_body", gzip.compress(b"x", mtime=0)),
    ({"body": ""}, "body", b""),
    ({"body": "\ud800"}, "body", b"\xed\xa0\x80"),
    ({"response": {"x": "\ud800"}}, "response_body", b'{"x":"\xed\xa0\x80"}'),
    ({"rawHeaders": ["A", "1", "A", "2"]}, "response_headers", (("A", "1"), ("A", "2"))),
    ({"scope": "http://127.0.0.1:99"}, "uri", "http://127.0.0.1:99/v1/chat/completions?x=1"),
])  # fmt: skip
def test_other_forms(change: dict[str, object], name: str, value: object) -> None:
    """Text, pieces in hexadecimal, an empty body, flat header fields, a port of its own, half a character."""
    source = Source(json.dumps([GOOD_NOCK | change]).encode(), "x")
    assert find_matching_format(source).name == "nock"  # type: ignore[union-attr]
    assert getattr(nock_reader.read(source)[0], name) == value


TOML = """version = 1
[[interactions]]
recorded_at = "2026-02-20T10:30:01Z"
[interactions.request]
method = "GET"
uri = "http://h/"
body_type = "json"
body_content = "{"
[interactions.response]
status = 200
"""


@pytest.mark.parametrize(("form", "content", "said"), [
    *(("aimock", {"fixtures": [made]}, said) for made, said in (
        (1, "fixture 1: `match` is missing"),
        ({"match": {}}, "fixture 1: `response` is missing"),
        (fixture(response={"content": 3}), "`content` is int"),
        (fixture(response={"toolCalls": [1]}), "it is int"),
        (fixture(response={"toolCalls": [{}]}), "`name` is missing"),
        (fixture(response={"error": 3}), "`response.error` is int"),
        (fixture(response={"content": "a", "status": 1}), "the status is 1"))),
    ("aimock", {"fixtures": 1}, "x: `fixtures` is int"),
    *(("cassetter", BINARY.replace(old, new), said) for old, new, said in (
        ("version: 1", "version: 2", "is of version 2"),
        ("  recorded_at: 2026-02-20T10:30:01Z\n", "", "interaction 1: `recorded_at` is missing"),
        ("00ff0100ff", "00ff0", "a body of type binary is damaged"),
        ("type: binary", "type: odd", "a body of type 'odd'"),
        ("status: 200", "status: ok", "the status is 'ok'"),
        ("method: POST", "method: 1", "`method` is int"),
        ("interactions:\n", "interactions: 3\nx:\n", "`interactions` is int"))),
    ("cassetter", "[[interactions]]\na = \n", r"x: .*line 2"),
    ("cassetter", TOML, "body, line 1"),
    *(("ddapm", GOOD | change, f"x: .*\n.*{said}") for change, said in (
        ({"response": None}, "exchange 1: `response` is missing"),
        ({"response": {**GOOD["response"], "status": 200}}, "`response.status` is int"),
        ({"response": {**GOOD["response"], "body": 3}}, "`body` is int"),
        ({"response": {**GOOD["response"], "body": "base64:?"}}, "its base64 is damaged"),
        ({"request": {**GOOD["request"], "url": ""}}, "`url` is empty"))),
    *(("nock", [GOOD_NOCK | change], f"x: .*\n.*exchange 1: .*{said}") for change, said in (
        ({"scope": 3}, "`scope` is int"),
        ({"status": "x"}, "status"),
        ({"response": ["zz"]}, "not hexadecimal"),
        ({"rawHeaders": ["a"]}, "`rawHeaders` has no value for its last name"),
        ({"scope": "http://[::1:x"}, "`scope` is no origin"))),
])  # fmt: skip
def test_what_is_wrong_is_said(form: str, content: object, said: str) -> None:
    """A damaged file is named, with the exchange and what is wrong in it."""
    source = Source((content if isinstance(content, str) else json.dumps(content)).encode(), "x")
    with pytest.raises(CassetteError if form == "cassetter" else CassetteCorrupt, match=said):
        FORMATS[form].loaded.read(source)
