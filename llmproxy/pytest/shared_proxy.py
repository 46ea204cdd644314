"""One proxy shared by all tests of a process, started only when the first of them needs it.

Its port is reserved and the environment set early, before clients read it; the process itself is started later, or
never. The environment names a session of this process, which each test binds to a session, and so to a cassette, of its
own.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llmproxy.client.child_env import EnvironmentPlan, plan_env
from llmproxy.client.control import ConnectionPool, Control, session_url
from llmproxy.client.gather_run_variables import gather_run_variables
from llmproxy.client.proxy_process import TOKEN_VARIABLE, read_proxy_url
from llmproxy.client.session_reports import Miss, Report
from llmproxy.errors import MachineError
from llmproxy.files import make_ignored
from llmproxy.parsers import read_channels, read_name_patterns, read_unknown_tool
from llmproxy.protocol import DEFAULT_HOST, OFFLINE, VCR_MODES, Mode, Update
from llmproxy.proxy_calls import Call
from llmproxy.pytest.run_proxies import ControllerProxy, OwnProxy
from llmproxy.server_store_path import find_store_server
from llmproxy.settings import load

if TYPE_CHECKING:
    from llmproxy.core.cassettes.folder import CassetteDir

SLUG = 90
"""Characters of a generated name before its hash."""
BUSY = 30.0
"""Seconds to wait for a cassette that another test process has open."""
_ODD = re.compile(r"[^A-Za-z0-9._]+")


def make_cassette_name(test: str) -> str:
    """Return the cassette of a test, from its node id: readable, and unique by 8 hex digits of the id's hash."""
    words = test.rpartition("/")[2].replace(".py::", ".").replace("::", ".")
    slug = _ODD.sub("-", words).strip("-.")[:SLUG].rstrip("-.") or "test"
    return f"{slug}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"


def _parse_mode(text: str) -> str:
    """Return a mode by our name. Raises ValueError, naming what would be allowed."""
    known = {mode.value: mode.value for mode in Mode} | {name: mode.value for name, mode in VCR_MODES.items()}
    if text.strip().lower() not in known:
        raise ValueError(f"{text!r} is not a mode; it can be {', '.join(known)}")
    return known[text.strip().lower()]


def choose_mode(*, option: str = "", marker: str = "", variable: str = "", ini: str = "", ci: bool = False) -> str:
    """Return a test's mode: the command line, the marker, LLMPROXY_MODE, the ini file, else replay.

    In CI a marker or an ini file cannot make it go live: whoever wants that says so on the command line or in the
    environment.

    Raises ValueError: one of them is no mode.
    """
    given = [(option, True), (marker, False), (variable, True), (ini, False)]
    modes = [(_parse_mode(text), told) for text, told in given if text]
    return next((mode for mode, told in modes if told or not ci or mode in OFFLINE), Mode.REPLAY.value)


LIVE_MEMBERS = ("live", "unknown_tool", "read_only")


def choose_live_channels(marker: Mapping[str, Any], option: str, *, ci: bool) -> Mapping[str, Any] | None:
    """Return a test's live channels, of options, else of the marker (not in CI), or None. Raises ValueError."""
    live = option or ("" if ci else marker.get("live") or "")
    if not live:
        return None
    told: dict[str, Any] = {"live": [str(each) for each in read_channels(live)]}
    if marker.get("unknown_tool") is not None:
        told["unknown_tool"] = str(read_unknown_tool(marker["unknown_tool"]))
    if marker.get("read_only") is not None:
        told["read_only"] = list(read_name_patterns(marker["read_only"]))
    return told


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a test asks for; what is None is the proxy's."""

    cassette: str
    mode: str
    speed: float | None = None
    exhausted: str | None = None
    sample: int | None = None
    run_variables: tuple[Mapping[str, str], ...] = ()
    """What is true of this test's run only, besides what is true of its process."""
    bind: str | None = None
    """What of it counts: all, paths, none."""
    faults: Mapping[str, Any] | None = None
    """Injected faults."""
    live: Mapping[str, Any] | None = None
    """Channels that go to real providers or tools, as a session takes them."""


