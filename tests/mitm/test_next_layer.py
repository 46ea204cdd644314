"""The first byte decides: TLS, or our layer; and if choosing fails, the connection ends."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest
from mitmproxy import master, options

from llmproxy.mitm.interception import LazyTlsConfig, prepare_certificate_authority
from llmproxy.mitm.proxy_context import ProxyContext
from tests.mitm.rig import Rig
from tests.mitm.test_intercept import ask_inside, shake, tls_inside
from tests.mitm.wire import chat


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
    with Rig("replay", tmp_path / "x.db", forward=True) as rig, rig.client() as c:
        inner, sent, got = tls_inside(rig.proxy.ca, "localhost")
        hello = sent.read()
        for byte in hello[:4]:
            c.send(bytes([byte]))
            time.sleep(0.005)
        c.send(hello[4:])
        shake(c, inner, sent, got)
        assert ask_inside(c, inner, sent, got, chat("hi")).startswith(b"HTTP/1.1 404")


HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
"""The beginning of a TLS handshake."""
BROKEN_OFF = [b"P", b"C", b"CONN", b"COPY / HT", b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A:",
              b"CONNECT api.openai.com:443 HTTP/1.1\r\n", HELLO[:1], HELLO]  # fmt: skip


@pytest.mark.parametrize("drips", [False, True])
@pytest.mark.parametrize(
    ("said", "answered"),
    [*((each, False) for each in BROKEN_OFF), *((each, True) for each in BROKEN_OFF if each.startswith(b"P"))],
)
def test_who_breaks_off_a_head_is_not_waited_for_without_end(
    tmp_path: Path, said: bytes, answered: bool, drips: bool
) -> None:
    """Whatever has begun, on a new connection and behind an answer; a byte now and then buys no time."""

    class Impatient(ProxyContext):
        head_patience = 0.05

    with Rig("replay", tmp_path / "x.db", shell=Impatient) as rig, rig.client() as c:
        if answered:
            assert c.ask(chat("hi")).status == 404
        c.send(said)
        c.sock.setblocking(False)
        got = b""
        while True:
            try:
                if not (more := c.sock.recv(65536)):
                    break
                got += more
            except BlockingIOError:
                if drips:
                    with suppress(OSError):
                        c.send(b"a")
                time.sleep(0.02)
            except OSError:
                break  # a byte that came after the end
        if not drips:  # else the end may take the answer with it
            assert got.startswith(b"" if said[:1] == HELLO[:1] else b"HTTP/1.1 408 ")
            assert (b"did not end within" in got) is (said[:1] != HELLO[:1])
        assert rig.proxy.open == {}


def test_a_head_in_pieces_is_waited_for_while_it_is_young(tmp_path: Path) -> None:
    """The limit is one head's, not the connection's: a slow one after a slow one is served."""

    class Impatient(ProxyContext):
        head_patience = 0.5

    with Rig("replay", tmp_path / "x.db", shell=Impatient) as rig, rig.client() as c:
        for number in range(6):
            raw = chat(f"hi {number}")
            c.send(raw[:20])
            time.sleep(0.15)
            assert c.ask(raw[20:]).status == 404


def test_who_says_nothing_is_waited_for(tmp_path: Path) -> None:
    """Connections that browsers and pools open ahead are kept."""
    with Rig("replay", tmp_path / "x.db") as rig, rig.client(0.3) as c:
        with pytest.raises(TimeoutError):
            c.more()
        assert c.ask(chat("hi")).status == 404


def test_it_is_made_once_and_hears_of_changes(tmp_path: Path) -> None:
    """Before it is made a change of options goes nowhere; after that it reaches the one that was made."""

    async def check() -> None:
        opts = options.Options()
        master.Master(opts)
        opts.update(confdir=str(prepare_certificate_authority(tmp_path / "one").folder))  # type: ignore[no-untyped-call]
        late = LazyTlsConfig()
        late.configure({"confdir"})
        made = late.get_config()
        first = made.certstore.default_ca
        assert late.get_config() is made
        opts.update(confdir=str(prepare_certificate_authority(tmp_path / "two").folder))  # type: ignore[no-untyped-call]
        late.configure({"confdir"})
        assert made.certstore.default_ca != first

    asyncio.run(check())
