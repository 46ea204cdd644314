"""Recording: what arrives is passed on at once, and written down exactly."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import threading
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from llmproxy.core.traffic.interaction import Ending, header
from llmproxy.mitm.recorder import (
    Fields,
    build_upstream_headers,
    merge_equal_content_lengths,
    simplify_connection_error,
)
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, connected, recorded
from tests.mitm.wire import CHAT, body_of, chat, chunked, request
from tests.provider import Answer, Piece, Provider, Reply, Script, Step, event, failed, json_answer, throttled
from tests.provider.answer import Cut, Framing
from tests.provider.script import Play
from tests.support import free_port
from tests.support.process import until

DONE = b"data: [DONE]\n\n"
CHUNK = {"object": "chat.completion.chunk"}
EVENTS = (*(event(CHUNK | {"choices": [{"delta": {"content": text}}]}) for text in ("Grüße", " ok")), DONE)
SSE = (("content-type", "text/event-stream; charset=utf-8"),)


def sse(*parts: bytes, framing: Framing = "chunked", wait: float = 0.02) -> Answer:
    """Answer with a stream whose pieces come `wait` seconds apart."""
    return Answer(200, SSE, tuple(Piece(part, wait) for part in parts), framing)


def upstream(*answers: Answer | Reply) -> Provider:
    return Provider(Script(tuple(Step(answer) for answer in answers)))


def leave(rig: Rig, mark: bytes = EVENTS[0]) -> None:
    """Ask for a stream, and leave once `mark` came."""
    with rig.client() as c:
        c.send(chat(stream=True)).until(mark)
    rig.wait_outcomes(1)
    rig.wait_idle()


# --- the body, as it comes ------------------------------------------------------------------------------------------------


def test_a_stream_reaches_the_client_while_the_upstream_still_speaks(tmp_path: Path) -> None:
    """The first chunk is here before the last one is sent."""
    seen = threading.Event()
    answer = Answer(200, SSE, (*map(Piece, EVENTS[:-1]), Piece(EVENTS[-1], after=seen)), "chunked")
    with connected(upstream(answer), "record", tmp_path / "x.db") as (_, c):
        c.send(chat(stream=True)).head()
        c.until(EVENTS[0])
        seen.set()
        c.until(b"0\r\n\r\n")


BORDERS = {
    "as sent": EVENTS,
    "inside a character": (b'data: {"choices":[{"delta":{"content":"Gr\xc3', b'\xbc\xc3\x9fe"}}]}\n\n', DONE),
    "inside an event": (EVENTS[0][:9], EVENTS[0][9:] + EVENTS[1][:3], EVENTS[1][3:] + DONE),
    "byte by byte": tuple(bytes([byte]) for byte in b"data: {}\n\n" + DONE),
}


@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize("parts", BORDERS.values(), ids=BORDERS.keys())
def test_borders_and_times_of_chunks_are_kept(tmp_path: Path, parts: tuple[bytes, ...], framing: Framing) -> None:
    """What arrived together is stored and passed on together, with the moment of its arrival."""
    store, wait = tmp_path / "x.db", 0.06 if len(parts) < 5 else 0.02
    made_up = sse(*parts, framing=framing, wait=wait)
    with upstream(made_up) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        answer = c.ask(chat(stream=True))
        assert answer.body == b"".join(parts)
        if framing == "chunked":
            assert answer.frames == parts
    (made,) = recorded(store)
    kept = tuple(chunk.data for chunk in made.response.chunks)
    if framing == "chunked":
        assert kept == parts
    else:  # a busy machine may read two together, and never cuts one
        assert set(accumulate(map(len, kept))) <= set(accumulate(map(len, parts)))
    assert made.response.chunked
    assert made.response.ending is Ending.COMPLETE
    offsets = [made.response.head_offset, *(chunk.offset for chunk in made.response.chunks)]
    assert offsets == sorted(offsets)
    assert offsets[-1] > len(parts) * wait * 900_000, "microseconds since the request was released"


SENT = (
    ("host and coding are set where they stood", ((b"HOST", b"x"), (b"Accept-Encoding", b"gzip"), (b"A", b"1")),
     ((b"HOST", b"up:1"), (b"Accept-Encoding", b"identity"), (b"A", b"1"))),
    ("or added at the end", ((b"a", b"1"),), ((b"a", b"1"), (b"host", b"up:1"), (b"accept-encoding", b"identity"))),
    ("once", ((b"host", b"x"), (b"Host", b"y"), (b"accept-encoding", b"gzip"), (b"accept-encoding", b"br")),
     ((b"host", b"up:1"), (b"accept-encoding", b"identity"))),
    ("a signature covers the coding", ((b"Authorization", b"AWS4-HMAC-SHA256 x"), (b"accept-encoding", b"gzip")),
     ((b"Authorization", b"AWS4-HMAC-SHA256 x"), (b"accept-encoding", b"gzip"), (b"host", b"up:1"))),
    ("what was meant for us stays here", ((b"X-LLMProxy-Session", b"s"), (b"TE", b"trailers"), (b"Expect", b"100-continue"),
     (b"Upgrade", b"h2c"), (b"b", b"2"), (b"b", b"3")), ((b"b", b"2"), (b"b", b"3"), (b"host", b"up:1"), (b"accept-encoding", b"identity"))),
)  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), [each[1:] for each in SENT], ids=[each[0] for each in SENT])
def test_the_fields_that_go_upstream(fields: Fields, expected: Fields) -> None:
    """Every other field goes on as it came, in its place."""
    assert build_upstream_headers(fields, b"up:1", socket=False) == expected
    upgrade = (b"upgrade", b"websocket")
    assert upgrade in build_upstream_headers((*fields, upgrade), b"up:1", socket=True)


def test_nothing_finished_is_unstored(store: Path) -> None:
    """When the client has the end of its answer, the answer is in the store."""
    with upstream(*[Reply("yes")] * 20) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        for n in range(20):
            assert c.ask(chat(f"{n}", stream=bool(n % 2))).whole
            assert len(recorded(store)) == n + 1


@pytest.mark.parametrize("mode", ["record", "auto", "once"])
def test_the_reading_connection_stays_with_the_event_loop(tmp_path: Path, mode: str) -> None:
    """Read by the writer's thread as well, it misses rows that were just written: under load answers counted as lost, and were stored twice."""
    threads: set[str] = set()
    with connected(Provider(Script((Step(Reply("a"), times=None),))), mode, tmp_path / "x.db") as (rig, c):
        assert c.ask(chat("first")).status == 200
        store = rig.proxy.engine.store
        assert store is not None
        store.conn.set_trace_callback(lambda _: threads.add(threading.current_thread().name))
        for n in range(5):
            assert c.ask(chat(f"{n}", stream=bool(n % 2))).whole
        rig.wait_idle()
        store.conn.set_trace_callback(None)
    assert {name for name in threads if name.startswith("llmproxy-writer")} == set()