@dataclass(slots=True)
class SharedSession:
    """One test's session: what the fixture `llmproxy` gives. `name` is that of the session, `url` its base URL."""

    name: str
    cassette: str
    mode: str
    url: str = field(repr=False)
    _control: Control = field(repr=False)
    closed: Report | None = field(default=None, repr=False)
    """What it came to, once it is closed."""

    @property
    def base_url(self) -> str:
        """OpenAI's base URL of this session, for a client that takes it as an argument."""
        return f"{self.url}/v1"

    def report(self) -> Report:
        return self.closed or self._control.report(self.name)

    @property
    def misses(self) -> tuple[str, ...]:
        """Texts of the requests that were refused because they were never recorded."""
        return tuple(self.report().miss_texts)

    def list_last_misses(self, count: int) -> Sequence[Miss]:
        """Return the last of its `misses` (at least one), with their keys."""
        return [each for each in self._control.misses(self.name) if not each.to_model][-count:]

    def calls(self) -> tuple[Call, ...]:
        """Return every call of the session so far, in order of arrival; `fault` is the injected fault that it met."""
        return self._control.calls(self.name, 0)

    def run_variable(self, name: str, value: str | int, *, tool: str = "", path: str = "") -> None:
        """Declare what is true of this run only, from the next request on: recorded and present values of one name are
        exchanged.

        An id, a port, a folder that the test made. A short value (``7``) counts only at members of tools' JSON that
        name it (``task.id`` at ``task_id``), or where `tool` and `path` (``$.items[*].id``) say.
        """
        said = {"name": name, "value": str(value), "tool": tool, "path": path}
        self._control.declare_run_variables(self.name, [{key: text for key, text in said.items() if text}])

    def reset(self) -> Report:
        """Let the test walk its cassette from the start again."""
        return self._control.reset(self.name)


