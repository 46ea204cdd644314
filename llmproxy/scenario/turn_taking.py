"""Turn-taking of adapters in one process: one speaks at a time, and its calls belong to its own run's session.

Environment variables belong to the whole process, and so does the session in its base URLs. During an agent's turn,
that session is *bound* to the run's session, whatever client the agent uses. The lock is process-wide, across threads
and event loops. Calls outside any turn belong to no run: they are counted, never guessed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from llmproxy.client.child_env import BASE_URLS, URL_VARIABLE, is_proxy_url, plan_env
from llmproxy.client.control import Control, ControlError
from llmproxy.errors import MachineError
from llmproxy.protocol import AGENT, DEFAULT_SESSION, SESSION_PREFIX

PATIENCE = 120.0  # seconds to wait for a session that another process has bound
PAUSE = 0.05


class FairLock:
    """A first-come lock for any thread and event loop, whose cancelled waiters leave no trace."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    async def acquire_lock(self) -> float:
        """Acquire it; return the seconds waited."""
        since = time.monotonic()
        with self._guard:
            if not self._taken:
                self._taken = True
                return 0.0
            place: Future[None] = Future()
            self._waiting.append(place)
        try:
            await asyncio.wrap_future(place)
        except asyncio.CancelledError:
            if not place.cancel():  # it was handed over at this very moment
                self.release_lock()
            raise
        return time.monotonic() - since

    def release_lock(self) -> None:
        with self._guard:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._taken = False


_PROCESS = FairLock()
_SERVICES: WeakValueDictionary[tuple[str, str], FairLock] = WeakValueDictionary()
"""Locks that are in use: a test of ten thousand runs has one for each."""
_GUARD = threading.Lock()
_TURN: list[_UndoableSteps] = []
"""Changes made by the current turn; guarded by the lock."""


def env_without_turn(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment without the changes of the current turn."""
    with _GUARD:
        found = dict(env)
        for steps in _TURN:
            steps.restore_environment(found)
    return found


def get_session_lock(proxy: str, session: str) -> FairLock:
    with _GUARD:
        return _SERVICES.setdefault((proxy, session), FairLock())


def list_base_url_sessions(env: Mapping[str, str], proxy: str) -> tuple[str, ...]:
    """Return the proxy's sessions in base-URL variables; ``default`` for an address without one."""
    found: dict[str, None] = {}
    for each in BASE_URLS:
        value = env.get(each.name, "")
        if value and is_proxy_url(value, proxy):
            path = urlsplit(value).path
            named = path.startswith(SESSION_PREFIX)
            found[unquote(path.removeprefix(SESSION_PREFIX).split("/")[0]) if named else DEFAULT_SESSION] = None
    return tuple(found)


def process_session_name() -> str:
    """Return the name for this process's calls if its variables have none."""
    return f"p-{os.getpid()}"


@asynccontextmanager
async def hold_process_turn(
    control: Control,
    session: str | None,
    *,
    replay: bool,
    key_names: Sequence[str] | None = None,
    party: str = AGENT,
    env: MutableMapping[str, str] = os.environ,
) -> AsyncIterator[float]:
    """Take the process's turn, with its calls bound to `session` as those of `party`; yields the seconds waited.

    Without a session, clients created in the block (by an imported module) point to the proxy, and belong to no run.

    Raises MachineError: the process's session stays bound to another, or the proxy is gone.
    """
    steps = _UndoableSteps(control, session or "", party)
    async with _take_turn(steps, _PROCESS) as waited:
        since = time.monotonic()
        sources = list_base_url_sessions(env, control.url) or (process_session_name(),)
        for source in sources if session is not None else ():
            await steps.bind_source(source, PATIENCE)
        made = plan_env(control.url, sources[0], env, replay=replay, key_names=key_names)
        changes = made.changes | dict.fromkeys(made.dropped)
        changes.pop(URL_VARIABLE)  # by it other runs, which start meanwhile, find their proxy
        steps.point_environment(env, changes)
        yield waited + (time.monotonic() - since if steps.repeated else 0.0)


@asynccontextmanager
async def bind_service(control: Control, source: str, session: str, patience: float = PATIENCE) -> AsyncIterator[float]:
    """Bind calls under `source` to `session`; yields the seconds waited. Raises MachineError."""
    steps = _UndoableSteps(control, session)
    async with _take_turn(steps, get_session_lock(control.url, source)) as waited:
        since = time.monotonic()
        await steps.bind_source(source, patience)
        yield waited + (time.monotonic() - since if steps.repeated else 0.0)


@asynccontextmanager
async def _take_turn(steps: _UndoableSteps, queue: FairLock) -> AsyncIterator[float]:
    """Hold the lock; yields the seconds waited. Then all changes are undone, even if the run is cancelled."""
    waited = await queue.acquire_lock()

    def end() -> None:
        try:
            steps.restore_env_and_bindings()
        finally:
            queue.release_lock()

    try:
        yield waited
    finally:
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, end))


class _UndoableSteps:
    def __init__(self, control: Control, session: str, party: str = AGENT) -> None:
        self.repeated = False
        """Whether it had to wait for another process."""
        self._control, self._session, self._party = control, session, party
        self._bound: list[tuple[str, str]] = []
        """Sources with their earlier sessions; empty: their own."""
        self._env: MutableMapping[str, str] = {}
        self._set: dict[str, str | None] = {}
        self._before: dict[str, str | None] = {}

    async def bind_source(self, source: str, patience: float) -> None:
        """Bind, waiting for another process; a binding by a fixture of this process is borrowed."""
        if source == self._session:
            return
        deadline = time.monotonic() + patience
        while True:
            try:
                await asyncio.to_thread(self._control.bind_session_name, source, self._session, self._party)
            except ControlError as error:
                holder = error.bound_to
                if not holder:
                    raise
                if source.endswith(f"-{os.getpid()}"):
                    await asyncio.to_thread(self._control.unbind_session_name, source)
                    await asyncio.to_thread(self._control.bind_session_name, source, self._session, self._party)
                    self._bound.append((source, holder))
                    return
                if time.monotonic() >= deadline:
                    raise MachineError(
                        f"the session {source!r}, under which the agent's calls arrive, is still bound to {holder!r} "
                        f"after {patience:.0f} s.",
                        hint="Another process tests with it, or died in the middle. "
                        f"POST /_llmproxy/sessions/{source}/unbind frees it.",
                    ) from error
                self.repeated = True
                await asyncio.sleep(PAUSE)
            else:
                self._bound.append((source, ""))
                return

    def point_environment(self, env: MutableMapping[str, str], changes: Mapping[str, str | None]) -> None:
        with _GUARD:
            self._env = env
            self._set = {name: value for name, value in changes.items() if env.get(name) != value}
            self._before = {name: env.get(name) for name in self._set}
            env.update({name: value for name, value in self._set.items() if value is not None})
            for name in [name for name, value in self._set.items() if value is None]:
                del env[name]
            _TURN.append(self)

    def restore_environment(self, env: MutableMapping[str, str]) -> None:
        """Restore an environment, except variables changed by others since."""
        for name, value in self._set.items():
            if env.get(name) == value:
                before = self._before[name]
                if before is None:
                    del env[name]
                else:
                    env[name] = before

    def restore_env_and_bindings(self) -> None:
        with _GUARD:
            self.restore_environment(self._env)
            _TURN[:] = [steps for steps in _TURN if steps is not self]
        for source, holder in self._bound:
            with suppress(ControlError):  # a session that was closed has unbound itself
                self._control.unbind_session_name(source)
            if holder:
                with suppress(ControlError):
                    self._control.bind_session_name(source, holder)
