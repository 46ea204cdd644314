"""The makers' own WebSocket clients, as processes: recorded against a scripted upstream, then replayed with the upstream gone."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmproxy.mitm.interception import CERTIFICATE, get_certificate_authority_folder
from tests.mitm.conftest import certificates  # noqa: F401 - a fixture
from tests.mitm.rig import Rig, recorded
from tests.provider.websocket import Gone, Peer, Upstream
from tests.support.process import clean_env

from .environments import ENVIRONMENTS, HERE, NODE, interpreter, prepare, starter

SECONDS = 60


async def provider(peer: Peer) -> None:
    """Speak Realtime, Responses, Live or echo, by the path."""
    assert peer.request is not None
    target = peer.request.target
    try:
        if "model=echo" in target:
            await echo(peer)
        elif target.startswith("/v1/realtime"):
            await realtime(peer)
        elif target.startswith("/v1/responses"):
            await responses(peer)
        else:
            await live(peer)
    except Gone as gone:
        peer._owner.ended.append(gone)


async def echo(peer: Peer) -> None:
    while True:
        heard = await peer.hear()
        await peer.say(heard if isinstance(heard, (str, bytes)) else json.dumps(heard), pieces=3)


async def realtime(peer: Peer) -> None:
    session = {"id": "sess_1", "object": "realtime.session", "type": "realtime", "model": "gpt-realtime"}
    await peer.say({"type": "session.created", "event_id": "event_1", "session": session})
    turn = 0
    while True:
        heard = await peer.hear()
        if heard["type"] == "session.update":
            await peer.say({"type": "session.updated", "event_id": "event_2", "session": session | heard["session"]})
        elif heard["type"] == "response.create":
            turn += 1
            ids = {"response_id": f"resp_{turn}", "item_id": f"item_{turn}", "output_index": 0, "content_index": 0}
            await peer.say({
                "type": "response.created",
                "event_id": f"event_c{turn}",
                "response": {"id": f"resp_{turn}", "status": "in_progress"},
            })  # fmt: skip
            for piece in ("one ", "two ", "three"):
                await peer.say(
                    {"type": "response.output_text.delta", "event_id": f"event_{turn}{piece}", "delta": piece, **ids}
                )
            usage = {"input_tokens": 10 * turn, "output_tokens": 3, "total_tokens": 10 * turn + 3}
            done = {
                "id": f"resp_{turn}", "object": "realtime.response", "status": "completed", "usage": usage,
                "output": [],
            }  # fmt: skip
            await peer.say({"type": "response.done", "event_id": f"event_d{turn}", "response": done})


async def responses(peer: Peer) -> None:
    turn = 0
    while True:
        heard = await peer.hear()
        assert heard["type"] == "response.create"
        assert turn == 0 or heard["previous_response_id"] == f"resp_{turn}"
        turn += 1
        made = {"id": f"resp_{turn}", "object": "response", "created_at": 1, "model": "gpt-5", "status": "in_progress", "output": [],
                "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
        await peer.say({"type": "response.created", "sequence_number": 0, "response": made})
        for n, piece in enumerate(("one ", "two"), 1):
            await peer.say({"type": "response.output_text.delta", "sequence_number": n, "delta": piece, "item_id": "msg_1",
                            "output_index": 0, "content_index": 0, "logprobs": []})  # fmt: skip
        usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9, "input_tokens_details": {"cached_tokens": 0},
                 "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
        text = {"type": "output_text", "text": "one two", "annotations": []}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        done = made | {"status": "completed", "usage": usage, "output": [item]}
        await peer.say({"type": "response.completed", "sequence_number": 3, "response": done})


async def live(peer: Peer) -> None:
    heard = await peer.hear()
    assert "setup" in heard
    await peer.say(json.dumps({"setupComplete": {}}).encode())
    while True:
        heard = await peer.hear()
        for piece in ("one ", "two"):
            content = {"modelTurn": {"role": "model", "parts": [{"text": piece}]}}
            await peer.say(json.dumps({"serverContent": content}).encode())
        usage = {"promptTokenCount": 5, "responseTokenCount": 2, "totalTokenCount": 7}
        await peer.say(json.dumps({"serverContent": {"turnComplete": True}, "usageMetadata": usage}).encode())


Drive = Callable[..., list[dict[str, object]]]
"""(environment, client, URL, file of what signs what it meets at https) -> what the client printed."""


class Driver:
    """A process of an environment that lets its clients speak; it is started with the first conversation."""

    def __init__(self, environment: str, folder: Path) -> None:
        self.said = folder / f"{environment}.err"
        command = [starter(environment), str(HERE / "python" / "drive_websocket.py")]
        with self.said.open("wb") as err:
            pipe = subprocess.PIPE
            self.popen = subprocess.Popen(
                command, env=clean_env(), stdin=pipe, stdout=pipe, stderr=err, text=True, encoding="utf-8"
            )

    def __call__(self, client: str, url: str, ca: Path | None) -> list[dict[str, object]]:
        """Hold a conversation; AssertionError with what it said if it ends before that, or takes too long."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        print(json.dumps({"client": client, "url": url, "ca": str(ca or "")}), file=self.popen.stdin, flush=True)
        patience = threading.Timer(SECONDS, self.popen.kill)
        patience.start()
        lines: list[dict[str, object]] = []
        try:
            while not lines or "end" not in lines[-1]:
                line = self.popen.stdout.readline()
                assert line, f"ended with {self.popen.wait()}: {self.said.read_text('utf-8')[-3000:]}"
                lines.append(json.loads(line))
        finally:
            patience.cancel()
        return lines[:-1]

    def end(self) -> int:
        self.popen.communicate(timeout=SECONDS)
        return self.popen.returncode


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    """Drive clients: those in Python in one process for each environment, since importing their SDKs takes seconds."""
    running: dict[str, Driver] = {}

    def run(environment: str, client: str, url: str, ca: Path | None = None) -> list[dict[str, object]]:
        if problem := prepare((environment,))[environment]:
            pytest.skip(problem)
        assert environment in ENVIRONMENTS
        if environment == "node":
            return in_node(url, ca)
        if environment not in running or running[environment].popen.poll() is not None:
            running[environment] = Driver(environment, tmp_path_factory.mktemp("websocket"))
        return running[environment](client, url, ca)

    yield run
    assert [driver.end() for driver in running.values()] == [0] * len(running)


