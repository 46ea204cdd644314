"""The client of the control API, and its connections, which are used again."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from http.client import HTTPConnection
from pathlib import Path

import pytest

from llmproxy.calls_and_totals import UnusedRecording, UsageSums
from llmproxy.client.control import (
    FRESH,
    ControlApiClient,
    ControlConnectionPool,
    ControlError,
    ProxyUnreachable,
    session_url,
)
from llmproxy.client.session_reports import SessionReport
from llmproxy.trace.reading.decoded_exchange import RequestMessageCache, decode_interaction_to_messages
from llmproxy.trace.reading.recording_spans import parse_recording_json_of_call
from tests.provider import Provider, step
from tests.support.proxy import Listening, ask_chat, near

ODD = "tests/ä b#1?x=y%20~/.."


def test_a_session_of_any_name_is_opened_asked_reset_and_closed(control: ControlApiClient) -> None:
    """A name is one segment, whatever stands in it, and its misses are counted."""
    opened = control.open_session(ODD)
    assert (opened.name, opened.cassette, opened.mode, opened.calls) == (ODD, ODD, "replay", 0)
    assert ask_chat(f"{session_url(control.url, ODD)}/v1") == 404
    report = control.report(ODD)
    assert (report.misses, report.calls, len(report.miss_texts)) == (1, 1, 1)
    assert [miss.session for miss in control.misses(ODD)] == [ODD]
    assert control.reset(ODD).name == ODD
    assert ODD in [each.name for each in control.sessions()]
    assert control.close_session(ODD).misses == 1
    with pytest.raises(ControlError, match="no session"):
        control.report(ODD)


def test_the_end_of_a_session_tells_what_came_last(control: ControlApiClient) -> None:
    """With the number of a call; without one, nobody asked."""
    control.open_session("last")
    for _ in range(3):
        assert ask_chat(f"{session_url(control.url, 'last')}/v1") == 404
    with pytest.raises(ControlError, match="after is '-1'"):
        control.close_session("last", after=-1)
    further = control.close_session("last", after=1).further
    assert further is not None
    assert [(call.seq, call.miss) for call in further] == [(2, True), (3, True)]
    control.open_session("last")
    assert control.close_session("last").further is None


def test_a_bound_name_counts_for_its_session_until_that_is_closed(control: ControlApiClient) -> None:
    """A process whose base URL never changes walks another cassette in each test."""
    for name in ("one", "two"):
        control.open_session(name)
        control.bind_session_name("process", name)
        assert ask_chat(f"{session_url(control.url, 'process')}/v1") == 404
        assert control.close_session(name).misses == 1
    control.open_session("three")
    control.bind_session_name("process", "three")
    with pytest.raises(ControlError) as error:
        control.bind_session_name("process", "three")
    assert error.value.status == 409
    control.unbind_session_name("process")
    assert control.close_session("three").calls == 0


def test_an_open_session_is_waited_for_as_long_as_one_has_patience(control: ControlApiClient) -> None:
    """Two test processes may share a cassette, one after the other."""
    control.open_session("shared")
    with pytest.raises(ControlError) as error:
        control.open_session("shared")
    assert (error.value.status, error.value.hint != "") == (409, True)
    assert "answered 409" not in str(error.value), "the proxy's own words for the user need none around them"
    timer = threading.Timer(0.3, control.close_session, ["shared"])
    timer.start()
    assert control.open_session("shared", patience=10).name == "shared"
    timer.join()
    control.close_session("shared")


@pytest.mark.parametrize(("given", "status"), [({"mode": "record"}, 403), ({"speed": -1.0}, 400), ({"mode": "x"}, 400)])
def test_what_the_proxy_refuses_is_an_error_with_its_words(
    control: ControlApiClient, given: dict[str, object], status: int
) -> None:
    """The reason, and what to do, reach the user."""
    with pytest.raises(ControlError) as error:
        control.open_session("refused", **given)  # type: ignore[arg-type]
    assert error.value.status == status


def test_another_server_is_not_taken_for_llmproxy() -> None:
    """Port 8080 is popular."""

    def answer(number: int, sock: socket.socket) -> None:
        body = b"{}" if number == 1 else b"<html>"
        sock.sendall(OK % (len(body), body))

    with server(answer) as (port, _):
        control = ControlApiClient(f"http://127.0.0.1:{port}")
        for ask in (control.health, control.sessions):
            with pytest.raises(ProxyUnreachable, match="is not llmproxy"):
                ask()


def test_a_report_goes_to_json_and_back() -> None:
    """It travels from a worker to whoever writes the summary; money stays exact."""
    counted = SessionReport(name="a", cassette="a", mode="auto", hits=2, misses=1, recorded=1, miss_texts=["no"])
    unused, parties = (UnusedRecording(3, "messages", None, "hi"),), {"agent": UsageSums(3, 7, 1, Decimal("0.1"))}
    report = replace(counted, saved=UsageSums(cost=Decimal("0.00123")), unused=unused, parties=parties)
    assert SessionReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_a_report_of_another_version_is_read_as_far_as_it_goes() -> None:
    """The proxy may live in another environment, and be older or newer."""
    assert SessionReport.from_json({"name": "a", "news": 1, "cost_spent": "?"}) == SessionReport(
        name="a", cassette="", sample=0
    )


@pytest.mark.parametrize("mode", ["record", "once", "auto", "passthrough"])
def test_a_walk_tells_each_call_in_every_mode(tmp_path: Path, mode: str) -> None:
    """Live calls have their recording as soon as they are over, what passes has none; the second time it is a hit, or recorded anew."""
    dialogue = [step(user="hi", say="hello", times=None)]
    with Provider(dialogue) as provider, near(mode, tmp_path / "x.db", upstreams={"openai": provider.url}) as px:
        control = ControlApiClient(px.url)
        control.open_session("a")
        assert control.calls("a") == ()
        assert ask_chat(f"{session_url(px.url, 'a')}/v1") == 200
        (first,) = control.calls("a")
        assert (first.seq, first.party, first.status, first.miss) == (1, "agent", 200, False)
        assert (first.recording is None) == (mode == "passthrough")
        assert first.decision == ("PASS" if mode == "passthrough" else "RECORD")
        assert ask_chat(f"{session_url(px.url, 'a')}/v1") == 200
        (second,) = control.calls("a", after=1)
        assert (second.seq, control.report("a").arrived) == (2, 2)
        if mode != "passthrough":
            made = parse_recording_json_of_call(second)
            assert made is not None
            answer = decode_interaction_to_messages(made, RequestMessageCache()).answer
            assert answer is not None
            assert answer.text == "hello"
        control.close_session("a")


def test_a_walk_tells_misses_and_hits_of_a_replay(control: ControlApiClient, px: Listening) -> None:
    """The text that the client got is the note; nobody's walk is an error."""
    control.open_session("walked")
    assert ask_chat(f"{session_url(px.url, 'walked')}/v1") == 404
    (call,) = control.calls("walked")
    assert (call.decision, call.miss, call.status, call.recording) == ("REFUSE", True, 404, None)
    assert "no recorded response" in call.note
    control.close_session("walked")
    with pytest.raises(ControlError, match="no session"):
        control.calls("walked")


