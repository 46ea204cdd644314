"""Commands by the dozen: each a process of its own, forked from one that has imported everything.

    subprocess.run([*program("llmproxy"), "ls"], env=..., cwd=...)     # as `python -m llmproxy ls`; also "pytest", and "python" for a file
    with forked(folder) as programs:      # a folder with a program `llmproxy`, for the PATH of a shell
        subprocess.run("llmproxy ls | head -1", shell=True, env={"PATH": f"{programs}:/usr/bin:/bin", ...})

What is started is real to the user: words, environment (of Python's own variables PYTHONPATH, PYTHONUNBUFFERED and PYTHONWARNINGS=ignore),
folder, pipes, signals and exit codes go through. Only the second of processor time is saved that imports take; the proxies that commands
start are forked, too (LLMPROXY_COMMAND names the same program). What asks about the process itself (its pid, its limits, what it has
imported, the network that it has, how it dies by SIGKILL) starts one of its own. Where tests run in one process `program` is Python itself,
unless LLMPROXY_TEST_FORK is set; several test processes share what forks, and find it there.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import marshal
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

IMPORTED = (
    "_pytest", "llmproxy.cli", "llmproxy.client", "llmproxy.core", "llmproxy.mitm", "llmproxy.pytest",
    "llmproxy.report", "llmproxy.suite", "llmproxy.scenario", "mcp.client.stdio", "mcp.client.streamable_http", "mcp.server.fastmcp",
    "openai.resources", "stringprep", "vcr", "yaml",
)  # fmt: skip
"""What commands and clients of tools load, some of it late."""
PYTHON = "python"
STARTED = ("llmproxy", "pytest", PYTHON)
"""What is started as by Python: ``-m llmproxy``, ``-m pytest``, or a file or ``-c`` with code."""

SHIM = """#!{python} -IS
import _signal, _socket, marshal, posix, sys
conn = _socket.socket(_socket.AF_UNIX)
conn.connect({address!r})
ours = b"".join(each.to_bytes(4, sys.byteorder) for each in range(3))
conn.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, ours)])
asked = marshal.dumps([{name!r}, sys.argv[1:], posix.getcwd(), posix.environ])
conn.sendall(len(asked).to_bytes(8, "big") + asked)
told = b""
def line(default):
    global told
    while b"\\n" not in told and (more := conn.recv(64)):
        told += more
    first, _, told = told.partition(b"\\n")
    return int(first or default)
pid = line(0)
for each in (_signal.SIGINT, _signal.SIGTERM):
    _signal.signal(each, lambda number, _: posix.kill(pid, number))
posix._exit(line(137))
"""
"""Imports what is built in: it is started hundreds of times, and `socket` and `json` would take twice as long as all else of it."""


def program(name: str) -> list[str]:
    """Return the words that start one of STARTED."""
    return [str(shared() / "started" / name)] if is_forking() else python_itself(name)


def is_forking() -> bool:
    """Return whether this process starts so many others that one which forks them is worth its second."""
    return bool(os.environ.get("LLMPROXY_TEST_FORK"))


def python_itself(name: str) -> list[str]:
    """Return the words that start one of STARTED without anything being imported before."""
    return [sys.executable, *(("-m", name) if name != PYTHON else ())]


@functools.cache
def shared() -> Path:
    """Return the folder of the programs that all tests of this process share, or of several that one process started."""
    if (started := Path(os.environ.get("LLMPROXY_TEST_FORK", ""))).is_absolute():
        return started
    kept = contextlib.ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(forked(Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="forked-")))))


@contextmanager
def forked(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Start what forks, for the block, with these variables besides; returns the folder of the program."""
    address = str(folder / "s")
    programs = folder / "programs"
    (programs / "started").mkdir(parents=True)
    for path, name in (("llmproxy", ""), *((f"started/{name}", name) for name in STARTED)):
        shim = programs / path
        shim.write_text(SHIM.format(python=sys.executable, address=address, name=name))
        shim.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, __file__, address],
        env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, start_new_session=True, cwd=folder,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        try:
            yield programs
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def main(address: str) -> None:
    """Import everything, then make a process of each call, for ever."""
    gc.disable()
    sys.path.pop(0)  # this file's folder
    for name in ("llmproxy.__main__", *IMPORTED):
        package = importlib.import_module(name)
        for each in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(each.name)
    gc.freeze()
    gc.enable()
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
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, fds, _, _ = socket.recv_fds(conn, 1, 3)
    told = conn.makefile("rb")
    name, words, cwd, given = marshal.loads(told.read(int.from_bytes(told.read(8), "big")))
    env = {os.fsdecode(key): os.fsdecode(value) for key, value in given.items()}
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    first = [] if not name else [str(Path(cwd, words[0]).parent) if name == PYTHON and words[0] != "-c" else cwd]
    sys.path[:0] = [*first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if env.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    if env.get("PYTHONWARNINGS") == "ignore":
        sys.warnoptions.append("ignore")
        warnings.simplefilter("ignore")
    sys.argv = words if name == PYTHON else [name or "llmproxy", *words]
    conn.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=_watch, args=(told,), daemon=True).start()
    code = 1
    try:
        code = int(_begin(name)() or 0)
    except SystemExit as done:
        if done.code is not None and not isinstance(done.code, int):
            print(done.code, file=sys.stderr)
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    finally:
        with contextlib.suppress(OSError):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            conn.sendall(f"{int(code)}\n".encode())
        os._exit(int(code))


def _begin(name: str) -> Callable[[], int | None]:
    if name == PYTHON:
        return _run_file
    if name == "pytest":
        import pytest

        # Else pytest warns that it was not the first to import them.
        for each in ("llmproxy", "llmproxy.pytest.plugin", "anyio"):
            sys.modules[each].__doc__ = "PYTEST_DONT_REWRITE"
        return pytest.console_main
    from llmproxy.__main__ import run

    return run


def _run_file() -> None:
    try:
        if sys.argv[0] != "-c":
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            sys.modules["__main__"] = here = types.ModuleType("__main__")
            exec(compile(sys.argv.pop(1), "<string>", "exec", dont_inherit=True), vars(here))
    except Exception:  # noqa: BLE001 - as Python itself
        traceback.print_exc()
        sys.exit(1)


def _watch(told: BinaryIO) -> None:
    told.read(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
