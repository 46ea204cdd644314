"""A recorded WebSocket, replayed with its upstream gone."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.client.control import ControlApiClient
from llmproxy.core.engine.engine import Engine
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Ending, Request
from llmproxy.core.traffic.websocket_frames import WebSocketFrame, encode_websocket_frames_as_chunks
from llmproxy.core.ws_replay import MISMATCH
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import request
from tests.provider.websocket import Client, Data, Gone, Peer, Upstream

BIG = "0123456789" * 300_000


async def counting(peer: Peer) -> None:
    """Greet, then answer each message with three pieces."""
    await peer.say({"type": "session.created", "session": {"model": "gpt-realtime"}})
    while True:
        heard = await peer.hear()
        for n in range(3):
            await peer.say({"type": "delta", "n": n, "of": heard.get("text")})
            await asyncio.sleep(0.02)
        await peer.say({"type": "response.done"})


def ask(client: Client, text: str, **more: object) -> list[Any]:
    client.say({"type": "say", "text": text, **more})
    heard = [client.hear()]
    while heard[-1]["type"] != "response.done":
        heard.append(client.hear())
    return heard


def record(store: Path, *conversations: tuple[str, ...], talk: Any = counting) -> None:
    with Upstream(talk) as upstream, Rig("record", store, {"openai": upstream.url}) as rig:
        for texts in conversations:
            with Client(rig.port) as client:
                client.hear()
                for text in texts:
                    ask(client, text)
        rig.wait_outcomes(len(conversations))


def put(store: Path, frames: list[WebSocketFrame], ending: Ending = Ending.COMPLETE, body: bytes | None = None) -> None:
    """Put a conversation into a store, as of an upgrade that a first rig has given its key."""
    with Upstream(counting) as upstream, Rig("record", store, {"openai": upstream.url}) as rig:
        with Client(rig.port) as client:
            client.hear()
        rig.wait_outcomes(1)
    (old,) = recorded(store)
    pieces = encode_websocket_frames_as_chunks(frames)
    if body is not None:
        pieces = (replace(pieces[0], data=body),)
    with SqliteCassetteStore.open(store, writable=True, now=time.time) as opened:
        opened.add_interaction(
            replace(old, id=None, response=replace(old.response, chunks=pieces, ending=ending)), supersede=True
        )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "x.db"
    record(path, ("one", "two"))
    return path


@pytest.mark.parametrize("deflate", [True, False])
def test_a_conversation_is_replayed_message_for_message(store: Path, deflate: bool) -> None:
    """The client hears what it heard, compressed where it offers that, and its key is told."""
    with Rig("replay", store) as rig, Client(rig.port, deflate=deflate) as client:
        assert (client.status, client.headers["x-llmproxy-cache"]) == (101, "hit")
        assert client.headers["x-request-id"] == "req-1"
        assert "set-cookie" not in client.headers
        assert bool(client.extensions) is deflate
        assert client.hear() == {"type": "session.created", "session": {"model": "gpt-realtime"}}
        for text in ("one", "two"):
            assert [each.get("n") for each in ask(client, text)] == [0, 1, 2, None]
        client.close(1000, "bye")
        assert (client.code, client.reason) == (1000, "bye")
        rig.wait_idle()
        (outcome,) = rig.outcomes
        assert (outcome.decision, outcome.status, outcome.miss, outcome.note, outcome.model) == (
            "REPLAY", 101, False, "", "gpt-realtime",
        )  # fmt: skip


@pytest.mark.parametrize("other", ["sk-proj-Zz9yX8wV7uT6sR5qP4oN3mL2kJ1iH0gF", "aB3dE5fG7hJ9kL1mN0pQ2rS4"])
def test_a_callers_own_key_in_a_message_is_the_same_as_anothers(tmp_path: Path, other: str) -> None:
    """Whatever the form of either: a key that says by its form of which kind it is, and one that does not."""
    keys, says = ("sk-proj-aB3dE5fG7hJ9kL1mN0pQ2rS4tU6vW8xY", other), "I am {}, who are you?"
    with Upstream(counting) as upstream, Rig("record", tmp_path / "s.db", {"openai": upstream.url}) as rig:
        with Client(rig.port, headers={"Authorization": f"Bearer {keys[0]}"}) as client:
            client.hear()
            ask(client, says.format(keys[0]))
        rig.wait_outcomes(1)
    with Rig("replay", tmp_path / "s.db") as rig:
        for key in keys:
            with Client(rig.port, headers={"Authorization": f"Bearer {key}"}) as client:
                client.hear()
                assert ask(client, says.format(key))[-1]["type"] == "response.done"


def test_time_is_the_sessions(store: Path) -> None:
    """Speed 1 takes as long as it took."""
    with Rig("replay", store, speed=1) as rig, Client(rig.port) as client:
        client.hear()
        began = time.monotonic()
        ask(client, "one")
        assert time.monotonic() - began > 0.05


def test_a_client_in_a_hurry_hears_everything_in_order(store: Path) -> None:
    """Messages that come before the answers are all sent change nothing about their order."""
    with Rig("replay", store, speed=1) as rig, Client(rig.port) as client:
        client.say({"type": "say", "text": "one"}).say({"type": "say", "text": "two"})
        heard = [client.hear() for _ in range(9)]
        assert [each.get("of") for each in heard if each["type"] == "delta"] == ["one"] * 3 + ["two"] * 3


def test_how_json_is_written_and_random_event_ids_do_not_count(store: Path) -> None:
    """Member order, white space and `event_id` are no difference."""
    with Rig("replay", store) as rig, Client(rig.port) as client:
        client.hear()
        client.say('{"event_id": "event_77",\n "text": "\\u006fne", "type": "say"}')
        assert client.hear()["of"] == "one"


@pytest.mark.parametrize(("said", "reason", "path"), [
    ([{"type": "say", "text": "other"}], "message 1 is not in recording #1; nearest 1 of 2 differs at $.text", "$.text"),
    ([{"type": "say", "text": "two"}], "message 1 is not in recording #1; equals its message 2 of 2", ""),
    (["no JSON"], "message 1 is not in recording #1", ""),
    ([b"\x00\x01"], "message 1 is not in recording #1", ""),
    (["", {"type": "say", "text": "one"}], "message 1 is not in recording #1", ""),
    ([{"type": "say", "text": "one"}, {"type": "say", "text": "two"}, {"type": "say", "text": "three"}], "message 3 is not in recording", "$.text"),
])  # fmt: skip
def test_what_was_never_said_closes_the_socket(store: Path, said: list[object], reason: str, path: str) -> None:
    """4404 with a reason that names the nearest recorded message; the whole story is in the journal; it counts as a miss."""
    with Rig("replay", store) as rig, Client(rig.port) as client:
        for each in said:
            client.say(each)
        while not isinstance(gone := next_of(client), Gone):
            pass
        assert gone.code == MISMATCH
        assert reason in gone.reason
        assert gone.reason.endswith("; see llmproxy why")
        assert len(gone.reason.encode()) <= 123
        rig.wait_idle()
        (outcome,) = rig.outcomes
        assert (outcome.decision, outcome.miss, outcome.nearest) == ("REFUSE", True, 1)
        (missed,) = rig.proxy.engine.journal.list_misses()
        assert "is not as recorded" in missed.text
        assert "llmproxy show 1" in missed.text
        assert path in missed.text


def next_of(client: Client) -> Data | Gone:
    try:
        return client.next()
    except Gone as gone:
        return gone


def test_a_long_path_is_cut_to_fit_the_close_frame(tmp_path: Path) -> None:
    """A close reason has 123 bytes, whatever the difference is called."""
    name = "ü" * 200
    put(tmp_path / "x.db", [WebSocketFrame(1, client=True, data=json.dumps({name: 1}))])
    with Rig("replay", tmp_path / "x.db") as rig, Client(rig.port) as client:
        gone = client.say({name: 2}).end()
        assert (gone.code, len(gone.reason.encode()) <= 123) == (MISMATCH, True)
        assert gone.reason.endswith("…; see llmproxy why")


def test_an_upgrade_that_was_never_recorded_is_refused_so_that_clients_fall_back(store: Path) -> None:
    """426, `upgrade: HTTP/1.1`, `connection: close`, a JSON body in the provider's envelope."""
    with Rig("replay", store) as rig:
        with Client(rig.port, "/v1/responses") as client:
            assert client.status == 426
            assert client.headers["upgrade"] == "HTTP/1.1"
            assert client.headers["connection"] == "close"
            assert (client.headers["x-llmproxy-cache"], client.headers["x-llmproxy-error"]) == (
                "miss",
                "llmproxy_cache_miss",
            )
            assert "no recorded response" in json.loads(client.body)["error"]["message"]
        (outcome,) = rig.wait_outcomes(1)
        assert (outcome.status, outcome.miss) == (426, True)