@dataclass(slots=True)
class SharedProxy:
    """One test process's proxy. `prepare`, then `begin_test` and `finish_test` each test, at last `end`."""

    env: MutableMapping[str, str]
    """The environment of this process, which is changed."""
    folder: Path
    """Where the proxy works: its settings and its store are found from there."""
    replay: bool = True
    """Whether keys that are absent get a placeholder."""
    cassette_dir: str = ""
    """Folder of the cassettes' files, where one was named to us."""
    update: str = ""
    """Which recordings are to be replaced, ``all``, ``changed`` or ``trial``."""
    typed: str = "pytest"
    """What is typed to run these tests again."""
    url: str = ""
    name: str = field(default_factory=lambda: f"pytest-{socket.gethostname()[:40]}-{os.getpid()}")
    """The session that this process's base URLs name."""
    _before: dict[str, str] = field(default_factory=dict)
    _set: dict[str, str] = field(default_factory=dict)
    _keys: Mapping[str, str] = field(default_factory=dict)
    """Placeholders among them."""
    asked: ControllerProxy | None = None
    """How the controller of this worker is asked for a proxy; None where there is none."""
    _proxy: OwnProxy | ControllerProxy | None = None
    """None where one runs already."""
    _pool: ConnectionPool = field(default_factory=ConnectionPool)
    _control: Control | None = None
    _failed: str = ""
    _files: tuple[Path, CassetteDir] | tuple[()] | None = None
    """The store and the folder of cassettes that our proxy keeps, empty without a folder; None before it was asked."""

    def prepare(self) -> EnvironmentPlan:
        """Find an address for the proxy and set the environment; starts nothing."""
        self._before = dict(self.env)
        self.url, notice = read_proxy_url(self.env), ""
        if not self.url and self.asked is not None:
            self.url, self._proxy = self.asked.url, self.asked
        elif not self.url:
            self._proxy = own = OwnProxy(self._before, self.folder)
            self.url = own.reserve()
            notice = own.notice
        made = self._plan_environment(None)
        self._set, self._keys = made.changes, made.keys
        self.env.update(self._set)
        return replace(made, notes=(*made.notes, *filter(None, [notice])))

    def _plan_environment(self, key_names: Sequence[str] | None) -> EnvironmentPlan:
        aws = (Path.home() / ".aws").is_dir()
        return plan_env(self.url, self.name, self.env, replay=self.replay, aws_files=aws, key_names=key_names)

    def _set_placeholder_keys(self, wanted: Sequence[str] | None) -> None:
        """Let placeholders stand for the keys that a recorded test needed, so that a program that goes by them chooses
        as it did; None: all. What the test itself set or deleted stays so.
        """
        made = self._plan_environment(wanted)
        for name in made.dropped:
            del self.env[name]
        for name in made.keys.keys() - self._keys.keys() - self.env.keys():
            self._set[name] = self.env[name] = made.keys[name]
        self._keys = made.keys

    def start(self, *, live: bool = False) -> None:
        """Start the proxy, without waiting; `live` permits sessions that reach the network. Raises MachineError."""
        if self._proxy is not None:
            words = ["--mode", "replay", "--host", DEFAULT_HOST, *(["--allow-live"] if live else [])]
            words += ["--cassette-dir", self.cassette_dir] if self.cassette_dir else []
            self._proxy.start(words, f"{self.typed} --llmproxy-mode {{mode}}", self.update)

    def begin_test(self, asked: SessionOptions) -> SharedSession:
        """Open a test's session and send this process's traffic to it. Raises MachineError: not served, refused."""
        control = self.wait_ready()
        opened = control.open_session(
            asked.cassette, under=self.name, mode=asked.mode, speed=asked.speed, exhausted=asked.exhausted,
            sample=asked.sample, run_variables=self._list_run_variables(asked), bind=asked.bind, faults=asked.faults,
            live=asked.live, patience=BUSY,
        )  # fmt: skip
        self._set_placeholder_keys(opened.key_names if opened.asks_no_model else None)
        if isinstance(self._proxy, ControllerProxy):
            self._proxy.announce_open_session(opened.name)
        return SharedSession(opened.name, opened.cassette, opened.mode, session_url(self.url, opened.name), control)

    def _list_run_variables(self, asked: SessionOptions) -> list[Mapping[str, str]]:
        """Return the run variables of a test: those of this process as it is now, and its own in their place."""
        names = {each["name"] for each in asked.run_variables}
        found = gather_run_variables(self._before or self.env, Path.cwd())
        return [*(each for each in found if each["name"] not in names), *asked.run_variables]

    @contextmanager
    def restored_env(self) -> Iterator[Mapping[str, str]]:
        """Restore the environment of before us, for a while, for somebody with a proxy of his own."""
        mine = {name: value for name, value in self._set.items() if self.env.get(name) == value}
        self.restore_environment()
        try:
            yield self.env
        finally:
            self._set = mine
            self.env.update(mine)

    def describe_unfiled_answers(self, walk: SharedSession) -> str:
        """Describe which answers of a replay stand in no file of the cassettes' folder. Raises MachineError."""
        if self._files is None:
            flags = {"cassette_dir": self.cassette_dir} if self.cassette_dir else {}
            kept = load(flags, self._before, self.folder).settings
            self._files = ()
            if kept.cassette_dir is not None and self._proxy is not None:
                from llmproxy.core.cassettes.folder import CassetteDir

                self._files = (kept.store, CassetteDir(kept.cassette_dir, now=time.time))
        if not self._files or walk.mode not in OFFLINE or walk.closed is not None:
            return ""
        from llmproxy.core.cassettes.folder import describe_unfiled

        return describe_unfiled(*self._files, {walk.cassette: lambda: [call.interaction for call in walk.calls()]})

    def finish_test(self, walk: SharedSession, *, complete: bool = True, interrupted: bool = False) -> Report:
        """Close a test's session; returns its report. Not `complete`: failed; `interrupted`: cut off."""
        if walk.closed is None:
            walk.closed = self.wait_ready().close_session(walk.name, complete=complete, interrupted=interrupted)
            if isinstance(self._proxy, ControllerProxy):
                self._proxy.announce_open_session("")
        return walk.closed

    def address(self) -> tuple[str, int] | None:
        """Return where the proxy listens, as a socket is told it."""
        parts = urlsplit(self.url)
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None

    def restore_environment(self) -> None:
        """Restore the environment; what somebody changed since is theirs."""
        for name, value in self._set.items():
            if self.env.get(name) == value:
                if name in self._before:
                    self.env[name] = self._before[name]
                else:
                    del self.env[name]
        self._set = {}

    def end(self) -> None:
        """End the proxy, if it was started, and restore the environment."""
        self.restore_environment()
        self._pool.close()
        if self._proxy is not None:
            self._proxy.end()
            self._proxy = None

    def wait_ready(self) -> Control:
        """Return the control API of a serving proxy, started if need be. A failure stays one: no test waits twice."""
        if self._failed:
            raise MachineError(self._failed)
        try:
            self.start(live=True)
            self.url = self._proxy.wait_ready() if self._proxy is not None else self.url
            if self._control is None:
                control = Control(self.url, token=self._before.get(TOKEN_VARIABLE, ""), pool=self._pool)
                control.health()
                self._control = control
        except MachineError as error:
            self._failed = str(error)
            raise
        return self._control


