"""Recorded answers get the ids of today's request, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.mcp_answer_replay import (
    McpAnswerPartAfterCondition,
    McpAnswerPrerequisiteKind,
    ToolCallWithResult,
    adapt_mcp_answer_ids,
    answers,
    build_mcp_error_answer,
    build_mcp_refusal_response,
    find_member_span,
    frame_http_chunk,
    may_ignore_unrecorded_message,
    read_mcp_call_with_result,
    split_at_server_requests,
    split_mcp_stream_at_prior_calls,
)
from llmproxy.core.traffic.interaction import Chunk, Interaction, Key, Request, Response

ASKED = b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":3}}}'
TODAY = b'{"jsonrpc":"2.0","id":"seven","method":"tools/call","params":{"name":"x","_meta":{"progressToken":"p"}}}'


def response(kind: str, *chunks: bytes) -> Response:
    return Response(200, "OK", (("content-type", kind),), tuple(Chunk(n, data) for n, data in enumerate(chunks)))


def test_only_the_id_changes() -> None:
    """Spaces, the order of members and the spelling of numbers stay; an id inside of the result is no id of a message."""
    body = b'{ "result" : {"id": 3, "n": 1.50, "t": "\\u00e9"}, "id" : 3 , "jsonrpc":"2.0"}'
    made = adapt_mcp_answer_ids(response("application/json", body), ASKED, TODAY)
    assert made.body == body.replace(b'"id" : 3 ', b'"id" : "seven" ')


def test_an_answer_with_equal_ids_is_the_recorded_one() -> None:
    """Byte for byte: the very object."""
    recorded = response("application/json", b'{"jsonrpc":"2.0","id":3,"result":{}}')
    assert adapt_mcp_answer_ids(recorded, ASKED, ASKED) is recorded


def test_progress_goes_to_the_token_of_today() -> None:
    """Events stay events; what the server asks keeps its own id, though it is equal to the recorded one."""
    events = [
        b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":3}}\n\n',
        b'data: {"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{}}\n\n',
        b'data: {"jsonrpc":"2.0","id":3,"result":{"text":"\xc3\xa9"}}\n\n',
    ]
    assert [
        chunk.data for chunk in adapt_mcp_answer_ids(response("text/event-stream", *events), ASKED, TODAY).chunks
    ] == [
        events[0].replace(b'"progressToken":3', b'"progressToken":"p"'),
        events[1],
        events[2].replace(b'"id":3', b'"id":"seven"'),
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_answer_in_any_framing_gets_the_id_of_today(end: bytes) -> None:
    """Of several lines, with other fields between them, and after a byte order mark; nothing but the id changes."""
    lines = [b'{"jsonrpc": "2.0",', b' "result": {', b'  "n": 1.50},', b' "id": 3', b"}"]
    asking = end.join((b'\xef\xbb\xbfdata: {"jsonrpc":"2.0","id":3,"method":"ping"}', b"id: 5", b"", b""))
    fields = [b"data: " + lines[0], b"id: 3", b"data:" + lines[1], b"data", b": c", *(b"data: " + x for x in lines[2:])]
    told = end.join((*fields, b"id: 4", b"", b""))
    for recorded in (
        response("text/event-stream", asking + told),
        response("application/json", b"\xef\xbb\xbf" + end.join(lines)),
    ):
        assert answers(recorded, ASKED)
        made = adapt_mcp_answer_ids(recorded, ASKED, TODAY).body
        assert made == recorded.body.replace(b'"id": 3', b'"id": "seven"')
    turns = split_at_server_requests(response("text/event-stream", asking + told))
    assert [turn.data for turn in turns or ()] == [asking, told]


def test_an_answer_split_within_its_id_is_put_together() -> None:
    made = adapt_mcp_answer_ids(
        response("application/json", b'{"jsonrpc":"2.0","id"', b":", b'3,"result":{}}'), ASKED, TODAY
    )
    assert json.loads(made.body) == {"jsonrpc": "2.0", "id": "seven", "result": {}}


def test_whether_the_result_came() -> None:
    """A stream that the client left when it had its result is whole."""
    assert answers(response("text/event-stream", b'data: {"jsonrpc":"2.0","id":3,"result":{}}\n\n'), ASKED)
    assert not answers(response("text/event-stream", b'data: {"jsonrpc":"2.0","id":3,"method":"x"}\n\n'), ASKED)
    assert not answers(response("text/event-stream", b'data: {"jsonrpc":"2.0","id":3,"res'), ASKED)


@pytest.mark.parametrize(
    ("text", "found"),
    [('{"id":1}', "1"), ('{"a":{"id":2},"id":"x"}', '"x"'), ('{"id":1,"id":2}', "2"), ("{}", None), ("[1]", None)],
)
def test_members_are_found_at_the_top(text: str, found: str | None) -> None:
    """Of a name that stands twice the last one counts, as parsers have it."""
    place = find_member_span(text, ("id",))
    assert (place and text[slice(*place)]) == found


def body(method: str, meta: dict[str, Any] | None = None) -> bytes:
    params = {"_meta": meta} if meta is not None else {}
    return json.dumps({"jsonrpc": "2.0", "id": 5, "method": method, "params": params}).encode()


def test_a_call_gets_a_result_that_is_an_error() -> None:
    """So that the model reads our text; a client of the stateless era finds the kind of result that it insists on."""
    assert build_mcp_error_answer(body("tools/call"), "no") == {
        "jsonrpc": "2.0", "id": 5, "result": {"content": [{"type": "text", "text": "no"}], "isError": True},
    }  # fmt: skip
    stateless = body("tools/call", {"io.modelcontextprotocol/protocolVersion": "2026-07-28"})
    assert build_mcp_error_answer(stateless, "no")["result"]["resultType"] == "complete"


@pytest.mark.parametrize(("operation", "status", "harmless"), [
    ("mcp:tools/call echo", 200, False), ("mcp:initialize", 200, False), ("mcp:answer", 202, False),
    ("mcp:notifications/initialized", 202, True), ("mcp:stream", 405, True), ("mcp:end", 200, True),
    ("mcp:server/discover", 200, True),
])  # fmt: skip
def test_each_message_is_refused_in_its_way(operation: str, status: int, *, harmless: bool) -> None:
    """A 404 would end the session; what nobody waits for has no body, and is no miss unless something depends on it."""
    got, _, data = build_mcp_refusal_response(
        operation, body(operation.removeprefix("mcp:").partition(" ")[0]), "text\udc80"
    )
    assert got == status
    assert may_ignore_unrecorded_message(operation) is harmless
    assert not data or "text" in json.dumps(json.loads(data))


def asked(**arguments: object) -> bytes:
    params = {"name": "echo", "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def recorded(request: bytes, answer: Response) -> Interaction:
    return Interaction("http:x", "mcp:tools/call", Key("k"), Request("POST", "/", (), request), answer, 0.0)


def line(**said: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **said}).encode() + b"\n"


@pytest.mark.parametrize(("answer", "result", "failed"), [
    (line(result={"content": [{"type": "text", "text": "a"}, {"type": "image", "data": "x"}]}), "a\n[image]", False),
    (line(result={"content": [{"type": "text", "text": "no"}], "isError": True}), "no", True),
    (line(error={"code": 1, "message": "gone"}), "gone", True),
    (line(id=9, method="roots/list") + line(result={"structuredContent": {"n": 1}}), '{"n": 1}', False),
    (b"", "", False),
])  # fmt: skip
def test_a_call_is_told_with_its_result(answer: bytes, result: str, *, failed: bool) -> None:
    """Texts as they are, other content by its kind; an error is one."""
    found = read_mcp_call_with_result(recorded(asked(text="é"), response("application/x-ndjson", answer)))
    assert found == ToolCallWithResult("echo", '{"text": "é"}', result, failed)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"method":"tools/list"}', b'{"method":"tools/call"}'])
def test_what_is_no_call_is_none(body: bytes) -> None:
    assert read_mcp_call_with_result(recorded(body, response("application/json", b""))) is None


PROGRESS = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n\n'
QUESTION = b'event: message\ndata: {"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}\n\n'
RESULT = b'event: message\ndata: {"jsonrpc":"2.0","id":3,"result":{}}\n\n'


def stream(*chunks: bytes, every: int = 1_000_000) -> Response:
    made = tuple(Chunk(n * every, data) for n, data in enumerate(chunks))
    return Response(200, "OK", (("content-type", "text/event-stream"),), made)


def test_a_question_parts_an_answer() -> None:
    """All up to the question goes out at once; the rest only when it was answered."""
    assert split_at_server_requests(stream(PROGRESS, QUESTION[:20], QUESTION[20:] + RESULT)) == [
        McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.NOTHING, None, PROGRESS + QUESTION),
        McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.ANSWER, 0, RESULT),
    ]
    assert split_at_server_requests(stream(PROGRESS, RESULT)) is None


def test_what_is_said_unasked_follows_what_it_followed() -> None:
    """Each piece of a stream waits for the last message that the client had sent before it; then the client may leave."""
    messages = [(99.5, 4), (100.5, 5)]
    assert split_mcp_stream_at_prior_calls(stream(b"a", b"b"), 100.0, messages) == [
        McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.SERVED, 4, b"a"), McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.SERVED, 5, b"b"), McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.FOR_EVER, None, b""),
    ]  # fmt: skip
    assert split_mcp_stream_at_prior_calls(stream(b"a"), 100.0, [])[0] == McpAnswerPartAfterCondition(
        McpAnswerPrerequisiteKind.NOTHING, None, b"a"
    )


def test_parts_are_http_chunks_where_the_client_takes_such() -> None:
    assert frame_http_chunk(b"abc", chunked=True) == b"3\r\nabc\r\n"
    assert (frame_http_chunk(b"", chunked=True), frame_http_chunk(b"abc", chunked=False)) == (b"", b"abc")
