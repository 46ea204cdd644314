"""The proxies of a pytest run: one for each set of start options, started by the first process that needs it.

xdist's controller starts them (`XdistControllerProxyLauncher`) and publishes its address in an environment variable; a
worker asks over a connection (`XdistWorkerProxyUrlRequester`), whose end closes its open session. A process without a
controller, or in another folder, starts its own (`PytestProxyProcess`). Proxies end with the controller, even if that
is killed.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Self

from llmproxy.client import proxy_process
from llmproxy.client.control import ControlApiClient, ControlError
from llmproxy.client.proxy_process import (
    ProxyStartCommandLine,
    StartedProxyProcess,
    begin_proxy_start,
    find_proxy_command,
    read_llmproxy_url,
)
from llmproxy.errors import MachineError
from llmproxy.file_io import create_gitignored_folder
from llmproxy.postgres_store_paths import find_postgres_of_local_copy
from llmproxy.protocol import DEFAULT_HOST, OFFLINE, UPDATE_VARIABLE, Mode, UpdateMode
from llmproxy.settings import load

RUN_VARIABLE = "PYTEST_LLMPROXY_RUN"
"""Variable with the address of this worker's controller, as JSON."""


class PytestProxyProcess:
    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self._env, self._folder = env, folder
        self._place: socket.socket | None = None
        self._process: StartedProxyProcess | None = None
        self._found: ProxyStartCommandLine | None = None

    @property
    def notice(self) -> str:
        with suppress(MachineError):  # said to the first test that needs a proxy
            self._found = find_proxy_command(self._env)
        return self._found.notice if self._found else ""

    def reserve(self) -> str:
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind((DEFAULT_HOST, 0))
        return f"http://{DEFAULT_HOST}:{self._place.getsockname()[1]}"

    def start(self, options: Sequence[str], typed: str = "", update: str = "") -> None:
        """Start it once, without waiting; `typed` reruns the tests, `update`: what is replaced. Raises MachineError."""
        if self._process is not None:
            return
        words = [*options]
        if self._place is not None:
            words += ["--port", str(self._place.getsockname()[1])]
            if platform.system() != "Linux":  # elsewhere nobody else may bind what we hold
                self._place.close()
        found = replace(self._found or find_proxy_command(self._env), notice="")  # said in the header
        env = {**self._env, **({UPDATE_VARIABLE: update} if update else {})}
        self._process = begin_proxy_start(found, words, env, cwd=self._folder, started_by=typed)

    def wait_ready(self) -> str:
        """Return its URL. Raises MachineError with its output if it does not serve, or has ended."""
        if (process := self._process) is None:
            raise MachineError("the proxy of this run was ended.")
        if process.url and not process.is_alive:
            raise MachineError(f"the proxy ended with {process.popen.returncode}:\n{process.log_text[-2000:].strip()}")
        return process.url or process.wait_ready()

    def end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process.delete_logs()
            self._process = None
        if self._place is not None:
            self._place.close()
            self._place = None


class XdistControllerProxyLauncher:
    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self._env, self._folder = dict(env), folder
        self.reserved = PytestProxyProcess(self._env, folder)
        """The proxy of the base URLs."""
        self._url = self.reserved.reserve()
        self._key = os.urandom(16).hex()
        self._server = socket.create_server((DEFAULT_HOST, 0))
        self._started: dict[str, PytestProxyProcess] = {}
        self._guard = Lock()
        Thread(target=self._accept_workers, daemon=True).start()

    @property
    def address(self) -> str:
        port = self._server.getsockname()[1]
        return json.dumps({"port": port, "key": self._key, "folder": str(self._folder), "url": self._url})

    def _accept_workers(self) -> None:
        with suppress(OSError):  # closed
            while True:
                Thread(target=self._serve_worker, args=[self._server.accept()[0]], daemon=True).start()

    def _serve_worker(self, connection: socket.socket) -> None:
        url = session = ""
        with suppress(OSError, ValueError), closing(connection), connection.makefile("rw") as lines:
            asked = json.loads(lines.readline())
            if asked["key"] != self._key:
                return
            try:
                url = self._start_requested(asked)
                told = {"url": url}
            except MachineError as error:
                told = {"error": error.message, "hint": error.hint}
            print(json.dumps(told), file=lines, flush=True)
            for line in lines:
                session = line.strip()
        if session:
            with suppress(ControlError):
                control = ControlApiClient(url, token=self._env.get(proxy_process.TOKEN_VARIABLE, ""))
                control.close_session(session, complete=False, interrupted=True)  # its worker died

    def _start_requested(self, asked: Mapping[str, Any]) -> str:
        with self._guard:
            if (proxy := self._started.get(asked["place"])) is None:
                proxy = PytestProxyProcess(self._env, self._folder) if asked["place"] else self.reserved
                self._started[asked["place"]] = proxy
                proxy.start(asked["options"], asked["typed"], asked["update"])
            return proxy.wait_ready()

    def end(self) -> None:
        self._server.close()
        with self._guard:
            for each in [self.reserved, *self._started.values()]:
                each.end()


