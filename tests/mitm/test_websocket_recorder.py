"""WebSockets that go through to their upstream: relayed at once, kept whole."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http

from llmproxy.core.traffic.interaction import header
from llmproxy.core.traffic.websocket_frames import parse_recorded_websocket_frames
from llmproxy.mitm.interception import CERTIFICATE, get_certificate_authority_folder
from llmproxy.mitm.recorder import RecordingAddon
from llmproxy.mitm.websockets import is_websocket_upgrade, limit_offered_extensions
from tests.mitm.rig import Rig, recorded
from tests.mitm.test_intercept import intercepted, secure
from tests.mitm.wire import request
from tests.provider.websocket import Client, Gone, Peer, Upstream
from tests.support.process import until
from tests.support.services import one_connection

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


async def answering(peer: Peer) -> None:
    """Answer each message with one; do what it is told."""
    while True:
        heard = await peer.hear()
        match heard["type"]:
            case "hang up":
                await peer.close(heard["code"], heard["reason"])
                return
            case "cut":
                peer.cut()
                return
            case "ping":
                await peer.ping()
            case "hold":
                continue
        await peer.say({"type": "response.done", "of": heard})


def record(rig: Rig, *said: dict[str, object], end: Callable[[Client], object] = Client.close, **how: Any) -> list[Any]:
    """Say these, read an answer to each, end; returns the answers."""
    client = Client(rig.port, **how)
    try:
        heard = [client.say(each).hear() for each in said]
        end(client)
        return heard
    finally:
        client.sock.close()


def test_a_conversation_becomes_one_interaction(tmp_path: Path) -> None:
    """The upgrade is the request, 101 the status, a line a message; one chunk a line, with its time."""
    with Upstream(answering) as upstream, Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        record(rig, {"type": "a"}, {"type": "b"}, end=lambda c: c.close(4000, "enough"))
        (outcome,) = rig.wait_outcomes(1)
        assert (outcome.decision, outcome.status, outcome.lost, outcome.note) == ("RECORD", 101, False, "")
    (kept,) = recorded(tmp_path / "x.db")
    assert (kept.request.method, kept.request.target, kept.request.body) == (
        "GET", "/v1/realtime?model=gpt-realtime", b"",
    )  # fmt: skip
    assert (kept.response.status, kept.response.ending, kept.operation) == (101, "complete", "realtime")
    assert header(kept.response.headers, "content-type") == "application/x-llmproxy-frames+jsonl"
    assert header(kept.response.headers, "x-request-id") == "req-1"
    frames = parse_recorded_websocket_frames(kept.response.body)
    assert [(each.client, each.close) for each in frames] == [(True, None), (False, None)] * 2 + [(True, 4000)]
    times = [each.at for each in frames]
    assert [each.offset for each in kept.response.chunks] == times == sorted(times)
    assert kept.response.head_offset <= frames[0].at
    assert frames[-1].data == "enough"


def test_what_is_ours_does_not_go_upstream_and_the_handshake_does(tmp_path: Path) -> None:
    """Headers of ours and the proxy's are stripped, those of the upgrade are kept, also over an upgrade in a session's URL."""
    with Upstream(answering) as upstream, Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        headers = {"authorization": f"Bearer {SECRET}", "x-llmproxy-party": "judge", "openai-beta": "realtime=v1"}
        record(rig, {"type": "a"}, target="/s/mine/v1/realtime?model=m", headers=headers, subprotocols=("realtime",))
        rig.wait_outcomes(1)
        (upgrade,) = upstream.upgrades
    names = {name.decode() for name, _ in upgrade.extra_headers}
    assert not {name for name in names if name.startswith(("x-llmproxy", "proxy-"))}
    assert {"upgrade", "connection", "sec-websocket-key", "authorization", "openai-beta"} <= names
    assert (upgrade.target, upgrade.subprotocols) == ("/v1/realtime?model=m", ["realtime"])
    (kept,) = recorded(tmp_path / "x.db")
    assert (kept.cassette, kept.party) == ("mine", "judge")


def test_secrets_reach_no_store(tmp_path: Path) -> None:
    """Not those of the handshake, of a browser's subprotocol, of a message, nor one that the server says again."""
    mine = "ek_1234567890abcdefghijklmnop"
    tool = {"type": "mcp", "authorization": "Bearer hunter2-hunter2-hunter2", "server_url": "https://x"}
    with Upstream(answering) as upstream, Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        heard = record(
            rig,
            {"type": "session.update", "session": {"tools": [tool], "api_key": "w7Gq2LrX-z9Pb4Kd0tY"}},
            {"type": "say", "text": f"my keys are {SECRET} and {mine}"},
            headers={"x-other": "1"},
            subprotocols=("realtime", f"openai-insecure-api-key.{mine}"),
        )
        assert SECRET in heard[1]["of"]["text"]  # live it is the client's business
        rig.wait_outcomes(1)
    data = (tmp_path / "x.db").read_bytes()
    (kept,) = recorded(tmp_path / "x.db")
    for secret in (SECRET, mine, "hunter2-hunter2", "w7Gq2LrX-z9Pb4Kd0tY"):
        assert secret.encode() not in kept.response.body, secret
        assert secret not in str(kept.request), secret
        assert secret.encode() not in data, secret
    assert kept.redacted
    with Rig("replay", tmp_path / "x.db") as rig:  # another key is no difference
        other = "sk-proj-ZYXWVUTSRQPONMLKJIHGFEDCBA9876543210wxyz"
        mine, tool = "ek_another0987654321zyxwvuts", tool | {"authorization": "Bearer swordfish-0123456789ab"}
        offered = ("realtime", f"openai-insecure-api-key.{mine}")
        with Client(rig.port, headers={"authorization": f"Bearer {other}"}, subprotocols=offered) as client:
            client.say({"type": "session.update", "session": {"tools": [tool], "api_key": "w7Gq2LrX-z9Pb4Kd0tY"}})
            assert client.hear()["type"] == "response.done"


