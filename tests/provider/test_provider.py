"""The scripted provider itself: it plays what it was given, refuses the rest, counts, and misbehaves exactly as told."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.provider import Answer, Piece, Provider, Step, event, failed, json_answer, step, stream_answer, throttled

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"


def chat(text: str, **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


def post(p: Provider, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", p.port, timeout=10)
    try:
        connection.request("POST", path, body, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def raw(p: Provider) -> bytes:
    """Send one request by hand and return every byte that comes back until the end of the connection."""
    with socket.create_connection(("127.0.0.1", p.port), timeout=10) as s:
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        return b"".join(iter(lambda: s.recv(65536), b""))


def test_it_plays_the_dialogue_in_order() -> None:
    """Each expected request gets the answer of its step, a tool loop included."""
    steps = [
        step(user="hi", model="m", say="hello"),
        step(user="and?", call=[{"name": "weather", "arguments": {"city": "Oslo"}}]),
        step(user="and?", tool_result="12", say="12 °C"),
    ]
    with Provider(steps) as p:
        assert json.loads(post(p, CHAT, chat("hi"))[1])["choices"][0]["message"]["content"] == "hello"
        message = json.loads(post(p, CHAT, chat("and?"))[1])["choices"][0]["message"]
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
        told = {
            "model": "m",
            "messages": [{"role": "user", "content": "and?"}, message, {"role": "tool", "content": "12"}],
        }
        assert json.loads(post(p, CHAT, json.dumps(told).encode())[1])["choices"][0]["message"]["content"] == "12 °C"
        p.finish()


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/responses", chat("hi")), (CHAT, chat("ho")), (CHAT, chat("hi", model="other")), (CHAT, b"\xff not JSON")],
    ids=["path", "user", "model", "broken"],
)
def test_it_refuses_what_it_did_not_expect(path: str, body: bytes) -> None:
    """A wrong request gets 599 with the reason and is remembered."""
    with Provider([step(path=CHAT, user="hi", model="m", say="hello")], check=False) as p:
        status, text = post(p, path, body)
        assert status == 599
        assert b"expected" in text
    assert len(p.refused) == 1
    with pytest.raises(AssertionError, match="refused"):
        p.check_refused()


def test_a_refusal_fails_the_block() -> None:
    """A test that sent something unexpected fails at the end of the block, whatever it looked at itself."""
    p = Provider([])
    with pytest.raises(AssertionError, match="refused"), p:
        post(p, CHAT, chat("hi"))


def test_it_refuses_the_wrong_order_and_what_comes_after_the_end() -> None:
    """An ordered dialogue is refused out of order; an unordered one is not; a played step does not count twice."""
    steps = [step(user="one", say="1"), step(user="two", say="2")]
    with Provider(steps, check=False) as p:
        assert [post(p, CHAT, chat(text))[0] for text in ("two", "one", "one", "two", "two")] == [
            599, 200, 599, 200, 599,
        ]  # fmt: skip
    with Provider(steps, ordered=False) as p:
        assert [post(p, CHAT, chat(text))[0] for text in ("two", "one")] == [200, 200]


def test_an_unplayed_step_fails_finish() -> None:
    """finish() insists that the whole dialogue took place."""
    with Provider([step(user="hi", say="hello")]) as p, pytest.raises(AssertionError, match="1 steps"):
        p.finish()


def test_it_counts_requests_and_connections_and_keeps_headers() -> None:
    """Two requests on one connection are one connection; what arrived can be looked at afterwards."""
    with Provider([step(say="x", times=None)]) as p:
        connection = HTTPConnection("127.0.0.1", p.port, timeout=10)
        for _ in range(2):
            connection.request("POST", CHAT, chat("hi"), {"Authorization": "Bearer k", "X-Llmproxy-Party": "judge"})
            connection.getresponse().read()
        connection.close()
        assert (len(p.requests), p.connections) == (2, 1)
        assert p.requests[0].header("authorization") == "Bearer k"
        assert "x-llmproxy-party" in p.header_names()


def test_a_chunked_request_and_expect_continue_are_read() -> None:
    """Upload framing is undone before facts are compared."""
    with Provider([step(user="hi", say="x", times=2)]) as p:
        connection = HTTPConnection("127.0.0.1", p.port, timeout=10)
        connection.request("POST", CHAT, iter([chat("hi")[:20], chat("hi")[20:]]), encode_chunked=True)
        assert connection.getresponse().read()
        connection.close()
        body = chat("hi")
        with socket.create_connection(("127.0.0.1", p.port), timeout=10) as s:
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n".encode())
            assert s.recv(100).startswith(b"HTTP/1.1 100 ")
            s.sendall(body)
            assert s.recv(100).startswith(b"HTTP/1.1 200 ")


def test_errors_come_first_and_the_answer_after() -> None:
    """A step may be a 429 with retry-after, or a 500."""
    with Provider([step(answer=throttled(7)), step(answer=failed()), step(say="x")]) as p:
        head = raw(p)
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 7\r\n" in head
        assert [post(p, CHAT, b"{}")[0] for _ in range(2)] == [500, 200]


def test_pieces_keep_their_borders_and_their_pauses() -> None:
    """A stream is cut where it was told to, also inside a UTF-8 character, and dawdles as it was told to."""
    with Provider([step(answer=Answer(200, (), (Piece("grün".encode()),), "chunked").at(3).paced(0, 0.2))]) as p:
        begun = time.monotonic()
        assert raw(p).partition(b"\r\n\r\n")[2] == b"3\r\ngr\xc3\r\n2\r\n\xbcn\r\n0\r\n\r\n"
        assert time.monotonic() - begun > 0.15


def test_a_slow_head_interim_answers_trailers_and_http_1_0() -> None:
    """103 before the head, trailers after the body, and a body that ends with the connection."""
    hints = Answer(200, (), (Piece(b"x"),), "chunked", interim=(103,), trailers=(("x-sum", "1"),)).late(0.2)
    old = Answer(200, (), (Piece(b"old"),), "close", version="HTTP/1.0")
    with Provider([step(answer=hints), step(answer=old)]) as p:
        begun = time.monotonic()
        got = raw(p)
        assert time.monotonic() - begun > 0.15
        assert got.startswith(b"HTTP/1.1 103 ")
        assert got.endswith(b"0\r\nx-sum: 1\r\n\r\n")
        got = raw(p)
        assert got.startswith(b"HTTP/1.0 200 ")
        assert b"content-length" not in got
        assert got.endswith(b"\r\n\r\nold")


def test_it_breaks_off_by_close_and_by_reset() -> None:
    """In mid-body the connection ends, in an orderly way or with an RST."""
    body = json_answer({"text": "x" * 100}).recut(20)
    stream = stream_answer([event({"n": n}) for n in range(9)])
    with Provider(
        [step(answer=body.cut(2)), step(answer=stream.cut(3, "reset")), step(answer=stream.cut(0, "reset"))]
    ) as p:
        with pytest.raises(IncompleteRead):
            post(p, CHAT, b"{}")
        for _ in range(2):
            with pytest.raises((ConnectionResetError, IncompleteRead)):
                post(p, CHAT, b"{}")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_compressed_bodies_say_so(coding: str) -> None:
    """The whole body is encoded, and the header names the coding."""
    whole = json_answer({"a": "x" * 1000})
    with Provider([step(answer=whole.compressed(coding))]) as p:
        got = raw(p)
        assert f"content-encoding: {coding}\r\n".encode() in got
        assert len(got) < 500
        if coding == "gzip":
            assert gzip.decompress(got.partition(b"\r\n\r\n")[2]) == whole.body


def test_a_huge_body_arrives_whole() -> None:
    """4 MiB, more than any buffer takes, come out as they went in."""
    with Provider([step(answer=Answer(200, (), (Piece(b"\x00\xff" * (2 << 20)),)))]) as p:
        assert post(p, CHAT, b"{}")[1] == b"\x00\xff" * (2 << 20)


def test_https_with_a_ca_of_its_own() -> None:
    """A client that trusts the test CA is served."""
    with Provider([step(user="hi", say="x")], tls=True) as p:
        assert p.ca_pem is not None
        context = ssl.create_default_context(cafile=str(p.ca_pem))
        with urlopen(Request(p.url + CHAT, chat("hi")), context=context, timeout=10) as answer:
            assert answer.status == 200


def test_an_unknown_member_of_a_step_is_an_error() -> None:
    """A misspelt expectation never passes for no expectation."""
    with pytest.raises(ValueError, match="usr"):
        step(usr="hi", say="x")
    assert isinstance(step(user="hi"), Step)


def test_as_a_process(tmp_path: Path) -> None:
    """`python -m tests.provider script.json` prints its URL, plays, and exits 1 after a refusal."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"steps": [{"user": "hi", "say": "hello"}]}), "utf-8")
    command = [sys.executable, "-m", "tests.provider", str(script)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with urlopen(Request(url + CHAT, chat("hi")), timeout=10) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert json.loads(out) == {"requests": 1, "connections": 1, "refused": 0}
