"""Connections that are used again: the same one, unless that would not be safe."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection

import pytest

from llmproxy.client.control.client import Control, ProxyGone
from llmproxy.client.control.wires import FRESH, Wires

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
    """Say that all is well."""
    sock.sendall(OK % (len(HEALTHY), HEALTHY))


def asked(wire: HTTPConnection) -> bytes:
    """Ask for something and return what came."""
    wire.request("GET", "/")
    return wire.getresponse().read()


def test_control_calls_share_a_connection() -> None:
    """Five calls, one connection; without wires, five."""
    with server(healthy) as (port, seen):
        wires = Wires()
        for _ in range(5):
            assert Control(f"http://127.0.0.1:{port}", wires=wires).health().version == "1"
        assert seen == [1] * 5
        Control(f"http://127.0.0.1:{port}").health()
        assert seen[-1] == 2
        wires.close()


def test_two_at_once_have_two() -> None:
    """What is in use is nobody else's."""
    with server(healthy) as (port, seen):
        wires = Wires()
        first, second = (wires.take("127.0.0.1", port, 5) for _ in range(2))
        for wire in (first, second, first):
            assert asked(wire) == HEALTHY
        assert seen == [1, 2, 1]
        for wire in (first, second):
            wires.give(wire)
        assert {wires.take("127.0.0.1", port, 7), wires.take("127.0.0.1", port, 7)} == {first, second}
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
        wires = Wires()
        control = Control(f"http://127.0.0.1:{port}", wires=wires)
        for _ in range(2):
            control.health()
            heard.set()
            assert spoken.wait(120)
        assert seen == [1, 2]
        wires.close()


def test_what_was_not_used_for_long_is_let_go() -> None:
    """A server's patience with idle connections may end just as the next request is sent: that one would be lost."""
    now = 0.0
    with server(healthy) as (port, seen):
        wires = Wires(clock=lambda: now)
        control = Control(f"http://127.0.0.1:{port}", wires=wires)
        for _ in range(3):
            control.health()
            now += FRESH - 1
        now += 1
        control.health()
        assert seen == [1, 1, 1, 2]
        wires.close()


def test_an_address_without_a_port_is_the_same_place_each_time() -> None:
    """Port 80: what is given back there is found there."""
    wires = Wires()
    with server(healthy) as (port, _):
        wire = HTTPConnection("127.0.0.1", port)
        asked(wire)
        wire.port = 80
        wires.give(wire)
        assert wires.take("127.0.0.1", None, 5) is wire
        wire.close()


@pytest.mark.parametrize("kept", [False, True])
def test_a_request_that_the_server_drops_is_not_sent_again(kept: bool) -> None:
    """It may have done what was asked: the caller is told, and the next call has a connection of its own."""

    def answer(number: int, sock: socket.socket) -> None:
        if number == 1 + kept:
            sock.shutdown(socket.SHUT_RDWR)
        else:
            healthy(number, sock)

    with server(answer) as (port, seen):
        wires = Wires()
        control = Control(f"http://127.0.0.1:{port}", wires=wires)
        for _ in range(kept):
            control.health()
        with pytest.raises(ProxyGone, match="no llmproxy answers"):
            control.reset("s")
        control.health()
        assert seen == ([1, 1, 2] if kept else [1, 2])
        wires.close()


def test_what_the_server_closes_is_not_kept() -> None:
    """`connection: close` is obeyed."""

    def answer(_: int, sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")

    with server(answer) as (port, seen):
        wires = Wires()
        for _ in range(2):
            wire = wires.take("127.0.0.1", port, 5)
            assert asked(wire) == b"ok"
            wires.give(wire)
        assert seen == [1, 2]


def test_no_more_are_kept_than_allowed() -> None:
    """The rest is closed."""
    with server(healthy) as (port, _):
        wires = Wires(most=1)
        both = [wires.take("127.0.0.1", port, 5) for _ in range(2)]
        for wire in both:
            asked(wire)
            wires.give(wire)
        assert [wire.sock is None for wire in both] == [False, True]
        wires.close()
        assert both[0].sock is None


def test_servers_that_are_gone_leave_nothing_open() -> None:
    """A process that asks many proxies, one after the other, does not collect dead connections."""
    closed = threading.Event()

    def once(_: int, sock: socket.socket) -> None:
        healthy(1, sock)
        sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    wires = Wires()
    with server(once) as (port, _), server(healthy) as (other, _):
        wire = wires.take("127.0.0.1", port, 5)
        asked(wire)
        wires.give(wire)
        assert closed.wait(120)
        wires.take("127.0.0.1", other, 5)
        assert wire.sock is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_does_not_speak_where_its_parent_does() -> None:
    """Two processes on one connection would read each other's answers."""
    with server(healthy) as (port, _):
        wires = Wires()
        wire = wires.take("127.0.0.1", port, 5)
        asked(wire)
        wires.give(wire)
        child = os.fork()
        if not child:
            os._exit(wires.take("127.0.0.1", port, 5).sock is not None)
        assert os.waitpid(child, 0)[1] == 0
        wires.close()
