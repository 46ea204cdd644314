"""A worker of a cluster. The first run in a process unpacks the parcel and starts a proxy, later ones of the same test
reuse both. It changes into the folder of the files, so that paths in reports equal the driver's.
"""

from __future__ import annotations

import atexit
import hmac
import os
import pickle
import secrets
import socketserver
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import llmproxy
from llmproxy.client.proxy_process import ProxyHandle, ensure_proxy
from llmproxy.core.providers.upstreams_and_rate_limits import CallRateLimiter
from llmproxy.errors import Exit, LLMProxyError, MachineError, MissError
from llmproxy.protocol import OFFLINE, PACER_VARIABLE
from llmproxy.report.events import Event, EventHandlerWithNothingToClose

# -- rates of providers over a whole cluster: one actor counts, and each worker asks it on behalf of its proxy

Take = Callable[[str, bool], float]
"""Counts a call to a provider, of models or not; returns the seconds until it may be sent."""


class ClusterRateLimiter:
    """The actor. If its node dies, it is restarted elsewhere, without earlier calls, and waits for a whole window."""

    def __init__(
        self, rates: Mapping[str, str], *, anew: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pace = CallRateLimiter(rates, clock, **({"since": clock()} if anew else {}))

    def count_call(self, provider: str, model: bool) -> float:  # noqa: FBT001 - asked from elsewhere, by place
        """Count one call; returns the seconds until it may be sent."""
        return self._pace.count_call(provider, model=model)


def start_rate_actor(ray: Any, rates: Mapping[str, str]) -> Any:
    if not rates:
        return None

    class Actor(ClusterRateLimiter):
        def __init__(self, rates: Mapping[str, str]) -> None:
            super().__init__(rates, anew=ray.get_runtime_context().was_current_actor_reconstructed)

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Actor).remote(dict(rates))


