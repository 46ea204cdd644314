"""A recorded call of MCP that asks its client goes on after the recorded answer only, whatever the clock did meanwhile."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from llmproxy.core.traffic.interaction import Chunk, Response
from tests.support.in_process import STEP, InProcess

JUMPS = (0, 0, -7200, 86_400, -30, 300, 3)


def _call(proxy: InProcess, name: str, number: int, says: str, jumps: tuple[int, int]) -> str:
    """Call a tool whose server asks under the id 0, as each new server does, and return its result."""
    call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    question = {"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"message": "really?"}}
    result = {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": f"{name} after {says}"}]}}
    pieces = [f"data: {json.dumps(each)}\n\n".encode() for each in (question, result)]
    chunks = tuple(Chunk(int(n * 2 * STEP * 1e6), piece) for n, piece in enumerate(pieces))
    answer = Response(200, "OK", (("content-type", "text/event-stream"),), chunks, chunked=True)

    def reply(_heard: bytes) -> None:
        proxy.jump += jumps[0]
        said = json.dumps({"jsonrpc": "2.0", "id": 0, "result": {"action": says}}).encode()
        proxy.ask("q", "/s/m/tools/mcp", said, lambda _: Response(202, "Accepted", (), ()), JSON)
        proxy.jump += jumps[1]

    got = proxy.ask("t", "/s/m/tools/mcp", json.dumps(call).encode(), lambda _: answer, JSON, reply)
    return got.body.decode().partition(f"{name} after ")[2].partition('"')[0]


JSON = (("content-type", "application/json"),)


@pytest.mark.parametrize("seed", range(12))
def test_a_call_goes_on_after_the_recorded_answer_only(seed: int, tmp_path: Path) -> None:
    """Some calls, some answers, a clock that is set between question and answer: as recorded it is told, else never."""
    rng, covered = random.Random(seed), Counter[bool]()
    asked = [(f"tool-{n}", n + 5, rng.choice(("accept", "decline"))) for n in range(3)]
    jumps = [(rng.choice(JUMPS), rng.choice(JUMPS)) for _ in asked]
    with InProcess(tmp_path / "x.db", "record", upstreams={"tools": "http://127.0.0.1:9"}) as proxy:
        for each, jump in zip(asked, jumps, strict=True):
            _call(proxy, *each, jump)
    for turned in itertools.product((False, True), repeat=len(asked)):
        with InProcess(tmp_path / "x.db", "replay", upstreams={"tools": "http://127.0.0.1:9"}) as proxy:
            for (name, number, said), other in zip(asked, turned, strict=True):
                says = {"accept": "decline", "decline": "accept"}[said] if other else said
                heard = _call(proxy, name, number, says, (0, 0))
                assert heard in ({""} if other else {"", said}), jumps
                covered[bool(heard)] += not other
    assert covered[True] > 0