NOT_UNDONE = {
    "trailing bytes": ("gzip", gzip.compress(b"{}") + b"and more"),
    "none at all": ("gzip", b"{}"),
    "a coding nobody knows": ("foo", b"{}"),
    "once for twice": ("gzip, gzip", gzip.compress(b"{}")),
    "over the limit": ("gzip", gzip.compress(bytes((64 << 20) + 1), 1)),
}


@pytest.mark.parametrize("what", NOT_UNDONE)
def test_an_answer_that_cannot_be_decoded_is_replayed_with_its_coding(tmp_path: Path, what: str) -> None:
    """Its bytes are kept as they came; without the field that says how to read them another answer would be replayed."""
    store, (coding, body) = tmp_path / "x.db", NOT_UNDONE[what]
    fields = (("content-type", "application/json"), ("content-encoding", coding))
    with connected(upstream(Answer(200, fields, (Piece(body),), "length")), "record", store) as (_, c):
        live = c.ask(chat())
    assert (live.headers["content-encoding"], live.body) == (coding, body)
    with Rig("replay", store) as rig, rig.client() as c:
        again = c.ask(chat())
    assert (again.status, again.headers.get("content-encoding"), again.body) == (200, coding, body)


# --- statuses and framings ------------------------------------------------------------------------------------------------