def test_a_refused_upgrade_is_an_answer_like_any_other(store: Path) -> None:
    """The client gets status and body, it is recorded, and replayed in its turn."""
    body = json.dumps({"error": {"message": "no such model"}}).encode()
    with Upstream(answering, refuse=(400, body)) as upstream, Rig("record", store, {"openai": upstream.url}) as rig:
        with Client(rig.port) as client:
            assert (client.status, client.body) == (400, body)
        rig.wait_outcomes(1)
    with Rig("replay", store) as rig, Client(rig.port) as client:
        assert (client.status, client.body) == (400, body)
        assert client.headers["x-llmproxy-cache"] == "hit"


def test_an_upstream_that_is_not_there_is_said(tmp_path: Path) -> None:
    """502 in the provider's envelope, nothing recorded."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Rig("record", tmp_path / "x.db", {"openai": url}) as rig, Client(rig.port) as client:
        assert client.status == 502
        assert b"could not be reached: Connection refused" in client.body
        rig.wait_idle()
    assert recorded(tmp_path / "x.db") == []


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (4008, "told to"), (1011, "x" * 123)])
def test_the_servers_end_reaches_the_client_after_it_was_stored(store: Path, code: int, reason: str) -> None:
    """Code and reason as they were; whoever heard the end finds the recording there."""
    with (
        Upstream(answering) as upstream,
        Rig("record", store, {"openai": upstream.url}) as rig,
        Client(rig.port) as client,
    ):
        gone = client.say({"type": "hang up", "code": code, "reason": reason}).end()
        assert (gone.code, gone.reason) == (code, reason)
        (kept,) = recorded(store)
        assert kept.response.ending == "complete"


def test_a_server_that_breaks_off_is_a_break_for_the_client(store: Path) -> None:
    """No made-up goodbye: 1006 at the client, 1006 in the recording, which is cut; in replay the same."""
    with Upstream(answering) as upstream, Rig("record", store, {"openai": upstream.url}) as rig:
        with Client(rig.port) as client:
            client.say({"type": "a"}).next()
            assert client.say({"type": "cut"}).end().code == 1006
        rig.wait_idle()
    (kept,) = recorded(store)
    assert (kept.response.ending, parse_recorded_websocket_frames(kept.response.body)[-1].close) == ("cut", 1006)
    with Rig("replay", store) as rig, Client(rig.port) as client:
        client.say({"type": "a"}).next()
        assert client.say({"type": "cut"}).end().code == 1006


@pytest.mark.parametrize("left", [b"", b"\x81", b"\x81\xfe\x01\x00\x00"])
def test_a_client_that_breaks_off_is_kept_so_far(store: Path, left: bytes) -> None:
    """Cut in mid-frame or between two: what was whole is kept. Whole is the conversation if the server owed nothing.

    It is a break for the upstream too; mitmproxy by itself would say 1000.
    """

    def cut(client: Client) -> None:
        client.sock.sendall(left)
        client.cut()

    with Upstream(answering) as upstream, Rig("record", store, {"openai": upstream.url}) as rig:
        record(rig, {"type": "a"}, end=cut)
        rig.wait_outcomes(1)
        rig.wait_idle()
        until(lambda: upstream.ended)
        assert [gone.code for gone in upstream.ended] == [1006]
    (kept,) = recorded(store)
    assert [each.close for each in parse_recorded_websocket_frames(kept.response.body)] == [None, None, 1006]
    assert kept.response.ending == "complete"


def test_a_client_that_left_before_its_answer_is_no_hit_in_auto(tmp_path: Path) -> None:
    """Cut in the middle: the next `auto` run records it whole in its place; that is a hit, and the next socket is appended."""
    path, gone = tmp_path / "x.db", threading.Event()

    async def slow(peer: Peer) -> None:
        await peer.hear()
        while not gone.is_set():
            await asyncio.sleep(0.01)
        await peer.say({"type": "response.done"})
        await peer.hear()

    with Upstream(slow) as upstream:
        for end, decision in ((True, "RECORD"), (False, "RECORD"), (False, "REPLAY")):
            with Rig("auto", path, {"openai": upstream.url}) as rig:
                client = Client(rig.port)
                client.say({"type": "a"})
                if not end:
                    client.next()
                    client.close()
                client.cut()
                (outcome,) = rig.wait_outcomes(1)
                assert outcome.decision == decision
            gone.set()
        assert upstream.connections == 2
    assert [each.response.ending for each in recorded(path)] == ["complete"]


def test_auto_records_a_conversation_that_has_changed_at_the_second_try(store: Path) -> None:
    """A hit cannot be taken back: the socket is closed with 4404, and the next one goes through."""
    with Upstream(answering) as upstream:
        with Rig("record", store, {"openai": upstream.url}) as rig:
            record(rig, {"type": "a"})
            rig.wait_outcomes(1)
        with Rig("auto", store, {"openai": upstream.url}) as rig:
            with Client(rig.port) as client:
                assert client.say({"type": "b"}).end().code == 4404
            assert record(rig, {"type": "b"})[0]["of"] == {"type": "b"}
            assert [each.decision for each in rig.wait_outcomes(2)] == ["REFUSE", "RECORD"]


def test_passthrough_keeps_nothing(tmp_path: Path) -> None:
    with Upstream(answering) as upstream, Rig("passthrough", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        assert record(rig, {"type": "a"})[0]["of"] == {"type": "a"}
        (outcome,) = rig.wait_outcomes(1)
        assert (outcome.decision, outcome.interaction) == ("PASS", None)
    assert not (tmp_path / "x.db").exists()


def test_messages_are_not_held_back_and_pings_go_through(tmp_path: Path) -> None:
    """Each is answered before the next one is said; pings go both ways, and are not kept."""
    with Upstream(answering) as upstream, Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        with Client(rig.port) as client:
            client.ping()
            client.say({"type": "ping"}).next()
            assert client.pongs == 1
            for n in range(50):
                client.say({"type": "a", "n": n}).next()
        rig.wait_outcomes(1)
    assert len(parse_recorded_websocket_frames(recorded(tmp_path / "x.db")[0].response.body)) == 103


def test_frames_that_come_with_the_upgrade_are_not_taken_for_http(tmp_path: Path) -> None:
    """A client that does not wait for 101 loses nothing."""
    with Upstream(answering) as upstream, Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
        fields = {"upgrade": "websocket", "connection": "Upgrade", "sec_websocket_version": "13", "content_type": "",
                  "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==", "content_length": ""}  # fmt: skip
        with rig.client() as wire:
            wire.send(request(b"", "/v1/realtime", "GET", **fields) + b"\x81\x8c\0\0\0\0" + b'{"type":"a"}')
            assert wire.head()[0] == 101
            assert b"response.done" in wire.until(b"}}")
        rig.wait_outcomes(1)
        assert upstream.heard == ['{"type":"a"}']


def test_over_https_both_ways(tmp_path: Path) -> None:
    """TLS (wss) at our port to a wss upstream."""
    with Upstream(answering, tls=True) as upstream, pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(upstream.ca_pem))
        with Rig("record", tmp_path / "x.db", {"openai": upstream.url}) as rig:
            assert record(rig, {"type": "a"}, sock=encrypted(rig))[0]["of"] == {"type": "a"}
            rig.wait_outcomes(1)
    with Rig("replay", tmp_path / "x.db") as rig, Client(rig.port, sock=encrypted(rig)) as client:
        assert client.say({"type": "a"}).hear()["of"] == {"type": "a"}


def encrypted(rig: Rig) -> socket.socket:
    return secure(rig.client(10), "localhost", get_certificate_authority_folder() / CERTIFICATE).sock


def test_through_interception_and_back_by_base_url(tmp_path: Path) -> None:
    """CONNECT, TLS, upgrade: recorded under the session of the proxy's user, and replayed either way."""
    path, target = tmp_path / "x.db", "/v1/realtime?model=m"
    with Upstream(answering) as upstream, Rig("record", path, {"openai": upstream.url}, forward=True) as rig:
        with intercepted(rig, user="mine") as c, Client(rig.port, target, sock=c.sock) as client:
            client.say({"type": "a"}).next()
        rig.wait_outcomes(1)
    with Rig("replay", path, forward=True) as rig:
        with intercepted(rig, user="mine") as c, Client(rig.port, target, sock=c.sock) as client:
            assert client.say({"type": "a"}).hear()["of"] == {"type": "a"}
        with Client(rig.port, f"/s/mine{target}") as client:
            assert client.say({"type": "a"}).hear()["of"] == {"type": "a"}
        rig.wait_idle()
        assert [each.decision for each in rig.outcomes] == ["REPLAY"] * 2


