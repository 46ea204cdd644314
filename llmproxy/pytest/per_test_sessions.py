"""One proxy shared by all tests of a process, started only when the first of them needs it.

Its port is reserved and the environment set early, before clients read it. The environment names a session of this
process, which each test binds to a session, and so to a cassette, of its own. A thread for which an ended test did not
wait would be recorded in the next one's: `LateRequestGuard` refuses its calls.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path, PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

import pytest

from llmproxy.advice import PYTEST_MODE
from llmproxy.calls_and_totals import Call, Miss
from llmproxy.client.child_env import EnvironmentPlan, detect_cwd_home_date_variables, in_ci, plan_env
from llmproxy.client.control import ControlApiClient, ControlConnectionPool, ControlError, session_url
from llmproxy.client.proxy_process import TOKEN_VARIABLE, read_llmproxy_url
from llmproxy.client.session_reports import SessionReport
from llmproxy.errors import MachineError
from llmproxy.parsers import parse_channel_list, read_mode, read_name_patterns, read_tool_policy
from llmproxy.protocol import DEFAULT_HOST, OFFLINE, Mode, UpdateMode
from llmproxy.pytest.options import CASSETTE_DIR, MODE, build_rerun_command, read_update_option
from llmproxy.pytest.run_proxies import (
    CASSETTES,
    PytestProcessResources,
    PytestProxyProcess,
    XdistControllerProxyLauncher,
    XdistWorkerProxyUrlRequester,
)
from llmproxy.settings import load

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

    from llmproxy.core.cassettes.folder_sync import CassetteDir

SHOWN = 5
_STARTED = ("_thread.start_new_thread", "_thread.start_joinable_thread")
_SENDS = ("send", "sendall", "sendmsg")
"""Sending methods of a socket: they raise no audit event, and a kept-alive connection is opened only once."""
_WAITING = frozenset({"queue.py", "selectors.py", "concurrent/futures/thread.py", "multiprocessing/pool.py"})


class LateRequestGuard:
    """Refuses calls of threads and event-loop tasks of ended tests; an idle worker may be used by the next test."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self._of: WeakKeyDictionary[threading.Thread, str] = WeakKeyDictionary()
        self._tasks: WeakKeyDictionary[Task[Any], str] = WeakKeyDictionary()
        self._before: frozenset[threading.Thread] = frozenset()
        self._tasks_before: WeakSet[Task[Any]] = WeakSet()
        self._guarded: list[str] = []
        """Methods installed in `socket.socket` while late threads exist."""
        self._address: Callable[[], tuple[str, int] | None] = lambda: None
        self._hooked = False

    def on_test_start(self) -> None:
        self._before = frozenset(threading.enumerate())
        self._tasks_before = WeakSet(_list_unfinished_tasks(sys._current_frames().values()))
        self._patch_or_unpatch_send()

    def watch_leftover_threads_and_tasks(self, test: str, address: Callable[[], tuple[str, int] | None]) -> None:
        frames = sys._current_frames()
        new = [each for each in threading.enumerate() if each not in self._before]
        late = [each for each in new if not is_waiting_worker_thread(frames.get(each.ident or 0))]
        for thread in late:
            self._of.setdefault(thread, test)
        others = [frame for ident, frame in frames.items() if ident != threading.get_ident()]
        for task in _list_unfinished_tasks(others):
            if task not in self._tasks_before:
                self._tasks.setdefault(task, test)
        self._address = address
        self._patch_or_unpatch_send()
        if (late or self._tasks) and not self._hooked:  # never taken out again, so put in only where it is needed
            self._hooked = True
            sys.addaudithook(self._audit_connect)

    def _audit_connect(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "socket.connect" and event not in _STARTED:
            return
        if (test := self._find_test(threading.get_ident())) is None:
            return
        if event in _STARTED:  # what it starts is the ended test's as well
            started = getattr(arguments[0], "__self__", None)
            if isinstance(started, threading.Thread):
                self._of[started] = test
            return
        where = arguments[1]
        if isinstance(where, tuple) and tuple(where[:2]) == self._address():
            self._refuse_late_request(test)

    def _refuse_late_request(self, test: str) -> None:
        said = f"a thread of {test} asked after its end; its call belongs to no test and was refused"
        if len(self.refused) < SHOWN and said not in self.refused:
            self.refused.append(said)
        raise ConnectionRefusedError(f"llmproxy: {said}. Wait for your threads before the test returns.")

    def _find_test(self, ident: int) -> str | None:
        if self._tasks and (task := _current_task()) is not None and (test := self._tasks.get(task)) is not None:
            return test
        return next((test for each, test in list(self._of.items()) if each.ident == ident and each.is_alive()), None)

    def _patch_or_unpatch_send(self) -> None:
        wanted = any(each.is_alive() for each in list(self._of)) or any(not each.done() for each in list(self._tasks))
        if wanted and not self._guarded:
            own = vars(socket.socket)
            self._guarded = [name for name in _SENDS if name not in own and hasattr(socket.socket, name)]
            for name in self._guarded:
                setattr(socket.socket, name, self._guard_send(getattr(socket.socket, name)))
        elif not wanted and self._guarded:
            for name in self._guarded:
                delattr(socket.socket, name)
            self._guarded = []

    def _guard_send(self, send: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(send)
        def send_guarded(connection: socket.socket, *given: Any, **named: Any) -> Any:
            test = self._find_test(threading.get_ident())
            if test is not None and _peer_address(connection) == self._address():
                self._refuse_late_request(test)
            return send(connection, *given, **named)

        return send_guarded

    def close(self) -> None:
        self._of.clear()
        self._tasks.clear()
        self._patch_or_unpatch_send()


def _peer_address(connection: socket.socket) -> tuple[Any, ...] | None:
    with suppress(OSError):
        where = connection.getpeername()
        return tuple(where[:2]) if isinstance(where, tuple) else None
    return None


def _list_unfinished_tasks(frames: Iterable[FrameType]) -> list[Task[Any]]:
    if (asyncio := sys.modules.get("asyncio")) is None:
        return []
    found: list[Task[Any]] = []
    for each in frames:
        frame: FrameType | None = each
        while frame is not None:
            runs = frame.f_code.co_name == "run_forever"
            loop: AbstractEventLoop | None = frame.f_locals.get("self") if runs else None
            if isinstance(loop, asyncio.AbstractEventLoop):
                found += asyncio.all_tasks(loop)
                break
            frame = frame.f_back
    return found


def _current_task() -> Task[Any] | None:
    with suppress(RuntimeError):  # no loop runs in this thread
        return None if (asyncio := sys.modules.get("asyncio")) is None else asyncio.current_task()
    return None


def is_waiting_worker_thread(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return frame is not None and any(PurePath(frame.f_code.co_filename).match(each) for each in _WAITING)


SLUG = 90
"""Characters of a generated name before its hash."""
BUSY = 30.0
"""Seconds to wait for a cassette that another test process has open."""
_ODD = re.compile(r"[^A-Za-z0-9._]+")


def make_cassette_name(test: str) -> str:
    """Return a test's cassette name from its node id: readable, and unique by 8 hex digits of the id's hash."""
    words = test.rpartition("/")[2].replace(".py::", ".").replace("::", ".")
    slug = _ODD.sub("-", words).strip("-.")[:SLUG].rstrip("-.") or "test"
    return f"{slug}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"


def choose_test_mode(*, option: str = "", marker: str = "", variable: str = "", ini: str = "", ci: bool = False) -> str:
    """Return a test's mode: the command line, the marker, LLMPROXY_MODE, the ini file, else replay. Raises ValueError.
    In CI neither marker nor ini file can enable live requests: that takes the command line or the environment.
    """
    given = [(option, True), (marker, False), (variable, True), (ini, False)]
    modes = [(read_mode(text).value, told) for text, told in given if text]
    return next((mode for mode, told in modes if told or not ci or mode in OFFLINE), Mode.REPLAY.value)


def list_tests_of_same_cassette(item: pytest.Item) -> list[str]:
    """Return the other selected tests whose markers name this one's cassette, which is replaced as a whole."""
    marks = ((each.nodeid, each.get_closest_marker(FIXTURE)) for each in item.session.items)
    named = {test: mark.kwargs.get("cassette") for test, mark in marks if mark is not None}
    own = named.pop(item.nodeid, None)
    return [test for test, name in named.items() if own and name == own]


LIVE_MEMBERS = ("live", "unknown_tool", "read_only")


def read_test_live_channel_settings(marker: Mapping[str, Any], option: str, *, ci: bool) -> Mapping[str, Any] | None:
    """Return a test's live channels from options, else from the marker (not in CI), or None. Raises ValueError."""
    live = option or ("" if ci else marker.get("live") or "")
    if not live:
        return None
    told: dict[str, Any] = {"live": [str(each) for each in parse_channel_list(live)]}
    if marker.get("unknown_tool") is not None:
        told["unknown_tool"] = str(read_tool_policy(marker["unknown_tool"]))
    if marker.get("read_only") is not None:
        told["read_only"] = list(read_name_patterns(marker["read_only"]))
    return told


@dataclass(frozen=True, slots=True)
class SessionOptions:
    cassette: str
    mode: str
    speed: float | None = None
    exhausted: str | None = None
    sample: int | None = None
    run_variables: tuple[Mapping[str, str], ...] = ()
    """Run variables of this test, in addition to its process's."""
    bind: str | None = None
    faults: Mapping[str, Any] | None = None
    live: Mapping[str, Any] | None = None


@dataclass(slots=True)
class ProxySessionOfTest:
    """A test's session, as returned by the fixture `llmproxy`. `name` is the session's, `url` its base URL."""

    name: str
    cassette: str
    mode: str
    url: str = field(repr=False)
    _control: ControlApiClient = field(repr=False)
    closed: SessionReport | None = field(default=None, repr=False)
    passed: bool | None = field(default=None, repr=False)
    """None until the report of the test's call; a test that Ctrl-C ends has none."""

    @property
    def base_url(self) -> str:
        """OpenAI's base URL of this session, for a client that takes it as an argument."""
        return f"{self.url}/v1"

    def report(self) -> SessionReport:
        return self.closed or self._control.report(self.name)

    @property
    def misses(self) -> tuple[str, ...]:
        """Texts of requests refused because they were never recorded."""
        return tuple(self.report().miss_texts)

    def list_newest_misses(self, count: int) -> Sequence[Miss]:
        return [each for each in self._control.misses(self.name) if not each.to_model][-count:]

    def calls(self) -> tuple[Call, ...]:
        """Return every call of the session so far, in order of arrival; `fault` is its injected fault."""
        return self._control.calls(self.name, 0)

    def run_variable(self, name: str, value: str | int, *, tool: str = "", path: str = "") -> None:
        """Declare a run variable, from the next request on: recorded values of the name are replaced by this run's.

        For example an id, a port or a folder that the test created. A short value (``7``) counts only in tool JSON
        members that match its name (``task.id`` at ``task_id``), or at `tool` and `path` (``$.items[*].id``).
        """
        said = {"name": name, "value": str(value), "tool": tool, "path": path}
        self._control.declare_run_variables(self.name, [{key: text for key, text in said.items() if text}])

    def reset(self) -> SessionReport:
        return self._control.reset(self.name)


@dataclass(slots=True)
class SharedProxy:
    """A test process's proxy. `prepare`, then `begin_test` and `finish_test` each test, at last `end`."""

    env: MutableMapping[str, str]
    folder: Path
    replay: bool = True
    cassette_dir: str = ""
    update: str = ""
    """Recordings to replace: ``all``, ``changed`` or ``trial``."""
    typed: str = "pytest"
    url: str = ""
    name: str = field(default_factory=lambda: f"pytest-{socket.gethostname()[:40]}-{os.getpid()}")
    _before: dict[str, str] = field(default_factory=dict)
    _set: dict[str, str] = field(default_factory=dict)
    _keys: Mapping[str, str] = field(default_factory=dict)
    asked: XdistWorkerProxyUrlRequester | None = None
    _proxy: PytestProxyProcess | XdistWorkerProxyUrlRequester | None = None
    """None if a proxy is already running."""
    _pool: ControlConnectionPool = field(default_factory=ControlConnectionPool)
    _control: ControlApiClient | None = None
    _failed: str = ""
    _files: tuple[Path, CassetteDir] | tuple[()] | None = None
    """Store and cassette folder of our proxy, empty without a folder; None before they were queried."""

    def prepare(self) -> EnvironmentPlan:
        self._before = dict(self.env)
        self.url, notice = read_llmproxy_url(self.env), ""
        if not self.url and self.asked is not None:
            self.url, self._proxy = self.asked.url, self.asked
        elif not self.url:
            self._proxy = own = PytestProxyProcess(self._before, self.folder)
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
        """Set placeholders for a recorded test's keys; None: all. Keep variables that the test set or deleted."""
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
            self._proxy.start(words, f"{self.typed} {PYTEST_MODE}", self.update)

    def begin_test(self, asked: SessionOptions) -> ProxySessionOfTest:
        """Open a test's session and route this process's traffic to it. Raises MachineError: not served, refused."""
        control = self.wait_ready()
        overridden = {each["name"] for each in asked.run_variables}
        found = detect_cwd_home_date_variables(self._before or self.env, Path.cwd())  # of the process, as it is now
        run_variables = [*(each for each in found if each["name"] not in overridden), *asked.run_variables]
        opened = control.open_session(
            asked.cassette, under=self.name, mode=asked.mode, speed=asked.speed, exhausted=asked.exhausted,
            sample=asked.sample, run_variables=run_variables, bind=asked.bind, faults=asked.faults, live=asked.live,
            patience=BUSY,
        )  # fmt: skip
        self._set_placeholder_keys(opened.key_names if opened.needs_no_model_keys else None)
        if isinstance(self._proxy, XdistWorkerProxyUrlRequester):
            self._proxy.announce_open_session(opened.name)
        return ProxySessionOfTest(
            opened.name, opened.cassette, opened.mode, session_url(self.url, opened.name), control
        )

    @contextmanager
    def restored_env(self) -> Iterator[Mapping[str, str]]:
        """Restore the original environment temporarily, for code with a proxy of its own."""
        mine = {name: value for name, value in self._set.items() if self.env.get(name) == value}
        self.restore_environment()
        try:
            yield self.env
        finally:
            self._set = mine
            self.env.update(mine)

    def describe_replayed_but_unfiled_answers(self, walk: ProxySessionOfTest) -> str:
        """Describe replayed answers that are missing from the cassette folder's files. Raises MachineError."""
        if self._files is None:
            flags = {"cassette_dir": self.cassette_dir} if self.cassette_dir else {}
            kept = load(flags, self._before, self.folder).settings
            self._files = ()
            if kept.cassette_dir is not None and self._proxy is not None:
                from llmproxy.core.cassettes.folder_sync import CassetteDir

                self._files = (kept.store, CassetteDir(kept.cassette_dir, now=time.time))
        if not self._files or walk.mode not in OFFLINE or walk.closed is not None:
            return ""
        from llmproxy.core.cassettes.folder_sync import describe_hits_missing_from_files

        return describe_hits_missing_from_files(
            *self._files, {walk.cassette: lambda: [call.interaction for call in walk.calls()]}
        )

    def finish_test(
        self, walk: ProxySessionOfTest, *, complete: bool = True, interrupted: bool = False
    ) -> SessionReport:
        if walk.closed is None:
            walk.closed = self.wait_ready().close_session(walk.name, complete=complete, interrupted=interrupted)
            if isinstance(self._proxy, XdistWorkerProxyUrlRequester):
                self._proxy.announce_open_session("")
        return walk.closed

    def read_report_outside_tests(self) -> SessionReport | None:
        """Return the counts of this process's calls that came from no test with the fixture; None without any."""
        with suppress(ControlError):  # no such session is open
            return self._control.report(self.name) if self._control is not None else None
        return None

    def address(self) -> tuple[str, int] | None:
        parts = urlsplit(self.url)
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None

    def restore_environment(self) -> None:
        """Restore the environment, except variables changed by others since."""
        for name, value in self._set.items():
            if self.env.get(name) == value:
                if name in self._before:
                    self.env[name] = self._before[name]
                else:
                    del self.env[name]
        self._set = {}

    def end(self) -> None:
        self.restore_environment()
        self._pool.close()
        if self._proxy is not None:
            self._proxy.end()
            self._proxy = None

    def wait_ready(self) -> ControlApiClient:
        """Return the control API of the serving proxy. A failure is remembered: no test waits twice."""
        if self._failed:
            raise MachineError(self._failed)
        try:
            self.start(live=True)
            self.url = self._proxy.wait_ready() if self._proxy is not None else self.url
            if self._control is None:
                control = ControlApiClient(self.url, token=self._before.get(TOKEN_VARIABLE, ""), pool=self._pool)
                control.health()
                self._control = control
        except MachineError as error:
            self._failed = str(error)
            raise
        return self._control


FIXTURE = "llmproxy"
FAULTS = "faults"
_ARGUMENTS = ("cassette", "mode", "speed", "exhausted", "sample", "bind", *LIVE_MEMBERS)


@dataclass(slots=True)
class PytestPluginState:
    config: pytest.Config
    taken: set[str] = field(default_factory=set)
    shared: SharedProxy | None = None
    notes: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    asked: XdistWorkerProxyUrlRequester | None = None
    proxies: XdistControllerProxyLauncher | None = None
    late: LateRequestGuard = field(default_factory=LateRequestGuard)
    bench: PytestProcessResources | None = None
    unreported: dict[str, ProxySessionOfTest] = field(default_factory=dict)
    """Sessions by test, until the report of the test's teardown, which Ctrl-C prevents."""
    within_run: bool = False
    """Whether `llmproxy run` began us: its proxy may refuse our modes, and its misses say what to type."""

    def option(self, flag: str) -> str:
        name = flag.removeprefix("--").replace("-", "_")
        typed = None if flag in self.taken else getattr(self.config.known_args_namespace, name, None)
        return str(typed or self.config.getini(name) or "")

    def make_resources(self) -> PytestProcessResources:
        folder, update = self.option(CASSETTE_DIR), read_update_option(self.config)
        return PytestProcessResources(self.config.rootpath, self.choose_mode(), folder, update=update)

    def choose_mode(self, marker: str = "") -> str:
        typed = None if MODE in self.taken else getattr(self.config.known_args_namespace, "llmproxy_mode", None)
        modes = {UpdateMode.ALL: Mode.RECORD, UpdateMode.CHANGED: Mode.REPLAY, UpdateMode.TRIAL: Mode.REPLAY}
        updates = {update.value: mode.value for update, mode in modes.items()}
        option = updates.get(read_update_option(self.config), typed or "")
        variable, ini = os.environ.get("LLMPROXY_MODE", ""), str(self.config.getini("llmproxy_mode") or "")
        return choose_test_mode(option=option, marker=marker, variable=variable, ini=ini, ci=in_ci(os.environ))

    def find_store(self, *, suites: bool) -> Path | None:
        """Return the store of suites or of tests; None if a running proxy has another one."""
        # The proxy that we named is ours.
        with nullcontext(os.environ) if self.shared is None else self.shared.restored_env() as env:
            if read_llmproxy_url(env):
                return None
            if suites:
                return self.make_resources().find_store(env)
            return load({}, env, self.config.rootpath).settings.store

    def list_stores(self) -> dict[Path, Path | None]:
        said, usual = self.option(CASSETTE_DIR), self.config.rootpath / CASSETTES
        found = {
            self.find_store(suites=suites): Path(said) if said else usual if suites and usual.is_dir() else None
            for suites in (True, False)
        }
        return {store: folder for store, folder in found.items() if store is not None and store.exists()}

    def has_recording_options(self) -> bool:
        variable = os.environ.get("LLMPROXY_MODE") and not self.within_run  # `run` sets it, and records all the same
        return bool(self.option(MODE) or read_update_option(self.config) or variable)

    def read_options(self, item: pytest.Item) -> SessionOptions:
        """Return the options of marker and command line. Raises ValueError."""
        marker = item.get_closest_marker(FIXTURE)
        given: dict[str, Any] = dict(marker.kwargs) if marker else {}
        if marker and marker.args:
            raise ValueError(f"the marker llmproxy takes names only, as cassette={marker.args[0]!r}")
        if unknown := sorted(set(given) - set(_ARGUMENTS)):
            raise ValueError(f"the marker llmproxy has no {', '.join(unknown)}; it has {', '.join(_ARGUMENTS)}")
        mode = self.choose_mode(str(given.pop("mode", None) or ""))
        cassette = str(given.pop("cassette", None) or make_cassette_name(item.nodeid))
        marked = {name: given.pop(name) for name in LIVE_MEMBERS if name in given}
        typed = str(getattr(self.config.known_args_namespace, "llmproxy_live", None) or "")
        live = read_test_live_channel_settings(marked, typed, ci=in_ci(os.environ))
        return SessionOptions(cassette, mode, faults=_read_fault_markers(item), live=live, **given)

    def prepare_proxy(self, mode: str) -> None:
        folder, update, root = self.option(CASSETTE_DIR), read_update_option(self.config), self.config.rootpath
        self.shared = SharedProxy(
            os.environ, root, replay=mode in OFFLINE and update != UpdateMode.CHANGED,
            cassette_dir=str(root / folder) if folder else "", typed=build_rerun_command(self.config), update=update,
            asked=self.asked,
        )  # fmt: skip
        self.notes += self.shared.prepare().notes


def _read_fault_markers(item: pytest.Item) -> Mapping[str, Any] | None:
    """Return injected faults of the nearest markers: test, class or module. Raises ValueError."""
    if not (placed := [(marker, node) for node, marker in item.iter_markers_with_node(FAULTS)]):
        return None
    markers = [marker for marker, node in placed if node is placed[0][1]][::-1]  # as written: the first is on top
    from llmproxy.core.faults.parsing import BadFaults, parse_session_faults, require_integer_fault_seed

    rules: list[Mapping[str, Any]] = []
    seeds: dict[int, None] = {}
    try:
        for marker in markers:
            given = dict(marker.kwargs)
            seeds |= {require_integer_fault_seed(given.pop("seed")): None} if "seed" in given else {}
            asked: list[Any] = [*marker.args, *([given] if given else [])]
            if not asked:
                raise ValueError("the marker faults says none: @pytest.mark.faults('http-429@2')")
            found = [parse_session_faults(each, item.config.rootpath) for each in asked]
            rules += [rule.to_json() for each in found for rule in each.rules]
    except BadFaults as error:
        said = f"{error.inner}\n{error.hint}".rstrip()
        raise ValueError(f"the marker faults: {said}") from error
    if len(seeds) > 1:
        said = ", ".join(map(str, seeds))
        raise ValueError(f"the markers faults say different seeds ({said}): one draws for all rules")
    return {"faults": rules, "seed": next(iter(seeds), 0)}