def test_a_plain_get_does_not_get_a_socket(store: Path) -> None:
    """The key is a GET's, but 101 is no answer to one."""
    with Rig("replay", store) as rig, rig.client() as client:
        answer = client.ask(
            request(b"", "/v1/realtime?model=gpt-realtime", "GET", content_type="", content_length=""), "GET"
        )
        assert answer.status == 426
        assert "no upgrade" in answer.message


@pytest.mark.parametrize("fields", [{"sec_websocket_version": "8"}, {"sec_websocket_key": ""}, {"content_length": "3"}])
def test_what_is_no_upgrade_is_refused(store: Path, fields: dict[str, str]) -> None:
    """An upgrade without key, of another version or with a body reaches neither a recording nor mitmproxy."""
    usual = {"upgrade": "websocket", "connection": "Upgrade", "sec_websocket_version": "13", "content_type": "",
             "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==", "content_length": ""}  # fmt: skip
    body = b"abc" if "content_length" in fields else b""
    with Rig("replay", store) as rig, rig.client() as client:
        assert client.ask(request(body, "/v1/realtime?model=gpt-realtime", "GET", **(usual | fields))).status == 400


@pytest.mark.parametrize(
    "window", ['server_max_window_bits="10"', "client_max_window_bits=", "client_max_window_bits=99"]
)
def test_an_extension_that_cannot_be_read_is_not_accepted(store: Path, window: str) -> None:
    fields = {"upgrade": "websocket", "connection": "Upgrade", "sec_websocket_version": "13", "content_type": "",
              "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==", "content_length": ""}  # fmt: skip
    with Rig("replay", store) as rig, rig.client() as client:
        client.send(
            request(
                b"",
                "/v1/realtime?model=gpt-realtime",
                "GET",
                sec_websocket_extensions=f"permessage-deflate; {window}",
                **fields,
            )
        )
        head = client.sock.recv(4096).partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 101 ")
        assert b"extensions" not in head