class XdistWorkerProxyUrlRequester:
    def __init__(self, told: Mapping[str, Any], place: str = "") -> None:
        """Do nothing yet; `place` identifies proxies with other options than that of the base URLs."""
        self._told, self._place = told, place
        self.url = str(told["url"])
        self._lines: Any = None
        self._answer: Any = None

    @classmethod
    def from_variable(cls, value: str | None, folder: Path) -> Self | None:
        """Parse RUN_VARIABLE; None without a controller, or if it has another folder."""
        told = json.loads(value) if value else {}
        return cls(told) if told.get("folder") == str(folder) else None

    def with_options(self, options: Sequence[str]) -> XdistWorkerProxyUrlRequester:
        return XdistWorkerProxyUrlRequester(self._told, json.dumps(options))

    def start(self, options: Sequence[str], typed: str = "", update: str = "") -> None:
        if self._lines is None:
            try:
                with socket.create_connection((DEFAULT_HOST, self._told["port"])) as connection:
                    self._lines = connection.makefile("rw")  # closes what it reads from
            except OSError as error:
                raise MachineError(f"the controller of this worker cannot be asked for a proxy: {error}") from error
            asked = {"key": self._told["key"], "place": self._place, "options": [*options]}
            asked |= {"typed": typed, "update": update}
            print(json.dumps(asked), file=self._lines, flush=True)

    def wait_ready(self) -> str:
        """Return its URL. Raises MachineError."""
        if self._answer is None:
            try:
                self._answer = json.loads(self._lines.readline())
            except (OSError, ValueError) as error:
                raise MachineError("the controller of this worker has ended") from error
        if "url" not in self._answer:
            raise MachineError(self._answer["error"], hint=self._answer["hint"])
        return str(self._answer["url"])

    def announce_open_session(self, name: str) -> None:
        with suppress(OSError):  # who listens closes what is left open, and is gone
            print(name, file=self._lines, flush=True)

    def end(self) -> None:
        if self._lines is not None:
            self._lines.close()


CASSETTES = Path("tests") / "cassettes"
STORE = Path(".llmproxy") / "llmproxy.db"
LOCK = "suite.lock"


@dataclass(slots=True)
class PytestProcessResources:
    """Resources shared by all suites of a pytest process: the mode, and a proxy once the first scenario runs."""

    root: Path
    mode: str
    cassette_dir: str = ""
    update: str = ""
    rejudge: str = ""
    """JSON report whose runs are judged again; empty if agents are run."""
    restored_env: Callable[[], AbstractContextManager[object]] = nullcontext
    asked: XdistWorkerProxyUrlRequester | None = None
    _url: str = ""
    _failed: str = ""
    _open: ExitStack = field(default_factory=ExitStack)

    def ensure_proxy(self, env: Mapping[str, str]) -> str:
        """Return the address of the running or newly started proxy. Raises MachineError; a failure is final."""
        if self._failed:
            raise MachineError(self._failed)
        if not self._url:
            try:
                self._url = self._start_proxy(env)
            except MachineError as error:
                self._failed = str(error)
                raise
        return self._url

    def _start_proxy(self, env: Mapping[str, str]) -> str:
        if url := read_llmproxy_url(env):
            ControlApiClient(url, token=env.get(proxy_process.TOKEN_VARIABLE, "")).health()
            return url
        words = self._proxy_options(env)
        proxy = self.asked.with_options(words) if self.asked is not None else PytestProxyProcess(dict(env), self.root)
        self._open.callback(proxy.end)
        proxy.start(words, update=self.update)
        return proxy.wait_ready()

    def close(self) -> None:
        self._open.close()

    def _proxy_options(self, env: Mapping[str, str]) -> list[str]:
        """Return the start options of the proxy, like `llmproxy test`, unless the project sets others."""
        known = load({}, env, self.root)
        on_server = find_postgres_of_local_copy(known.settings.store) is not None
        words = ["--mode", Mode.REPLAY.value, "--host", DEFAULT_HOST, "--port", "0"]
        live = self.mode not in OFFLINE or self.update == UpdateMode.CHANGED
        words += ["--allow-live"] if live else []
        if known.is_default("store"):
            words.append(f"--store={self.find_store(env)}")
        folder = self.root / (self.cassette_dir or CASSETTES)
        if self.cassette_dir or (known.is_default("cassette_dir") and not on_server and (live or folder.is_dir())):
            words.append(f"--cassette-dir={folder}")
        return words

    def find_store(self, env: Mapping[str, str]) -> Path:
        known = load({}, env, self.root)
        return self.state_folder() / STORE.name if known.is_default("store") else known.settings.store

    def find_store_and_cassette_dir(self, env: Mapping[str, str]) -> tuple[Path, Path] | None:
        """Return store and cassette folder; None for a running proxy, or a server's store."""
        known = load({}, env, self.root)
        if read_llmproxy_url(env) or find_postgres_of_local_copy(known.settings.store) is not None:
            return None
        said = None if known.is_default("cassette_dir") else known.settings.cassette_dir
        return self.find_store(env), self.root / (self.cassette_dir or said or CASSETTES)

    def state_folder(self) -> Path:
        return create_gitignored_folder(self.root / STORE.parent)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other worker uses the stores' rows."""
        try:
            import fcntl
        except ImportError:  # nothing to lock with here
            yield
            return
        if "PYTEST_XDIST_WORKER" not in os.environ:
            yield
            return
        with (self.state_folder() / LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
