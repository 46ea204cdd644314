"""Recorded answers get the ids of today's request, and nothing else changes."""

from __future__ import annotations

import json

import pytest

from llmproxy.core.mcp.answers import answers, find_member, readdress
from llmproxy.core.traffic.interaction import Chunk, Response

ASKED = b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":3}}}'
TODAY = b'{"jsonrpc":"2.0","id":"seven","method":"tools/call","params":{"name":"x","_meta":{"progressToken":"p"}}}'


def response(kind: str, *chunks: bytes) -> Response:
    """Make a recorded answer."""
    return Response(200, "OK", (("content-type", kind),), tuple(Chunk(n, data) for n, data in enumerate(chunks)))


def test_only_the_id_changes() -> None:
    """Spaces, the order of members and the spelling of numbers stay; an id inside of the result is no id of a message."""
    body = b'{ "result" : {"id": 3, "n": 1.50, "t": "\\u00e9"}, "id" : 3 , "jsonrpc":"2.0"}'
    made = readdress(response("application/json", body), ASKED, TODAY)
    assert made.body == body.replace(b'"id" : 3 ', b'"id" : "seven" ')


def test_an_answer_with_equal_ids_is_the_recorded_one() -> None:
    """Byte for byte: the very object."""
    recorded = response("application/json", b'{"jsonrpc":"2.0","id":3,"result":{}}')
    assert readdress(recorded, ASKED, ASKED) is recorded


def test_progress_goes_to_the_token_of_today() -> None:
    """Events stay events; what the server asks keeps its own id, though it is equal to the recorded one."""
    events = [
        b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":3}}\n\n',
        b'data: {"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{}}\n\n',
        b'data: {"jsonrpc":"2.0","id":3,"result":{"text":"\xc3\xa9"}}\n\n',
    ]
    made = readdress(response("text/event-stream", *events), ASKED, TODAY)
    assert [chunk.data for chunk in made.chunks] == [
        events[0].replace(b'"progressToken":3', b'"progressToken":"p"'),
        events[1],
        events[2].replace(b'"id":3', b'"id":"seven"'),
    ]


def test_an_answer_split_within_its_id_is_put_together() -> None:
    """Chunks end where the network ended them."""
    made = readdress(response("application/json", b'{"jsonrpc":"2.0","id"', b":", b'3,"result":{}}'), ASKED, TODAY)
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
    place = find_member(text, ("id",))
    assert (place and text[slice(*place)]) == found
