"""The control API over real sockets: one port for it and for the traffic, beside hundreds of sessions."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.mitm.http1 import replay_layer
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import CHAT, Received, Wire, body_of, chat, chunked, request
from tests.provider import Answer, Piece, Provider, Reply, Script, Step, event
from tests.support import free_port, proxy
from tests.support.chats import NOW, chat as recording
from tests.support.process import needed, until

SSE = (("content-type", "text/event-stream"),)
DONE = b"data: [DONE]\n\n"
SAID = event({"object": "chat.completion.chunk", "choices": [{"delta": {"content": "ok"}}]})


def control(method: str, path: str, body: object = None, **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return request(data, "/_llmproxy/" + path, method, **({"host": "127.0.0.1"} | headers))


def ask(rig: Rig, method: str, path: str, body: object = None, **headers: str) -> Received:
    with rig.client() as c:
        return c.ask(control(method, path, body, **headers), method)


def in_session(name: str, text: str, **more: object) -> bytes:
    """Format a chat of a session (`name` as it stands in a path)."""
    return chat(text, f"/s/{name}{CHAT}", **more)  # type: ignore[arg-type]


def tape(path: Path, *rows: tuple[str, str, str]) -> Path:
    """Make a store of (cassette, question, answer); questions that come again are occurrences."""
    seen: dict[tuple[str, str], int] = {}
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as store:
        for at, (cassette, text, said) in enumerate(rows):
            seen[cassette, text] = nth = seen.get((cassette, text), 0) + 1
            store.add_interaction(
                recording(text, said, cassette=cassette, occurrence=nth, started_at=NOW + at), supersede=False
            )
    return path


def said(answer: Received) -> str:
    return str(answer.json["choices"][0]["message"]["content"])


# --- one connection --------------------------------------------------------------------------------------------------


def test_control_and_traffic_share_a_connection(tmp_path: Path) -> None:
    """An agent's pooled connection may carry both, pipelined; each answer comes in its place."""
    with Rig("replay", tape(tmp_path / "x.db", ("a", "hi", "one"), ("a", "hi", "two"))) as rig, rig.client() as c:
        asks, opens = in_session("a", "hi"), control("POST", "sessions", {"name": "a"})
        resets, closes = control("POST", "sessions/a/reset"), control("POST", "sessions/a/close")
        c.send(opens + asks + resets + asks + closes)
        opened, one, reset, again, closed = (c.response() for _ in range(5))
        assert (opened.status, reset.status, closed.status) == (201, 200, 200)
        assert (said(one), said(again)) == ("one", "one")
        assert (closed.json["hits"], closed.json["unused_total"]) == (2, 1)
        assert closed.headers["content-type"] == "application/json"


def test_control_is_no_traffic(tmp_path: Path) -> None:
    """What is asked here is neither a call nor a miss, and reaches nobody."""
    with Provider() as p, Rig("record", tmp_path / "x.db", {"openai": p.url}) as rig:
        ask(rig, "POST", "sessions", {"name": "a"})
        ask(rig, "GET", "nonsense")
        ask(rig, "POST", "sessions/a/close")
        rig.proxy.draining = True  # who waits for the end asks again and again whether it has come
        assert ask(rig, "GET", "health").status == 500
        assert p.connections == 0
        assert rig.outcomes == []
        with rig.client() as c:
            assert c.ask(in_session("a", "hi")).status == 500
        assert len(rig.outcomes) == 1


