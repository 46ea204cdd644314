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
    CLIENTS,
    OTHER,
    RUNTIMES,
    BypassMonitoredProcess,
    ObservedHostLookup,
    ProxyBypassMonitor,
    build_dns_watch_env,
    find_bypasses_by_dns_lookup,
    find_known_bypassers,
    find_runtime_advice,
    is_client_configured_in_command,
    list_known_bypasser_warnings,
    read_observed_host_lookup_log,
)
from tests.support.process import clean_env, until

linux = pytest.mark.skipif(not ProxyBypassMonitor().is_supported, reason="NOT RUN: needs Linux's /proc")

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
    monitor = ProxyBypassMonitor(tmp_path)
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
            monitor = ProxyBypassMonitor()
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
    monitor = ProxyBypassMonitor()
    monitor.seen[1] = BypassMonitoredProcess(1, "x", {}, {("127.0.0.1", 443), ("127.0.0.1", 8080), ("10.0.0.5", 5432)})
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
    assert find_bypasses_by_dns_lookup([ObservedHostLookup(*each) for each in told], "laptop") == past


def test_a_program_s_own_start_is_not_changed(tmp_path: Path) -> None:
    """Its sitecustomize runs, its PYTHONPATH and NODE_OPTIONS stay, and a log that cannot be written is no error."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import sys; sys.customised = True\n")
    given = build_dns_watch_env({"PYTHONPATH": str(mine), "NODE_OPTIONS": "--no-warnings"}, tmp_path)
    assert given["PYTHONPATH"].endswith(f"{os.pathsep}{mine}")
    assert given["NODE_OPTIONS"].startswith("--no-warnings --require ")
    code = "import socket, sys; socket.getaddrinfo('127.0.0.1', 80); print(sys.customised)"
    for log in (given["LLMPROXY_DOCTOR"], str(tmp_path)):
        words = clean_env(given | {"LLMPROXY_DOCTOR": log})
        done = subprocess.run([sys.executable, "-c", code], env=words, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("True\n", "")
    assert [(each.host, each.port) for each in read_observed_host_lookup_log(tmp_path)] == [("127.0.0.1", 80)]


def test_a_broken_line_is_left_out(tmp_path: Path) -> None:
    """Two children may write at once, and one may be killed while it does."""
    assert list(read_observed_host_lookup_log(tmp_path)) == []
    (tmp_path / "lookups").write_text("7\tapi.x.com\t443\tpython\n8\t\nnot a pid\ta\tb\tc\n9\th")
    assert list(read_observed_host_lookup_log(tmp_path)) == [
        ObservedHostLookup(7, "python", "api.x.com", 443),
        ObservedHostLookup(9, "", "h", 0),
    ]


@pytest.mark.parametrize(("command", "files", "names"), [
    (["codex", "exec", "hi"], {}, ["Codex"]),
    (["sh", "-c", "cd x && /opt/bin/codex exec 'hi'"], {}, ["Codex"]),
    (["npx", "codex.js"], {}, ["Codex"]),
    (["claude", "-p", "what is a codex-like thing?"], {}, []),
    (["npm", "test"], {"package.json": '{"dependencies": {"@ai-sdk/google": "^3"}}'}, ["@ai-sdk/google"]),
    (["npm", "test"], {"package.json": '{"dependencies": {"@ai-sdk/google-vertex": "^3"}}'}, []),
    (["pytest"], {"requirements.txt": "mistralai==3.7.0\n"}, ["Mistral's client"]),
    (["npm", "test"], {"package.json": '{"dependencies": {"ollama": "1"}}'}, ["Ollama for JavaScript"]),
    (["true"], {}, []),
])  # fmt: skip
def test_a_client_is_known_by_its_program_or_its_package(
    command: list[str], files: dict[str, str], names: list[str]
) -> None:
    """Programs are whole words of the command, packages whole names of a project's file."""
    assert [each.name for each in find_known_bypassers(command, files)] == names


def test_codex_with_an_address_needs_no_advice() -> None:
    """What the command sets itself is not said again."""
    codex = CLIENTS[0]
    assert not is_client_configured_in_command(codex, ["codex", "exec", "hi"])
    assert is_client_configured_in_command(codex, ["sh", "-c", "codex -c model_providers.x.base_url=$OPENAI_BASE_URL"])


@pytest.mark.parametrize(("command", "warned"), [
    (["codex", "exec", "hi"], True),
    (["/opt/bin/codex", "exec", "hi"], True),
    (["npx", "codex", "exec"], True),
    (["sh", "-c", "cd x && codex exec 'hi'"], True),
    (["sh", "-c", 'codex -c model_providers.x.base_url="$OPENAI_BASE_URL" hi'], False),
    (["claude", "-p", "run codex"], False),
    (["sh", "-c", "claude -p 'say codex'"], False),
    (["sh", "-c", "ls codex.d"], False),
])  # fmt: skip
def test_who_goes_past_the_proxy_is_said_before(command: list[str], warned: bool) -> None:
    """Only for a program that is run, not for one that is talked about, and not where it is configured."""
    assert bool(list_known_bypasser_warnings(command)) is warned


@pytest.mark.parametrize(("program", "name"), [
    ("/usr/bin/python3.13", "Python"),
    ("node", "Node"),
    ("C:\\tools\\NODE.EXE", "Node"),
    ("/usr/bin/java", "Java"),
    ("go", "Go"),
    ("docker", "a container or another machine"),
    ("./my-agent", OTHER.name),
])  # fmt: skip
def test_a_runtime_is_known_by_its_program(program: str, name: str) -> None:
    assert find_runtime_advice(program).name == name


def test_every_runtime_has_advice_for_both_ways() -> None:
    assert [each.name for each in (*RUNTIMES, OTHER) if not (each.base_url and each.intercept)] == []
