"""What the suites of a pytest process share: the mode, and a proxy that is started when the first scenario runs.

Recordings are where `llmproxy test` keeps them, in ``tests/cassettes``, with the database in ``.llmproxy``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from llmproxy.errors import MachineError
from llmproxy.protocol import DEFAULT_HOST, OFFLINE, Mode
from llmproxy.store_server import server_of

CASSETTES = Path("tests") / "cassettes"
STORE = Path(".llmproxy") / "llmproxy.db"
LOCK = "suite.lock"


@dataclass(slots=True)
class SuiteBench:
    """What all suites of a pytest process share: the mode, and a proxy once the first scenario runs."""

    root: Path
    mode: str
    cassette_dir: str = ""
    rejudge: str = ""
    """A JSON report whose runs are judged again; empty where agents are run."""
    aside: Callable[[], AbstractContextManager[object]] = nullcontext
    """Makes a context in which the environment is as it was before the plugin set it."""
    _url: str = ""
    _failed: str = ""
    _open: ExitStack = field(default_factory=ExitStack)

    def proxy(self, env: Mapping[str, str]) -> str:
        """Return the address of the proxy: the running one, or one of our own, started now.

        Raises:
            MachineError: there is none. It stays so: no scenario waits twice.

        """
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
        from llmproxy.client.process import attach, running_at

        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="llmproxy-suites-"))
        words = [] if running_at(env) else self._options(env)
        return self._open.enter_context(attach(words, env, log=Path(folder) / "proxy.log")).url

    def close(self) -> None:
        """End the proxy, if it is ours."""
        self._open.close()

    def _options(self, env: Mapping[str, str]) -> list[str]:
        """Return what a proxy is started with: as by `llmproxy test`, unless the project says something else."""
        from llmproxy.settings import load as settings

        known = settings({}, env, self.root)
        on_server = server_of(known.settings.store) is not None
        words = ["--mode", Mode.REPLAY.value, "--host", DEFAULT_HOST, "--port", "0"]
        live = self.mode not in OFFLINE
        words += ["--allow-live"] if live else []
        if known.is_default("store"):
            words.append(f"--store={self.store(env)}")
        folder = self.root / (self.cassette_dir or CASSETTES)
        if self.cassette_dir or (known.is_default("cassette_dir") and not on_server and (live or folder.is_dir())):
            words.append(f"--cassette-dir={folder}")
        return words

    def store(self, env: Mapping[str, str]) -> Path:
        """Return where the recordings are, unless a running proxy has others."""
        from llmproxy.settings import load as settings

        known = settings({}, env, self.root)
        return self.folder() / STORE.name if known.is_default("store") else known.settings.store

    def state(self, env: Mapping[str, str]) -> Path:
        """Return the database of what is known beside the recordings."""
        store = self.store(env)
        return store.with_name(f"{store.name}.state.db")

    def last_report(self) -> Path:
        """Return the file that keeps what the last test told, as that of `llmproxy test` does."""
        return self.folder() / "last-report.jsonl"

    def folder(self) -> Path:
        """Return the folder of what nobody commits."""
        from llmproxy.files import make_ignored

        return make_ignored(self.root / STORE.parent)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other worker looks at rows."""
        try:
            import fcntl
        except ImportError:  # nothing to lock with here
            yield
            return
        if "PYTEST_XDIST_WORKER" not in os.environ:
            yield
            return
        with (self.folder() / LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
