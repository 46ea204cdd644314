"""A request whose body does not come is not waited for without end, wherever its part lies meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llmproxy.mitm.proxy_context import ProxyContext
from tests.mitm.rig import Rig, connected
from tests.mitm.wire import body_of, chat, chunked, request
from tests.provider import Provider, Reply, Script, Step

WHOLE = request(body_of("a question " * 40))
PARTS = {
    "the head alone": WHOLE[: WHOLE.index(b"\r\n\r\n") + 4],
    "half of the body": WHOLE[:-200],
    "all but a byte": WHOLE[:-1],
    "a chunk": chunked(body_of("hi"), 8)[:-12],
}


class Impatient(ProxyContext):
    held_for = 0.02
    body_patience = 0.1


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("part", PARTS)
def test_a_replay_ends_it_in_words(tmp_path: Path, part: str, before: int) -> None:
    """On a new connection, and behind answers; it is counted as refused, and nothing stays open."""
    with Rig("replay", tmp_path / "x.db", shell=Impatient) as rig, rig.client() as c:
        for _ in range(before):
            assert c.ask(chat("hi")).status == 404
        got = c.ask(PARTS[part])
        assert (got.status, got.headers["connection"]) == (408, "close")
        assert "nothing of the request's body came for 0.1 seconds" in got.message
        assert not c.more()
        rig.wait_idle()
        assert len(rig.wait_outcomes(before + 1)) == before + 1


@pytest.mark.parametrize("part", PARTS)
def test_a_recording_ends_it_and_keeps_nothing(store: Path, part: str) -> None:
    """The provider has heard the beginning: that connection ends too, and the next question is served."""
    with Provider(Script((Step(Reply("fine")),))) as p:
        with Rig("record", store, {"openai": p.url}, shell=Impatient) as rig:
            with rig.client() as c:
                assert c.ask(PARTS[part]).status == 408
                assert not c.more()
            rig.wait_idle()
            with rig.client() as c:
                assert c.ask(chat("hi")).status == 200
        assert [seen.refused for seen in p.requests if seen.body] == [""]
        with Rig("replay", store) as rig, rig.client() as c:
            assert c.ask(chat("hi")).status == 200


@pytest.mark.parametrize("mode", ["replay", "record"])
def test_one_that_comes_slowly_is_served(tmp_path: Path, mode: str) -> None:
    """The limit is on standing still, not on taking long."""

    class Patient(ProxyContext):
        held_for = 0.02
        body_patience = 2.0

    with connected(Provider(Script((Step(Reply("fine")),))), mode, tmp_path / "x.db", shell=Patient) as (_, c):
        for at in range(0, len(WHOLE), 150):
            c.send(WHOLE[at : at + 150])
            time.sleep(0.5)
        assert c.response().status == (404 if mode == "replay" else 200)


def test_a_head_behind_a_body_in_pieces_has_its_own_limit(tmp_path: Path) -> None:
    """The body's is longer, and has begun before."""

    class Uneven(ProxyContext):
        held_for = 0.02
        head_patience = 0.1
        body_patience = 3600.0

    with Rig("replay", tmp_path / "x.db", shell=Uneven) as rig, rig.client() as c:
        c.send(WHOLE[:-1])
        time.sleep(0.1)
        assert c.ask(WHOLE[-1:]).status == 404
        got = c.ask(b"POST /v1/chat")
        assert (got.status, b"did not end within" in got.body) == (408, True)
