"""One connection to our own proxy, against a socket that says what it likes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

import pytest

from llmproxy.client.tools.shim.hosts import ProxyHost
from llmproxy.client.tools.shim.wire import ControlWire
from llmproxy.errors import MachineError
from llmproxy.tool_frames import DONE, FAILED, HEARD, LINE, frame


def peer(*connections: Sequence[bytes]) -> int:
    """Serve connections one after the other, answering each request with the next bytes, byte by byte; the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            for answers in connections:
                client, _ = listener.accept()
                with client:
                    for answer in answers:
                        client.recv(65536)
                        for at in range(len(answer)):
                            client.send(answer[at : at + 1])

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def test_answers_are_put_together_and_the_connection_stays() -> None:
    """However they come; one that ends the connection opens the next with the next call."""
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    last = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    wire = ControlWire("127.0.0.1", peer([first, first, last], [first]), 20)
    assert [wire.post("/x", b"{}") for _ in range(4)] == [(200, b"ok"), (200, b"ok"), (404, b""), (200, b"ok")]
    wire.close()


def test_a_connection_that_was_closed_while_nothing_was_asked_is_opened_again() -> None:
    """The proxy closes what is idle for hours, and its client goes on after its lunch."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    wire = ControlWire("127.0.0.1", peer([answer], [answer]), 20)
    assert wire.post("/x", b"{}") == (200, b"ok")
    assert wire._socket is not None
    assert wire._socket.recv(1, socket.MSG_PEEK) == b""  # the end has come
    assert wire.post("/x", b"{}") == (200, b"ok")
    wire.close()


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"]
)
def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    """It ended in the middle, or never was HTTP."""
    with pytest.raises(OSError, match=r"closed|speak|reset"):
        ControlWire("127.0.0.1", peer([answer]), 20).post("/x", b"{}")


def test_frames_are_said_on_the_connection_on_which_they_were_offered() -> None:
    """However the answer comes; a new connection has to be offered them anew."""
    offer = b"HTTP/1.1 200 OK\r\nllmproxy-frames: 1\r\ncontent-length: 2\r\n\r\nok"
    plain = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    wire = ControlWire("127.0.0.1", peer([offer, frame(DONE, b"x"), frame(FAILED)], [plain]), 20)
    assert (wire.framed, wire.post("/x", b"{}"), wire.framed) == (False, (200, b"ok"), True)
    assert [wire.say(frame(LINE, b"y")) for _ in range(2)] == [(DONE, b"x"), (FAILED, b"")]
    while not wire.has_ended():
        time.sleep(0.01)
    assert not wire.framed
    with pytest.raises(OSError, match="closed"):
        wire.say(frame(LINE, b"y"))
    assert (wire.post("/x", b"{}"), wire.framed) == ((200, b"ok"), False)
    wire.close()


@pytest.mark.parametrize("answer", [b"", frame(DONE, b"x")[:-1], b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_frame_is_an_error(answer: bytes) -> None:
    """It ended in the middle, or is none."""
    offer = b"HTTP/1.1 200 OK\r\nllmproxy-frames: 1\r\ncontent-length: 2\r\n\r\nok"
    wire = ControlWire("127.0.0.1", peer([offer, answer]), 20)
    assert wire.post("/x", b"{}") == (200, b"ok")
    with pytest.raises(OSError, match=r"closed|frames|reset"):
        wire.say(frame(LINE, b"y"))
    assert wire.has_ended()


@pytest.mark.parametrize("answer", [frame(HEARD, b"short"), frame(DONE), frame(77, b"?")])
def test_a_proxy_that_says_something_else_is_gone_for_its_shim(answer: bytes) -> None:
    """Its client hears why; nothing is guessed."""
    heard = b'{"out": "", "forward": 1}'
    offer = b"HTTP/1.1 200 OK\r\nllmproxy-frames: 1\r\ncontent-length: %d\r\n\r\n%b" % (len(heard), heard)
    host = ProxyHost(f"http://127.0.0.1:{peer([offer, answer])}", "s", "server", "c")
    assert host.hear(b"{}").forward == 1
    with pytest.raises(MachineError, match="frames of another kind"):
        host.hear(b"{}")
    host._wire.close()
