"""Processes on processors: servers on the first, whoever asks them on the second; what they cost, and what others took meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIB = Path(__file__).parent
ROOT = LIB.parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "JAVA_HOME")
START_SECONDS = 120.0


class Failed(Exception):
    """A process did not do what it is there for."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment without keys, base URLs and proxies of whoever runs the bench."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | dict(extra or {})


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def pin(core: int) -> None:
    """Stay on one processor, with all children; without effect where the system cannot."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


@dataclass
class Server:
    """A running process on the servers' processor."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    started_seconds: float = 0.0
    """From its start until it accepted a connection (or answered `ready`)."""

    def pids(self) -> list[int]:
        """Return the process and its descendants."""
        found, at = [self.process.pid], 0
        while at < len(found):
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{found[at]}/task").iterdir():
                    found += [int(pid) for pid in (task / "children").read_text().split()]
            at += 1
        return found

    def cpu(self) -> float:
        """Return the processor seconds used so far, all threads and descendants."""
        used = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used += int(fields[11]) + int(fields[12])
        return used / TICKS

    def rss(self) -> float:
        """Return resident megabytes, descendants included."""
        pages = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> None:
        """End it politely, else at once."""
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15 if how is signal.SIGINT else 5)
                return


def start(
    name: str,
    command: Sequence[str],
    port: int,
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    health: str = "",
    core: int = SERVER_CORE,
) -> Server:
    """Start a server and wait until it serves: accepts a connection, and says 200 at the path `health` where that is given.

    Raises:
        Failed: it ended, or did not serve in time; with the end of its log.

    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("ab") as out:
        began = time.perf_counter()
        process = subprocess.Popen(  # a group of its own: npx, java and others start children
            list(command), cwd=folder, env=environment(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True, preexec_fn=lambda: pin(core),  # noqa: PLW1509 - one thread here
        )  # fmt: skip
    server = Server(name, port, process, log)
    while not serves(port, health):
        if process.poll() is not None or time.perf_counter() - began > START_SECONDS:
            server.stop()
            raise Failed(f"{name} does not serve: {' '.join(command)[:200]}\n{log.read_text(errors='replace')[-1500:]}")
        time.sleep(0.002)
    server.started_seconds = time.perf_counter() - began
    return server


def serves(port: int, health: str = "") -> bool:
    """Return whether somebody accepts connections there (and answers 200 to a GET of `health`)."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
            if not health:
                return True
            s.sendall(f"GET {health} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
            return s.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def fill_store(folder: Path, count: int, *kind: str) -> None:
    """Make `folder`/llmproxy.db with `count` recordings (of `kind` "long": of 1 MB each), without a network: see `fill`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(LIB / "fill.py"), str(folder / "llmproxy.db"), str(count), *kind]
    subprocess.run(command, check=True, cwd=folder)


def load(**given: Any) -> dict[str, Any]:
    """Run the load generator on its own processor and return what it measured.

    Raises:
        Failed: a server did not answer as it should.

    """
    done = subprocess.run(
        [sys.executable, str(LIB / "load.py"), json.dumps(given)], capture_output=True, check=False, env=environment(),
        preexec_fn=lambda: pin(LOAD_CORE), timeout=900,
    )  # fmt: skip
    if done.returncode:
        raise Failed(done.stderr.decode()[-1500:])
    measured: dict[str, Any] = json.loads(done.stdout)
    if "error" in measured:
        raise Failed(measured["error"])
    return measured


def _busy(core: int) -> float:
    """Return the seconds that a processor has worked since the machine started."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name == f"cpu{core}":
                ticks = [int(field) for field in fields]
                return (sum(ticks[:3]) + sum(ticks[5:8])) / TICKS
    return 0.0


@contextlib.contextmanager
def watched(server: Server | None = None) -> Iterator[dict[str, float]]:
    """Measure a block: `cpu` seconds of the server, `wall` seconds, and the share of its processor that `others` took."""
    found: dict[str, float] = {}
    cpu, busy, began = server.cpu() if server else 0.0, _busy(SERVER_CORE), time.perf_counter()
    yield found
    wall = time.perf_counter() - began
    used = server.cpu() - cpu if server else 0.0
    found |= {"cpu": used, "wall": wall, "others": max(0.0, (_busy(SERVER_CORE) - busy - used) / wall)}


def facts() -> str:
    """Return what machine this is, in a line."""
    model = "unknown processor"
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    load_1m = os.getloadavg()[0]
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{model}, {len(CORES)} processors, Linux, Python {version}, load {load_1m:.1f} before the run"
