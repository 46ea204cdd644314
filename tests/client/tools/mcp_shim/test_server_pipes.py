"""Lines to a client: whole, and progress before the result that it belongs to, each in a read of its own."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import pytest

from llmproxy.client.tools.mcp_shim.server_pipes import make_client_line_writer, split_notification_runs

PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n'
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
ASKED = b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}\n'


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [RESULT],
        [RESULT + RESULT],
        [PROGRESS + PROGRESS],
        [PROGRESS + PROGRESS, RESULT],
        [RESULT + PROGRESS, ASKED + PROGRESS, RESULT],
        [b'{"id":1,"result":{"text":"a \\"method\\": \\"notifications/x\\""}}\n' + RESULT],
    ],
)
def test_what_follows_a_notification_is_a_part_of_its_own(parts: list[bytes]) -> None:
    """Nothing else is cut, and not a byte is lost."""
    assert split_notification_runs(b"".join(parts)) == parts


def pipe() -> tuple[int, Callable[[], bytes], Callable[[], None]]:
    """Make a pipe: where to write, what reads all that is there, what closes both."""
    read, write = os.pipe()

    def close() -> None:
        os.close(read)
        os.close(write)

    return write, lambda: os.read(read, 65536), close


def pair() -> tuple[int, Callable[[], bytes], Callable[[], None]]:
    """Make a pair of sockets, which Node gives its children."""
    ours, theirs = socket.socketpair()

    def close() -> None:
        ours.close()
        theirs.close()

    return ours.fileno(), lambda: theirs.recv(65536), close


@pytest.mark.parametrize("made", [pipe, pair])
def test_a_result_waits_until_its_progress_was_read(
    made: Callable[[], tuple[int, Callable[[], bytes], Callable[[], None]]],
) -> None:
    """Whoever reads all that is there gets the one, then the other."""
    fd, read, close = made()
    write = make_client_line_writer(fd, patience=60)
    for before, at_once in ((b"", PROGRESS + RESULT), (PROGRESS, RESULT)):
        write(before)
        writer = threading.Thread(target=write, args=(at_once,))
        writer.start()
        assert [read(), read()] == [PROGRESS, RESULT]
        writer.join(20)
    close()


def test_a_client_that_is_gone_is_no_error() -> None:
    """Nobody reads: nothing is raised."""
    ours, theirs = socket.socketpair()
    theirs.close()
    make_client_line_writer(ours.fileno())(PROGRESS + RESULT)
    ours.close()