ERROR_EVENT = event({"error": {"message": "overloaded", "type": "server_error"}})
ANSWERS = {
    "429": (throttled(7), 429, Ending.COMPLETE),
    "500": (failed(500), 500, Ending.COMPLETE),
    "503 without a body": (Answer(503, ()), 503, Ending.COMPLETE),
    "error event ends the stream": (sse(EVENTS[0], ERROR_EVENT), 200, None),
    "no terminator": (sse(EVENTS[0]), 200, Ending.UNTERMINATED),
    "204": (Answer(204, (), framing="close"), 204, Ending.COMPLETE),
    "304": (Answer(304, (("etag", '"x"'),), framing="close"), 304, Ending.COMPLETE),
    "until close": (json_answer({"a": 1}).framed("close"), 200, None),
    "empty": (Answer(200), 200, Ending.COMPLETE),
    "repeated fields": (Answer(200, (("x-a", "1"), ("x-a", "2"))), 200, Ending.COMPLETE),
    "103 first": (Answer(200, interim=(103,), pieces=(Piece(b"{}"),)), 200, Ending.COMPLETE),
    "100 first": (Answer(200, interim=(100,), pieces=(Piece(b"{}"),)), 200, Ending.COMPLETE),
    "three heads first": (Answer(200, interim=(102, 103, 103), pieces=(Piece(b"{}"),)), 200, Ending.COMPLETE),
    "trailers": (
        Answer(200, SSE, tuple(map(Piece, EVENTS)), "chunked", trailers=(("x-sum", "1"),)),
        200,
        Ending.COMPLETE,
    ),
    "HTTP/1.0": (replace(json_answer({"old": True}), framing="close", version="HTTP/1.0"), 200, None),
}
"""Where mitmproxy raises trailers and leaves the client hanging, it gets its answer, and may go on."""


@pytest.mark.parametrize(("answer", "status", "ending"), ANSWERS.values(), ids=ANSWERS.keys())
def test_every_status_is_recorded_with_its_headers(
    store: Path, answer: Answer, status: int, ending: Ending | None
) -> None:
    """A bad answer is an answer: status, headers and body are stored, the client gets them as they are, and a connection that was not ended goes on."""
    with connected(upstream(answer, Reply("more")), "record", store) as (rig, c):
        got = c.ask(chat(stream=True))
        assert (got.status, got.body, got.whole) == (status, answer.body, True)
        again = rig.ask if answer.framing == "close" else c.ask
        assert again(chat("again")).status == 200
        rig.wait_idle()
    made, _ = recorded(store)
    assert (made.response.status, made.response.body) == (status, answer.body)
    assert ending in (None, made.response.ending)
    assert set(answer.headers) <= set(made.response.headers)


GZIPPED = (("content-encoding", "gzip"), ("content-length", "123456"))


@pytest.mark.parametrize(("method", "answer"), [
    ("HEAD", Answer(200, (("content-length", "123456"),), framing="close")),
    ("HEAD", Answer(200, GZIPPED, framing="close")),
    ("GET", Answer(304, (("content-length", "123456"),), framing="close")),
])  # fmt: skip
def test_an_answer_without_body_keeps_its_length(store: Path, method: str, answer: Answer) -> None:
    """The length is that of a GET's body: a client reads from it how much there is to fetch."""
    asked = request(method=method, target="/v1/models", content_length="")
    with upstream(answer) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        got = c.ask(asked, method if answer.status == 200 else "HEAD")
        assert (got.status, got.headers["content-length"]) == (answer.status, "123456")
    (made,) = recorded(store)
    assert (made.request.method, made.response.body, made.response.ending) == (method, b"", Ending.COMPLETE)
    with Rig("replay", store) as rig, rig.client() as c:
        again = c.ask(asked, "HEAD")
        assert (again.status, again.body) == (answer.status, b"")
        assert dict(answer.headers).items() <= again.headers.items()


