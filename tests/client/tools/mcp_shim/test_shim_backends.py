"""One connection to our own proxy, against a socket that says what it likes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from llmproxy.client.tools.mcp_shim.shim_deciders import ProxyShimBackend
from llmproxy.errors import MachineError


def receive(client: socket.socket) -> None:
    asked = client.recv(65536)
    while b"\r\n\r\n" not in asked:
        asked += client.recv(65536)
    head, _, body = asked.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(65536)


def peer(*connections: Sequence[bytes]) -> int:
    """Serve connections one after the other, answering each request with the next bytes, byte by byte; the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            for answers in connections:
                client, _ = listener.accept()
                with client, suppress(ConnectionError):  # a client that has heard enough goes
                    for answer in answers:
                        receive(client)
                        for at in range(len(answer)):
                            client.send(answer[at : at + 1])

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


HEARD = b'{"out": "", "forward": 1}'


def answer(body: bytes = HEARD, status: str = "200 OK", more: str = "") -> bytes:
    """Write an answer of the proxy's."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def host(*connections: Sequence[bytes]) -> ProxyShimBackend:
    return ProxyShimBackend(f"http://127.0.0.1:{peer(*connections)}", "s", "server", "c")


def test_answers_are_put_together_and_the_connection_stays() -> None:
    """However they come; one that ends the connection opens the next with the next call."""
    last = answer(b"{}", more="connection: close\r\n")
    to = host([answer(), answer(), last], [answer(b"{}")])
    assert [to.on_line(b"{}").forward for _ in range(2)] == [1, 1]
    to.on_server_answer(1, [(5, b"{}")])
    to.end([])


def test_a_connection_that_was_closed_while_nothing_was_asked_is_opened_again() -> None:
    """The proxy closes what is idle for hours, and its client goes on after its lunch."""
    to = host([answer()], [answer()], [answer(b"{}")])
    for _ in range(2):
        assert to.on_line(b"{}").forward == 1
        assert to._http is not None
        assert to._http.sock.recv(1, socket.MSG_PEEK) == b""  # the end has come
    to.end([])


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", answer()[:-1], answer(b"no JSON")]
)
def test_what_is_no_answer_is_an_error(said: bytes) -> None:
    """It ended in the middle, or never was HTTP: nobody asks a second time."""
    to = host([said], [answer()])
    with pytest.raises(MachineError, match="does not answer"):
        to.on_line(b"{}")


def test_what_the_proxy_refuses_is_said_in_its_words() -> None:
    to = host([answer(b'{"error": {"message": "disk full"}}', "500 Internal Server Error")])
    with pytest.raises(MachineError, match=r"^disk full$"):
        to.on_server_answer(1, [])
    to._get_connection().close()
