"""What the kernel tells of programs that tell nothing themselves."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmproxy.client.doctor.lookups import TRACER, HostLookup, read_lookups, trace_command
from tests.support.process import clean_env, needed

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="NOT RUN: needs Linux on x86-64 or ARM",
)

QUESTION = bytes.fromhex("000701000001000000000000") + b"\x03api\x04corp\x04test\x00" + bytes.fromhex("00010001")
"""What a resolver sends for the address of api.corp.test."""
ASK = f"""
import os, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("127.0.0.1", int(sys.argv[2])))
data = bytes.fromhex("{QUESTION.hex()}")
{{"send": s.send, "sendmsg": lambda d: s.sendmsg([d]), "write": lambda d: os.write(s.fileno(), d)}}[sys.argv[1]](data)
"""


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it under the tracer."""
    return subprocess.run(
        trace_command(command, folder), env=clean_env({}), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("how", ["send", "sendmsg", "write"])
def test_a_question_to_a_name_server_is_read_however_it_is_sent(how: str, tmp_path: Path) -> None:
    """By libc, by Java, by Go, which writes; the question itself arrives."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        done = run([sys.executable, "-c", ASK, how, str(port)], tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        server.settimeout(60)
        assert server.recv(512) == QUESTION
    told = list(read_lookups(tmp_path))
    assert [(each.host, each.port) for each in told] == [("127.0.0.1", port), ("api.corp.test", 0)]
    assert {each.program for each in told} == {sys.executable}


def test_children_and_threads_are_followed_and_told_by_their_process(tmp_path: Path) -> None:
    """A test command starts a shell that starts an agent that asks in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import os, socket, threading as t\nprint(os.getpid(), flush=True)\n"
            f"a = t.Thread(target=lambda: socket.create_connection(('127.0.0.1', {port})))\na.start(); a.join()"
        )
        done = run(["sh", "-c", f'true; "{sys.executable}" -c "{code}"; exit 7'], tmp_path)
    assert done.returncode == 7, done.stderr
    assert list(read_lookups(tmp_path)) == [HostLookup(int(done.stdout), sys.executable, "127.0.0.1", port)]


def test_what_is_no_question_is_not_told(tmp_path: Path) -> None:
    """A program writes much that is short; a byte at its beginning does not make it a name."""
    code = "import os\nfor size in range(600): os.write(3, bytes([size % 256]) * size)"
    done = run(["sh", "-c", f'"{sys.executable}" -c "{code}" 3>/dev/null'], tmp_path)
    assert (done.returncode, list(read_lookups(tmp_path))) == (0, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_it_ends_as_the_command_ends(number: signal.Signals, tmp_path: Path) -> None:
    """By a signal that it sent itself, and by one that was sent to us."""
    assert run(["sh", "-c", f"kill -{number} $$"], tmp_path).returncode == -number
    if number == signal.SIGKILL:
        return
    words = trace_command(["sh", "-c", "echo ready; exec sleep 600"], tmp_path)
    with subprocess.Popen(words, env=clean_env({}), stdout=subprocess.PIPE, start_new_session=True) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == b"ready\n"
        popen.send_signal(number)
        assert popen.wait(60) == -number


def test_a_server_that_the_command_leaves_behind_can_still_connect(tmp_path: Path) -> None:
    """Its calls are answered for as long as it runs, and who reads the command's output sees its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        go = tmp_path / "go"
        code = (
            f"import os, socket, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
            f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]})).sendall(b'here')"
        )
        done = run(["sh", "-c", f'"{sys.executable}" -c "{code}" >/dev/null 2>&1 & echo begun'], tmp_path)
        assert (done.returncode, done.stdout) == (0, "begun\n")
        go.touch()
        client, _ = server.accept()
        with client:
            assert client.recv(4) == b"here"


def test_a_program_that_gets_rights_runs_untraced(tmp_path: Path) -> None:
    """Sudo would refuse to work."""
    mine = Path(shutil.copy(shutil.which("true") or needed("true"), tmp_path / "mine"))
    mine.chmod(0o4755)
    log = tmp_path / "log"
    strace = f"{sys.executable} -I {TRACER} {log} {mine}"
    assert subprocess.run(strace.split(), env=clean_env({}), check=False).returncode == 0
    assert not log.exists()


def test_a_stopped_command_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Ctrl-Z and fg: it is not woken up by who watches it."""
    words = trace_command(["sh", "-c", "echo $$; kill -STOP $$; echo awake"], tmp_path)
    with subprocess.Popen(words, env=clean_env({}), stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        pid = int(popen.stdout.readline())
        while "\nState:\tS" in (said := Path(f"/proc/{pid}/status").read_text("utf-8")) or "\nState:\tR" in said:
            time.sleep(0.01)
        os.kill(pid, signal.SIGCONT)
        assert popen.stdout.readline() == "awake\n"
        assert popen.wait(60) == 0


def test_elsewhere_the_command_runs_as_it_is(tmp_path: Path) -> None:
    """On macOS and Windows nobody traces."""
    assert trace_command(["npm", "test"], tmp_path, system="darwin") == ("npm", "test")
