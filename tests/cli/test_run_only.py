"""``llmproxy run --only``: a network with nothing but the proxy, for real programs, and what they tried."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from llmproxy.client.isolated_network import parse_host_port_or_socket_path, require_network_namespace_support
from llmproxy.errors import MachineError, SettingsError
from tests.cli.test_run import run_at
from tests.support.asking import ASK_EACH as ASK
from tests.support.forked import python_itself
from tests.support.process import clean_env, needed
from tests.support.proxy import Proxy

PYTHON = """
import os, socket, sys, tempfile, urllib.request
def attempt(name, what):
    try:
        print(name, what())
    except OSError as error:
        print(name, type(error).__name__)
def unix(path, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as each:
        each.connect(path)
    return "connected"
def own(folder=tempfile.mkdtemp()):
    with socket.socket(socket.AF_UNIX) as each:
        each.bind(folder + "/own")
        each.listen()
        return unix(folder + "/own")
def udp(where, connect):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as each:
        return each.connect(where) if connect else each.sendto(b"x", where)
outside, port = sys.argv[1], int(sys.argv[2])
attempt("name", lambda: socket.create_connection(("api.elsewhere.example", 443)))
attempt("v4", lambda: socket.create_connection(("203.0.113.5", 81)))
attempt("v6", lambda: socket.create_connection(("2001:db8::5", 82)))
attempt("service", lambda: socket.create_connection(("localhost", port)))
attempt("unix", lambda: unix(outside))
attempt("none", lambda: unix(outside + "none"))
attempt("taken", lambda: socket.socket(socket.AF_UNIX).bind(outside))
attempt("still", lambda: unix(outside))
attempt("own", own)
attempt("datagram", lambda: unix(outside, socket.SOCK_DGRAM))
attempt("raw", lambda: unix(outside, socket.SOCK_RAW))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
attempt("route", lambda: udp(("203.0.113.6", 83), True))
attempt("udp", lambda: udp(("203.0.113.7", 84), False))
server = socket.create_server(("127.0.0.1", 0))
attempt("listen", lambda: socket.create_connection(server.getsockname()) and "heard")
attempt("machine", lambda: socket.gethostbyname(socket.gethostname()) and "found")
attempt("looked up", lambda: socket.gethostbyname("only.a.name.example") and "found")
"""
SAID = {
    "name": "ConnectionRefusedError", "v4": "ConnectionRefusedError", "v6": "ConnectionRefusedError",
    "service": "ConnectionRefusedError", "unix": "ConnectionRefusedError", "none": "FileNotFoundError",
    "taken": "OSError", "still": "ConnectionRefusedError", "own": "connected", "datagram": "OSError", "raw": "OSError",
    "vsock": "OSError", "route": "None", "udp": "1", "listen": "heard", "machine": "found", "looked up": "found",
}  # fmt: skip
NODE = "fetch('https://node.elsewhere.example/v1').catch(error => console.log(error.cause.code))"
JAVA = 'class A { public static void main(String[] a) throws Exception { new java.net.Socket("203.0.113.9", 85); } }'


@pytest.fixture(autouse=True)
def _able() -> None:
    try:
        require_network_namespace_support()
    except MachineError as error:
        needed(str(error), rare=True)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A service of this machine: at a Unix socket, and at a port; whoever arrives is told so."""
    path = str(tmp_path / "outside.sock")
    unix, tcp = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
    unix.bind(path)
    unix.listen()

    def greet(server: socket.socket) -> None:
        while True:
            try:
                with server.accept()[0] as client:
                    client.sendall(b"outside")
            except OSError:
                return

    for each in (unix, tcp):
        threading.Thread(target=greet, args=(each,), daemon=True).start()
    yield path, tcp.getsockname()[1]
    for each in (unix, tcp):
        each.shutdown(socket.SHUT_RDWR)
        each.close()


def tried(text: str) -> set[str]:
    return {line.removeprefix("  tried: ") for line in text.splitlines() if line.startswith("  tried: ")}


def test_nothing_leaves_and_what_tried_is_named(px: Proxy, outside: tuple[str, int], tmp_path: Path) -> None:
    """Names, IPv4, IPv6, UDP, a local service, Unix sockets; what stays inside works, and is not named."""
    path, port = outside
    result = tmp_path / "result.json"
    words = ["--only", "--json", str(result), "--", sys.executable, "-c", PYTHON, path, str(port)]
    done = run_at(px, *words)
    assert dict(line.rsplit(" ", 1) for line in done.stdout.splitlines()) == SAID
    assert done.returncode == 4, done.stderr
    python = Path(sys.executable).name
    service = f"{python}: 127.0.0.1:{port}, a service of this machine (see --only-allow)"
    assert json.loads(result.read_text())["tried"] == {
        f"{python}: api.elsewhere.example:443": 1, f"{python}: 203.0.113.5:81": 1,
        f"{python}: [2001:db8::5]:82": 1, service: 1, f"{python}: {path}": 2, "203.0.113.7:84 (UDP)": 1,
        "only.a.name.example (looked up)": 1,
    }  # fmt: skip
    assert (service in tried(done.stderr), "NEVER USED" in done.stderr) == (True, False)


@pytest.mark.parametrize(("command", "name"), [
    pytest.param(["sh", "-c", "(sh -c 'curl -s http://203.0.113.8:86/'; true)"], "curl: 203.0.113.8:86", id="curl"),
    pytest.param(["node", "-e", NODE], "node: node.elsewhere.example:443", id="node"),
    pytest.param(["java", "A.java"], "java: 203.0.113.9:85", id="java", marks=pytest.mark.slow),
])  # fmt: skip
def test_any_program_is_named(command: Sequence[str], name: str, px: Proxy, tmp_path: Path) -> None:
    """A grandchild of a shell, Node, Java: by its own name."""
    if shutil.which(command[0]) is None:
        needed(command[0], command[0], rare=True)
    (tmp_path / "A.java").write_text(JAVA)
    done = run_at(px, "--only", "--", *command, cwd=tmp_path)
    assert tried(done.stderr) == {name}
    assert done.returncode == 4


def test_the_proxy_and_what_is_allowed_are_reached(px: Proxy, outside: tuple[str, int]) -> None:
    """A miss arrives at the proxy; two services outside answer; nothing is named, and the command's code is kept."""
    path, port = outside
    ask = (
        f"{ASK}\nimport socket\nprint(socket.create_connection(('localhost', {port})).recv(9))\nu = socket.socket(1)\n"
    )
    ask += f"u.connect({path!r})\nprint(u.recv(9))\nsys.exit(5)"
    allowed = ["--only-allow", f"localhost:{port}", "--only-allow", path]
    done = run_at(px, "--only", *allowed, "--", sys.executable, "-c", ask, "hi")
    assert done.stdout.split("\n") == ["HTTP 404", "b'outside'", "b'outside'", ""]
    assert (done.returncode, tried(done.stderr)) == (5, set())


def test_without_rights_it_is_refused_in_words(tmp_path: Path) -> None:
    """Root without its rights, where users may make no namespace: nothing is run, and what to type is said."""
    if subprocess.run(["unshare", "-Ur", "setpriv", "true"], check=False).returncode:
        needed("setpriv in a user namespace", rare=True)
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-sys_admin "$@"'
    words = ["unshare", "-Ur", "sh", "-c", script, "sh", *python_itself("llmproxy")]
    words += ["run", "--only", "--", "touch", str(tmp_path / "ran")]
    done = subprocess.run(
        words, capture_output=True, text=True, env=clean_env(), cwd=tmp_path, check=False, timeout=120
    )
    assert done.returncode == 3, done.stderr
    assert "llmproxy: --only: this machine does not let us make a network namespace: " in done.stderr
    assert "sudo sysctl -w user.max_user_namespaces=15000" in done.stderr
    assert os.listdir(tmp_path) == []  # noqa: PTH208 (names are all that is asked)


ABLE = "from llmproxy.client.isolated_network import require_network_namespace_support; require_network_namespace_support()"


def test_root_of_a_container_without_net_admin_is_able() -> None:
    """As `docker run --cap-add SYS_ADMIN` makes it: a namespace of users gives what lacks."""
    if subprocess.run(["unshare", "-Ur", "setpriv", "true"], check=False).returncode:
        needed("setpriv in a user namespace", rare=True)
    words = ["unshare", "-Ur", "setpriv", "--bounding-set=-net_admin", sys.executable, "-c", ABLE]
    done = subprocess.run(words, capture_output=True, text=True, env=clean_env(), check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_within_itself_it_is_not_needed(px: Proxy) -> None:
    """The kernel has one listener a filter, which no right changes: the hint says so."""
    done = run_at(px, "--only", "--", sys.executable, "-c", ABLE)
    assert "Device or resource busy" in done.stderr
    assert "within another `run --only` leave --only out" in done.stderr
    assert "--cap-add" not in done.stderr


def test_what_is_allowed_is_an_address() -> None:
    """Host and port, or a path; everything else is an error with an example."""
    assert parse_host_port_or_socket_path("Db.Example:5432") == ("db.example", 5432)
    assert parse_host_port_or_socket_path("[::1]:80") == ("::1", 80)
    assert parse_host_port_or_socket_path("/run/x.sock") == "/run/x.sock"
    for wrong in ("db.example", "5432", "db:x", "db:70000", "", "u@db:1"):
        with pytest.raises(SettingsError, match="is no address"):
            parse_host_port_or_socket_path(wrong)


def test_a_system_without_these_sockets_hears_what_it_lacks() -> None:
    """The module can be imported on macOS, where `run --only` is an error with a hint."""
    code = "import socket\nfor n in ('NETLINK', 'PACKET', 'ALG'): delattr(socket, 'AF_' + n)\nimport llmproxy.client.isolated_network"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], env=clean_env(), check=True)
