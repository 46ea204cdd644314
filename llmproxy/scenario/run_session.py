"""A run's session at a proxy: its participants, who take turns, its calls, misses and costs.

Environment variables belong to the whole process, and so does the session in its base URLs. During an agent's turn,
that session is *bound* to the run's session, whatever client the agent uses. The lock is process-wide, across threads
and event loops. Calls outside any turn belong to no run: they are counted, never guessed.

Cancelling a task that waits for a thread does not end the thread, and a second cancellation would end the cleanup that
the first one began. So code that changes the store, and cleanup, is awaited to its end before the cancellation counts.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, Self
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from llmproxy.calls_and_totals import Call, Miss
from llmproxy.client.child_env import BASE_URLS, URL_VARIABLE, find_env_upstreams, is_proxy_url, plan_env
from llmproxy.client.control import CONFLICT, PAUSE, ControlApiClient, ControlConnectionPool, ControlError
from llmproxy.client.proxy_process import TOKEN_VARIABLE, StartedProxyProcess, ensure_proxy, read_llmproxy_url
from llmproxy.client.session_reports import SessionReport
from llmproxy.errors import MachineError, SettingsError
from llmproxy.protocol import AGENT, DEFAULT_SESSION, PARTY_HEADER, SESSION_HEADER, SESSION_PREFIX, SHOWN_KEY
from llmproxy.report.events import HOST, PartyUse
from llmproxy.scenario.types import AdapterModelAccessThroughProxy, AgentRole

PATIENCE = 120.0  # seconds to wait for a session that another process has bound
_TURN_PAUSE = 0.05


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


def copy_env_without_proxy_changes(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    with _GUARD:
        found = dict(env)
        for steps in _TURN:
            steps.restore_environment(found)
    return found


def get_session_lock(proxy: str, session: str) -> FairLock:
    with _GUARD:
        return _SERVICES.setdefault((proxy, session), FairLock())


def list_session_names_in_env_urls(env: Mapping[str, str], proxy: str) -> tuple[str, ...]:
    """Return the proxy's sessions in base-URL variables; ``default`` for an address without one."""
    found: dict[str, None] = {}
    for each in BASE_URLS:
        if (value := env.get(each.name, "")) and is_proxy_url(value, proxy):
            path = urlsplit(value).path
            named = path.startswith(SESSION_PREFIX)
            found[unquote(path.removeprefix(SESSION_PREFIX).split("/")[0]) if named else DEFAULT_SESSION] = None
    return tuple(found)


def build_process_session_name() -> str:
    """Return the name for this process's calls if its variables have none."""
    return f"p-{os.getpid()}"


@asynccontextmanager
async def bind_process_calls_to_session(
    control: ControlApiClient, session: str | None, *, replay: bool, key_names: Sequence[str] | None = None,
    party: str = AGENT, env: MutableMapping[str, str] = os.environ,
) -> AsyncIterator[float]:  # fmt: skip
    """Take the process's turn, with its calls bound to `session` as those of `party`; yields the seconds waited.

    Without a session, clients created in the block (by an imported module) point to the proxy, and belong to no run.

    Raises MachineError: the process's session stays bound to another, or the proxy is gone.
    """
    steps = _UndoableSteps(control, session or "", party)
    async with _take_turn(steps, _PROCESS) as waited:
        since = time.monotonic()
        sources = list_session_names_in_env_urls(env, control.url) or (build_process_session_name(),)
        for source in sources if session is not None else ():
            await steps.bind_source(source, PATIENCE)
        made = plan_env(control.url, sources[0], env, replay=replay, key_names=key_names)
        changes = made.changes | dict.fromkeys(made.dropped)
        changes.pop(URL_VARIABLE)  # by it other runs, which start meanwhile, find their proxy
        steps.point_environment(env, changes)
        yield waited + (time.monotonic() - since if steps.repeated else 0.0)