def test_an_open_socket_is_kept_when_the_proxy_ends(tmp_path: Path) -> None:
    """What was said until then, marked as cut."""
    with Upstream(answering) as upstream:
        rig = Rig("record", tmp_path / "x.db", {"openai": upstream.url}).start()
        client = Client(rig.port)
        client.say({"type": "a"}).next()
        client.say({"type": "hold"})
        until(lambda: len(upstream.heard) > 1)
        rig.stop()
        client.sock.close()
        (outcome,) = rig.outcomes
        assert (outcome.lost, outcome.note) == (False, "incomplete (cut)")
    (kept,) = recorded(tmp_path / "x.db")
    assert (kept.response.ending, len(parse_recorded_websocket_frames(kept.response.body)) >= 2) == ("cut", True)


class Raising(RecordingAddon):
    def _get_offset(self, exchange: Any) -> int:
        if exchange.recording.status == 101:
            raise RuntimeError("a bug")
        return super()._get_offset(exchange)


def test_a_message_that_could_not_be_noted_is_relayed_and_the_loss_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The conversation is the client's, come what may; half of it is not stored."""
    caplog.set_level(logging.CRITICAL)
    with (
        Upstream(answering) as upstream,
        Rig("record", tmp_path / "x.db", {"openai": upstream.url}, recorder=Raising) as rig,
    ):
        assert record(rig, {"type": "a"}, {"type": "b"})[1]["of"] == {"type": "b"}
        (outcome,) = rig.wait_outcomes(1)
        assert outcome.lost
        rig.wait_idle()
        assert rig.proxy.losses == 1
    assert recorded(tmp_path / "x.db") == []


