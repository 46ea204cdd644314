"""Who went past the proxy?"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmproxy.client.doctor.witness import Witness, WitnessedCall

pytestmark = pytest.mark.skipif(not Witness().able, reason="NOT RUN: needs Linux's /proc")

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:A000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 111 1
   1: 0A000002:A001 0D07126C:01BB 02 00000000:00000000 00:00000000 00000000     0        0 222 1
   2: 0A000002:A002 08080808:01BB 06 00000000:00000000 00:00000000 00000000     0        0 333 1
"""
TCP6 = """  sl  local_address                         remote_address                        st tx rx tr tm uid t inode
   0: 00000000000000000000000001000000:A003 B80D0120000000000000000001000000:01BB 01 0:0 0:0 0 0 0 444 1
   1: 0000000000000000FFFF00000100007F:A004 0000000000000000FFFF000001020304:0050 01 0:0 0:0 0 0 0 555 1
"""


def test_the_tables_of_the_kernel_are_read(tmp_path: Path) -> None:
    """Addresses of both families, mapped ones as what they are; connections that ended do not count."""
    folder = tmp_path / "7"
    (folder / "net").mkdir(parents=True)
    (folder / "fd").mkdir()
    for number, inode in enumerate((111, 222, 333, 444, 555)):
        (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    (folder / "net" / "tcp").write_text(TCP)
    (folder / "net" / "tcp6").write_text(TCP6)
    (folder / "cmdline").write_bytes(b"/usr/bin/node\0agent.js\0")
    (folder / "environ").write_bytes(b"A=1\0B=x=y\0")
    witness = Witness(tmp_path)
    witness.look(7)
    seen = witness.seen[7]
    assert (seen.program, seen.env) == ("/usr/bin/node", {"A": "1", "B": "x=y"})
    assert seen.connected == {("127.0.0.1", 8080), ("108.18.7.13", 443), ("2001:db8::1", 443), ("4.3.2.1", 80)}
    assert witness.went_past(("127.0.0.1", 8080)) == {7: [("108.18.7.13", 443), ("2001:db8::1", 443), ("4.3.2.1", 80)]}


def test_a_grandchild_s_connection_is_seen(tmp_path: Path) -> None:
    """The agent is often below a shell, below npm."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); time.sleep(20)"
        shell = shutil.which("sh") or "sh"
        with subprocess.Popen(
            [shell, "-c", f'"{sys.executable}" -c "{code}"; true'], env={**os.environ, "MINE": "1"}
        ) as child:
            witness = Witness()
            witness.start(child.pid)
            address = ("127.0.0.1", port)
            deadline = time.monotonic() + 10
            while not witness.went_past(("127.0.0.1", 1), frozenset({address})) and time.monotonic() < deadline:
                time.sleep(0.02)
            witness.stop()
            for pid in witness.seen:
                os.kill(pid, 15)
    past = witness.went_past(("127.0.0.1", 1), frozenset({address}))
    assert [(witness.seen[pid].program, where) for pid, where in past.items()] == [(sys.executable, [address])]
    env = witness.seen[next(iter(past))].env
    assert env is not None
    assert env["MINE"] == "1"


def test_local_services_are_nobody_s_business() -> None:
    """A database on this machine is no provider; a connection to the proxy is what we want."""
    witness = Witness()
    witness.seen[1] = WitnessedCall(1, "x", {}, {("127.0.0.1", 443), ("127.0.0.1", 8080), ("10.0.0.5", 5432)})
    assert witness.went_past(("127.0.0.1", 8080)) == {}