@pytest.mark.parametrize("how", ["chunked", "expect", "h2c", "close", "http10", "head"])
def test_clients_of_every_habit(tmp_path: Path, how: str) -> None:
    """Chunked bodies, Expect: 100-continue (curl), Upgrade: h2c (Java), HTTP/1.0, HEAD."""
    body = json.dumps({"name": "a"}).encode()
    with Rig("replay", tmp_path / "x.db") as rig, rig.client() as c:
        match how:
            case "chunked":
                answer = c.ask(chunked(body, len(body), "/_llmproxy/sessions", host="localhost"))
            case "expect":
                head, _, rest = control("POST", "sessions", body, expect="100-continue").partition(b"\r\n\r\n")
                c.send(head + b"\r\n\r\n")
                assert c.head()[0] == 100
                answer = c.ask(rest)
            case "h2c":
                more = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAEAAEAAAAIAAAAB"}
                answer = c.ask(control("POST", "sessions", body, **more))
            case "close":
                answer = c.ask(control("POST", "sessions", body, connection="close"))
                assert c.rest() == b""
            case "http10":
                answer = c.ask(request(body, "/_llmproxy/sessions", version="HTTP/1.0", host=""))
            case _:
                answer = c.ask(control("HEAD", "health"), "HEAD")
                assert (answer.status, answer.body) == (200, b"")
                answer = c.ask(control("POST", "sessions", body))
        assert answer.status == 201


def test_bad_bodies_leave_the_connection_usable(tmp_path: Path) -> None:
    """400 in JSON; the next request on the connection is served."""
    nested = b'{"name":' + b"[" * 5000 + b"]" * 5000 + b"}"
    with Rig("replay", tmp_path / "x.db") as rig, rig.client() as c:
        for body in (b"{", b"[" * 200_000, nested, b"\xff\xfe", b"[]", b'{"name": "\\ud800"}'):
            answer = c.ask(control("POST", "sessions", body))
            assert (answer.status, answer.json["error"]["code"]) == (400, "llmproxy_control")
            assert c.ask(control("GET", "sessions")).json == {"sessions": []}


# --- who may ask -----------------------------------------------------------------------------------------------------


def test_a_web_page_cannot_drive_it(tmp_path: Path) -> None:
    """As browsers send it: rebound DNS, a no-cors POST of text/plain, a form, a preflight. Nothing is opened."""
    page = {"origin": "http://evil.example", "sec_fetch_site": "cross-site", "content_type": "text/plain;charset=UTF-8"}
    with Rig("replay", tmp_path / "x.db") as rig:
        assert ask(rig, "POST", "sessions", {"name": "a"}, host="evil.example:8080").status == 403
        assert ask(rig, "POST", "sessions", {"name": "a"}, **page).status == 403
        assert ask(rig, "POST", "sessions", {"name": "a"}, origin="null").status == 403
        assert ask(rig, "POST", "sessions", b"{}", sec_fetch_site="cross-site").status == 403
        preflight = ask(rig, "OPTIONS", "sessions", None, **page, access_control_request_method="POST")
        assert preflight.status == 403
        assert not [name for name in preflight.headers if name.startswith("access-control")]
        assert ask(rig, "GET", "sessions").json == {"sessions": []}


def own_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; only asks the routing table
            address = str(probe.getsockname()[0])
        except OSError:
            address = "127.0.0.1"
    return needed("an address that is not loopback") if address.startswith("127.") else address


def from_elsewhere(rig: Rig, address: str) -> Wire:
    """Connect over an address that is not loopback, so that we look like another machine."""
    c = Wire(rig.port)
    c.sock.close()
    c.sock = socket.create_connection((address, rig.port), timeout=10)
    return c


def test_other_machines_need_the_token(tmp_path: Path) -> None:
    """Bound to all addresses: health is open, everything else wants the token, under whatever Host."""
    address = own_address()

    def foreign(rig: Rig, method: str, path: str, **headers: str) -> int:
        with from_elsewhere(rig, address) as c:
            return c.ask(control(method, path, {"name": "a"} if method == "POST" else None, **headers)).status

    with Rig("replay", tmp_path / "x.db", host="0.0.0.0") as rig:
        assert foreign(rig, "GET", "health") == 200
        assert foreign(rig, "POST", "sessions") == 403
        assert foreign(rig, "POST", "sessions", x_llmproxy_token="") == 403
        rig.proxy.token = "s3cret"
        assert foreign(rig, "POST", "sessions", host=f"{address}:{rig.port}", x_llmproxy_token="guess") == 403
        assert foreign(rig, "POST", "sessions", host=f"{address}:{rig.port}", x_llmproxy_token="s3cret") == 201


