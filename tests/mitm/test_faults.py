"""Injected faults on a real wire: in every mode, never upstream, never stored, and the retry gets its recorded answer."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmproxy.core.bindings import build_run_variable, dump_run_variables
from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.faults.kinds import KINDS
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import Channel, Decision
from tests.mitm.rig import Rig, connected, recorded
from tests.mitm.test_websocket_replay import ask as say, record as record_talk
from tests.mitm.wire import Received, Wire, chat, request
from tests.provider import Answer, Call, Piece, Provider, Reply, Script, Step, event
from tests.provider.websocket import Client
from tests.support import chats, proxy

SSE = (("content-type", "text/event-stream"),)
EVENTS = tuple(event({"choices": [{"index": 0, "delta": {"content": word}}]}) for word in ("Grüße ", "aus ", "Oslo"))
STREAM = Answer(200, SSE, tuple(map(Piece, (*EVENTS, b"data: [DONE]\n\n"))), "chunked")
STEPS = (
    Step(Reply("hello"), user="hi", times=None),
    Step(Reply("bye"), user="more", times=None),
    Step(STREAM, user="stream", times=None),
    Step(Reply(call=(Call("get_weather", {"city": "Oslo"}),)), user="tool", times=None),
)


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("tape") / "x.db"
    with Provider(Script(STEPS, ordered=False)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        for asked in (chat("hi"), chat("more"), chat("stream", stream=True), chat("tool")):
            assert c.ask(asked).status == 200
        rig.wait_idle()
    return store


def was_reset(c: Wire) -> bool:
    try:
        while data := c.sock.recv(1 << 16):
            c.buffer += data
    except ConnectionResetError:
        return True
    return False


def test_a_struck_call_is_refused_and_its_retry_gets_the_recorded_answer(tape: Path) -> None:
    """A 429 stands in the provider's words; then comes what is recorded, as its first occurrence, and nothing was stored."""
    before = tape.read_bytes()
    with Rig("replay", tape, faults="http-429") as rig, rig.client() as c:
        first, second, third = c.ask(chat("hi")), c.ask(chat("hi")), c.ask(chat("more"))
        rig.wait_idle()
        assert first.status == 429
        assert first.json["error"]["code"] == "rate_limit_exceeded"
        assert (first.headers["retry-after"], first.headers["x-llmproxy-fault"]) == ("1", "http-429")
        assert first.headers["x-llmproxy-cache"] == "fault"
        assert (second.status, third.status) == (200, 429)
        assert "hello" in second.body.decode()
        assert [(each.decision, each.fault, each.occurrence) for each in rig.outcomes] == [
            (Decision.FAULT, "http-429", None), (Decision.REPLAY, None, 1), (Decision.FAULT, "http-429", None),
        ]  # fmt: skip
        assert rig.outcomes[0].note == "fault http-429 (rule 1)"
    assert tape.read_bytes() == before


def test_no_faults_no_difference(tape: Path) -> None:
    """Without faults, and beside a session that has some, an answer has the same bytes."""
    with Rig("replay", tape) as rig:
        plain = rig.ask(chat("hi"))
    with Rig("replay", tape, faults="http-500@7") as rig:
        struck_later = rig.ask(chat("hi"))
    assert (plain.status, plain.body, plain.headers.keys()) == (
        struck_later.status, struck_later.body, struck_later.headers.keys(),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["auto", "record", "once", "passthrough"])
def test_live_too_a_fault_stands_in_for_the_provider(store: Path, mode: str) -> None:
    """Where the provider would be asked it is not; the retry goes there, and is recorded as if it were the first."""
    with connected(p := Provider(Script(STEPS, ordered=False)), mode, store, faults="http-503@1") as (rig, c):
        assert c.ask(chat("hi")).status == 503
        assert p.requests == []
        assert c.ask(chat("hi")).status == 200
        rig.wait_idle()
        assert len(p.requests) == 1
    if mode != "passthrough":
        assert [(row.response.status, row.occurrence) for row in recorded(store)] == [(200, 1)]


def test_a_reset_is_one(tape: Path) -> None:
    """The client sees a reset, not an end; before anything, or after a whole event."""
    with Rig("replay", tape, faults="reset") as rig, rig.client() as c:
        c.send(chat("hi"))
        assert was_reset(c)
        assert c.buffer == b""
        rig.wait_idle()
        assert [(each.decision, each.status) for each in rig.outcomes] == [(Decision.FAULT, 0)]
    half = (chat("hi"), b"200 OK", b'"usage"')  # an answer in one piece has no second event to stop before
    for asked, here, gone in ((chat("stream", stream=True), EVENTS[0], EVENTS[2]), half):
        with Rig("replay", tape, faults="reset-after") as rig, rig.client() as c:
            c.send(asked)
            assert was_reset(c)
            assert (here in c.buffer, gone in c.buffer) == (True, False)
            assert rig.ask(asked).whole


