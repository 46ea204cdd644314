"""Replay: the same bytes in the same chunks, whatever the request looks like on the wire, and nothing goes upstream."""

from __future__ import annotations

import gzip
import http.client
import json
import shutil
import ssl
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.core.sessions.session import EndedCallLog
from llmproxy.core.traffic.interaction import Chunk, Ending, Response
from llmproxy.mitm.http1.request_handling import split_absolute_target
from llmproxy.mitm.http1_parser import Head, parse_head
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, connected, recorded
from tests.mitm.wire import CHAT, Received, Wire, body_of, chat, chunked, request
from tests.provider import Answer, Piece, Provider, Reply, Script, Step, event, failed, json_answer, throttled
from tests.support.chats import chat as recorded_chat, fill

SSE = (("content-type", "text/event-stream"),)
PARTS = (b'data: {"choices":[{"delta":{"content":"Gr\xc3', b'\xbc\xc3\x9fe"}}]}\n\ndata: ', b"[DONE]\n\n")
STREAM = Answer(200, (*SSE, ("x-request-id", "req_1")), tuple(Piece(part, 0.2) for part in PARTS), "chunked")
TOOL_CALL = Answer(200, SSE, (Piece(event({"choices": [{"delta": {"tool_calls": []}}]})), Piece(b"never")), "chunked")

STEPS = (
    Step(Reply("hello"), user="hi"),
    Step(STREAM, user="stream"),
    Step(TOOL_CALL.cut(1), user="cut"),
    Step(throttled(20), user="again"),
    Step(Reply("at last"), user="again"),
    Step(Reply("one"), user="count"),
    Step(Reply("two"), user="count"),
    Step(failed(500), user="count"),
    Step(json_answer({"until": "close"}).framed("close"), user="close"),
    Step(json_answer({"data": []}), method="HEAD", path="/v1/models"),
    Step(json_answer({"data": [1]}), method="GET", path="/v1/models"),
    Step(Answer(204, (), framing="close"), method="DELETE"),
    Step(Reply("party"), user="party"),
)
ASKED = (
    chat("hi"),
    chat("stream", stream=True),
    chat("cut", stream=True),
    chat("again"),
    chat("again"),
    chat("count"),
    chat("count"),
    chat("count"),
    chat("close"),
    request(method="HEAD", target="/v1/models", content_length=""),
    request(method="GET", target="/v1/models", content_length=""),
    request(method="DELETE", target="/v1/files/file-1", content_length=""),
    chat("party", headers={"x-llmproxy-party": "judge"}),
)


@pytest.fixture(scope="module")
def taped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Received]]:
    """Return a store with the dialogue above, and what the client got when it was recorded."""
    store = tmp_path_factory.mktemp("tape") / "x.db"
    got = []
    with Provider(Script(STEPS)) as p, Rig("record", store, {"openai": p.url}) as rig:
        for asked in ASKED:
            with rig.client() as c:
                got.append(c.ask(asked, asked.split(b" ", 1)[0].decode()))
        rig.wait_idle()
        p.finish()
    return store, got


@pytest.fixture
def tape(taped: tuple[Path, list[Received]]) -> Path:
    return taped[0]


# --- the same bytes -------------------------------------------------------------------------------------------------------


def test_replay_equals_the_recording(taped: tuple[Path, list[Received]]) -> None:
    """Status, body and chunks are what the client got when it was recorded; a cut is a cut again."""
    store, recordings = taped
    assert [before.whole for before in recordings].count(False) == 1
    with Rig("replay", store) as rig:
        for asked, before in zip(ASKED, recordings, strict=True):
            with rig.client() as c:
                after = c.ask(asked, asked.split(b" ", 1)[0].decode())
            assert (after.status, after.body, after.whole) == (before.status, before.body, before.whole), asked
            if before.frames:
                assert after.frames == before.frames
            assert after.headers.get("x-request-id") == before.headers.get("x-request-id")
            assert after.headers["x-llmproxy-cache"] == "hit"
        rig.wait_idle()
        assert [outcome.decision for outcome in rig.outcomes] == [Decision.REPLAY] * len(ASKED)