@pytest.mark.parametrize("mode", ["replay", "record"])
def test_the_proxy_is_no_way_round_its_own_walls(tmp_path: Path, mode: str) -> None:
    """Asked by another machine to forward to itself, it would be its own peer, on loopback: refused in every mode."""
    address = own_address()
    with Rig(mode, tmp_path / "x.db", host="0.0.0.0") as rig:
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0"):
            place = f"{host}:{rig.port}"
            with from_elsewhere(rig, address) as c:
                answer = c.ask(request(b'{"name": "a"}', f"http://{place}/_llmproxy/sessions", host=place))
            assert answer.status >= 400
        assert "a" not in rig.proxy.engine.sessions.open_sessions


# --- sessions over sockets -------------------------------------------------------------------------------------------


def test_odd_names_mean_the_same_everywhere(tmp_path: Path) -> None:
    """In the traffic's URL, in the control URL, in the JSON and in the store."""
    names = ["a%2Fb", "%C3%BC%20%E6%97%A5", "x" * 300, "%2E%2E", "x~0", "%23"]
    store = tape(tmp_path / "x.db", *((unquote(name), "hi", name) for name in names))
    with Rig("replay", store) as rig, rig.client() as c:
        for name in names:
            assert c.ask(control("POST", "sessions", {"name": unquote(name)})).status == 201
            assert said(c.ask(in_session(name, "hi"))) == name
            closed = c.ask(control("POST", f"sessions/{name}/close")).json
            assert (closed["name"], closed["hits"], closed["unused"]) == (unquote(name), 1, [])


def test_a_live_session_on_a_replay_proxy(store: Path) -> None:
    """403 without --allow-live, and nothing is sent. With it: recorded at the session's own upstream, then replayed."""
    with Provider(Script((Step(Reply("hello")),))) as p:
        with Rig("replay", store) as rig:
            asked = {"name": "a", "mode": "all", "upstreams": {"openai": p.url}}
            assert ask(rig, "POST", "sessions", asked).status == 403
        with Rig("replay", store, allow_live=True) as rig, rig.client() as c:
            assert c.ask(control("POST", "sessions", asked)).status == 201
            assert said(c.ask(in_session("a", "hi"))) == "hello"
            closed = c.ask(control("POST", "sessions/a/close")).json
            assert (closed["recorded"], closed["live_calls"], closed["unused"]) == (1, 1, [])
            assert c.ask(in_session("a", "hi")).json["choices"][0]["message"]["content"] == "hello"
            assert c.ask(in_session("b", "hi")).status == 404
        p.finish()


def test_a_bound_process_walks_each_test_in_turn(tmp_path: Path) -> None:
    """One base URL, set once; each test binds it to its own session."""
    store = tape(tmp_path / "x.db", *((f"t{n}", "hi", f"answer {n}") for n in range(3)))
    with Rig("replay", store) as rig, rig.client() as agent:
        for n in range(3):
            ask(rig, "POST", "sessions", {"name": f"t{n}"})
            assert ask(rig, "POST", "sessions/gw0/bind", {"session": f"t{n}"}).status == 200
            assert ask(rig, "POST", "sessions/gw0/bind", {"session": f"t{n}"}).status == 409
            assert said(agent.ask(in_session("gw0", "hi"))) == f"answer {n}"
            assert ask(rig, "POST", f"sessions/t{n}/close").json["hits"] == 1
        assert agent.ask(in_session("gw0", "hi")).status == 404


# --- closing while something is open ---------------------------------------------------------------------------------


def slow(wait: float) -> Answer:
    """Answer with a stream whose end comes `wait` seconds after its last event."""
    return Answer(200, SSE, (Piece(SAID), Piece(DONE), Piece(b": bye\n\n", wait)), "chunked")


