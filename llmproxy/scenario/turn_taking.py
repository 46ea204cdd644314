"""Turn-taking: adapters in one process share its environment, so one of them speaks at a time, and is heard under its
own run's session.

Environment variables belong to the whole process, and so does the session that its base URLs name. While an agent has
its turn, that session is *bound* to the run's session: whatever client the agent uses, and whenever it was built, its
calls land in the run. The lock is one for the process, threads and event loops alike, and first come is first served.
Where the variables do not name the proxy (it was given as an argument) they do for as long as the turn lasts. What
arrives while nothing is bound belongs to nobody: it is counted, never guessed.

This module holds the one state of the process that the rest must share: who has the turn.
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

PATIENCE = 120.0
"""Seconds to wait for a session that another process has bound."""
PAUSE = 0.05


class FairLock:
    """A lock waited for in order, from any thread and event loop, which a cancelled waiter leaves alone."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    async def acquire_lock(self) -> float:
        """Wait for it; return the seconds that it took."""
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
        """Hand it to whoever waits longest."""
        with self._guard:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._taken = False


_PROCESS = FairLock()
_SERVICES: WeakValueDictionary[tuple[str, str], FairLock] = WeakValueDictionary()
"""Queues for as long as somebody has or wants them: a test of ten thousand runs has one for each."""
_GUARD = threading.Lock()
_TURN: list[_UndoableSteps] = []
"""What the turn that goes on did, while it goes on; guarded by the lock."""


def env_without_turn(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of those without the turn: where it points while somebody has it is not theirs."""
    with _GUARD:
        found = dict(env)
        for steps in _TURN:
            steps.restore_environment(found)
    return found


def get_session_lock(proxy: str, session: str) -> FairLock:
    """Return the queue of a session that somebody else's base URLs name."""
    with _GUARD:
        queue = _SERVICES.get((proxy, session))
        if queue is None:
            queue = _SERVICES[proxy, session] = FairLock()
        return queue


def env_sessions(env: Mapping[str, str], proxy: str) -> tuple[str, ...]:
    """Return the sessions of the proxy that base-URL variables name; ``default`` for an address without one."""
    found: dict[str, None] = {}
    for each in BASE_URLS:
        value = env.get(each.name, "")
        if value and is_proxy_url(value, proxy):
            path = urlsplit(value).path
            named = path.startswith(SESSION_PREFIX)
            found[unquote(path.removeprefix(SESSION_PREFIX).split("/")[0]) if named else DEFAULT_SESSION] = None
    return tuple(found)


def pid_session() -> str:
    """Return the name under which this process's calls arrive where its variables name none."""
    return f"p-{os.getpid()}"


@asynccontextmanager
async def process_turn(
    control: Control,
    session: str | None,
    *,
    replay: bool,
    key_names: Sequence[str] | None = None,
    party: str = AGENT,
    env: MutableMapping[str, str] = os.environ,
) -> AsyncIterator[float]:
    """Have the process's turn, its calls bound to `session` as those of `party`; gives the seconds waited.

    Without a session nothing is bound: clients that are made meanwhile (by a module that is imported) are led to the
    proxy, and what is called meanwhile belongs to nobody.

    Raises MachineError: the process's session stays bound to another, or the proxy is gone.
    """
    waited = await _PROCESS.acquire_lock()
    steps = _UndoableSteps(control, session or "", party)
    try:
        since = time.monotonic()
        sources = env_sessions(env, control.url) or (pid_session(),)
        for source in sources if session is not None else ():
            await steps.bind_process(source, PATIENCE)
        made = plan_env(control.url, sources[0], env, replay=replay, key_names=key_names)
        changes = made.changes | dict.fromkeys(made.dropped)
        changes.pop(URL_VARIABLE)  # by it other runs, which start meanwhile, find their proxy
        steps.point_environment(env, changes)
        yield waited + (time.monotonic() - since if steps.repeated else 0.0)
    finally:
        await _undo_steps(steps, _PROCESS)


@asynccontextmanager
async def bind_service(control: Control, source: str, session: str, patience: float = PATIENCE) -> AsyncIterator[float]:
    """Have what arrives under `source` land in `session`; gives the seconds waited. Raises MachineError."""
    queue = get_session_lock(control.url, source)
    waited = await queue.acquire_lock()
    steps = _UndoableSteps(control, session)
    try:
        since = time.monotonic()
        await steps.bind_process(source, patience)
        yield waited + (time.monotonic() - since if steps.repeated else 0.0)
    finally:
        await _undo_steps(steps, queue)


async def _undo_steps(steps: _UndoableSteps, queue: FairLock) -> None:
    """Undo everything, then let the next one in; a cancelled run does not leave that half done."""

    def end() -> None:
        try:
            steps.undo_all()
        finally:
            queue.release_lock()

    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, end))


class _UndoableSteps:
    """What a turn did, so that it can be undone."""

    def __init__(self, control: Control, session: str, party: str = AGENT) -> None:
        self.repeated = False
        """Whether somebody else had to be waited for."""
        self._control, self._session, self._party = control, session, party
        self._bound: list[tuple[str, str]] = []
        """Sources, and to whom each belonged before; empty: to itself."""
        self._env: MutableMapping[str, str] = {}
        self._set: dict[str, str | None] = {}
        self._before: dict[str, str | None] = {}

    async def bind_process(self, source: str, patience: float) -> None:
        """Bind, waiting for another process; what a fixture of this process bound is borrowed."""
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
                    raise _build_still_bound_error(source, holder, patience) from error
                self.repeated = True
                await asyncio.sleep(PAUSE)
            else:
                self._bound.append((source, ""))
                return

    def point_environment(self, env: MutableMapping[str, str], changes: Mapping[str, str | None]) -> None:
        """Let the environment say so too; None: a variable that is not set."""
        with _GUARD:
            self._env = env
            self._set = {name: value for name, value in changes.items() if env.get(name) != value}
            self._before = {name: env.get(name) for name in self._set}
            env.update({name: value for name, value in self._set.items() if value is not None})
            for name in [name for name, value in self._set.items() if value is None]:
                del env[name]
            _TURN.append(self)

    def restore_environment(self, env: MutableMapping[str, str]) -> None:
        """Take what was set out of an environment; what somebody changed since is theirs."""
        for name, value in self._set.items():
            if env.get(name) == value:
                before = self._before[name]
                if before is None:
                    del env[name]
                else:
                    env[name] = before

    def undo_all(self) -> None:
        with _GUARD:
            self.restore_environment(self._env)
            _TURN[:] = [steps for steps in _TURN if steps is not self]
        for source, holder in self._bound:
            with suppress(ControlError):  # a session that was closed has unbound itself
                self._control.unbind_session_name(source)
            if holder:
                with suppress(ControlError):
                    self._control.bind_session_name(source, holder)


def _build_still_bound_error(source: str, holder: str, patience: float) -> MachineError:
    return MachineError(
        f"the session {source!r}, under which the agent's calls arrive, is still bound to {holder!r} after "
        f"{patience:.0f} s.",
        hint=f"Another process tests with it, or died in the middle. POST /_llmproxy/sessions/{source}/unbind frees "
        f"it.",
    )