def test_refused_is_refused(tape: Path, tmp_path: Path) -> None:
    """New connections are refused while the port is closed; then it takes them again, and the retry gets its answer."""
    rules = tmp_path / "f.yaml"
    rules.write_text("faults: [{kind: refused, seconds: 60}]")
    with Rig("replay", tape, faults=str(rules)) as rig:
        with rig.client() as c:
            c.send(chat("hi"))
            assert was_reset(c)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", rig.port), timeout=120)
    rules.write_text("faults: [{kind: refused, seconds: 0.2}]")
    with Rig("replay", tape, faults=str(rules)) as rig:
        with rig.client() as c:
            c.send(chat("hi"))
            assert was_reset(c)
        until = time.monotonic() + 120
        while True:
            try:
                assert rig.ask(chat("hi")).status == 200
                break
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.05)


def test_a_miss_stays_a_miss(tape: Path) -> None:
    """What replay would refuse is refused with its explanation, never hidden by a fault."""
    with Rig("replay", tape, faults="http-500") as rig:
        assert rig.ask(chat("never recorded")).status == 404
        rig.wait_idle()
        assert rig.outcomes[0].miss


def test_an_answer_from_the_provider_is_broken_too_and_not_recorded(store: Path) -> None:
    """What is done to an answer needs one: the provider is asked, its answer is not stored; that of the retry is."""
    with connected(p := Provider(Script(STEPS, ordered=False)), "record", store, faults="reset-after") as (rig, c):
        c.send(chat("stream", stream=True))
        assert was_reset(c)
        assert EVENTS[0] in c.buffer
        assert EVENTS[2] not in c.buffer
        rig.wait_idle()
        assert [(each.decision, each.fault) for each in rig.outcomes] == [(Decision.PASS, "reset-after")]
        assert rig.ask(chat("stream", stream=True)).whole
        rig.wait_idle()
        assert len(p.requests) == 2
    assert [(row.response.status, row.occurrence) for row in recorded(store)] == [(200, 1)]


def test_the_connection_goes_on_after_a_refusal_and_pipelined_requests_are_answered(tape: Path) -> None:
    """Three requests in one write get three answers in order."""
    with Rig("replay", tape, faults="http-500@2") as rig, rig.client() as c:
        c.send(chat("hi") + chat("more") + chat("more"))
        assert [c.response().status for _ in range(3)] == [200, 500, 200]


def test_a_session_of_its_own_has_faults_of_its_own(tape: Path) -> None:
    """POST sets them, from a preset or rules; GET counts them; an empty list takes them away; other sessions have none."""
    with Rig("replay", tape) as rig, rig.client() as c:

        def call(method: str, path: str, body: object = None) -> Received:
            data = b"" if body is None else json.dumps(body).encode()
            return c.ask(request(data, f"/_llmproxy/{path}", method, host="127.0.0.1"))

        assert call("POST", "sessions", {"name": "default", "faults": "http-529"}).status == 201
        assert rig.ask(chat("hi")).status == 529
        found = call("GET", "sessions/default/faults").json
        assert (found["injected"], found["faults"]) == (1, [{"kind": "http-529", "injected": 1}])
        assert call("GET", "sessions/default").json["injected"] == 1
        told = call("POST", "sessions/default/faults", {"faults": [{"kind": "http-500", "call": 1}], "seed": 3}).status
        assert told == 200
        assert rig.ask(chat("hi")).status == 500
        assert call("POST", "sessions/default/faults", {"faults": []}).json["faults"] == []
        assert rig.ask(chat("more")).status == 200
        bad = call("POST", "sessions/default/faults", {"faults": [{"kind": "htp-500"}]})
        assert bad.status == 400
        assert "did you mean 'http-500'?" in bad.message
        shared = call("POST", "sessions/default/faults", {"faults": "refused"})
        assert shared.status == 400
        assert "everybody" in shared.message


@pytest.mark.parametrize("kind", [
    name
    for name, kind in KINDS.items()
    if not kind.needs_answer and name not in ("refused", "tls-failure") and Channel.LLM in kind.channels
])  # fmt: skip
def test_every_kind_that_needs_no_answer_lets_the_retry_through(tape: Path, kind: str) -> None:
    with Rig("replay", tape, faults=kind) as rig:
        assert rig.ask(chat("hi")).headers.get("x-llmproxy-cache") != "hit"
        assert rig.ask(chat("hi")).headers["x-llmproxy-cache"] == "hit"