@pytest.mark.parametrize("upgrade", [b"", b"upgrade: h2c\r\n", b"upgrade: websocket\r\n"])
def test_a_switch_that_nobody_asked_for_goes_nowhere(tmp_path: Path, upgrade: bytes) -> None:
    """101 to a plain request would be a tunnel past us: refused, nothing recorded."""

    def serve(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n" + upgrade + b"\r\nraw bytes")
        sock.recv(4096)

    with one_connection(serve) as port, Rig("record", tmp_path / "x.db", {"openai": f"http://127.0.0.1:{port}"}) as rig:
        with rig.client() as wire:
            answer = wire.ask(request(b"", "/v1/models", "GET", content_length=""))
            assert answer.status >= 500
            assert b"raw bytes" not in answer.body
        rig.wait_idle()
    assert recorded(tmp_path / "x.db") == []


UPGRADE = {"Upgrade": "WebSocket", "Connection": "keep-alive, Upgrade"}


@pytest.mark.parametrize(("offered", "kept"), [
    ("permessage-deflate; client_max_window_bits", "permessage-deflate; client_max_window_bits"),
    ("x-webkit-deflate-frame, permessage-deflate", "permessage-deflate"),
    ("permessage-deflate; server_max_window_bits=8, permessage-deflate", "permessage-deflate"),
    ("permessage-deflate; server_max_window_bits=8", None), ("permessage-deflate; client_max_window_bits=", None),
    ('permessage-deflate; server_max_window_bits="10", permessage-deflate', "permessage-deflate"), ("bbf-usp-protocol", None),
])  # fmt: skip
def test_only_what_can_be_taken_apart_is_offered(offered: str, kept: str | None) -> None:
    """The relay knows permessage-deflate alone, no window of 8 bits, and an `Upgrade` that `Connection` names."""
    upgrade = http.Request.make("GET", "http://x/")
    for plain in ({}, {"upgrade": "websocket"}, {"upgrade": "h2c", "connection": "upgrade"}):
        upgrade.headers.clear()
        upgrade.headers.update(plain)
        assert not is_websocket_upgrade(upgrade)
    upgrade.headers.update(UPGRADE | {"Sec-WebSocket-Extensions": offered})
    assert is_websocket_upgrade(upgrade)
    limit_offered_extensions(upgrade)
    assert upgrade.headers.get("sec-websocket-extensions") == kept


def test_sockets_of_one_session_at_once_are_kept_apart(store: Path) -> None:
    """Twenty sockets of one cassette at once: every conversation is kept whole."""
    with Upstream(answering) as upstream, Rig("record", store, {"openai": upstream.url}) as rig:
        clients = [Client(rig.port) for _ in range(20)]
        for n, client in enumerate(clients):
            client.say({"type": "a", "n": n})
        for n, client in enumerate(clients):
            with client:
                assert client.hear()["of"]["n"] == n
        rig.wait_outcomes(20)
        assert rig.proxy.losses == 0
    assert [parse_recorded_websocket_frames(each.response.body)[0].data for each in recorded(store)].count(
        '{"type": "a", "n": 3}'
    ) == 1
    assert sorted(each.occurrence for each in recorded(store)) == list(range(1, 21))
    assert upstream.ended == [Gone(1000)] * 20 or all(gone.code == 1000 for gone in upstream.ended)
