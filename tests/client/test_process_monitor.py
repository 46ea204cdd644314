"""Who went past the proxy?"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.client.bypass_monitor import (
    MonitoredProcess,
    ObservedLookup,
    ProcessMonitor,
    find_lookup_bypasses,
    lookup_log_path,
    make_lookup_reporting_env,
    read_lookups,
)
from tests.support.process import clean_env, until

linux = pytest.mark.skipif(not ProcessMonitor().is_supported, reason="NOT RUN: needs Linux's /proc")

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:A000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 111 1
   1: 0A000002:A001 0D07126C:01BB 02 00000000:00000000 00:00000000 00000000     0        0 222 1
   2: 0A000002:A002 08080808:01BB 06 00000000:00000000 00:00000000 00000000     0        0 333 1
"""
TCP6 = """  sl  local_address                         remote_address                        st tx rx tr tm uid t inode
   0: 00000000000000000000000001000000:A003 B80D0120000000000000000001000000:01BB 01 0:0 0:0 0 0 0 444 1
   1: 0000000000000000FFFF00000100007F:A004 0000000000000000FFFF000001020304:0050 01 0:0 0:0 0 0 0 555 1
"""


@linux
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
    monitor = ProcessMonitor(tmp_path)
    monitor.poll(7)
    seen = monitor.seen[7]
    assert (seen.program, seen.env) == ("/usr/bin/node", {"A": "1", "B": "x=y"})
    assert seen.connected == {("127.0.0.1", 8080), ("108.18.7.13", 443), ("2001:db8::1", 443), ("4.3.2.1", 80)}
    assert monitor.find_bypasses(("127.0.0.1", 8080)) == {
        7: [("108.18.7.13", 443), ("2001:db8::1", 443), ("4.3.2.1", 80)]
    }


@linux
def test_a_grandchild_s_connection_is_seen(tmp_path: Path) -> None:
    """The agent is often below a shell, below npm."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); time.sleep(20)"
        shell = shutil.which("sh") or "sh"
        with subprocess.Popen(
            [shell, "-c", f'"{sys.executable}" -c "{code}"; true'], env={**os.environ, "MINE": "1"}
        ) as child:
            monitor = ProcessMonitor()
            monitor.start(child.pid)
            address = ("127.0.0.1", port)
            until(lambda: monitor.find_bypasses(("127.0.0.1", 1), frozenset({address})), 20)
            monitor.stop()
            for pid in monitor.seen:
                os.kill(pid, 15)
    past = monitor.find_bypasses(("127.0.0.1", 1), frozenset({address}))
    assert [(monitor.seen[pid].program, where) for pid, where in past.items()] == [(sys.executable, [address])]
    env = monitor.seen[next(iter(past))].env
    assert env is not None
    assert env["MINE"] == "1"


@linux
def test_local_services_are_nobody_s_business() -> None:
    """A database on this machine is no provider; a connection to the proxy is what we want."""
    monitor = ProcessMonitor()
    monitor.seen[1] = MonitoredProcess(1, "x", {}, {("127.0.0.1", 443), ("127.0.0.1", 8080), ("10.0.0.5", 5432)})
    assert monitor.find_bypasses(("127.0.0.1", 8080)) == {}


@pytest.mark.parametrize(
    ("told", "past"),
    [
        ([(1, "python", "api.openai.com", 0), (1, "python", "api.openai.com", 443), (1, "python", "db.example.com", 5432),
          (2, "node", "localhost", 443), (2, "node", "127.0.0.1", 80), (3, "node", "gateway.example.com", 80)],
         {1: ("python", [("api.openai.com", 443)]), 3: ("node", [("gateway.example.com", 80)])}),
        ([(1, "node", "llm.corp.test", 0), (2, "node", "api.openai.com", 0), (3, "python", "10.9.9.9", 443),
          (3, "python", "10.9.9.9", 0), (4, "node", "db.corp.test", 0), (4, "node", "db.corp.test", 5432),
          (5, "node", "laptop.corp.test", 0)],
         {1: ("node", [("llm.corp.test", 0)]), 2: ("node", [("api.openai.com", 443)]),
          3: ("python", [("10.9.9.9", 443)])}),
    ],
    ids=["providers and the web count, one host once", "a name that led nowhere counts, but this machine's"],
)  # fmt: skip
def test_hosts_of_providers_and_of_the_web_count(
    told: list[tuple[int, str, str, int]], past: dict[int, tuple[str, list[tuple[str, int]]]]
) -> None:
    """Loopback, a database and the proxy's own port are nobody's business; where no name is resolved the name is left."""
    assert find_lookup_bypasses([ObservedLookup(*each) for each in told], "laptop") == past


def test_a_program_s_own_start_is_not_changed(tmp_path: Path) -> None:
    """Its sitecustomize runs, its PYTHONPATH and NODE_OPTIONS stay, and a log that cannot be written is no error."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import sys; sys.customised = True\n")
    given = make_lookup_reporting_env({"PYTHONPATH": str(mine), "NODE_OPTIONS": "--no-warnings"}, tmp_path)
    assert given["PYTHONPATH"].endswith(f"{os.pathsep}{mine}")
    assert given["NODE_OPTIONS"].startswith("--no-warnings --require ")
    code = "import socket, sys; socket.getaddrinfo('127.0.0.1', 80); print(sys.customised)"
    for log in (given["LLMPROXY_DOCTOR"], str(tmp_path)):
        words = clean_env(given | {"LLMPROXY_DOCTOR": log})
        done = subprocess.run([sys.executable, "-c", code], env=words, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("True\n", "")
    assert [(each.host, each.port) for each in read_lookups(tmp_path)] == [("127.0.0.1", 80)]


def test_a_broken_line_is_left_out(tmp_path: Path) -> None:
    """Two children may write at once, and one may be killed while it does."""
    assert list(read_lookups(tmp_path)) == []
    lookup_log_path(tmp_path).write_text("7\tapi.x.com\t443\tpython\n8\t\nnot a pid\ta\tb\tc\n9\th")
    assert list(read_lookups(tmp_path)) == [
        ObservedLookup(7, "python", "api.x.com", 443),
        ObservedLookup(9, "", "h", 0),
    ]