def test_what_cannot_be_meant_is_refused_at_the_start(tape: Path, tmp_path: Path) -> None:
    """An unknown kind or preset, and a file that is no YAML, name what was given and what is near."""
    with pytest.raises(LLMProxyError, match="did you mean 'flaky-network'"):
        Rig("replay", tape, faults="flaky-netwrok").start()
    broken = tmp_path / "f.yaml"
    broken.write_text("faults: [")
    with pytest.raises(LLMProxyError, match=":2:1: this is no YAML"):
        Rig("replay", tape, faults=str(broken)).start()


@pytest.mark.parametrize(("kind", "text", "whole", "holds"), [
    ("cut-frame", "stream", False, EVENTS[1]),
    ("cut-character", "stream", False, b"data: "),
    ("early-end", "stream", True, EVENTS[1]),
    ("error-event", "stream", True, b'"type":"server_error"'),
    ("malformed-json", "stream", True, b"[DONE]"),
    ("malformed-json", "hi", True, b'"choices"'),
    ("empty-body", "hi", True, b""),
    ("empty-answer", "hi", True, b'"content":""'),
    ("length", "hi", True, b'"finish_reason":"length"'),
    ("content-filter", "stream", True, b'"finish_reason":"content_filter"'),
    ("refusal", "hi", True, b'"refusal":"I\'m sorry'),
    ("truncated-arguments", "tool", True, b'"arguments":"{\\"city\\":'),
    ("duplicate-call", "tool", True, b"get_weather"),
    ("unknown-tool", "tool", True, b"get_weather_v2"),
])  # fmt: skip
def test_a_broken_answer_is_sent_and_the_retry_is_whole(
    tape: Path, kind: str, text: str, whole: bool, holds: bytes
) -> None:
    """On the wire as in the table; the recorded answer comes next, whole."""
    asked = chat(text, stream=True) if text == "stream" else chat(text)
    with Rig("replay", tape, faults=kind) as rig:
        injected = rig.ask(asked)
        assert (injected.whole, injected.headers["x-llmproxy-fault"]) == (whole, kind)
        assert holds in injected.body
        after = rig.ask(asked)
        assert after.whole
        assert "x-llmproxy-fault" not in after.headers


def test_what_finds_nothing_to_be_done_to_is_let_alone(tape: Path, tmp_path: Path) -> None:
    """In replay the call is a hit like any other; live it is sent as it came, and a rule behind it has its turn."""
    with Rig("replay", tape, faults="unknown-tool") as rig:
        assert rig.ask(chat("hi")).headers["x-llmproxy-cache"] == "hit"
        rig.wait_idle()
        assert rig.proxy.engine.get_feature(FaultFeature).explain_idle_rules() == {
            1: "fault unknown-tool (rule 1) met no call: none of the calls that it chooses came"
        }
    rules = tmp_path / "f.yaml"
    rules.write_text("[unknown-tool, http-500]")
    with Rig("replay", tape, faults=str(rules)) as rig:
        assert rig.ask(chat("hi")).status == 500
    script = Provider(Script(STEPS, ordered=False))
    with connected(script, "auto", tmp_path / "x.db", faults="unknown-tool") as (rig, c):
        got = c.ask(chat("hi"))
        assert (got.status, got.headers["x-llmproxy-cache"]) == (200, "passed")
        assert "hello" in got.body.decode()
        assert "get_weather_v2" in c.ask(chat("tool")).body.decode()
        rig.wait_idle()
        assert "found nothing in this answer" in rig.outcomes[0].note
        assert rig.outcomes[1].fault == "unknown-tool"


def test_time_passes_where_it_should(tape: Path, tmp_path: Path) -> None:
    """A late first event, a silence in the middle; what was sent before it is there at once."""
    rules = tmp_path / "f.yaml"
    rules.write_text("[{kind: slow-start, seconds: 0.3, call: 1}, {kind: stall, seconds: 0.3, call: 2}]")
    with Rig("replay", tape, faults=str(rules)) as rig, rig.client() as c:
        began = time.monotonic()
        assert c.ask(chat("hi")).status == 200
        assert time.monotonic() - began >= 0.3
        began = time.monotonic()
        c.send(chat("stream", stream=True))
        c.until(EVENTS[1][-20:])
        assert b"[DONE]" in c.until(b"0\r\n\r\n")
        assert time.monotonic() - began >= 0.3


