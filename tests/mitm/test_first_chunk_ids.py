"""An agent that goes on at the first sight of an id, over real sockets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mitm.rig import Rig
from tests.mitm.wire import request
from tests.provider import Answer, Piece, Provider, Script, Step

TURNS = 3


def event(kind: str, name: str) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, 'response': {'id': name, 'output': []}})}\n\n".encode()


def turn(number: int) -> bytes:
    body: dict[str, object] = {"model": "gpt-4o", "input": f"turn {number}", "stream": True}
    if number:
        body["previous_response_id"] = f"resp_{number - 1}"
    return request(json.dumps(body).encode(), "/v1/responses")


@pytest.mark.parametrize("mark", ["response.created", "response.completed"])
def test_an_agent_that_does_not_wait_for_the_end_replays(store: Path, mark: str) -> None:
    """Each turn is asked when the event before is read, while the answer is still open and not stored; replay knows every one."""
    kind, ends = (("content-type", "text/event-stream"),), ("response.created", "response.completed")
    turns = [(*(Piece(event(end, f"resp_{n}")) for end in ends), Piece(b": \n\n", 0.5)) for n in range(TURNS)]
    steps = [Step(Answer(200, kind, pieces, "chunked")) for pieces in turns]
    for mode in ("record", "replay"):
        with Provider(Script(tuple(steps)), check=False) as p, Rig(mode, store, {"openai": p.url}) as rig:
            clients = []
            for n in range(TURNS):
                clients.append(rig.client())
                got = clients[-1].send(turn(n)).until(mark.encode())
                assert got.startswith(b"HTTP/1.1 200"), got
            for client in clients:
                client.until(b"0\r\n\r\n")
            rig.wait_idle()
            assert len(p.requests) == (TURNS if mode == "record" else 0)
            assert not any(outcome.miss for outcome in rig.outcomes)
            for client in clients:
                client.__exit__(None, None, None)