def test_the_store_does_not_change_in_replay(tape: Path) -> None:
    """Replay reads; no byte of the store, and no file beside it but the journal, is new."""
    before = tape.read_bytes()
    with Rig("replay", tape) as rig, rig.client() as c:
        assert c.ask(chat("hi")).status == 200
        assert c.ask(chat("unheard of")).status == 404
    assert tape.read_bytes() == before
    assert {path.name for path in tape.parent.iterdir()} <= {"x.db", "x.db.state.db"}


def test_at_once_means_at_once(tmp_path: Path) -> None:
    """Speed 0 does not wait for what was recorded an hour apart: the client has patience for two minutes."""
    hour = 3_600_000_000
    chunks = tuple(Chunk(hour * number, part) for number, part in enumerate(PARTS, 1))
    made = recorded_chat("hi", response=Response(200, "OK", SSE, chunks, Ending.COMPLETE))
    fill(tmp_path / "x.db", made)
    with Rig("replay", tmp_path / "x.db") as rig, rig.client() as c:
        assert c.ask(request(made.request.body)).body == b"".join(PARTS)


@pytest.mark.parametrize(("speed", "least"), [(1, 0.19), (2, 0.09)])
def test_as_recorded_means_in_its_own_time(tape: Path, speed: float, least: float) -> None:
    """No chunk comes earlier than it was recorded, divided by the speed."""
    with Rig("replay", tape, speed=speed) as rig, rig.client() as c:
        began = time.monotonic()
        c.send(chat("stream", stream=True)).head()
        at = [began]
        for part in PARTS:
            c.until(part + b"\r\n")
            at.append(time.monotonic())
        # From the start: a chunk that came late does not put off the next one.
        assert all(came - began > number * least for number, came in enumerate(at) if number), at
        assert c.until(b"0\r\n\r\n")


def test_a_client_that_leaves_a_paced_replay_uses_its_turn(tape: Path) -> None:
    """The timer does not go on for nobody, and the occurrence stays used."""
    with Rig("replay", tape, speed=1, exhausted="miss") as rig:
        with rig.client() as c:
            c.send(chat("stream", stream=True)).until(PARTS[0])
        (outcome,) = rig.wait_outcomes(1)
        assert (outcome.decision, outcome.note) == (Decision.REPLAY, "client left")
        rig.wait_idle()
        with rig.client() as c:
            assert c.ask(chat("stream", stream=True)).status == 404


# --- what a request may look like -----------------------------------------------------------------------------------------

BODY = body_of("hi")
SPELLINGS = {
    "plain": chat("hi"),
    "upper-case names": chat("hi").replace(b"content-length", b"CONTENT-LENGTH").replace(b"host", b"HOST"),
    "no space after the colon": chat("hi").replace(b"length: ", b"length:").replace(b"host: ", b"host:\t"),
    "HTTP/1.0": request(BODY, version="HTTP/1.0"),
    "absolute form": request(BODY, "http://api.openai.com/v1/chat/completions"),
    "absolute form, https": request(BODY, "https://api.openai.com:443/v1/chat/completions", host="api.openai.com"),
    "chunked": chunked(BODY, 10),
    "chunked, byte by byte": chunked(BODY, 1),
    "chunk extensions and trailers": chunked(BODY, 30, end=b"000;a=b\r\nx-sum: 1\r\n\r\n").replace(
        b"\r\n1e\r\n", b"\r\n1E ; x\r\n"
    ),
    "gzip": request(gzip.compress(BODY), content_encoding="gzip"),
    "deflate": request(zlib.compress(BODY), content_encoding="deflate"),
    "gzip in chunks": chunked(gzip.compress(BODY), 16, content_encoding="gzip"),
    "empty lines before": b"\r\n\r\n" + chat("hi"),
    "other spelling of the JSON": request(json.dumps(json.loads(BODY), indent=3).replace("hi", "\\u0068i").encode()),
    "an h2c invitation": chat("hi", headers={"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c"}),
    "another key and agent": chat("hi", headers={"authorization": "Bearer other", "user-agent": "curl/8"}),
    "expect, body at once": chat("hi", headers={"expect": "100-continue"}),
}