CASSETTES = Path("tests") / "cassettes"
STORE = Path(".llmproxy") / "llmproxy.db"
LOCK = "suite.lock"


@dataclass(slots=True)
class SuiteResources:
    """What all suites of a pytest process share: the mode, and a proxy once the first scenario runs."""

    root: Path
    mode: str
    cassette_dir: str = ""
    update: str = ""
    """Which recordings are to be replaced, ``all``, ``changed`` or ``trial``."""
    rejudge: str = ""
    """A JSON report whose runs are judged again; empty where agents are run."""
    restored_env: Callable[[], AbstractContextManager[object]] = nullcontext
    """Makes a context in which the environment is as it was before the plugin set it."""
    asked: ControllerProxy | None = None
    """How the controller of this worker is asked for a proxy; None where there is none."""
    _url: str = ""
    _failed: str = ""
    _open: ExitStack = field(default_factory=ExitStack)

    def ensure_proxy(self, env: Mapping[str, str]) -> str:
        """Return the running proxy's address, or of one started now. Raises MachineError: none, now and later."""
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
        if url := read_proxy_url(env):
            Control(url, token=env.get(TOKEN_VARIABLE, "")).health()
            return url
        words = self._proxy_options(env)
        proxy = self.asked.with_options(words) if self.asked is not None else OwnProxy(dict(env), self.root)
        self._open.callback(proxy.end)
        proxy.start(words, update=self.update)
        return proxy.wait_ready()

    def close(self) -> None:
        """End the proxy, if it is ours."""
        self._open.close()

    def _proxy_options(self, env: Mapping[str, str]) -> list[str]:
        """Return what a proxy is started with: as by `llmproxy test`, unless the project says something else."""
        known = load({}, env, self.root)
        on_server = find_store_server(known.settings.store) is not None
        words = ["--mode", Mode.REPLAY.value, "--host", DEFAULT_HOST, "--port", "0"]
        live = self.mode not in OFFLINE or self.update == Update.CHANGED
        words += ["--allow-live"] if live else []
        if known.is_default("store"):
            words.append(f"--store={self.find_store(env)}")
        folder = self.root / (self.cassette_dir or CASSETTES)
        if self.cassette_dir or (known.is_default("cassette_dir") and not on_server and (live or folder.is_dir())):
            words.append(f"--cassette-dir={folder}")
        return words

    def find_store(self, env: Mapping[str, str]) -> Path:
        """Return where the recordings are, unless a running proxy has others."""
        known = load({}, env, self.root)
        return self.state_folder() / STORE.name if known.is_default("store") else known.settings.store

    def find_store_and_folder(self, env: Mapping[str, str]) -> tuple[Path, Path] | None:
        """Return the store, and the folder of the cassettes' files; None of a running proxy, and of a server."""
        known = load({}, env, self.root)
        if read_proxy_url(env) or find_store_server(known.settings.store) is not None:
            return None
        said = None if known.is_default("cassette_dir") else known.settings.cassette_dir
        return self.find_store(env), self.root / (self.cassette_dir or said or CASSETTES)

    def state_path(self, env: Mapping[str, str]) -> Path:
        """Return the database of what is known beside the recordings."""
        store = self.find_store(env)
        return store.with_name(f"{store.name}.state.db")

    def last_report_path(self) -> Path:
        """Return the file that keeps what the last test told, as that of `llmproxy test` does."""
        return self.state_folder() / "last-report.jsonl"

    def state_folder(self) -> Path:
        return make_ignored(self.root / STORE.parent)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other worker looks at rows."""
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
