"""An interaction as JSON and back, whole."""

from __future__ import annotations

import json

import pytest

from llmproxy.core.cassettes.formats import Source
from llmproxy.core.cassettes.formats.jsonl import read
from llmproxy.core.cassettes.plain import from_json, to_json
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Response, Usage
from llmproxy.errors import CassetteCorrupt
from tests.support.chats import ODD, chat


def odd() -> Interaction:
    """Return an interaction with everything unusual."""
    answer = Response(
        429,
        "",
        (("x", "1"), ("X", "2"), ("content-type", "")),
        (Chunk(3, ODD), Chunk(9, b"\xff")),
        Ending.CUT,
        2,
        chunked=True,
    )
    return chat(response=answer, id=7, sample=3, party="judge.2", occurrence=4, stream=True, usage=Usage(1, None, 0), redacted=True, made_ids=("resp_1",), upstream="", rules="r")  # fmt: skip


@pytest.mark.parametrize("made", [chat(), chat("é\ud83d\ude00"), odd()], ids=["plain", "text", "odd"])
def test_what_is_told_is_read_back_whole(made: Interaction) -> None:
    """Bytes, borders, times, ids, usage; nothing is derived anew."""
    assert from_json(json.loads(json.dumps(to_json(made)))) == made


def test_it_is_a_line_of_the_export() -> None:
    """Whoever reads the JSON lines reads this."""
    line = json.dumps(to_json(chat("hi", "one")), ensure_ascii=False)
    (recorded,) = read(Source(line.encode(), "x.jsonl"))
    assert (recorded.method, recorded.body) == ("POST", chat("hi").request.body)
    assert recorded.extra["key"] == chat("hi").key


@pytest.mark.parametrize(
    "change", [{"body": 3}, {"recorded": {}}, {"recorded": None}, {"response_body": "cut"}, {"status": "x"}]
)
def test_what_is_no_recording_is_said(change: dict[str, object]) -> None:
    """An older proxy may tell less; that is an error with its number, never half a recording."""
    with pytest.raises(CassetteCorrupt, match="recording 5"):
        from_json(to_json(chat()) | change, 5)