@contextmanager
def serve_rate_limit_socket(take: Take) -> Iterator[str]:
    """Serve this machine's proxy in the block; yields the value of `protocol.PACER_VARIABLE`."""
    secret = secrets.token_hex(16)

    class PacingHandler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            said, _, rest = self.rfile.readline(4096).decode("utf-8", "replace").strip().partition(" ")
            model, _, provider = rest.partition(" ")
            if hmac.compare_digest(said.encode(), secret.encode()):
                self.wfile.write(f"{take(provider, model == '1')!r}\n".encode())

    class PacingListener(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing: a proxy without an answer reports it, and sends nothing."""

    with PacingListener(("127.0.0.1", 0), PacingHandler) as server:
        thread = threading.Thread(target=server.serve_forever, name="llmproxy pacer", daemon=True)
        thread.start()
        try:
            yield f"{server.server_address[1]}/{secret}"
        finally:
            server.shutdown()
            thread.join()


CASSETTES = Path("tests") / "cassettes"
STORE = Path(".llmproxy") / "llmproxy.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetup(ABC):
    batch: str  # id of this test: a worker unpacks once
    version: str
    files: Mapping[str, bytes]  # by path, relative to the folder in which the test was started
    cassettes: Mapping[str, bytes]  # by file name
    proxy: Sequence[str]  # options of `llmproxy start`, except the place of recordings
    server: str = field(default="", repr=False)
    """URL of the team's store for libpq (may contain a password); empty if each node has a file."""
    rates: Mapping[str, str] = field(default_factory=dict)
    """Rates of providers, over the whole cluster; empty in replay, where no provider is called."""
    env: Mapping[str, str] = field(default_factory=dict)
    import_hint: ClassVar[str] = ""

    @abstractmethod
    def unpack(self, folder: Path, take: Take | None) -> NodeRunExecutor:
        """Unpack into `folder` in a worker, whose proxy's calls `take` counts. Raises LLMProxyError."""


@dataclass(frozen=True, slots=True)
class NodeRunResult[T]:
    ended: T
    """Its outcome; with an error from `make_error_picklable`."""
    events: list[Event]
    cassettes: Mapping[str, bytes]


@dataclass(slots=True)
class RunEventCollector(EventHandlerWithNothingToClose):
    """Collects the events of a run in a worker; as a listener it gets all runs of the process."""

    events: list[Event] = field(default_factory=list)

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def on_run_end(self, scenario: Any, result: Any) -> None: ...


class NodeRunExecutor(ABC):
    proxy: ProxyHandle

    @abstractmethod
    def run(self, *arguments: Any) -> NodeRunResult[Any]:
        """Execute one run. Raises on cancellation, and LLMProxyError for a run unknown here."""

    def __init__(
        self, parcel: NodeSetup, folder: Path, take: Take | None = None, *, sessions_record: bool = False
    ) -> None:
        """Unpack into `folder`, which becomes the working directory, and start the proxy. Raises LLMProxyError.

        `sessions_record`: some sessions may record though the proxy's own mode does not.
        """
        self.folder = folder
        self.open = ExitStack()
        write_files(parcel.files, folder)
        write_files(parcel.cassettes, folder / CASSETTES)
        (folder / CASSETTES).mkdir(parents=True, exist_ok=True)
        (folder / STORE).parent.mkdir(exist_ok=True)
        os.chdir(folder)
        os.environ.update(parcel.env)
        for name in ("LLMPROXY_URL", "LLMPROXY_STORE", "LLMPROXY_CASSETTE_DIR"):
            os.environ.pop(name, None)
        own = [] if parcel.server else [f"--store={folder / STORE}", f"--cassette-dir={folder / CASSETTES}"]
        env = {**os.environ, **({"LLMPROXY_STORE": parcel.server} if parcel.server else {})}  # seen by no other process
        if parcel.rates and take is not None:
            env[PACER_VARIABLE] = self.open.enter_context(serve_rate_limit_socket(take))
            own += [f"--rate={name}={rate}" for name, rate in parcel.rates.items()]
        log = folder / ".llmproxy" / "proxy.log"
        self.proxy = self.open.enter_context(ensure_proxy([*parcel.proxy, *own], env, log=log))
        self._records = not parcel.server and (sessions_record or self.proxy.control.health().mode not in OFFLINE)
        self._known = _read_cassette_file_signatures() if self._records else {}

    def read_changed_cassette_files(self) -> dict[str, bytes]:
        if not self._records:
            return {}
        found = _read_cassette_file_signatures()
        changed = [name for name, signature in found.items() if self._known.get(name) != signature]
        self._known = found
        return {name: (CASSETTES / name).read_bytes() for name in changed}

    def close(self) -> None:
        self.open.close()


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _read_cassette_file_signatures() -> dict[str, tuple[int, int, int]]:
    """Return signatures by which written cassette files are found: reading all would take longer than most runs."""
    files = (path for path in CASSETTES.rglob("*.yaml") if not path.name.startswith("."))
    stats = ((path.relative_to(CASSETTES).as_posix(), path.stat()) for path in files)
    return {name: (stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats}


_here: tuple[str, NodeRunExecutor] | None = None


def get_or_create_run_executor(batch: str, version: str, make: Callable[[Path], NodeRunExecutor]) -> NodeRunExecutor:
    """Return this process's node of a test, created by its first run; an earlier test's ends. Raises LLMProxyError."""
    global _here  # noqa: PLW0603 - what a process has once
    if llmproxy.__version__ != version:
        raise MachineError(
            f"a node has llmproxy {llmproxy.__version__}, and the test was started with {version}.",
            hint="Install the same version on all nodes.",
        )
    if _here is None or _here[0] != batch:
        if _here is not None:
            atexit.unregister(_here[1].close)
            _here[1].close()
            _here = None
        folder = tempfile.TemporaryDirectory(prefix="llmproxy-node-", ignore_cleanup_errors=True)
        made = make(Path(folder.name).resolve())
        made.open.callback(folder.cleanup)
        atexit.register(made.close)
        _here = batch, made
    return _here[1]


def make_error_picklable[E: BaseException](error: E | None) -> E | MachineError | MissError | None:
    """Return an error that another process can unpickle: else a new one with its text and exit code."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what we made a moment ago
    except Exception:  # noqa: BLE001 - whatever an error does when it is taken apart
        code = error.exit_code if isinstance(error, LLMProxyError) else Exit.FAILED
        kind = MissError if code == Exit.MISS else MachineError
        return kind(str(error))
    return error