OK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s"
HEALTHY = b'{"status": "ok", "version": "1", "mode": "replay"}'


@contextmanager
def server(answer: Callable[[int, socket.socket], None]) -> Iterator[tuple[int, list[int]]]:
    """Run a server, in a thread, that leaves each answer to `answer`; give its port and the connection of each request."""
    seen: list[int] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(number: int, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            while sock.recv(65536):
                seen.append(number)
                answer(len(seen), sock)

    def accept() -> None:
        number = 0
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            number += 1
            threading.Thread(target=serve, args=(number, sock), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1], seen
    finally:
        listening.close()


def healthy(_: int, sock: socket.socket) -> None:
    sock.sendall(OK % (len(HEALTHY), HEALTHY))


def asked(connection: HTTPConnection) -> bytes:
    connection.request("GET", "/")
    return connection.getresponse().read()


def test_control_calls_share_a_connection() -> None:
    """Five calls, one connection; without pool, five."""
    with server(healthy) as (port, seen):
        pool = ControlConnectionPool()
        for _ in range(5):
            assert ControlApiClient(f"http://127.0.0.1:{port}", pool=pool).health().version == "1"
        assert seen == [1] * 5
        ControlApiClient(f"http://127.0.0.1:{port}").health()
        assert seen[-1] == 2
        pool.close()


def test_two_at_once_have_two() -> None:
    """What is in use is nobody else's."""
    with server(healthy) as (port, seen):
        pool = ControlConnectionPool()
        first, second = (pool.take("127.0.0.1", port, 5) for _ in range(2))
        for connection in (first, second, first):
            assert asked(connection) == HEALTHY
        assert seen == [1, 2, 1]
        for connection in (first, second):
            pool.give_back(connection)
        assert {pool.take("127.0.0.1", port, 7), pool.take("127.0.0.1", port, 7)} == {first, second}
        assert first.sock.gettimeout() == 7
        first.close()
        second.close()


@pytest.mark.parametrize("more", ["close", "speak"])
def test_a_connection_that_is_not_quiet_is_not_used_again(more: str) -> None:
    """The server closed it, or said something that nobody asked for: it would be taken for the next answer."""
    heard, spoken = threading.Event(), threading.Event()

    def answer(number: int, sock: socket.socket) -> None:
        healthy(number, sock)
        if number == 1 and more == "close":
            sock.shutdown(socket.SHUT_RDWR)
        elif number == 1:
            assert heard.wait(120)
            sock.sendall(OK % (2, b"no"))
        spoken.set()

    with server(answer) as (port, seen):
        pool = ControlConnectionPool()
        control = ControlApiClient(f"http://127.0.0.1:{port}", pool=pool)
        for _ in range(2):
            control.health()
            heard.set()
            assert spoken.wait(120)
        assert seen == [1, 2]
        pool.close()


def test_what_was_not_used_for_long_is_let_go() -> None:
    """A server's patience with idle connections may end just as the next request is sent: that one would be lost."""
    now = 0.0
    with server(healthy) as (port, seen):
        pool = ControlConnectionPool(lambda: now)
        control = ControlApiClient(f"http://127.0.0.1:{port}", pool=pool)
        for _ in range(3):
            control.health()
            now += FRESH - 1
        now += 1
        control.health()
        assert seen == [1, 1, 1, 2]
        pool.close()


def test_an_address_without_a_port_is_the_same_place_each_time() -> None:
    """Port 80: what is given back there is found there."""
    pool = ControlConnectionPool()
    with server(healthy) as (port, _):
        connection = HTTPConnection("127.0.0.1", port)
        asked(connection)
        connection.port = 80
        pool.give_back(connection)
        assert pool.take("127.0.0.1", None, 5) is connection
        connection.close()


@pytest.mark.parametrize("kept", [False, True])
def test_a_request_that_the_server_drops_is_not_sent_again(kept: bool) -> None:
    """It may have done what was asked: the caller is told, and the next call has a connection of its own."""

    def answer(number: int, sock: socket.socket) -> None:
        if number == 1 + kept:
            sock.shutdown(socket.SHUT_RDWR)
        else:
            healthy(number, sock)

    with server(answer) as (port, seen):
        pool = ControlConnectionPool()
        control = ControlApiClient(f"http://127.0.0.1:{port}", pool=pool)
        for _ in range(kept):
            control.health()
        with pytest.raises(ProxyUnreachable, match="no llmproxy answers"):
            control.reset("s")
        control.health()
        assert seen == ([1, 1, 2] if kept else [1, 2])
        pool.close()


def test_what_the_server_closes_is_not_kept() -> None:
    """`connection: close` is obeyed."""

    def answer(_: int, sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")

    with server(answer) as (port, seen):
        pool = ControlConnectionPool()
        for _ in range(2):
            connection = pool.take("127.0.0.1", port, 5)
            assert asked(connection) == b"ok"
            pool.give_back(connection)
        assert seen == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_does_not_speak_where_its_parent_does() -> None:
    """Two processes on one connection would read each other's answers."""
    with server(healthy) as (port, _):
        pool = ControlConnectionPool()
        connection = pool.take("127.0.0.1", port, 5)
        asked(connection)
        pool.give_back(connection)
        child = os.fork()
        if not child:
            os._exit(pool.take("127.0.0.1", port, 5).sock is not None)
        assert os.waitpid(child, 0)[1] == 0
        pool.close()


def test_servers_that_are_gone_leave_nothing_open() -> None:
    """A process that asks many proxies, one after the other, does not collect dead connections."""
    now = [0.0]
    pool = ControlConnectionPool(lambda: now[0])
    with server(healthy) as (port, _), server(healthy) as (other, _):
        connection = pool.take("127.0.0.1", port, 5)
        asked(connection)
        pool.give_back(connection)
        now[0] = FRESH
        pool.take("127.0.0.1", other, 5)
        assert connection.sock is None