@asynccontextmanager
async def redirect_session_to_other_session(
    control: ControlApiClient, source: str, session: str, patience: float = PATIENCE
) -> AsyncIterator[float]:
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
    def __init__(self, control: ControlApiClient, session: str, party: str = AGENT) -> None:
        self.repeated = False  # it had to wait for another process
        self._control, self._session, self._party = control, session, party
        self._bound: list[tuple[str, str]] = []  # sources with their earlier sessions; empty: their own
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
                if not (holder := error.bound_to):
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
                await asyncio.sleep(_TURN_PAUSE)
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
                if (before := self._before[name]) is None:
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


# -- work that an interruption does not leave half done


async def wait_despite_cancel[T](work: Awaitable[T]) -> T:
    """Wait for work to finish, regardless of cancellations of its waiter, which are raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it was looked at; the cancellation is what matters now
        raise cancelled
    return task.result()


async def run_in_thread_to_end[**P, T](act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call that changes something; it has finished when this returns or raises."""
    return await wait_despite_cancel(asyncio.to_thread(act, *args, **kwargs))


async def gather_with_limit[T](work: Sequence[Any], limit: int) -> list[T]:
    """Await coroutines, so many at a time, and return what they return, in order; the first error cancels the rest."""
    gate = asyncio.Semaphore(limit)

    async def run_gated(each: Any) -> T:
        async with gate:
            result: T = await each
            return result

    tasks = [asyncio.ensure_future(run_gated(each)) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    finally:
        for each in work:
            each.close()


NOT_FOUND = 404
_CONNECTIONS = ControlConnectionPool()
atexit.register(_CONNECTIONS.close)


class RunSession:
    def __init__(self, control: ControlApiClient, opened: SessionReport) -> None:
        self.control = control
        self.proxy = control.url
        self.name = opened.name
        self.mode = opened.mode
        self.opened = opened
        """Its report when it was opened: `unused` shows whether anything is recorded."""
        self.llm = AdapterModelAccessThroughProxy(
            self.proxy, self.name, replay=opened.needs_no_model_keys, key_names=opened.key_names
        )
        self._llms = {AGENT: self.llm}
        self.interrupted = False
        """Whether the run was interrupted, so that mode `once` records it again."""
        self._closed: SessionReport | None = None
        self._before: dict[str, int] = {}  # by name
        self._watched: set[str] = set()

    @classmethod
    async def open(
        cls, proxy: str, *, cassette: str, sample: int = 1, mode: str | None = None, token: str = "",
        upstreams: Mapping[str, str] | None = None, run_variables: Sequence[Mapping[str, str]] = (),
        faults: Mapping[str, Any] | None = None, mocks: Mapping[str, Any] | None = None, patience: float = 30.0,
    ) -> Self:  # fmt: skip
        """Open the session of a run; `patience` in seconds while another client has it open.

        Base-URL variables that do not point to the proxy are the providers' addresses; `upstreams` overrides them.

        Raises ControlError: no proxy, it refuses, or the session stays open elsewhere; SettingsError: an invalid name.
        """
        if not (cassette.isascii() and cassette.isprintable()):
            raise SettingsError(
                f"{cassette!r} cannot name a session of a run: the name travels in a header, which takes ASCII only."
            )
        control = ControlApiClient(proxy, token=token or os.environ.get(TOKEN_VARIABLE, ""), pool=_CONNECTIONS)
        towards = find_env_upstreams(copy_env_without_proxy_changes(), control.url) | dict(upstreams or {})
        how: dict[str, Any] = {"sample": sample, "mode": mode, "upstreams": towards or None, "mocks": mocks}
        how |= {"run_variables": run_variables, "faults": faults}
        made = cls(control, await _open_session(control, cassette, how, patience))
        try:
            await made.set_unattributed_baseline()
        except BaseException:
            made.interrupted = True
            with suppress(ControlError):
                await wait_despite_cancel(made.close())
            raise
        return made

    async def declare_run_variables(self, run_variables: Sequence[Mapping[str, str]]) -> None:
        if run_variables and self._closed is None:
            await asyncio.to_thread(self.control.declare_run_variables, self.name, run_variables)

    async def set_faults(self, faults: Mapping[str, Any] | None, *, again: bool = False) -> Mapping[str, Any]:
        """Set injected faults from now on, None for the proxy's; returns the old ones' report. `again`: continue."""
        before = await asyncio.to_thread(self.control.faults, self.name)
        await asyncio.to_thread(self.control.faults, self.name, {**(faults or {"faults": None}), "again": again})
        return before

    async def set_unattributed_baseline(self) -> None:
        env = copy_env_without_proxy_changes()
        watched = list_session_names_in_env_urls(env, self.proxy) or (build_process_session_name(),)
        self._watched = {*watched, HOST.session} - {self.name, ""}
        self._before = await asyncio.to_thread(self._count_arrived, self._watched)

    def party_headers(self, party: str) -> dict[str, str]:
        """Return the headers of a call by the simulator (``user``) or a judge (``judge``, ``judge.2``)."""
        return {SESSION_HEADER: self.name, PARTY_HEADER: party}

    def llm_for_role(self, role: AgentRole) -> AdapterModelAccessThroughProxy:
        """Return access to models for an adapter of this role: with any client, its calls are its party's."""
        if (party := role.value.lower()) not in self._llms:
            self._llms[party] = replace(self.llm, party=party, named=cache(partial(self._bind_name_for_party, party)))
        return self._llms[party]

    def _bind_name_for_party(self, party: str) -> str:
        """Bind a name for the calls of `party` until the session is closed. Raises ControlError."""
        name = f"{party}-{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"
        self.control.bind_session_name(name, self.name, party)
        return name

    @asynccontextmanager
    async def speaking_turn(self, adapter: Any) -> AsyncIterator[float]:
        """Let an `AgentAdapter` speak; yields the seconds waited.

        An adapter in this process that does not use `input.llm` gets the process's turn; a running service the turn at
        its own session (`session_to_bind`); others do not wait.
        """
        source = getattr(adapter, "session_to_bind", None)
        if source is not None and adapter.role is AgentRole.AGENT:
            async with redirect_session_to_other_session(self.control, source, self.name) as waited:
                yield waited
            return
        if not adapter.in_process or adapter.uses_session:
            yield 0.0
            return
        keys, party = self.llm.key_names, adapter.role.value.lower()
        async with bind_process_calls_to_session(
            self.control, self.name, replay=self.llm.replay, key_names=keys, party=party
        ) as waited:
            yield waited

    @asynccontextmanager
    async def importing_environment(self) -> AsyncIterator[None]:
        """Point clients created in the block to the proxy: an imported module may create its own."""
        async with bind_process_calls_to_session(
            self.control, None, replay=self.llm.replay, key_names=self.llm.key_names
        ):
            yield

    async def calls(self, after: int = 0) -> tuple[Call, ...]:
        return await asyncio.to_thread(self.control.calls, self.name, after)

    async def report(self) -> SessionReport:
        return await asyncio.to_thread(self.control.report, self.name) if self._closed is None else self._closed

    async def misses(self, after: int = 0) -> tuple[str, ...]:
        report = await self.report()
        if not report.misses:
            return ()
        if not after or self._closed:
            return tuple(report.miss_texts)
        count = sum(call.miss for call in await self.calls(after))
        return tuple(report.miss_texts[-count:]) if count else ()

    async def find_miss_by_text(self, text: str) -> Miss | None:
        """Return the proxy's data of the miss with this text; None if it is no longer kept."""
        found = await asyncio.to_thread(self.control.misses, self.name)
        return next((miss for miss in reversed(found) if miss.key and miss.key[:SHOWN_KEY] in text), None)

    async def usage(self) -> dict[str, PartyUse]:
        report = await self.report()
        parties = sorted(report.parties.items(), key=lambda each: (each[0] != AGENT, each[0]))
        return {
            party: PartyUse(
                calls=use.calls,
                input_tokens=use.input,
                output_tokens=use.output,
                cost_usd=None if use.whole_cost is None else format(use.whole_cost, "f"),
            )
            for party, use in parties
        }

    async def watch_service_session(self, source: str) -> None:
        """Also count calls under another name from now on: that of a running service."""
        if source not in {*self._before, self.name}:
            self._watched.add(source)
            self._before |= await asyncio.to_thread(self._count_arrived, {source})

    async def count_unattributed(self) -> int:
        """Return the number of calls under this process's name outside any turn, shared by parallel runs."""
        now = await asyncio.to_thread(self._count_arrived, self._watched)
        return sum(max(count - self._before.get(name, 0), 0) for name, count in now.items())

    async def unattributed_calls(self) -> list[Call]:
        found: list[Call] = []
        for name, count in (await asyncio.to_thread(self._count_arrived, self._watched)).items():
            if (new := count - self._before.get(name, 0)) > 0:
                with suppress(ControlError):  # one that nobody opened is counted, and tells no calls
                    found += (await asyncio.to_thread(self.control.calls, name, 0))[-new:]
        return found

    async def exclude_step_calls_from_unattributed(self, since: int) -> None:
        """Exclude calls after number `since`: a step of the script made them, in its test's session."""
        if HOST.session in self._watched and (more := await self.count_unattributed() - since) > 0:
            self._before[HOST.session] = self._before.get(HOST.session, 0) + more

    async def close(self, after: int | None = None) -> SessionReport:
        if self._closed is None:
            complete = False if self.interrupted else None
            self._closed = await asyncio.to_thread(
                self.control.close_session, self.name, complete=complete, after=after
            )
        return self._closed

    def _count_arrived(self, names: set[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in names:
            try:
                found[name] = self.control.report(name).calls
            except ControlError as error:
                if error.status != NOT_FOUND:
                    raise
        return found


async def _open_session(control: ControlApiClient, name: str, how: Mapping[str, Any], patience: float) -> SessionReport:
    """Open a session, retrying while another client has it; one opened for an interrupted run is closed."""
    deadline = time.monotonic() + patience
    while True:
        opening = asyncio.ensure_future(asyncio.to_thread(control.open_session, name, **how))
        try:
            return await wait_despite_cancel(opening)
        except asyncio.CancelledError:
            if not opening.cancelled() and opening.exception() is None:
                await wait_despite_cancel(asyncio.to_thread(control.close_session, name, complete=False))
            raise
        except ControlError as error:
            if error.status != CONFLICT or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(PAUSE)


class _ProcessProxy:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open = ExitStack()
        self._started: StartedProxyProcess | None = None
        atexit.register(self.end_proxy)

    def proxy_url(self, env: Mapping[str, str]) -> str:
        with self._guard:
            if self._started is None or not self._started.is_alive:
                self._open.close()
                self._started = self._open.enter_context(ensure_proxy(("--allow-live",), env)).process
            assert self._started is not None  # noqa: S101 - the environment names no other
            return self._started.url

    def end_proxy(self) -> None:
        with self._guard:
            self._started = None
            self._open.close()


_OWN = _ProcessProxy()


def find_or_start_proxy(
    run_proxy: str | bool | None,  # noqa: FBT001 - the keyword of run()
    configured: str | bool | None,  # noqa: FBT001 - the original's parameter
    env: Mapping[str, str],
) -> str | None:
    """Return a run's proxy: its own argument, else the configured one, LLMPROXY_URL, else none.

    True starts one, shared by all runs of this process; False is none. Raises MachineError: none can be started.
    """
    chosen = next((each for each in (run_proxy, configured) if each is not None), None)
    if chosen is None:
        return read_llmproxy_url(env) or None
    if chosen is True:
        return read_llmproxy_url(env) or _OWN.proxy_url(env)
    return chosen.strip().rstrip("/") or None if isinstance(chosen, str) else None