async def echo(peer: Peer) -> None:
    while True:
        await peer.say(await peer.hear_raw(), pieces=7)


ODD: list[Data] = [
    "text", "", "ünïcödé \u2028\n \U0001f30d", b"\x00\xff\xfe", b'{"binary": "json"}', b"", BIG, BIG.encode()[::-1],
    "\\u0000",
]  # fmt: skip


@pytest.mark.parametrize("deflate", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_kind_of_message_comes_back_as_it_was(tmp_path: Path, deflate: bool) -> None:
    """Text, binary, empty, 3 MB, in fragments: recorded and replayed to the byte, and pings are answered between fragments."""
    path = tmp_path / "x.db"
    heard = []
    with Upstream(echo, deflate=deflate) as upstream, Rig("record", path, {"openai": upstream.url}) as rig:
        with Client(rig.port, deflate=deflate) as client:
            for message in ODD:
                client.say(message, pieces=3)
                heard.append(client.next())
        rig.wait_outcomes(1)
        assert len(upstream.heard) == len(ODD)
    assert [(type(one), len(one)) for one in heard if one] == [(type(one), len(one)) for one in ODD if one]
    with Rig("replay", path) as rig, Client(rig.port, deflate=deflate) as client:
        client.ping()
        for message, before in zip(ODD, heard, strict=True):
            client.say(message, pieces=5)
            assert client.next() == before
            client.ping()
        assert client.pongs == 1 + len(ODD)


@pytest.mark.parametrize("code", [1005, 1001, 1011, 3000, 4999, 1006])
def test_close_codes_are_kept(tmp_path: Path, code: int) -> None:
    """Whatever a server may send comes again, with its reason; 1005 is a close frame without a code, 1006 none: cut without a handshake."""
    reason = "" if code in (1005, 1006) else "told to"
    frames = [WebSocketFrame(1, client=False, data="a"), WebSocketFrame(2, client=False, data=reason, close=code)]
    put(tmp_path / "x.db", frames, Ending.CUT if code == 1006 else Ending.COMPLETE)
    with Rig("replay", tmp_path / "x.db") as rig, Client(rig.port) as client:
        assert client.next() == "a"
        gone = client.end()
        assert (gone.code, gone.reason) == (code, reason)


def test_who_stays_longer_than_the_recording_is_not_cut(tmp_path: Path) -> None:
    """A socket that its client left stays open until this client leaves; one message more is a miss."""
    put(
        tmp_path / "x.db",
        [
            WebSocketFrame(1, client=True, data="a"),
            WebSocketFrame(2, client=False, data="b"),
            WebSocketFrame(3, client=True, close=1006),
        ],
    )
    with Rig("replay", tmp_path / "x.db") as rig, Client(rig.port) as client:
        assert client.say("a").next() == "b"
        client.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.next()
        client.sock.settimeout(120)
        assert client.say("c").end().code == MISMATCH


def test_a_client_may_leave_early(store: Path) -> None:
    """Properly or not: it is noted, nothing leaks, and the recording counts as played."""
    with Rig("replay", store, speed=1) as rig:
        with Client(rig.port) as client:
            client.hear()
        rig.wait_outcomes(1)
        for leave in (b"", b"\x81", b"\x81\xff\x00\x00"):  # between frames, in a head, in a length
            client = Client(rig.port)
            client.say({"type": "say", "text": "one"})
            client.hear()
            client.sock.sendall(leave)
            client.cut()
        outcomes = rig.wait_outcomes(4)
        rig.wait_idle()
        found = [each.note for each in outcomes]
        assert found == ["client left after 0 of 2 messages", *["client left after 1 of 2 messages"] * 3]
        assert not any(each.miss for each in outcomes)
        assert rig.proxy.engine.count_unused() == 0


@pytest.mark.parametrize(("rubbish", "code"), [
    (b"\x81\x05hello", 1002), (b"\xff\xff\xff\xff", 1002), (b"GET / HTTP/1.1\r\n\r\n", 1002),
    (b"\x83\x80\0\0\0\0", 1002), (b"\x81\x82\0\0\0\0\xff\xff", 1007),
])  # fmt: skip
def test_bytes_that_are_no_frames_end_the_socket(store: Path, rubbish: bytes, code: int) -> None:
    """A frame without a mask, unknown opcodes, HTTP: 1002; text that is no UTF-8: 1007 (RFC 6455); nothing leaks."""
    with Rig("replay", store) as rig, Client(rig.port) as client:
        client.hear()
        client.sock.sendall(rubbish)
        assert client.end().code == code
        rig.wait_idle()


def test_a_message_over_the_limit_ends_the_socket(store: Path) -> None:
    """--max-request holds for messages too, also for what a small frame inflates to."""
    with Rig("replay", store, max_request=100_000) as rig:
        for deflate in (True, False):
            with Client(rig.port, deflate=deflate) as client:
                client.hear()
                client.say("x" * 200_000)
                assert client.end().code == 1009
        rig.wait_idle()


@pytest.mark.parametrize(("exhausted", "third"), [("last", "two"), ("cycle", "one"), ("miss", "")])
def test_the_nth_socket_gets_the_nth_recording(tmp_path: Path, exhausted: str, third: str) -> None:
    """As with requests: in order of occurrence, then as --exhausted says."""
    path = tmp_path / "x.db"
    record(path, ("one",), ("two",))
    with Rig("replay", path, exhausted=exhausted) as rig:
        session = rig.proxy.engine.sessions.get_or_open("default")
        session.settings = replace(session.settings, opened=True)
        for text in filter(None, ("one", "two", third)):
            with Client(rig.port) as client:
                client.hear()
                ask(client, text)
        if not third:
            with Client(rig.port) as client:
                assert client.status == 426
                assert b"already played" in client.body


async def silent(peer: Peer) -> None:
    """Like Responses over WebSocket: the client speaks first."""
    while True:
        heard = await peer.hear()
        await peer.say({"type": "response.done", "of": heard["text"]})


def test_sockets_of_one_session_may_come_in_any_order(tmp_path: Path) -> None:
    """Where the client speaks first, its first message finds the recording: parallel agents share a session and an upgrade."""
    path, names = tmp_path / "x.db", [f"agent {n}" for n in range(8)]

    def run(port: int, name: str) -> object:
        with Client(port, "/v1/responses") as client:
            return client.say({"type": "response.create", "text": name}).hear()["of"]

    with Upstream(silent) as upstream, Rig("record", path, {"openai": upstream.url}) as rig:
        assert [run(rig.port, name) for name in names] == names
    with Rig("replay", path) as rig:
        for client, name in zip([Client(rig.port, "/v1/responses") for _ in names], reversed(names), strict=True):
            with client:
                assert client.say({"type": "response.create", "text": name}).hear()["of"] == name
        rig.wait_idle()
        assert not any(each.miss for each in rig.outcomes)
        assert rig.proxy.engine.count_unused() == 0


def test_a_hundred_sockets_in_sessions_of_their_own_are_not_mixed(tmp_path: Path) -> None:
    """Each replays its own cassette; none is lost, none is mixed."""
    path, count = tmp_path / "x.db", 100

    def run(port: int, n: int) -> list[object]:
        with Client(port, f"/s/agent-{n}/v1/realtime?model=gpt-realtime", timeout=30) as client:
            client.hear()
            return [each.get("of") for each in ask(client, f"I am {n}")]

    with ThreadPoolExecutor(20) as pool:
        with Upstream(counting) as upstream, Rig("record", path, {"openai": upstream.url}) as rig:
            live = list(pool.map(lambda n: run(rig.port, n), range(count)))
            rig.wait_idle(20)
            assert rig.proxy.losses == 0
        with Rig("replay", path) as rig:
            replayed = list(pool.map(lambda n: run(rig.port, n), range(count)))
            rig.wait_idle()
            assert [each.decision for each in rig.outcomes] == ["REPLAY"] * count
    assert replayed == live


class Failing(Redactor):
    """Fails at every message, as a bug of ours would."""

    def request(self, request: Request, names: frozenset[str] = frozenset(), *, clean: bool = False) -> Request:
        if request.method == "POST":
            raise RuntimeError("a bug")
        return super().request(request, names, clean=clean)


class Buggy(Engine):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **(more | {"redactor": Failing()}))