def test_a_client_that_gives_up_on_a_stall_is_noted(tape: Path) -> None:
    """Its fault stands in the outcome all the same, and the retry is a first arrival."""
    with Rig("replay", tape, faults="stall") as rig:
        with rig.client() as c:
            c.send(chat("stream", stream=True))
            c.until(EVENTS[1][-20:])
        rig.wait_outcomes(1)
        assert (rig.outcomes[0].fault, rig.outcomes[0].note) == ("stall", "fault stall (rule 1), client left")
        assert rig.ask(chat("stream", stream=True)).whole
        rig.wait_outcomes(2)
        assert rig.outcomes[1].occurrence == 1


def test_an_intercepted_handshake_fails_once(tape: Path) -> None:
    """The client's TLS gets an alert; the next connection is encrypted, and answered."""

    def connected() -> ssl.SSLSocket:
        c = rig.client()
        assert c.send(b"CONNECT api.openai.com:443 HTTP/1.1\r\nhost: api.openai.com:443\r\n\r\n").head()[0] == 200
        return ssl.create_default_context(cafile=rig.proxy.ca).wrap_socket(c.sock, server_hostname="api.openai.com")

    with Rig("replay", tape, faults="tls-failure", forward=True) as rig:
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
            connected()
        with connected() as c:
            c.sendall(chat("hi", headers={"host": "api.openai.com"}))
            assert c.recv(1 << 16).startswith(b"HTTP/1.1 200")
        rig.wait_idle()
        first = rig.outcomes[0]
        assert (first.decision, first.fault, first.provider) == (Decision.FAULT, "tls-failure", "openai")
        assert rig.outcomes[1].decision is Decision.REPLAY


MANY = 40
HALF = {"kind": "http-500", "probability": 0.5}


def injected(rig: Rig, numbers: Sequence[int], at_once: int) -> set[int]:
    """Return which of many questions met a fault, asked so many at once; each is asked again until it is answered."""

    def one(number: int) -> bool:
        first = rig.ask(chat(f"question {number}"))
        if first.status == 500:
            assert rig.ask(chat(f"question {number}")).headers["x-llmproxy-cache"] == "hit"
        return first.status == 500

    with ThreadPoolExecutor(at_once) as pool:
        return {number for number, was in zip(numbers, pool.map(one, numbers), strict=True) if was}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("many") / "x.db"
    steps = (Step(Reply("well"), times=None),)
    with Provider(Script(steps)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        for number in range(MANY):
            assert c.ask(chat(f"question {number}")).status == 200
        rig.wait_idle()
    return store


def test_the_same_seed_strikes_the_same_calls_in_parallel_and_in_another_process(questions: Path) -> None:
    """Over sockets: one after the other, backwards and eight at once, and by a process of its own; another seed, others."""
    rules = {"seed": 7, "faults": [HALF]}
    file = questions.with_name("f.yaml")
    file.write_text(json.dumps(rules))
    with Rig("replay", questions, faults=str(file)) as rig:
        found = injected(rig, range(MANY), 1)
    assert MANY // 5 < len(found) < MANY - MANY // 5
    with Rig("replay", questions, faults=str(file)) as rig:
        assert injected(rig, range(MANY)[::-1], 8) == found
    with Rig("replay", questions, faults=str(file), faults_seed=8) as rig:
        assert injected(rig, range(MANY), 4) != found
    with proxy("replay", questions, options=("--faults", str(file))) as px, ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda number: _status(px.port, number), range(MANY)))
    assert {number for number, status in enumerate(statuses) if status == 500} == found


def _status(port: int, number: int) -> int:
    with Wire(port, 30) as c:
        return c.ask(chat(f"question {number}")).status


def test_a_bound_hit_is_broken_in_this_runs_words(store: Path) -> None:
    """Half of the answer names this run's folder; its retry is the bound hit, and nothing of the recorded run is in either."""
    said = dump_run_variables([build_run_variable("cwd", "/tmp/recorded")])
    question, answer = "You are in /tmp/recorded.", "Look into /tmp/recorded/a and then into /tmp/recorded/b, please."
    chats.fill(store, chats.chat(question, answer, run_variables=said))
    with Rig("replay", store, faults="length") as rig:
        rig.control("sessions", {"name": "default", "run_variables": {"cwd": "/srv/now"}})
        first, second = (rig.ask(chat("You are in /srv/now.", model="gpt-4o")) for _ in range(2))
        rig.wait_idle()
        assert first.headers["x-llmproxy-fault"] == "length"
        assert "/srv/now/a" in first.body.decode()
        assert second.headers["x-llmproxy-bound"] == "cwd"
        assert "recorded" not in (first.body + second.body).decode()
        found = [(each.decision, each.occurrence) for each in rig.outcomes]
        assert found == [(Decision.FAULT, None), (Decision.REPLAY, 1)]