def test_a_length_said_twice_is_taken(store: Path) -> None:
    """The answer itself was paid for: served, recorded, and the connection goes on."""
    odd = Answer(200, (("content-length", "2"), ("Content-Length", "2")), pieces=(Piece(b"{}"),))
    with connected(upstream(odd, odd), "record", store) as (rig, c):
        assert [(got.status, got.body) for got in (c.ask(chat()), c.ask(chat("again")))] == [(200, b"{}")] * 2
        rig.wait_idle()
    assert [made.response.status for made in recorded(store)] == [200, 200]


@pytest.mark.parametrize(("data", "united"), [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 5\r\nx: y\r\n\r\nhello", 1),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello", 1),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 0),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!", 0),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n", 0),
    (b"HTTP/1.1 200 OK\r\nx: y\r\n\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n", 0),
])  # fmt: skip
def test_equal_content_lengths_are_one(data: bytes, united: int) -> None:
    """As RFC 9112 lets a recipient take them; what differs, or is no whole head, stays as it came."""
    found = merge_equal_content_lengths(data)
    assert (found != data) is bool(united)
    if united:
        assert found.lower().count(b"content-length: 5\r\n") == 1
        assert found.endswith(b"\r\n\r\nhello")


LED = {
    "/v1/files/f/content?x=1": "{prefix}/v1/files/f/content?x=1",
    "content": "{prefix}/v1/files/f/content",
    "{url}/v1/other": "{prefix}/v1/other",
    "//{host}/v1/other": "{prefix}/v1/other",
    "https://api.openai.com/v1/other#top": "{prefix}/v1/other#top",
    "https://evil.example/v1/other?sig=secret-signature": None,
    "//evil.example/v1": None,
    "https://api.openai.com.evil.example/": None,
    "http://[broken": None,
}
"""What an upstream says, and where it leads the client."""


@pytest.mark.parametrize("prefix", ["", "/openai", "/s/a%20b/openai"])
@pytest.mark.parametrize("said", LED)
def test_a_redirect_leads_back_to_us_live_and_replayed(tmp_path: Path, said: str, prefix: str) -> None:
    """Client and key do not go past the proxy; where they would it is said, and in replay nothing leaves the machine."""
    store, led = tmp_path / "x.db", (LED[said] or "").replace("{prefix}", prefix)
    ask = request(method="GET", target=f"{prefix}/v1/files/f/x", content_length="")
    with Provider(check=False) as p:
        location = said.replace("{url}", p.url).replace("{host}", f"127.0.0.1:{p.port}")
        p.play = Play(Script((Step(Answer(302, (("location", location),), framing="length"), times=None),)))
        with Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
            live = c.ask(ask, "GET")
            rig.wait_idle()
            assert live.headers["location"] == (led or location)
            assert ("past this proxy" in rig.outcomes[0].note) is not bool(led)
    with Rig("replay", store) as rig, rig.client() as c:
        again = [c.ask(ask, "GET") for _ in range(3)]
        rig.wait_idle()
        assert {(each.status, each.headers.get("location", "")) for each in again} == {(302, led)}
        assert ("nothing leaves the machine" in rig.outcomes[0].note) is not bool(led)
    assert b"secret-signature" not in store.read_bytes()


