"""The network guard: every way to connect is closed, and opens again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest

from llmproxy.errors import LLMProxyError
from llmproxy.trace import NetworkBlocked, NetworkGuard

Address = tuple[str, int]


@pytest.fixture
def where() -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def plainly(where: Address) -> None:
    socket.create_connection(where).close()


def raw(where: Address) -> None:
    with socket.socket() as raw_socket:
        raw_socket.connect(where)


def no_error(where: Address) -> None:
    with socket.socket() as raw_socket:
        raw_socket.connect_ex(where)


def datagram(where: Address) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"x", where)


def lookup(_: Address) -> None:
    socket.getaddrinfo("llm.invalid", 80)


def in_asyncio(where: Address) -> None:
    async def connect() -> None:
        _, writer = await asyncio.open_connection(*where)
        writer.close()
        await writer.wait_closed()

    asyncio.run(connect())


@pytest.mark.parametrize("connect", [plainly, raw, no_error, datagram, lookup, in_asyncio])
def test_every_way_is_closed(connect: Callable[[Address], None], where: Address) -> None:
    """create_connection, a socket's own connect, datagrams, look-ups and asyncio are refused."""
    with NetworkGuard() as guard:
        assert guard.is_active
        with pytest.raises(NetworkBlocked, match="network_allowlist"):
            connect(where)
    assert not guard.is_active


@pytest.mark.parametrize("connect", [plainly, raw, no_error, datagram, in_asyncio])
@pytest.mark.parametrize("allowed", ["127.0.0.1", "LOCALHOST"])
def test_allowed_hosts_may_be_reached(connect: Callable[[Address], None], where: Address, allowed: str) -> None:
    """By address, or by a name that stands for it."""
    with NetworkGuard([allowed]):
        connect(where)


def test_it_opens_again_and_nests(where: Address) -> None:
    """Inner guards close more; after the block all is as before, after an error too."""

    def breaks() -> None:
        with NetworkGuard():
            plainly(where)

    with NetworkGuard(["127.0.0.1"]):
        with pytest.raises(NetworkBlocked):
            breaks()
        plainly(where)
    plainly(where)


def test_the_error_is_ours_and_a_runtime_error() -> None:
    """Both who catches llmproxy's errors and who catches the original's kind gets it."""
    assert issubclass(NetworkBlocked, RuntimeError)
    assert issubclass(NetworkBlocked, LLMProxyError)
