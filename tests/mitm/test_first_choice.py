"""The first byte decides: TLS, or our layer; and if choosing fails, the connection ends."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from tests.mitm.rig import Rig
from tests.mitm.wire import Wire, chat


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_connection_that_begins_in_small_packets_is_ours(tmp_path: Path, size: int) -> None:
    """The choice of mitmproxy itself (an HTTP layer at once) never counts."""
    with Rig("replay", tmp_path / "x.db") as rig, rig.client() as c:
        raw = chat("hi")
        for at in range(0, 12, size):
            c.send(raw[at : at + size])
            time.sleep(0.005)
        assert c.ask(raw[(12 + size - 1) // size * size :]).status == 404


def test_tls_in_small_packets(tmp_path: Path) -> None:
    """A handshake may begin with a single byte."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with Rig("replay", tmp_path / "x.db") as rig, Wire(rig.port) as c:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        done = False
        while not done:
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            data = outgoing.read()
            for at in range(min(4, len(data))):
                c.send(data[at : at + 1])
                time.sleep(0.005)
            c.send(data[4:])
            if not done:
                incoming.write(c.sock.recv(65536))
        tls.write(chat("hi"))
        c.send(outgoing.read())
        answer = b""
        while b"llmproxy" not in answer:
            incoming.write(c.sock.recv(65536))
            try:
                answer += tls.read(65536)
            except ssl.SSLWantReadError:
                continue
        assert answer.startswith(b"HTTP/1.1 404")


def test_who_says_nothing_is_waited_for(tmp_path: Path) -> None:
    """Connections that browsers and pools open ahead are kept."""
    with Rig("replay", tmp_path / "x.db") as rig, rig.client(0.3) as c:
        with pytest.raises(TimeoutError):
            c.more()
        assert c.ask(chat("hi")).status == 404
