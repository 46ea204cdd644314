"""The one run engine: from a run's session to how it ended. What is played is handed in (`Playable`): a script of
Python, a case of a suite.

    session -> what else it needs -> play, within its limit of time -> give back -> close the session -> what came late
    -> told

What an adapter, a step or a callback raises is kept (`RunLifecycle.error`), after the events have said so. The end is
told exactly once, also when the thread of the run is blocked and somebody else has to say it. What passed is not passed
if nobody could know of all its calls (the agent went on after the end), or if what it was to meet never came.

Events of a run go to handlers, which parallel runs may share: they are called one at a time, and one that raises is
logged and never disturbs the run. A program that runs scenarios under no test runner is a test as well (`ProgramRuns`):
what its runs came to is kept when it ends, for `llmproxy test --trend`, if a proxy recorded or replayed them.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from llmproxy.client.session_reports import Report
from llmproxy.errors import Exit, LLMProxyError, MachineError
from llmproxy.files import make_ignored
from llmproxy.protocol import AGENT, TESTS_STORE
from llmproxy.proxy_calls import Call
from llmproxy.report.event_handlers import notify_handlers
from llmproxy.report.events import (
    Completed,
    Event,
    Finished,
    Handler,
    Message as MessageEvent,
    PartyUse,
    Selected,
    Started,
    Status,
    Step,
    Verdict,
)
from llmproxy.report.scenario_rows import build_row
from llmproxy.report.trend import TrendRecorder
from llmproxy.scenario.run_session import RunSession, wait_despite_cancel
from llmproxy.scenario.running.agent_caller import AgentTraffic, Caller
from llmproxy.scenario.turn_taking import FairLock, get_session_lock
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.messages import copy_value
from llmproxy.scenario.values.run_ids_and_options import describe_error, describe_sys_exit
from llmproxy.settings import load
from llmproxy.trace.observing.agent_activity import WireObserver

_ONE_AT_A_TIME = threading.RLock()


@dataclass
class EventEmitter:
    about: Started
    """What is known of the run before it begins."""
    handlers: Sequence[Handler]
    clock: Callable[[], float] = time.time
    _begun: bool = False
    _over: bool = False
    _steps: int = 0

    def emit_start(self, **found: Any) -> None:
        """Emit Started, once, with what was found since."""
        if not self._begun:
            self._begun, self.about = True, replace(self.about, **found, at=self.clock())
            self.emit(self.about)

    def emit_message(self, message: Message, **about: Any) -> None:
        if self._is_run_going_on():
            self.emit(MessageEvent(run_id=self.about.run_id, message=copy_value(message), at=self.clock(), **about))

    def emit_step(self, kind: str, **about: Any) -> None:
        if self._is_run_going_on():
            self.emit(Step(run_id=self.about.run_id, index=self._steps, kind=kind, **about))
            self._steps += 1

    def emit_verdict(self, judge: str, result: ScenarioResult | None, *, forced: bool, decided: bool) -> None:
        """Emit what a judge said; `result` is None where it wants to see more."""
        if not self._is_run_going_on():
            return
        said = ScenarioResult(success=False, messages=[]) if result is None else result
        self.emit(
            Verdict(
                run_id=self.about.run_id,
                judge=judge,
                success=said.success if result is not None and decided else None,
                reasoning=said.reasoning or "",
                criteria=tuple(each.to_event() for each in said.criteria),
                forced=forced,
            )
        )

    def emit_result(self, result: ScenarioResult) -> bool:
        """Emit how a run of a script ended; only the first end counts, and returns True."""
        return self.emit_end(
            status=result.status or Status.FAILED, reasoning=result.reasoning or "",
            criteria=tuple(each.to_event() for each in result.criteria), total_seconds=result.total_time,
            agent_seconds=result.agent_time, waited_seconds=result.waited, usage=dict(result.usage),
            replayed=result.replayed, bound=result.bound, bound_names=tuple(result.bound_names),
            carried=result.carried, carried_names=tuple(result.carried_names), stale=result.stale, dealt=result.dealt,
            misses=tuple(result.misses), error=result.error, labels=tuple(result.labels),
        )  # fmt: skip

    def emit_end(self, **about: Any) -> bool:
        """Emit Finished; only the first call counts, and returns True."""
        with _ONE_AT_A_TIME:
            over, self._over = self._over, True
        if not over:
            self.emit(Finished(run_id=self.about.run_id, scenario=self.about.scenario, at=self.clock(), **about))
        return not over

    def emit(self, event: Event) -> None:
        with _ONE_AT_A_TIME:
            notify_handlers(self.handlers, event)

    def _is_run_going_on(self) -> bool:
        """Return whether the run has begun and not ended: an executor that is used without `run` emits nothing."""
        return self._begun and not self._over


class ProgramRuns:
    """Remembers what the runs of a process came to; for any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._runs: dict[str, list[Mapping[str, Any]]] = {}
        self._process = 0
        self._since = 0.0
        self._folder = Path()

    def record_end(self, result: ScenarioResult) -> None:
        if not result.cassette:
            return
        cost = result.usage.get(AGENT, PartyUse()).cost_usd
        run = {"status": str(result.status or Status.FAILED), "cost_usd": cost}
        with self._guard:
            if self._process != os.getpid():  # the first run; or a fork, which has none of its parent's
                self._runs, self._process, self._folder = {}, os.getpid(), Path.cwd()
                self._since = time.time() - (result.total_time or 0.0)
                atexit.register(self.write_trend_at_exit)
            self._runs.setdefault(result.cassette, []).append(run)

    def write_trend_at_exit(self) -> None:
        """Keep the test that this program was."""
        interrupted = isinstance(getattr(sys, "last_exc", None), KeyboardInterrupt)
        if self._process != os.getpid() or not self._runs or interrupted:
            return
        runs, self._runs = self._runs, {}
        try:
            self._write_trend(runs)
        except (LLMProxyError, OSError) as error:
            _print_line(f"this test is not in the trend: {error}")

    def _write_trend(self, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        known = load({}, os.environ, self._folder)
        store = known.settings.store
        if known.is_default("store"):
            store = self._folder / TESTS_STORE
            make_ignored(store.parent)
        rows = [build_row(name, each) for name, each in runs.items()]
        bad = any(row["status"] not in ("passed", "skipped") for row in rows)
        kept = TrendRecorder(store.with_name(f"{store.name}.state.db"), _print_line)
        count = sum(map(len, runs.values()))
        kept.handle(Selected(title=Path(sys.argv[0]).name, scenarios=len(rows), runs=count, at=self._since))
        code = Exit.FAILED if bad else Exit.OK
        kept.handle(Completed(exit_code=code, seconds=time.time() - self._since, scenarios=rows))


def _print_line(text: str) -> None:
    sys.stderr.write(f"llmproxy: {text}\n")


PROGRAM = ProgramRuns()
"""Of this process."""


_SHOWN = 3


class LateCallsError(MachineError):
    """The agent went on after the end of its scenario: what was said about its traffic was said too early."""

    code = "llmproxy_suite_late_calls"


def name_late_calls(calls: Sequence[Call], wire: WireObserver, strays: int, named: Sequence[Call] = ()) -> list[str]:
    """Name calls of the agent that came too late: tools where an answer asks for some, else the request.

    Args:
        calls: Of the agent, in order; `wire` has read them.
        wire: Everything that the agent said to models.
        strays: Calls of this process that were made while no agent had its turn: they may be its as well.
        named: Of the strays, those that the proxy tells.

    """
    said = []
    if calls:
        said.append(
            f"after the end of the scenario the agent made further calls: {_name_tools_or_requests(calls, wire)}"
        )
    if strays:
        apart = WireObserver(None)
        apart.add_calls_with_recordings(named)
        many = "1 call arrived that belongs" if strays == 1 else f"{strays} calls arrived that belong"
        what = f": {_name_tools_or_requests(named, apart)}" if named else ""
        said.append(f"{many} to no run, since nobody had its turn then{what}")
    return said


def _name_tools_or_requests(calls: Sequence[Call], wire: WireObserver) -> str:
    try:
        tools = wire.build_step(calls[0].seq - 1).tools
    except LLMProxyError:  # a damaged recording: the calls are named all the same
        tools = ()
    asked = {tool.seq for tool in tools}
    named = [f"{tool.name} ({tool.label})" for tool in tools]
    named += [
        f"a request to {call.model or call.operation} (call {call.seq})" for call in calls if call.seq not in asked
    ]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return f"{', '.join(named[:_SHOWN])}{more}"


class CleanupFailed(MachineError):
    """A run passed, and what it left behind could not be cleaned up: the next one starts from something else."""

    code = "llmproxy_suite_untidy"


class UnusedFaults(MachineError):
    """A run passed without the injected faults that it was to meet: nothing is proved about them."""

    code = "llmproxy_suite_unused_faults"


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session that a run wants, and where."""

    proxy: str
    cassette: str
    sample: int
    how: Mapping[str, Any]
    """What else `RunSession.open` takes."""
    must_inject: bool = False
    """Whether a run that did not meet its injected faults has not passed."""
    kind: type[RunSession] | None = None
    """Of which class; None: `RunSession`."""


class Playable[S, R](Protocol):
    """What a run plays: steps, each an `S`. `R` is what it comes to."""

    @property
    def steps(self) -> Sequence[S]: ...

    @property
    def describe_actor(self) -> str:
        """Who is at work where nobody is called, for an error: ``a step of the script``."""

    @property
    def forbids_late_calls(self) -> bool:
        """Whether somebody relies on what the agent called, so that it must not call anything later."""

    @property
    def late_hint(self) -> str:
        """What to do about an agent that does."""

    async def choose_session(self) -> SessionRequest | None:
        """Return the session that it wants; None without a proxy."""

    async def open(self, session: RunSession | None) -> None:
        """Open what else it needs."""

    def emit_start(self) -> None:
        """Emit that it begins, unless that was emitted."""

    async def begin(self) -> None:
        """Do what comes before the first step."""

    async def take_step(self, number: int, step: S) -> R | None:
        """Take a step, the first has number 0; a result ends the run."""

    async def conclude(self) -> R:
        """Return its result, after the last step."""

    def build_time_limit_error(self, *, blocked: bool = False) -> LLMProxyError:
        """Return the error of a run that took longer than it may; `blocked`: its thread goes on."""

    async def leave(self) -> list[str]:
        """Return back what `open` opened, however far it came; returns what went wrong meanwhile."""

    def has_passed(self, result: R) -> bool:
        """Return whether it passed, as far as it was played."""

    def build_error_result(self, error: BaseException) -> R:
        """Return what a run comes to that an error ended; nothing is given back yet."""

    def emit_end(self, result: R, error: BaseException | None) -> R:
        """Emit how it ended; returns the result with what was measured."""


class RunLifecycle[S, R]:
    def __init__(
        self,
        played: Playable[S, R],
        *,
        limit: float | None,
        call_limit: float | None,
        clock: Callable[[], float],
        thorough: bool = False,
    ) -> None:
        """Play this once, in at most `limit` seconds, `call_limit` for each call of an adapter.

        `thorough`: a run that changes the world beside it. Its opening counts for the limit, and whoever cancels it
        waits until all is given back; what cannot be is no success. Else whoever cancels it is told first.
        """
        self.played, self.limit, self.call_limit, self.clock, self.thorough = played, limit, call_limit, clock, thorough
        self.session: RunSession | None = None
        """While it is open; None without a proxy."""
        self.unattributed = 0
        """Calls that arrived at the proxy while nobody had the turn: whose they are is not known."""
        self.report: Report | None = None
        """What the session came to, once it is closed."""
        self.usage: dict[str, PartyUse] = {}
        self.late: Sequence[str] = ()
        """What the agent called after the end, as far as it has not been told."""
        self.problems: list[str] = []
        """What went wrong when things were given back."""
        self.outcome: R | None = None
        self.error: BaseException | None = None
        """What ended it, if something did."""
        self._asked: SessionRequest | None = None
        self._played = False
        """Whether it was played to its end."""
        self._queue: FairLock | None = None
        self._since: float | None = None
        self.renew_caller()

    def renew_caller(self) -> None:
        self.caller = Caller(self.call_limit, AgentTraffic(self.session), self.clock)

    @property
    def traffic(self) -> AgentTraffic:
        return self.caller.traffic

    async def run(self) -> R:
        """Play it to its end and return its result. Raises only what cancels it. Again, it is another run."""
        self.outcome, self.error, self.problems, self.late, self._played = None, None, [], (), False
        # SDKs look for it in `sys.modules` (openai 3): half of it is there while the thread of another run imports it.
        importlib.import_module("httpx")
        shielded = wait_despite_cancel if self.thorough else _await_directly
        try:
            try:
                result = await self._run_timed()
            except Exception as error:  # noqa: BLE001 (kept and told, whatever it is)
                return await shielded(self._end_broken(error))
            return await shielded(self._end_played(result))
        except BaseException as error:
            await self._end_cancelled(error)
            raise

    def never_ran(self, error: BaseException) -> R:
        """Emit that the run could not be made, and return what is known of it."""
        self.played.emit_start()
        return self._set_outcome(self.played.build_error_result(error), error)

    async def _end_played(self, result: R) -> R:
        self._played = True
        try:
            self.problems = await self._close_all(raising=not self.thorough)
            self._refuse_passed_run(result)
        except Exception as error:  # noqa: BLE001 (kept and told, whatever it is)
            return await self._end_broken(error)
        return self._set_outcome(result, None)

    async def _end_broken(self, error: BaseException) -> R:
        self.played.emit_start()
        result = self.played.build_error_result(error)
        self.problems += await self._close_all(raising=False)  # the first error is the one to tell
        return self._set_outcome(result, error)

    async def _end_cancelled(self, error: BaseException) -> None:
        if self.session is not None:
            self.session.interrupted = True
        if self.thorough:
            if self.outcome is None:
                await wait_despite_cancel(self._end_broken(error))
            return
        self.played.emit_start()
        self._set_outcome(self.played.build_error_result(error), error)  # whoever waits must not wait for a proxy
        await self._close_all(raising=False)

    def _set_outcome(self, result: R, error: BaseException | None) -> R:
        if self.outcome is None:
            self.error, self.outcome = error, result  # before it is told: whoever hears it may look
            self.outcome = self.played.emit_end(result, error)
        return self.outcome

    # -- within its limit

    async def _run_timed(self) -> R:
        scope = asyncio.timeout(None)
        try:
            async with scope:
                if self.thorough:
                    self._start_time_limit(scope)
                await self._open_playable()
                self.played.emit_start()
                if not self.thorough:
                    self._start_time_limit(scope)
                return await self._play_steps()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise self.played.build_time_limit_error() from error
        except SystemExit as error:  # an adapter's is the adapter's (`Caller`)
            raise MachineError(f"{describe_sys_exit(self.played.describe_actor, error)}.") from error

    async def _play_steps(self) -> R:
        await self.played.begin()
        for number, step in enumerate(self.played.steps):
            if (result := await self.played.take_step(number, step)) is not None:
                return result
        return await self.played.conclude()

    def _start_time_limit(self, scope: asyncio.Timeout) -> None:
        self._since = self.clock()
        if self.limit is not None:
            scope.reschedule(asyncio.get_running_loop().time() + self.limit)

    async def _open_playable(self) -> None:
        self._asked = await self.played.choose_session()
        if self._asked is not None:
            await self._open_session(self._asked)
        await self.played.open(self.session)

    async def _open_session(self, asked: SessionRequest) -> None:
        # Runs of one recording in this process come one after the other, however long one takes.
        queue = get_session_lock(asked.proxy, f"open:{asked.cassette}~{asked.sample}")
        await queue.acquire_lock()
        self._queue = queue
        kind = asked.kind or RunSession
        self.session = await kind.open(asked.proxy, cassette=asked.cassette, sample=asked.sample, **asked.how)
        self.renew_caller()

    # -- its end

    async def _close_all(self, *, raising: bool) -> list[str]:
        """Close everything, the session last; returns what went wrong. Raises what the session's end says."""
        self._since = None
        problems: list[str] = []
        try:
            problems += await self.played.leave()
        finally:
            try:
                problems += await self._close_session()
            except Exception as error:
                if raising:
                    raise
                problems.append(f"the session could not be closed: {describe_error(error)}")
            finally:
                self._release_recording_lock()
        return problems

    def _release_recording_lock(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.release_lock()

    async def _close_session(self) -> list[str]:
        session, self.session = self.session, None
        if session is None:
            return []
        looks = self._played or self.thorough
        try:
            self.unattributed = await session.count_unattributed()
        finally:  # what came since is told by the same answer: nothing is asked twice
            self.report = await session.close(self.traffic.seen if looks else None)
        self.usage = await session.usage()
        if not looks:
            return []
        try:
            late = await self.traffic.find_late_calls(session, self.report.further, named=self.thorough)
        except MachineError as error:
            if self.thorough:
                return [str(error)]
            raise
        strays = await session.unattributed_calls() if self.unattributed else []
        if late or self.unattributed:
            self.late = name_late_calls(late, self.traffic.read_wire, self.unattributed, strays)
        return []

    def _refuse_passed_run(self, result: R) -> None:
        """Raise why a run that passed has not, if so."""
        if not self.played.has_passed(result):
            return
        if self.late and self.played.forbids_late_calls:
            said, self.late = self.late, ()
            raise LateCallsError(f"{'; '.join(said)}.", hint=self.played.late_hint)
        if self._asked is not None and self.report is not None:
            if self._asked.must_inject and self.report.unused_faults:
                raise UnusedFaults("\n".join(self.report.unused_faults))
            if self._asked.how.get("mocks") is not None and (idle := self.report.unused_mocks_error) is not None:
                raise idle
        if self.thorough and self.problems:
            said, self.problems = self.problems, []
            raise CleanupFailed("\n".join(said))

    def read_measures(self) -> dict[str, Any]:
        """Return what the proxy measured, as a result and `Finished` have it; nothing of what is not known."""
        report = self.report
        found: dict[str, Any] = {"misses": tuple(self.traffic.misses), "usage": self.usage}
        if report is not None:
            lived = report.live_calls or report.recorded or report.misses
            found |= {
                "replayed": report.hits > 0 and not lived,
                "bound": report.bound,
                "dealt": report.dealt,
                "stale": report.stale,
                "carried": report.carried,
                "carried_names": tuple(report.carried_names),
                "bound_names": tuple(sorted(report.bound_names)),
            }
        return found

    # -- seen from outside, while its thread may be blocked

    def time_left(self) -> float | None:
        """Return the seconds until a limit is reached, negative when it is passed; None without a limit."""
        now = self.clock()
        limits = [] if self.limit is None else [(now if self._since is None else self._since) + self.limit]
        if self.call_limit is not None:
            limits.append((self.caller.since if self.caller.busy else now) + self.call_limit)
        return min(limits) - now if limits else None

    def build_passed_limit_error(self) -> LLMProxyError:
        """Return the error for the limit that is passed, by somebody who blocks the thread."""
        busy = self.caller.busy
        whole = self.limit is not None and self._since is not None and self.clock() - self._since > self.limit
        if busy is None or whole:
            return self.played.build_time_limit_error(blocked=True)
        return self.caller.build_timeout_error(busy, self.call_limit or 0.0, blocked=True)

    def give_up(self, error: BaseException) -> None:
        """Emit that the run is over, from outside: its thread is blocked and cannot."""
        self.caller.broke = self.caller.current_party
        self.played.emit_start()
        self.problems = ["blocked thread"]
        self._set_outcome(self.played.build_error_result(error), error)
        self._release_recording_lock()  # whoever is next learns from the proxy that the session is still open


async def _await_directly[T](work: Awaitable[T]) -> T:
    return await work