def test_a_failure_of_ours_closes_with_1011(store: Path) -> None:
    """Nothing goes upstream, the client is told, nothing leaks."""
    with Upstream(counting) as upstream:
        with Rig("replay", store, {"openai": upstream.url}, engine=Buggy) as rig, Client(rig.port) as client:
            client.hear()
            gone = client.say({"type": "say", "text": "one"}).end()
            assert (gone.code, "internal error" in gone.reason) == (1011, True)
            rig.wait_idle()
        assert upstream.connections == 0


def test_a_damaged_recording_is_an_error_and_no_miss(tmp_path: Path) -> None:
    """500 before anything was accepted; nothing is guessed."""
    put(tmp_path / "x.db", [WebSocketFrame(1, client=True, data="a")], body=b'{"t": 1, "from": "nobody"}\n')
    with Rig("replay", tmp_path / "x.db") as rig:
        with Client(rig.port) as client:
            assert client.status == 500
        rig.wait_idle()


def test_the_subprotocol_that_was_chosen_is_chosen_again(tmp_path: Path) -> None:
    """If the client offers it; a client that does not gets none."""
    path = tmp_path / "x.db"
    with Upstream(counting) as upstream, Rig("record", path, {"openai": upstream.url}) as rig:
        with Client(rig.port, subprotocols=("other", "realtime")) as client:
            assert client.subprotocol == "realtime"
        rig.wait_outcomes(1)
    with Rig("replay", path) as rig:
        for offered, chosen in ((("realtime",), "realtime"), ((), None), (("other",), None)):
            with Client(rig.port, subprotocols=offered) as client:
                assert client.subprotocol == chosen


