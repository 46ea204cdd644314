"""Commands of llmproxy by the dozen: each a process of its own, forked from one that has imported everything.

    with forked(folder) as programs:      # a folder with a program `llmproxy`, for the PATH of a shell
        subprocess.run("llmproxy ls | head -1", shell=True, env={"PATH": f"{programs}:/usr/bin:/bin", ...})
    subprocess.Popen([proxy_program(), "start", ...])     # the one that all tests of a worker share, for proxies

What a shell starts is real to the user: words, environment, folder, pipes, signals and exit codes go through. Only the second of processor
time is saved that loading mitmproxy takes; the proxies that commands start are forked, too (LLMPROXY_COMMAND names the same program). What asks about the process itself (its pid, its
limits, how it dies by SIGKILL) starts one of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

IMPORTED = (
    "llmproxy.cli",
    "llmproxy.client",
    "llmproxy.core",
    "llmproxy.mitm",
    "llmproxy.report",
    "llmproxy.suite",
    "llmproxy.scenario",
    "yaml",
    "stringprep",
)
"""What commands load, some of them late."""
OF_PROXIES = ("llmproxy.cli.start", "llmproxy.core", "llmproxy.mitm", "stringprep")
"""What a proxy loads."""

SHIM = """#!{python} -IS
import json, os, signal, socket, sys
conn = socket.socket(socket.AF_UNIX)
conn.connect({address!r})
socket.send_fds(conn, [b"x"], [0, 1, 2])
asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
conn.sendall(len(asked).to_bytes(8, "big") + asked)
told = conn.makefile("rb")
pid = int(told.readline() or 0)
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda number, _: os.kill(pid, number))
sys.exit(int(told.readline() or 137))
"""


@functools.cache
def proxy_program() -> str:
    """Return a program `llmproxy` that starts proxies until this process ends."""
    kept = contextlib.ExitStack()
    atexit.register(kept.close)
    folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="forked-")))
    return str(kept.enter_context(forked(folder, OF_PROXIES)) / "llmproxy")


@contextmanager
def forked(folder: Path, imported: tuple[str, ...] = IMPORTED) -> Iterator[Path]:
    """Start what forks, for the block, with packages that it imports before; returns the folder of the program."""
    address = str(folder / "s")
    programs = folder / "programs"
    programs.mkdir()
    shim = programs / "llmproxy"
    shim.write_text(SHIM.format(python=sys.executable, address=address))
    shim.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, __file__, address, *imported], stdout=subprocess.PIPE, start_new_session=True, cwd=folder
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        try:
            yield programs
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def main(address: str, *imported: str) -> None:
    """Import what is named, then make a process of each call, for ever."""
    for name in ("llmproxy.__main__", *imported):
        package = importlib.import_module(name)
        for each in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(each.name)
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        conn, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _call(conn)
        conn.close()


def _call(conn: socket.socket) -> None:
    """Be the process that was called."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, fds, _, _ = socket.recv_fds(conn, 1, 3)
    told = conn.makefile("rb")
    words, cwd, env = json.loads(told.read(int.from_bytes(told.read(8), "big")))
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["llmproxy", *words]
    conn.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=_watch, args=(told,), daemon=True).start()
    code = 1
    try:
        from llmproxy.__main__ import run

        code = run()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 1
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            conn.sendall(f"{int(code)}\n".encode())
        os._exit(int(code))


def _watch(told: BinaryIO) -> None:
    """End when who called was killed."""
    told.read(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