@contextmanager
def under_way(store: Path, wait: float, *more: Step, mark: bytes = DONE) -> Iterator[tuple[Rig, Wire]]:
    """Record in a session `a` whose agent has come to `mark` in an answer that goes on for `wait` seconds."""
    with Provider((Step(slow(wait)), *more)) as p, Rig("record", store, {"openai": p.url}) as rig:
        ask(rig, "POST", "sessions", {"name": "a"})
        with rig.client() as agent:
            agent.send(in_session("a", "hi", stream=True)).head()
            agent.until(mark)
            yield rig, agent


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a question about a session wait a quarter of a second for its open calls."""
    monkeypatch.setattr(replay_layer, "PATIENCE", 0.25)


def test_a_call_that_has_just_ended_counts(store: Path) -> None:
    """SDKs stop reading at the last event, before we have stored it; a close right then still counts the recording."""
    with under_way(store, 0.3) as (rig, _):
        closed = ask(rig, "POST", "sessions/a/close").json
        assert (closed["recorded"], closed["unused"]) == (1, [])
        assert [each.cassette for each in recorded(store)] == ["a"]


@pytest.mark.usefixtures("impatient")
def test_a_call_that_outlives_its_session_is_recorded(store: Path) -> None:
    """The close does not wait for ever, nor lose it: the answer reaches its client, is stored, and the cassette is complete."""
    with under_way(store, 1.75, Step(Reply("next"))) as (rig, agent):
        with rig.client() as c:
            assert c.ask(control("POST", "sessions/a/close")).json["recorded"] == 0, (
                "it was closed before the answer ended"
            )
            assert c.ask(control("GET", "sessions")).json == {"sessions": []}
            agent.until(b"0\r\n\r\n")
        rig.wait_idle()
        assert [each.decision for each in rig.outcomes] == [Decision.RECORD]
        assert rig.outcomes[0].interaction is not None
        with SqliteCassetteStore.open(store, writable=False, now=time.time) as found:
            assert found.last_session_ended_cleanly("a", 1)
            assert len(found.list_summaries("a", 1)) == 1
        assert rig.proxy.losses == 0


@pytest.mark.usefixtures("impatient")
def test_closing_and_opening_in_mid_flight_mixes_nothing(store: Path) -> None:
    """The next session of the name begins at its start; the late answer belongs to the session that asked."""
    with under_way(store, 1, Step(Reply("next"))) as (rig, agent):
        with rig.client() as c:
            c.ask(control("POST", "sessions/a/close"))
            assert c.ask(control("POST", "sessions", {"name": "a"})).json["recorded"] == 0
            assert said(c.ask(in_session("a", "bye"))) == "next"
            agent.until(b"0\r\n\r\n")
            rig.wait_idle()
            closed = c.ask(control("POST", "sessions/a/close")).json
        assert (closed["recorded"], closed["live_calls"]) == (1, 1)
        assert len(recorded(store)) == 2


def test_a_paced_replay_goes_on_when_its_session_closes(store: Path) -> None:
    """Its client gets the whole answer; the next session starts at the first recording."""
    with Provider((Step(slow(0.4)),)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        live = c.ask(in_session("a", "hi", stream=True)).body
    with Rig("replay", store) as rig, rig.client() as agent, rig.client() as c:
        c.ask(control("POST", "sessions", {"name": "a", "speed": 0.5}))
        agent.send(in_session("a", "hi", stream=True))
        until(lambda: rig.proxy.open or rig.outcomes)
        c.ask(control("POST", "sessions/a/close"))
        c.ask(control("POST", "sessions", {"name": "a"}))
        assert c.ask(in_session("a", "hi", stream=True)).body == live
        assert agent.response().body == live
        rig.wait_idle()


def test_who_asks_and_leaves_does_no_harm(tmp_path: Path) -> None:
    """A client that hangs up while its question waits for open calls; the session is still there to be closed."""
    with under_way(tmp_path / "x.db", 0.6, mark=b"") as (rig, agent):
        with rig.client() as c:
            c.send(control("POST", "sessions/a/close"))
            time.sleep(0.05)
            c.reset()
        agent.until(b"0\r\n\r\n")
        rig.wait_idle()
        assert ask(rig, "POST", "sessions/a/close").json["recorded"] == 1


def test_a_walk_waits_for_the_calls_under_way(tmp_path: Path) -> None:
    """An SDK leaves its stream at the last event, before the answer is stored; then the call is told whole, and its spans."""
    with under_way(tmp_path / "x.db", 0.6) as (rig, agent):
        (call,) = ask(rig, "GET", "calls?session=a").json["calls"]
        assert (call["seq"], call["decision"], call["recording"]["recorded"]["ending"]) == (1, "RECORD", "complete")
        assert "agent_output" in {span["kind"] for span in ask(rig, "GET", "spans?session=a").json["spans"]}
        agent.until(b"0\r\n\r\n")


@pytest.mark.usefixtures("impatient")
def test_a_walk_that_cannot_wait_any_longer_says_how_many_are_open(tmp_path: Path) -> None:
    """A call of minutes holds nobody up; it is told when it is over."""
    with under_way(tmp_path / "x.db", 1, mark=b"") as (rig, agent):
        told = ask(rig, "GET", "calls?session=a").json
        assert (told["arrived"], told["open"], told["calls"]) == (1, 1, [])
        agent.until(b"0\r\n\r\n")
        rig.wait_idle()
        assert ask(rig, "GET", "calls?session=a&after=0").json["calls"][0]["seq"] == 1
        for query in ("calls", "calls?session=", "calls?session=a&after=x", "spans"):
            assert ask(rig, "GET", query).status == 400


# --- many ------------------------------------------------------------------------------------------------------------

SESSIONS, ASKED = 200, 8
QUESTIONS = [f"question {n}" for n in range(ASKED)]


def walk_of(n: int) -> list[str]:
    return random.Random(n).sample(QUESTIONS * 2, ASKED)


class Client:
    """A client of its own connection, one of hundreds in one event loop."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def ask(self, data: bytes) -> tuple[int, Any]:
        self.writer.write(data)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if "transfer-encoding: chunked" in head:
            body = b""
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                body += (await self.reader.readexactly(size + 2))[:size]
            await self.reader.readline()
        else:
            body = await self.reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
        return int(head.split(" ", 2)[1]), json.loads(body)


