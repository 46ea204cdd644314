"""Commands by the dozen: each a process of its own, forked from one that has imported everything.

    subprocess.run([*program("llmproxy"), "ls"], env=..., cwd=...)     # as `python -m llmproxy ls`; also "pytest", and "python" for a file
    with forked(folder) as programs:      # a folder with a program `llmproxy`, for the PATH of a shell
        subprocess.run("llmproxy ls | head -1", shell=True, env={"PATH": f"{programs}:/usr/bin:/bin", ...})

What is started is real to the user: words, environment (of Python's own variables PYTHONPATH, PYTHONUNBUFFERED and PYTHONWARNINGS=ignore),
folder, pipes, signals, exit codes and the network of who asks go through. Only the second of processor time is saved that imports take; the
proxies that commands start are forked, too (LLMPROXY_COMMAND names the same program). What asks about the process itself (its pid, its
limits, what it has imported, how it dies by SIGKILL) starts one of its own. Where tests run in one process `program` is Python itself,
unless LLMPROXY_TEST_FORK is set; several test processes share what forks, and find it there. `forking(interpreter)` starts files as another
environment's Python would: what a file imports is imported when it is asked for first, and without a variable of any run; an SDK that read
one as early as that would not see the run's.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import gc
import importlib
import marshal
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import struct
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
from typing import Any

IMPORTED = (
    "_pytest", "anyio._backends._asyncio", "llmproxy.cli", "llmproxy.client", "llmproxy.core", "llmproxy.mitm", "llmproxy.pytest",
    "llmproxy.report", "llmproxy.suite", "llmproxy.scenario", "mcp.client.stdio", "mcp.client.streamable_http", "mcp.server.fastmcp",
    "openai.resources", "resource", "sqlite_utils", "stringprep", "typer._adapters", "typer._click.decorators", "vcr", "yaml",
)  # fmt: skip
"""What commands and clients of tools load, some of it late."""
PYTHON = "python"
STARTED = ("llmproxy", "pytest", PYTHON)
"""What is started as by Python: ``-m llmproxy``, ``-m pytest``, or a file or ``-c`` with code."""

KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT", "LLMPROXY_COMMAND")

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


def forking(interpreter: str) -> str:
    """Return the word that starts a file as this interpreter of another environment would."""
    return str(shared(interpreter) / "started" / PYTHON)


def shared(interpreter: str = "") -> Path:
    """Return the folder of the programs that all tests of this process share, or of several that one process started."""
    with _STARTING:
        return _start(interpreter)


_STARTING = threading.Lock()
"""Threads that ask at the same time get the same."""


@functools.cache
def _start(interpreter: str) -> Path:
    if not interpreter and (started := Path(os.environ.get("LLMPROXY_TEST_FORK", ""))).is_absolute():
        return started
    kept = contextlib.ExitStack()
    atexit.register(kept.close)
    folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="forked-")))
    return kept.enter_context(forked(folder, interpreter=interpreter))


@contextmanager
def forked(folder: Path, env: Mapping[str, str] | None = None, *, interpreter: str = "") -> Iterator[Path]:
    """Start what forks, for the block, with these variables besides; returns the folder of the program. See `forking` for another interpreter."""
    address = str(folder / "s")
    programs = folder / "programs"
    (programs / "started").mkdir(parents=True)
    for path, name in (("llmproxy", ""), *((f"started/{name}", name) for name in STARTED)):
        shim = programs / path
        shim.write_text(SHIM.format(python=sys.executable, address=address, name=name))
        shim.chmod(0o755)
    # Nothing that a variable says of our Python is true of another one.
    command = [interpreter, "-E", __file__, address, "others"] if interpreter else [sys.executable, __file__, address]
    ours = {name: os.environ[name] for name in KEPT if name in os.environ} if interpreter else os.environ
    with subprocess.Popen(
        command,
        env={**ours, **(env or {})}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd=folder,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        try:
            yield programs
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def main(address: str, others: str = "") -> None:
    """Import everything, or what `others` ask for; then make a process of each call, for ever."""
    gc.disable()
    sys.path.pop(0)  # this file's folder
    for name in () if others else ("llmproxy.__main__", *IMPORTED):
        package = importlib.import_module(name)
        for each in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(each.name)
    if not others:
        _compile_late_patterns()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    known: set[Path] = set()
    while True:
        if sys.stdin in select.select([sys.stdin, listening], [], [])[0]:  # who started it is gone, however it ended
            shutil.rmtree(Path(address).parent, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)
        conn, _ = listening.accept()
        try:
            fds, asked = _hear(conn)
        except (OSError, EOFError, ValueError):  # it was killed
            conn.close()
            continue
        if others and (file := Path(asked[2], *asked[1][:1])) not in known:
            known.add(file)
            _import_for(file)
        if os.fork() == 0:
            listening.close()
            _call(conn, fds, *asked)
        for fd in (*fds, conn.detach()):
            os.close(fd)


def _compile_late_patterns() -> None:
    """Do once what each process would do at the first use of an expression."""
    from llmproxy.core.secrets.find_secrets import _group_kinds
    from llmproxy.lazy_regex import LazyRegex, _LazyPattern

    _group_kinds()  # makes expressions at its first call
    for each in gc.get_objects():
        if isinstance(each, _LazyPattern | LazyRegex):
            _ = each.holds if isinstance(each, LazyRegex) else each.search


def _hear(conn: socket.socket) -> tuple[list[int], Any]:
    _, fds, _, _ = socket.recv_fds(conn, 1, 3)
    try:
        with conn.makefile("rb") as told:
            return fds, marshal.loads(told.read(int.from_bytes(told.read(8), "big")))
    except BaseException:
        for fd in fds:  # else whoever waits for the end of its output waits for ever
            os.close(fd)
        raise


def _import_for(file: Path) -> None:
    """Do what stands in a file up to its last import: set variables for it, import. What fails here fails in the run again."""
    sys.path.insert(0, str(file.parent))
    with contextlib.suppress(Exception):
        tree = ast.parse(file.read_bytes())
        imports = [
            number for number, each in enumerate(tree.body) if isinstance(each, ast.Import | ast.ImportFrom | ast.Try)
        ]
        exec(compile(ast.Module(tree.body[: imports[-1] + 1], []), str(file), "exec"), {"__name__": "imports"})
    sys.path.pop(0)


def _go_where(conn: socket.socket) -> None:
    """Go into the network of who asks."""
    if sys.platform != "linux":
        return
    pid, _, _ = struct.unpack("3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    for kind in ("user", "net"):
        if (place := Path(f"/proc/{pid}/ns/{kind}")).readlink() != Path(f"/proc/self/ns/{kind}").readlink():
            with place.open() as there:
                os.setns(there)


def _call(
    conn: socket.socket, fds: list[int], name: str, words: list[str], cwd: str, given: dict[bytes, bytes]
) -> None:
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _go_where(conn)
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
    threading.Thread(target=_watch, args=(conn,), daemon=True).start()
    leave, here = os._exit, os.getpid()

    def end(code: int) -> None:
        if os.getpid() == here:
            with contextlib.suppress(OSError):
                conn.sendall(f"{code}\n".encode())
        leave(code)

    os._exit = end  # type: ignore[assignment]
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
        end(int(code))


def _begin(name: str) -> Callable[[], int | None]:
    if name == PYTHON:
        return _run_file
    if name == "pytest":
        import pytest

        # Else pytest warns that it was not the first to import them.
        for each in ("llmproxy", "llmproxy.pytest.plugin", "anyio"):
            sys.modules[each].__doc__ = "PYTEST_DONT_REWRITE"
        return pytest.console_main
    from llmproxy.__main__ import run_llmproxy_cli

    return run_llmproxy_cli


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


def _watch(conn: socket.socket) -> None:
    conn.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