def test_a_fork_never_holds_a_fault(questions: Path, store: Path) -> None:
    """What a fork asks anew is struck before the provider is asked; its retry is recorded there, the parent stays as it was."""
    store.write_bytes(questions.read_bytes())
    before = [row.key for row in recorded(store)]
    with (
        Provider(Script((Step(Reply("hotter"), times=None),))) as p,
        Rig("replay", store, {"openai": p.url}, faults="http-503@2", allow_live=True) as rig,
    ):
        rig.control("sessions", {"name": "default", "fork": {"live": True, "from": 2, "as": "hot"}})
        assert rig.ask(chat("question 1")).status == 200
        assert rig.ask(chat("question 2")).status == 503
        assert p.requests == []
        assert "hotter" in rig.ask(chat("question 2")).body.decode()
        rig.wait_idle()
        assert len(p.requests) == 1
    rows = recorded(store)
    assert [row.key for row in rows if row.cassette == "default"] == before
    assert {row.response.status for row in rows if row.cassette == "hot"} == {200}
    assert [b"hotter" in row.response.body for row in rows if row.cassette == "hot"].count(True) == 1


@pytest.mark.parametrize("kind", ["http-503", "length"])
def test_the_request_with_which_a_run_forks_is_struck_too(questions: Path, store: Path, kind: str) -> None:
    """It was never recorded, and goes on live: its client meets the fault, its retry is what the fork begins with."""
    store.write_bytes(questions.read_bytes())
    with (
        Provider(Script((Step(Reply("a rather long answer"), times=None),))) as p,
        Rig("replay", store, {"openai": p.url}, faults=f"{kind}@2", allow_live=True) as rig,
    ):
        rig.control("sessions", {"name": "default", "fork": {"live": True, "as": "new"}})
        assert rig.ask(chat("question 1")).status == 200
        assert rig.ask(chat("something else")).headers["x-llmproxy-fault"] == kind
        assert "rather long answer" in rig.ask(chat("something else")).body.decode()
        assert "rather long answer" in rig.ask(chat("and then")).body.decode()
        rig.wait_idle()
        assert len(p.requests) == 2 + (kind == "length")
    rows = [row for row in recorded(store) if row.cassette == "new"]
    assert [(row.response.status, b"rather long" in row.response.body) for row in rows][-2:] == [(200, True)] * 2


def test_a_live_session_takes_no_faults_later_either(questions: Path, store: Path) -> None:
    """They would strike nothing of what goes live: refused, as at its beginning; none is what it has."""
    store.write_bytes(questions.read_bytes())
    with Rig("replay", store, allow_live=True) as rig, rig.client() as c:
        rig.control("sessions", {"name": "default", "live": ["llm"]})
        rig.control("sessions/default/faults", {"faults": []})
        data = b'{"faults": "http-429"}'
        head = b"POST /_llmproxy/sessions/default/faults HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n"
        refused = c.ask(head % len(data) + data)
        assert (refused.status, "exclude each other" in refused.message) == (400, True)


def test_once_records_what_came_after_the_fault_and_nothing_else(tmp_path: Path) -> None:
    """A first run under faults leaves what one without would have left."""
    steps = (Step(Reply("well"), times=None),)
    keys: list[list[tuple[str, int, int]]] = []
    for faults in ("", "http-500", "length"):
        store = tmp_path / f"{len(keys)}.db"
        with Provider(Script(steps)) as p, Rig("once", store, {"openai": p.url}, faults=faults) as rig:
            for text in ("one", "two"):
                while rig.ask(chat(text)).headers.get("x-llmproxy-fault"):
                    pass
            rig.wait_idle()
        keys.append([(row.key, row.occurrence, row.response.status) for row in recorded(store)])
    assert keys[0] == keys[1] == keys[2]


def test_an_upgrade_is_refused_and_the_next_one_is_played(store: Path) -> None:
    """A fault on a WebSocket is one on its upgrade; the recorded talk comes after it."""
    record_talk(store, ("hello",))
    with Rig("replay", store, faults="http-429") as rig:
        struck_one = Client(rig.port)
        assert (struck_one.status, struck_one.headers["x-llmproxy-fault"]) == (429, "http-429")
        struck_one.sock.close()
        with Client(rig.port) as client:
            assert client.hear()["type"] == "session.created"
            assert len(say(client, "hello")) == 4
        rig.wait_outcomes(2)
        assert [each.fault for each in rig.outcomes] == ["http-429", None]