async def walk(port: int, n: int) -> dict[str, Any]:
    """Open session n, walk it, and close it; every answer must be its own, in its own order."""
    name, seen = f"session-{n}", dict.fromkeys(QUESTIONS, 0)
    async with Client(port) as c:
        assert (await c.ask(control("POST", "sessions", {"name": name})))[0] == 201
        for text in walk_of(n):
            seen[text] += 1
            status, answer = await c.ask(in_session(name, text))
            assert (status, answer["choices"][0]["message"]["content"]) == (200, f"{name}: {text} #{seen[text]}")
            await asyncio.sleep(0)
        if n % 10 == 0:
            assert (await c.ask(in_session(name, "never recorded")))[0] == 404
        status, closed = await c.ask(control("POST", f"sessions/{name}/close"))
        assert status == 200
        return dict(closed)


@pytest.mark.slow
def test_200_sessions_at_once_over_one_proxy(tmp_path: Path) -> None:
    """All ask the same questions, each in an order of its own, and each has other answers: none mixed, counts exact."""
    rows = []
    for n in range(SESSIONS):
        nth = dict.fromkeys(QUESTIONS, 0)
        for text in walk_of(n):
            nth[text] += 1
            rows.append((f"session-{n}", text, f"session-{n}: {text} #{nth[text]}"))
        rows.append((f"session-{n}", "left over", "unused"))
    store = tape(tmp_path / "x.db", *rows)

    async def everybody(port: int) -> list[dict[str, Any]]:
        return await asyncio.gather(*(walk(port, n) for n in range(SESSIONS)))

    with proxy("replay", store, options=("--quiet",)) as px:
        closed = asyncio.run(everybody(px.port))
        assert px.control("sessions") == {"sessions": []}
    for n, each in enumerate(closed):
        missed = int(n % 10 == 0)
        assert (each["name"], each["hits"], each["misses"], each["live_calls"]) == (f"session-{n}", ASKED, missed, 0)
        assert ([row["text"] for row in each["unused"]], each["unused_total"]) == (["left over"], 1)
        assert each["tokens"] == {"input": 11 * ASKED, "output": 2 * ASKED}
        assert each["parties"]["agent"]["calls"] == ASKED
    assert f"{SESSIONS * ASKED:,} hits, {SESSIONS // 10} misses, 0 recorded, {SESSIONS} unused" in px.stdout