UNTAKEN = {
    "a length with zeros": b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0000\r\n\r\n",
    "a length twice": b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "no slash": b"GET v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a query alone": b"GET ?x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "another scheme": b"GET ftp://h/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "two users": b"GET http://a@b@api.openai.com/v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}
"""Heads that our framing takes and mitmproxy's does not."""


@pytest.mark.parametrize("name", UNTAKEN)
@pytest.mark.parametrize("mode", ["record", "auto", "passthrough"])
def test_a_head_that_mitmproxy_does_not_take_is_refused_in_our_words(tmp_path: Path, name: str, mode: str) -> None:
    """The provider's envelope and not mitmproxy's page in HTML; nothing was sent, and the refusal is in the log."""
    with Provider(check=False) as p, Rig(mode, tmp_path / "x.db", {"openai": p.url, "default": p.url}) as rig:
        with rig.client() as c:
            got = c.ask(UNTAKEN[name])
        rig.wait_idle()
        assert (got.status, got.headers["content-type"]) == (400, "application/json")
        assert "cannot be passed on" in got.message
        assert "<" not in got.message
        assert [outcome.decision for outcome in rig.outcomes] == [Decision.REFUSE]
        assert p.requests == []


def test_each_stored_request_has_its_own_length(tmp_path: Path) -> None:
    """Heads that differ in nothing else are read once; their lengths are each request's own."""
    store, texts = tmp_path / "x.db", ["a", "bb" * 50, "ccc" * 500]
    answers = [Answer(200, pieces=(Piece(b"{}"),))] * len(texts)
    with upstream(*answers) as p, Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
        for text in texts:
            c.ask(chat(text))
        rig.wait_idle()
    stored = [header(made.request.headers, "content-length") for made in recorded(store)]
    assert stored == [str(len(body_of(text))) for text in texts]


# --- breaking off -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_an_upstream_that_breaks_off_is_recorded_as_cut(store: Path, framing: Framing, how: Cut) -> None:
    """The client sees the break as it happened, and what came before it is kept."""
    fields = {"chunked": ("transfer-encoding", "chunked"), "length": ("content-length", "1000")}
    first = b"%x\r\n%b\r\n" % (len(EVENTS[0]), EVENTS[0]) if framing == "chunked" else EVENTS[0]
    # The pause is for the RST, which overtakes what was sent just before.
    answer = Answer(200, (*SSE, fields[framing]), (Piece(first), Piece(b"", 0.2)), "close", ends=how)
    with upstream(answer) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        got = c.ask(chat(stream=True))
        assert (got.status, got.body) == (200, EVENTS[0])
        rig.wait_idle()
    (made,) = recorded(store)
    assert made.response.body == EVENTS[0]
    assert made.response.ending is Ending.CUT
    assert [outcome.decision for outcome in rig.outcomes] == [Decision.RECORD]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_early_is_told_from_an_upstream_that_breaks_off(store: Path, how: str) -> None:
    with upstream(sse(*EVENTS, wait=0.3)) as p, Rig("record", store, {"openai": p.url}) as rig:
        with rig.client() as c:
            c.send(chat(stream=True)).until(EVENTS[0])
            if how == "reset":
                c.reset()
        (outcome,) = rig.wait_outcomes(1)
        rig.wait_idle()
    (made,) = recorded(store)
    assert (made.response.body, made.response.ending) == (EVENTS[0], Ending.LEFT)
    assert (outcome.decision, outcome.interaction, outcome.lost) == (Decision.RECORD, made.id, False)


@pytest.mark.parametrize("mode", ["auto", "once"])
def test_an_answer_that_its_client_always_leaves_is_asked_live_twice_and_one_that_is_read_on_once(
    tmp_path: Path, mode: str
) -> None:
    """The first time may be an interrupt: who reads on in the second run gets all. From the third on it is served as far as it goes."""
    store, left = tmp_path / "x.db", (EVENTS[0], Ending.LEFT)
    with upstream(*[sse(*EVENTS, wait=0.3)] * 3) as p:
        for run in range(1, 5):
            with Rig(mode, store, {"openai": p.url}) as rig:
                leave(rig)
            assert len(p.requests) == min(run, 2)
            (made,) = recorded(store)
            assert (made.response.body, made.response.ending) == left
        with Rig("replay", store, {"openai": p.url}) as rig, rig.client() as c:
            got = c.ask(chat(stream=True))
            assert (got.body, got.whole) == (EVENTS[0], False), "never as a whole answer"
        for said in (EVENTS[:1], EVENTS):
            with Rig(mode, store, {"openai": p.url}) as rig, rig.client() as c:
                assert c.ask(chat(stream=True)).body == b"".join(said), "the next time it is asked"
        (made,) = recorded(store)
        assert (made.response.body, made.response.ending) == (b"".join(EVENTS), Ending.COMPLETE)
        with Rig(mode, store, {"openai": p.url}) as rig, rig.client() as c:
            assert c.ask(chat(stream=True)).whole
        assert len(p.requests) == 3


@pytest.mark.parametrize("first", ["leaves", "reads on"])
def test_who_asks_once_more_in_a_run_gets_what_was_left_live_once(store: Path, first: str) -> None:
    """Whether the one before left as recorded or saw the break: what comes then is whole, and all get it from then on."""
    with upstream(*[sse(*EVENTS, wait=0.3)] * 3) as p:
        for run in range(3):
            with Rig("once", store, {"openai": p.url}) as rig:
                with rig.client() as c:
                    c.send(chat(stream=True)).until(EVENTS[0])
                    if run == 2 and first == "reads on":
                        assert DONE not in c.rest()
                rig.wait_outcomes(1)
                rig.wait_idle()
                for _ in range(2 * (run == 2)):
                    with rig.client() as c:
                        assert c.ask(chat(stream=True)).body == b"".join(EVENTS)
        assert len(p.requests) == 3
        with Rig("once", store, {"openai": p.url}) as rig, rig.client() as c:
            assert [c.ask(chat(stream=True)).whole for _ in "12"] == [True, True]
        assert len(p.requests) == 3
        assert [each.response.ending for each in recorded(store)] == [Ending.COMPLETE]


@pytest.mark.parametrize("mode", ["auto", "once"])
def test_who_reads_on_after_an_interrupted_run_gets_the_answer_live(store: Path, mode: str) -> None:
    """An answer that was left once is no recording of what the agent reads."""
    with upstream(*[sse(*EVENTS, wait=0.3)] * 2) as p:
        with Rig(mode, store, {"openai": p.url}) as rig:
            leave(rig)
        for _ in range(2):
            with Rig(mode, store, {"openai": p.url}) as rig, rig.client() as c:
                assert c.ask(chat(stream=True)).body == b"".join(EVENTS)
        assert len(p.requests) == 2
    (made,) = recorded(store)
    assert made.response.ending is Ending.COMPLETE


def test_a_client_that_closes_at_the_terminator_has_a_complete_recording(store: Path) -> None:
    """openai-python closes right after [DONE], before HTTP says that the answer is over."""
    slow = Answer(200, SSE, (*map(Piece, EVENTS), Piece(b"\n", 0.5)), "chunked")
    with upstream(slow) as p, Rig("record", store, {"openai": p.url}) as rig:
        leave(rig, DONE)
    (made,) = recorded(store)
    assert (made.response.body, made.response.ending) == (b"".join(EVENTS), Ending.COMPLETE)


@pytest.mark.parametrize("uploaded", [True, False])
def test_a_client_that_leaves_before_the_answer_leaves_nothing_behind(store: Path, uploaded: bool) -> None:
    """Nothing came, so nothing is recorded, and nothing stays open; half a request is none."""
    slow = Provider(Script((Step(json_answer({}).late(1)),)), check=uploaded)
    with slow as p, Rig("record", store, {"openai": p.url}) as rig:
        with rig.client() as c:
            c.send(chat() if uploaded else chat()[:-10])
            until(lambda: p.requests if uploaded else p.connections)
        (outcome,) = rig.wait_outcomes(1)
        rig.wait_idle()
        assert len(p.requests) == uploaded
    assert (outcome.status, outcome.lost, recorded(store)) == (0, False, [])


@pytest.mark.parametrize("headers", [{}, {"expect": "100-continue"}], ids=["plain", "expect"])
@pytest.mark.parametrize("mode", ["record", "auto", "passthrough"])
def test_an_unreachable_upstream_is_a_readable_502(tmp_path: Path, mode: str, headers: dict[str, str]) -> None:
    """Host and cause, in the provider's own envelope, and nothing is recorded."""
    store, url = tmp_path / "x.db", f"http://127.0.0.1:{free_port()}"
    with Rig(mode, store, {"openai": url}) as rig, rig.client() as c:
        head, body = chat(headers=headers)[: -len(body_of())], body_of()
        if headers:
            assert c.ask(head).status == 100
            head = b""
        got = c.ask(head + body)
        assert got.status == 502
        why = f"openai at {url} could not be reached: Connection refused"
        assert got.message.startswith(f"llmproxy: {why}\n")
        assert got.headers["x-should-retry"] == "false"
        rig.wait_idle()
        assert [(o.decision, o.status, o.lost, o.note) for o in rig.outcomes] == [(Decision.REFUSE, 502, False, why)]
    assert mode == "passthrough" or recorded(store) == []


@pytest.mark.parametrize(("cause", "said"), [
    ("[Errno -2] Name or service not known", "Name or service not known"),
    (f"[Errno {errno.ECONNREFUSED}] Connect call failed ('::1', 1, 0, 0)", os.strerror(errno.ECONNREFUSED)),
    (
        f"Multiple exceptions: [Errno {errno.EHOSTUNREACH}] Connect call failed ('::1', 1, 0, 0), [Errno 111] Connect call",
        os.strerror(errno.EHOSTUNREACH),
    ),
    ("server closed connection", "server closed connection"),
])  # fmt: skip
def test_a_reason_is_told_in_words(cause: str, said: str) -> None:
    """Numbers and tuples of asyncio are for programmers."""
    assert simplify_connection_error(cause) == said


def test_an_unreachable_upstream_speaks_its_own_dialect(tmp_path: Path) -> None:
    """Anthropic's SDK shows a message only where Anthropic puts one."""
    url = f"http://127.0.0.1:{free_port()}"
    with Rig("record", tmp_path / "x.db", {"anthropic": url}) as rig, rig.client() as c:
        got = c.ask(request(body_of(), "/v1/messages", anthropic_version="2023-06-01"))
        assert (got.status, got.json["type"]) == (502, "error")
        assert url in got.json["error"]["message"]


# --- the request, on its way upstream ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["record", "auto"])
def test_what_goes_upstream_is_the_clients_less_what_was_meant_for_us(tmp_path: Path, mode: str) -> None:
    """Ours, hop-by-hop invitations (Java's h2c, at which parsers lost the body) and the proxy's credentials stay here."""
    with upstream(Reply("ok")) as p, Rig(mode, tmp_path / "x.db", {"openai": p.url}) as rig, rig.client() as c:
        mine = {
            "X-LLMProxy-Session": "s", "x-llmproxy-party": "judge", "Proxy-Authorization": "Basic eDp5",
            "TE": "trailers",
        }  # fmt: skip
        java = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAARAAAAAAAIAAAAA"}
        theirs = {"authorization": "Bearer sk-canary-0123456789abcdef", "X-Custom": "Kept", "user-agent": "test/1"}
        assert c.ask(chat(headers={**mine, **java, **theirs})).status == 200
        (seen,) = p.requests
        names = p.header_names()
        assert not [name for name in names if name.startswith("x-llmproxy-")]
        assert not names & {"proxy-authorization", "proxy-connection", "upgrade", "http2-settings", "te", "expect"}
        assert set(theirs.items()) <= set(seen.headers)
        assert (seen.header("host"), seen.header("accept-encoding")) == (p.url.removeprefix("http://"), "identity")
        assert (seen.method, seen.target, seen.body) == ("POST", CHAT, body_of())


@pytest.mark.parametrize(("target", "base", "sent"), [
    ("/v1/chat/completions?a=b%20c", "", "/v1/chat/completions?a=b%20c"),
    ("/s/my%20session/v1/chat/completions", "", "/v1/chat/completions"),
    ("/s/x/openai/v1/chat/completions", "/gateway/v1", "/gateway/v1/chat/completions"),
    ("/unknown/thing", "", None),
])  # fmt: skip
def test_prefixes_of_ours_are_taken_off(tmp_path: Path, target: str, base: str, sent: str | None) -> None:
    """Session and provider stand in the URL for us; an upstream with a path of its own keeps it."""
    with Provider(Script((Step(Reply("ok"), times=None),))) as p:  # noqa: SIM117 - upstream outside, proxy inside
        with Rig("record", tmp_path / "x.db", {"openai": p.url + base}) as rig, rig.client() as c:
            assert c.ask(chat(target=target)).status == (400 if sent is None else 200)
            assert [seen.target for seen in p.requests] == ([] if sent is None else [sent])


@pytest.mark.parametrize("mode", ["record", "auto"])
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_chunked_upload_arrives_whole(store: Path, mode: str, size: int) -> None:
    """Whatever the chunks, extensions and trailers: the body upstream and the body recorded are the same."""
    raw = chunked(body_of("é" * 100), size, end=b"0;ext=1\r\nx-trailer: 1\r\n\r\n")
    with upstream(Reply("ok"), Reply("ok")) as p, Rig(mode, store, {"openai": p.url}) as rig, rig.client() as c:
        assert c.ask(raw).status == 200
        assert c.ask(chat("next")).status == 200
        assert [seen.body for seen in p.requests] == [body_of("é" * 100), body_of("next")]
    assert json.loads(recorded(store)[0].request.body) == json.loads(body_of("é" * 100))


@pytest.mark.parametrize("mode", ["record", "auto"])
def test_expect_is_answered_here_and_once(tmp_path: Path, mode: str) -> None:
    """A client that waits for 100 gets exactly one, and then its answer."""
    with upstream(Reply("ok"), Reply("ok")) as p, Rig(mode, tmp_path / "x.db", {"openai": p.url}) as rig:
        with rig.client() as c:
            whole = chat(headers={"expect": "100-continue"})
            head, body = whole[: whole.index(b"\r\n\r\n") + 4], body_of()
            assert c.ask(head).status == 100
            assert c.ask(body).status == 200
            assert c.ask(chat("more")).status == 200
        assert "expect" not in p.header_names()


@pytest.mark.slow
def test_a_big_upload_streams_through(tmp_path: Path) -> None:
    """8 MB go on as they come; the upstream is dialled long before the last byte was sent."""
    store, megabyte = tmp_path / "x.db", b'"' + b"x" * ((1 << 20) - 2) + b"\n"
    body = megabyte * 8
    with upstream(Reply("ok")) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client(30) as c:
        c.send(request(b"", content_length=str(len(body))) + megabyte)
        until(lambda: p.connections)  # never, if it waited for the last byte
        for _ in range(7):
            c.send(megabyte)
        assert c.response().status == 200
        rig.wait_idle()
        assert hashlib.sha256(p.requests[0].body).digest() == hashlib.sha256(body).digest()
    assert len(recorded(store)) == 1


def test_a_body_over_the_limit_is_forwarded_and_its_loss_said(store: Path) -> None:
    """What cannot be matched is not recorded, and the line says so; the client is served."""
    for mode in ("record", "auto"):
        with upstream(Reply("ok"), Reply("ok")) as p, Rig(mode, store, {"openai": p.url}, max_request=10_000) as rig:
            with rig.client() as c:
                assert c.ask(chat("x" * 20_000)).status == 200
                assert c.ask(chunked(body_of("x" * 20_000), 5_000)).status == 200
                rig.wait_idle()
            assert [(o.decision, "not recorded" in o.note) for o in rig.outcomes] == [(Decision.PASS, True)] * 2, mode
            assert [len(seen.body) for seen in p.requests] == [len(body_of("x" * 20_000))] * 2
        assert recorded(store) == []


def test_an_upstream_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE names whom to trust; without it a self-made authority is refused, with the reason."""
    with Provider(Script((Step(Reply("secure"), times=None),)), tls=True) as p:
        with Rig("record", tmp_path / "x.db", {"openai": p.url}) as rig, rig.client() as c:
            got = c.ask(chat())
            assert got.status == 502
            assert "certificate" in got.message.lower()
        assert p.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(p.ca_pem))
        with Rig("record", tmp_path / "x.db", {"openai": p.url}) as rig, rig.client() as c:
            assert c.ask(chat()).status == 200
        assert len(p.requests) == 1
    assert len(recorded(tmp_path / "x.db")) == 1