def test_an_interaction_put_in_by_hand_is_played(tmp_path: Path) -> None:
    """The body alone counts, however it is cut into chunks: a cassette may be edited."""
    body = b'{"t":1,"from":"client","text":"{\\"type\\":\\"say\\"}"}\n\n{"t":2,"from":"server","text":"hi"}'
    put(tmp_path / "x.db", [WebSocketFrame(1, client=True, data="a")], body=body)
    with Rig("replay", tmp_path / "x.db") as rig, Client(rig.port) as client:
        assert client.say({"type": "say"}).next() == "hi"


@pytest.mark.parametrize("mode", ["record", "replay"])
def test_mocked_results_are_refused_over_a_websocket(store: Path, mode: str) -> None:
    """They are swapped in requests: a socket that went through would be a run without its mocks."""
    with Upstream(counting) as upstream, Rig(mode, store, {"openai": upstream.url}) as rig:
        ControlApiClient(f"http://127.0.0.1:{rig.port}").open_session("mocked", mocks={"get_weather": {"temp": 5}})
        with Client(rig.port, "/s/mocked/v1/realtime?model=gpt-realtime") as client:
            assert client.status == 400
            assert "mocks results of tools" in json.loads(client.body)["error"]["message"]
        assert not upstream.upgrades


def test_a_live_model_is_asked_over_its_websocket(tmp_path: Path) -> None:
    """Beside recorded tools: the conversation is a new one, and is kept in a cassette of its own."""
    store = tmp_path / "x.db"
    record(store, ("hi",))
    with Upstream(counting) as upstream, Rig("replay", store, {"openai": upstream.url}, live=["llm"]) as rig:
        with Client(rig.port) as client:
            client.hear()
            assert [each["of"] for each in ask(client, "new")[:-1]] == ["new"] * 3
        rig.wait_outcomes(1)
    with SqliteCassetteStore.open(store, writable=False, now=time.time) as opened:
        assert [len(opened.list_summaries(name)) for name in ("default", "default@live-1")] == [1, 1]