def test_sessions_that_record_at_once_do_not_mix(tmp_path: Path) -> None:
    """40 sessions of one proxy record the same questions; each hears its own, each cassette holds them, and each close counts exactly."""
    store, many = tmp_path / "x.db", 40
    steps = tuple(Step(Reply(f"live {text}"), user=text, times=None) for text in QUESTIONS)

    async def record(port: int, n: int) -> dict[str, Any]:
        async with Client(port) as c:
            assert (await c.ask(control("POST", "sessions", {"name": f"s{n}"})))[0] == 201
            for text in walk_of(n)[: 1 + n % 3]:
                status, answer = await c.ask(in_session(f"s{n}", text))
                assert (status, answer["choices"][0]["message"]["content"]) == (200, f"live {text}")
            return dict((await c.ask(control("POST", f"sessions/s{n}/close")))[1])

    async def everybody(port: int) -> list[dict[str, Any]]:
        return await asyncio.gather(*(record(port, n) for n in range(many)))

    with Provider(Script(steps, ordered=False)) as p, proxy("record", store, upstreams={"openai": p.url}) as px:
        closed = asyncio.run(everybody(px.port))
        assert len(p.requests) == sum(1 + n % 3 for n in range(many))
    assert [each["recorded"] for each in closed] == [1 + n % 3 for n in range(many)]
    assert [each["unused"] for each in closed] == [[]] * many
    with SqliteCassetteStore.open(store, writable=False, now=time.time) as found:
        assert {each.name: (each.live, each.closed_cleanly) for each in found.cassettes()} == {
            f"s{n}": (1 + n % 3, True) for n in range(many)
        }
    kept = [(each.cassette, json.loads(each.request.body)["messages"][0]["content"]) for each in recorded(store)]
    assert sorted(kept) == sorted((f"s{n}", text) for n in range(many) for text in walk_of(n)[: 1 + n % 3])


def test_hundreds_of_open_sessions_are_listed(tmp_path: Path) -> None:
    store = tape(tmp_path / "x.db", *((f"s{n}", "hi", "ok") for n in range(300)))
    with Rig("replay", store) as rig, rig.client() as c:
        for n in range(300):
            c.ask(control("POST", "sessions", {"name": f"s{n}"}))
        assert len(c.ask(control("GET", "sessions")).json["sessions"]) == 300


def test_opening_one_name_at_once_has_one_winner(tmp_path: Path) -> None:
    """Of twenty clients that open the same session one gets it, the others are told 409."""
    with Rig("replay", tmp_path / "x.db") as rig:
        with ThreadPoolExecutor(20) as threads:
            found = threads.map(lambda _: ask(rig, "POST", "sessions", {"name": "a"}).status, range(20))
        assert sorted(found) == [201] + [409] * 19


def test_two_proxies_record_one_cassette(store: Path) -> None:
    """The second is refused with the holder's name; after the first has closed it may."""
    upstream = {"openai": f"http://127.0.0.1:{free_port()}"}
    with proxy("replay", store, upstreams=upstream, options=("--allow-live",), name="one", alone=True) as one:
        one.control("sessions", {"name": "a", "mode": "record"})
        with Rig("replay", store, upstream, allow_live=True) as rig:
            refused = ask(rig, "POST", "sessions", {"name": "a", "mode": "record"})
            assert (refused.status, refused.json["error"]["code"]) == (409, "llmproxy_cassette_busy")
            assert f"llmproxy {one.popen.pid}" in refused.json["error"]["message"]
            one.control("sessions/a/close", {})
            assert ask(rig, "POST", "sessions", {"name": "a", "mode": "record"}).status == 201


def test_a_body_of_the_traffic_is_not_control(tmp_path: Path) -> None:
    """Only the path decides; a session's URL cannot reach the API behind it."""
    with Rig("replay", tmp_path / "x.db") as rig, rig.client() as c:
        assert c.ask(request(body_of(), "/s/a/_llmproxy/sessions", host="127.0.0.1")).status in (400, 404)
        assert "sessions" not in c.ask(control("GET", "health")).json