@pytest.fixture(scope="module")
def player(taped: tuple[Path, list[Received]]) -> Iterator[Rig]:
    """Replay for all tests that do not mind each other."""
    with Rig("replay", taped[0]) as rig:
        yield rig


class TestOnOneProxy:
    @pytest.mark.parametrize("raw", SPELLINGS.values(), ids=SPELLINGS.keys())
    def test_however_a_request_is_written_it_is_the_same(
        self, player: Rig, taped: tuple[Path, list[Received]], raw: bytes
    ) -> None:
        """Framing, spelling and compression are not part of the question."""
        with player.client() as c:
            answer = c.ask(raw)
        assert (answer.status, answer.body) == (200, taped[1][0].body)

    @pytest.mark.parametrize("raw", [SPELLINGS["plain"], SPELLINGS["gzip in chunks"], SPELLINGS["HTTP/1.0"]])
    def test_byte_by_byte(self, player: Rig, raw: bytes) -> None:
        with player.client() as c:
            for at in range(len(raw)):
                c.send(raw[at : at + 1])
                if at < 20:
                    time.sleep(0.003)  # really packets of their own, where the kind of connection is guessed
            assert c.response().status == 200

    def test_keep_alive(self, player: Rig) -> None:
        """One connection serves many requests, and HTTP/1.0 one unless it asks for more."""
        with player.client() as c:
            for _ in range(50):
                assert c.ask(chat("hi")).status == 200
            assert c.ask(chat("hi", headers={"connection": "close"})).headers["connection"] == "close"
            assert c.rest() == b""
        with player.client() as c:
            assert c.ask(request(BODY, version="HTTP/1.0")).status == 200
            assert c.rest() == b""
        with player.client() as c:
            for _ in range(2):
                answer = c.ask(request(BODY, version="HTTP/1.0", connection="Keep-Alive"))
                assert answer.headers["connection"] == "keep-alive"

    def test_an_old_client_gets_a_stream_until_close(self, player: Rig) -> None:
        """HTTP/1.0 knows no chunks."""
        with player.client() as c:
            answer = c.ask(request(body_of("stream", stream=True), version="HTTP/1.0"))
            assert (answer.body, answer.frames) == (b"".join(PARTS), ())

    def test_pipelining(self, player: Rig) -> None:
        """Several requests in one packet, hits, misses and odd heads, are answered in order."""
        odd = request(b"", "/v1/models/x", "GET")
        asked = [chat("hi"), chat("stream", stream=True), chat("nobody said this"), chat("hi"), odd, chat("hi")]
        with player.client() as c:
            c.send(b"".join(asked * 4))
            got = [c.response() for _ in asked * 4]
        assert [answer.status for answer in got] == [200, 200, 404, 200, 404, 200] * 4
        assert [answer.frames for answer in got[1::6]] == [PARTS] * 4

    def test_expect(self, player: Rig) -> None:
        """A client that waits is told to go on, also before a miss."""
        for text, status in (("hi", 200), ("not there", 404)):
            whole = chat(text, headers={"expect": "100-continue"})
            at = whole.index(b"\r\n\r\n") + 4
            with player.client() as c:
                assert c.ask(whole[:at]).status == 100
                assert c.ask(whole[at:]).status == status

    def test_http_client_of_the_standard_library(self, player: Rig) -> None:
        """A client that others wrote reads it: JSON, stream, HEAD, GET, DELETE."""
        connection = http.client.HTTPConnection("127.0.0.1", player.port, timeout=10)
        for method, target, body, size in (
            ("POST", CHAT, BODY, None),
            ("POST", CHAT, body_of("stream", stream=True), len(b"".join(PARTS))),
            ("HEAD", "/v1/models", None, 0),
            ("GET", "/v1/models", None, 12),
            ("DELETE", "/v1/files/file-1", None, 0),
            ("POST", CHAT, BODY, None),
        ):
            connection.request(method, target, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            got = answer.read()
            assert answer.status in (200, 204)
            assert size in (None, len(got))
        connection.close()

    def test_https_straight_at_the_port(self, player: Rig) -> None:
        """The same listener speaks TLS to whoever begins with it, the first and the next."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for _ in range(2):
            with Wire(player.port, tls=context) as c:
                assert c.ask(chat("hi")).status == 200
                assert c.ask(chat("stream", stream=True)).frames == PARTS
                assert c.ask(chat("never said")).status == 404

    def test_parties_are_apart(self, player: Rig) -> None:
        """What the judge asked is not the agent's, and a party that nobody knows is refused, not guessed."""
        with player.client() as c:
            assert c.ask(chat("party")).status == 404
            assert c.ask(chat("party", headers={"x-llmproxy-party": "judge"})).status == 200
            assert c.ask(chat("party", headers={"x-llmproxy-party": "jugde"})).status == 400

    def test_a_miss_is_said_in_the_providers_dialect(self, player: Rig) -> None:
        """One attempt, readable, and the connection goes on."""
        with player.client() as c:
            got = c.ask(chat("hi there"))
            assert (got.status, got.headers["x-should-retry"], got.headers["x-llmproxy-cache"]) == (
                404, "false", "miss",
            )  # fmt: skip
            assert "hi there" in got.message
            claude = c.ask(request(body_of(), "/v1/messages"))
            assert (claude.status, claude.json["error"]["type"]) == (400, "invalid_request_error")
            gemini = c.ask(request(b'{"contents":[]}', "/v1beta/models/gemini-2.5-flash:generateContent"))
            assert gemini.json["error"]["status"] == "NOT_FOUND"
            assert c.ask(chat("hi")).status == 200

    def test_nothing_is_left_open(self, player: Rig) -> None:
        """After all of the above, each exchange was reported exactly once and forgotten."""
        player.wait_idle()
        asked = len(player.outcomes)
        with player.client() as c:
            c.ask(chat("hi"))
        player.wait_idle()
        assert len(player.outcomes) == asked + 1


# --- turns ----------------------------------------------------------------------------------------------------------------


def said(answer: Received) -> str:
    return str(answer.json["choices"][0]["message"]["content"]) if answer.status == 200 else str(answer.status)


@pytest.mark.parametrize(("exhausted", "turns"), [
    ("last", ["one", "two", "500", "two", "two"]),
    ("cycle", ["one", "two", "500", "one", "two"]),
    ("miss", ["one", "two", "500", "404", "404"]),
])  # fmt: skip
def test_the_nth_request_gets_the_nth_recording(tape: Path, exhausted: str, turns: list[str]) -> None:
    """After the last one the rule says what comes; a failure is never repeated as the last."""
    with Rig("replay", tape, exhausted=exhausted) as rig, rig.client() as c:
        assert [said(c.ask(chat("count"))) for _ in turns] == turns


def test_a_recorded_retry_replays_as_a_retry_without_the_pause(tape: Path) -> None:
    """SDKs obey one millisecond; the recorded 20 s stand beside it. In its time it is scaled with the speed."""
    with Rig("replay", tape) as rig, rig.client() as c:
        first = c.ask(chat("again"))
        assert (first.status, first.headers["retry-after"], first.headers["retry-after-ms"]) == (429, "0", "1")
        assert first.headers["x-llmproxy-recorded-retry-after"] == "20"
        assert said(c.ask(chat("again"))) == "at last"
    with Rig("replay", tape, speed=100) as rig, rig.client() as c:
        first = c.ask(chat("again"))
        assert first.headers["retry-after"] == "1"
        assert "x-llmproxy-recorded-retry-after" not in first.headers


def test_the_second_run_of_an_agent_gets_the_same_answers(tape: Path) -> None:
    """A session that nobody opened starts anew when its first request comes again after its recordings are used up."""
    with Rig("replay", tape, exhausted="miss") as rig, rig.client() as c:
        runs = [[said(c.ask(chat(text))) for text in ("hi", "count", "count", "again", "again")] for _ in range(3)]
    assert runs == [["hello", "one", "two", "429", "at last"]] * 3


def test_sessions_are_apart(tape: Path, store: Path) -> None:
    """By URL, by header, by sample: each walks by itself, through its own cassette."""
    steps = tuple(Step(Reply(f"{n}"), user="hi") for n in range(4))
    names = ("/s/a/v1", "/s/a~2/v1", "/s/b%20b/v1")
    with Provider(Script(steps)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        for name in names:
            assert c.ask(chat(target=f"{name}/chat/completions")).status == 200
        assert c.ask(chat(headers={"x-llmproxy-session": "h"})).status == 200
    assert [(made.cassette, made.sample) for made in recorded(store)] == [("a", 1), ("a", 2), ("b b", 1), ("h", 1)]
    with Rig("replay", store) as rig, rig.client() as c:
        for n, name in reversed(list(enumerate(names))):
            assert said(c.ask(chat(target=f"{name}/chat/completions"))) == f"{n}"
        assert said(c.ask(chat(headers={"x-llmproxy-session": "b b"}))) == "2"
        assert said(c.ask(chat(target="/s/h/v1/chat/completions"))) == "3"
        for missing in ("/s/a~3/v1", "/s/c/v1", "/v1"):
            assert c.ask(chat(target=f"{missing}/chat/completions")).status == 404


# --- hits and misses on one connection ------------------------------------------------------------------------------------


def test_a_hit_after_a_miss_on_one_connection_is_exact(tape: Path, store: Path) -> None:
    """The layer takes the connection back after what it handed on; one connection upstream serves all misses."""
    shutil.copy(tape, store)
    new = tuple(Step(Reply("new"), contains=f"new {n}") for n in range(3))
    with Provider(Script(new)) as p, Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
        assert c.ask(chat("stream", stream=True)).frames == PARTS
        assert c.ask(chat("new 0", stream=True)).headers["x-llmproxy-cache"] == "recorded"
        assert said(c.ask(chat("hi"))) == "hello"
        assert c.ask(chat("new 1")).headers["x-llmproxy-cache"] == "recorded"
        assert c.ask(chat("close")).frames
        c.send(chat("count") + chat("new 2") + chat("count"))  # and all of it in one packet
        got = [c.response() for _ in range(3)]
        assert [said(answer) for answer in got] == ["one", "new", "two"]
        assert [answer.headers["x-llmproxy-cache"] for answer in got] == ["hit", "recorded", "hit"]
        rig.wait_idle()
        assert p.connections == 1


def test_pipelined_misses_are_forwarded_one_by_one(tmp_path: Path) -> None:
    """The forwarder gets exactly one request at a time."""
    steps = tuple(Step(Reply(f"{n}"), user=f"{n}") for n in range(5))
    for mode in ("auto", "record"):
        with connected(Provider(Script(steps)), mode, tmp_path / f"{mode}.db") as (_, c):
            c.send(b"".join(chat(f"{n}") if n % 2 else chunked(body_of(f"{n}"), 9) for n in range(5)))
            assert [said(c.response()) for _ in range(5)] == ["0", "1", "2", "3", "4"]
        assert len(recorded(tmp_path / f"{mode}.db")) == 5


# --- modes ----------------------------------------------------------------------------------------------------------------


def test_auto_takes_no_bad_day_for_an_answer(store: Path) -> None:
    """Transient and authentication errors, and incomplete answers, are recorded and asked anew."""
    bad = (throttled(1), failed(500), json_answer({"error": {"message": "no"}}, 401), TOOL_CALL.cut(1))
    for n, answer in enumerate(bad):
        with Provider(Script((Step(answer), Step(Reply("good"))))) as p, Rig("auto", store, {"openai": p.url}) as rig:
            for _ in range(2):
                with rig.client() as c:
                    c.ask(chat("hi", target=f"/s/{n}/v1/chat/completions"))
            rig.wait_idle()
            p.finish()
        with Provider() as p, Rig("auto", store, {"openai": p.url}) as rig:
            for _ in range(3):  # the same agent, three times against one proxy
                with rig.client() as c:
                    assert said(c.ask(chat("hi", target=f"/s/{n}/v1/chat/completions"))) == "good"
                    break
            assert p.connections == 0
        with Rig("replay", store) as rig, rig.client() as c:
            assert c.ask(chat("hi", target=f"/s/{n}/v1/chat/completions")).status == answer.status


def test_the_second_run_in_auto_is_answered_from_the_store_also_after_a_retry(store: Path) -> None:
    """Recordings that auto never plays do not keep a session from starting anew."""
    steps = (Step(throttled(1), user="a"), Step(Reply("A"), user="a"), Step(Reply("B"), user="b"))
    with Provider(Script(steps)) as p, Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
        assert [said(c.ask(chat(text))) for text in ("a", "a", "b")] == ["429", "A", "B"]
    with Provider() as p, Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
        assert [said(c.ask(chat(text))) for text in ("a", "b") * 3] == ["A", "B"] * 3
        assert p.requests == []


def test_the_first_auto_run_equals_record(store: Path) -> None:
    """A key first met in this session is asked each time it comes in it, and appended."""
    steps = tuple(Step(Reply(f"{n}"), user="hi") for n in range(3))
    with Provider(Script(steps)) as p, Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
        assert [said(c.ask(chat("hi"))) for _ in range(3)] == ["0", "1", "2"]
    with Rig("replay", store) as rig, rig.client() as c:
        assert [said(c.ask(chat("hi"))) for _ in range(3)] == ["0", "1", "2"]


def test_record_replaces_per_key_and_keeps_the_rest(store: Path) -> None:
    """The first new recording of a key takes the place of all older ones; keys that did not come stay."""
    for round_, texts in enumerate((("a", "a", "b"), ("a",))):
        steps = tuple(Step(Reply(f"{text}{round_}{n}")) for n, text in enumerate(texts))
        with Provider(Script(steps)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
            for text in texts:
                assert c.ask(chat(text)).status == 200
    with Rig("replay", store, exhausted="miss") as rig, rig.client() as c:
        assert [said(c.ask(chat(text))) for text in ("a", "a", "b")] == ["a10", "404", "b02"]


def test_once_adds_what_is_missing_until_the_cassette_is_whole(store: Path) -> None:
    """What was cut is asked for again, and only that; when nothing is missing any more, what is not in the cassette is refused."""
    steps = (Step(Reply("A"), user="a"), Step(TOOL_CALL.cut(1), user="cut"))
    with Provider(Script(steps)) as p, Rig("once", store, {"openai": p.url}) as rig:
        for text in ("a", "cut"):
            with rig.client() as c:
                assert c.ask(chat(text, stream=text == "cut")).status == 200
    with Provider(Script((Step(Reply("B"), user="cut"),))) as p, Rig("once", store, {"openai": p.url}) as rig:
        with rig.client() as c:
            assert said(c.ask(chat("a", stream=False))) == "A"
        with rig.client() as c:
            assert c.ask(chat("cut", stream=True)).status == 200
        rig.wait_idle()
        assert len(p.requests) == 1
    with Provider() as p, Rig("once", store, {"openai": p.url}) as rig, rig.client() as c:
        assert said(c.ask(chat("a", stream=False))) == "A"
        assert b"B" in c.ask(chat("cut", stream=True)).body
        assert c.ask(chat("b")).status == 404
        assert p.connections == 0


def test_passthrough_forwards_and_never_writes(store: Path) -> None:
    """It is shown and counted, and there is no store."""
    with Provider(Script((Step(Reply("live"), times=2),))) as p, Rig("passthrough", store, {"openai": p.url}) as rig:
        with rig.client() as c:
            for stream in (False, True):
                got = c.ask(chat("hi", stream=stream))
                assert (got.status, got.headers["x-llmproxy-cache"]) == (200, "passed")
        rig.wait_idle()
        assert [outcome.decision for outcome in rig.outcomes] == [Decision.PASS] * 2
        assert rig.outcomes[0].output == 1
    assert not store.exists()


# --- leaks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thousands_of_requests_on_one_connection_leave_nothing_behind(tape: Path, tmp_path: Path) -> None:
    """Memory of a connection does not grow with what passed over it, replayed or forwarded; what a session says of its last calls does."""
    import gc

    def objects(rig: Rig) -> int:
        for session in rig.proxy.engine.sessions.open_sessions.values():
            session.calls = EndedCallLog(arrived=session.calls.arrived)  # up to so many of them are kept, by design
        gc.collect()
        return len(gc.get_objects())

    def settled(rig: Rig) -> int:
        """Count when the journal's thread has written what came, however long this machine takes for it."""
        counts = [objects(rig)]
        while len(counts) < 4 or max(counts[-4:]) - min(counts[-4:]) > 50:
            time.sleep(0.2)
            counts.append(objects(rig))
        return counts[-1]

    def burst(c: Wire, number: int, each: bytes, at_once: int) -> None:
        for _ in range(number // at_once):
            c.send(each * at_once)
            for _ in range(at_once):
                assert c.response().status == 200

    with Rig("replay", tape) as rig, rig.client(60) as c:
        burst(c, 500, chat("hi"), 50)
        rig.wait_idle()
        rig.outcomes.clear()
        before = settled(rig)
        burst(c, 3000, chat("hi"), 50)
        rig.wait_idle()
        assert len(rig.outcomes) == 3000
        rig.outcomes.clear()
        assert settled(rig) - before < 333
    p = Provider(Script((Step(json_answer({}), times=None),)))
    with connected(p, "passthrough", tmp_path / "x.db") as (rig, c):
        for number in (50, 300):
            before = settled(rig)
            burst(c, number, chat("hi"), 1)
            rig.wait_idle()
            rig.outcomes.clear()
            p.requests.clear()
        assert settled(rig) - before < 300
        assert p.connections == 1


# --- pure parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "expected"), [
    ("/v1/x?y=http://z/", ("/v1/x?y=http://z/", None)),
    ("http://Api.OpenAI.com/v1/x", ("/v1/x", ("http", "api.openai.com", 80))),
    ("HTTPS://host", ("/", ("https", "host", 443))),
    ("https://host:8443?a=1", ("/?a=1", ("https", "host", 8443))),
    ("http://user:pw@host:81/p", ("/p", ("http", "host", 81))),
    ("http://[::1]:8080/v1", ("/v1", ("http", "::1", 8080))),
    ("http://[::1]/v1", ("/v1", ("http", "::1", 80))),
    ("ftp://host/x", ("ftp://host/x", None)),
])  # fmt: skip
def test_absolute_form_is_split(target: str, expected: object) -> None:
    """The origin form goes on, the host says where."""
    head: Head = parse_head(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert split_absolute_target(head) == expected
