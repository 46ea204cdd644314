"""JSON lines: exact, a line each."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from llmproxy.core.cassettes.formats import Source, jsonl
from llmproxy.core.cassettes.stand_ins import release
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteError


def test_round_trip(dialogue: list[Interaction]) -> None:
    """Every exchange is one line that json.loads reads, and comes back with times and chunks."""
    recorded = [release(each) for each in dialogue]
    recorded.append(replace(recorded[0], body=b"\xff", response_body=b"\x00\xfe\n\xe2\x80\xa8"))
    text = jsonl.dumps(recorded, "trip")
    assert [json.loads(line)["cassette"] for line in text.split("\n")[:-1]] == ["trip"] * 8
    assert [replace(each, number=0) for each in jsonl.read(Source(text.encode(), "x"))] == recorded


GOOD = {"llmproxy": 1, "method": "GET", "url": "http://h/", "status": 200}


@pytest.mark.parametrize(("line", "said"), [
    ("{", "x, line 3: not JSON"),
    ("1", "line 2: it is int"),
    (json.dumps({**GOOD, "llmproxy": 2}), "newer llmproxy"),
    (json.dumps({**GOOD, "status": 0}), "line 2: the status is 0"),
    (json.dumps({**GOOD, "headers": [["a"]]}), "`headers` is not a list of pairs"),
    (json.dumps({**GOOD, "body": 3}), "a body is int"),
    (json.dumps({**GOOD, "recorded": []}), "`recorded` is list"),
    ("[" * 100_000, "x, line 3: not JSON"),
])  # fmt: skip
def test_what_is_wrong_is_said(line: str, said: str) -> None:
    """A damaged line is named; nothing is taken of the file."""
    with pytest.raises(CassetteError, match=said):
        jsonl.read(Source(f"{json.dumps(GOOD)}\n\n{line}\n".encode(), "x"))