def in_node(url: str, ca: Path | None) -> list[dict[str, object]]:
    """Run the client in Node to its end; returns what it printed."""
    env = clean_env({"NODE_EXTRA_CA_CERTS": str(ca)} if ca else {})
    command = [interpreter("node"), str(NODE / "drive_websocket.mjs"), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=env)
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-3000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


CASES = [
    (environment, client)
    for environment in ("newest", "previous")
    for client in ("openai-realtime", "openai-realtime-async", "openai-responses", "genai-live", "websockets")
] + [("node", "openai-realtime-node")]

Check = Callable[[], None]


@pytest.mark.slow
@pytest.mark.sdk
@pytest.mark.parametrize(("environment", "client"), CASES)
def test_a_client_hears_in_replay_what_it_heard_live(drive: Drive, environment: str, client: str, store: Path) -> None:
    """Recorded through the proxy and replayed with the upstream gone, a real client prints the very same events."""
    tls = client in (
        "genai-live",
        "openai-realtime-node",
    )  # these speak wss whatever the scheme of their base URL; the proxy's port takes both
    ca = get_certificate_authority_folder() / CERTIFICATE if tls else None
    with Upstream(provider, tls=tls) as upstream:
        direct = drive(environment, client, upstream.url, upstream.ca_pem)
    with Upstream(provider) as upstream:
        upstreams = {"openai": upstream.url, "gemini": upstream.url}
        with Rig("record", store, upstreams) as rig:
            live = drive(environment, client, rig.url, ca)
            rig.wait_idle()
            assert [(one.decision, one.lost) for one in rig.outcomes] == [("RECORD", False)]
        assert not any(name.startswith(b"x-llmproxy") for name, _ in upstream.upgrades[-1].extra_headers)
    with Rig("replay", store, upstreams) as rig:
        replayed = drive(environment, client, rig.url, ca)
        rig.wait_idle()
        assert [(one.decision, one.miss) for one in rig.outcomes] == [("REPLAY", False)]
    assert len(live) > 2
    assert live == direct
    assert replayed == live
    (kept,) = recorded(store)
    assert kept.response.ending == "complete"
    if client != "websockets":
        assert kept.usage.input
