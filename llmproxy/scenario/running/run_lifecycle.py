"""The run engine: from opening a run's session to its outcome. The content is passed in (`Playable`).

The end is emitted exactly once, also when the run's thread is blocked and another one has to emit it. A pass is
withdrawn if not all calls of the agent are known, or if its injected faults did not occur. Handlers, which parallel
runs may share, are called one at a time; an exception of one is logged and never disturbs the run.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from llmproxy.amount_formatting import name_some
from llmproxy.calls_and_totals import Call
from llmproxy.client.session_reports import SessionReport
from llmproxy.core.forks.overrides import build_unused_mocks_error
from llmproxy.errors import LLMProxyError, MachineError
from llmproxy.report import events
from llmproxy.report.events import Event, Finished, Handler, PartyUse, Started, Status, Step, Verdict
from llmproxy.scenario.run_session import FairLock, RunSession, get_session_lock, wait_despite_cancel
from llmproxy.scenario.running.agent_caller import AgentCaller, AgentTraffic
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.messages import copy_value
from llmproxy.scenario.values.run_ids_and_options import describe_error, describe_sys_exit
from llmproxy.trace.observing.agent_activity import ModelCallObserver

_ONE_AT_A_TIME = threading.RLock()


@dataclass
class EventEmitter:
    about: Started
    handlers: Sequence[Handler]
    clock: Callable[[], float] = time.time
    _begun: bool = False
    _over: bool = False
    _steps: int = 0

    def emit_start(self, **found: Any) -> None:
        """Emit Started, once, with facts found since."""
        if not self._begun:
            self._begun, self.about = True, replace(self.about, **found, at=self.clock())
            self.emit(self.about)

    def emit_message(self, message: Message, **about: Any) -> None:
        if self._is_run_going_on():
            self.emit(events.Message(run_id=self.about.run_id, message=copy_value(message), at=self.clock(), **about))

    def emit_step(self, kind: str, **about: Any) -> None:
        if self._is_run_going_on():
            self.emit(Step(run_id=self.about.run_id, index=self._steps, kind=kind, **about))
            self._steps += 1

    def emit_verdict(self, judge: str, result: ScenarioResult | None, *, forced: bool, decided: bool) -> None:
        """Emit a judge's verdict; `result` is None if undecided."""
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
        """Emit the end of a script's run; only the first end counts, and returns True."""
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
            events.notify_handlers(self.handlers, event)

    def _is_run_going_on(self) -> bool:
        """Return whether the run has begun and not ended: an executor without `run` emits nothing."""
        return self._begun and not self._over


_SHOWN = 3


class LateCallsError(MachineError):
    """The agent continued after the end of its scenario, so assertions about its traffic were premature."""

    code = "llmproxy_suite_late_calls"


def name_late_calls(
    calls: Sequence[Call], wire: ModelCallObserver, strays: int, named: Sequence[Call] = ()
) -> list[str]:
    """Name late calls of the agent (added to `wire`), by requested tools if there are any.

    `strays`: number of this process's calls outside any turn, of which the proxy still has `named`.
    """
    said = []
    if calls:
        said.append(
            f"after the end of the scenario the agent made further calls: {_name_tools_or_requests(calls, wire)}"
        )
    if strays:
        apart = ModelCallObserver(None)
        apart.add_calls_with_recordings(named)
        many = "1 call arrived that belongs" if strays == 1 else f"{strays} calls arrived that belong"
        what = f": {_name_tools_or_requests(named, apart)}" if named else ""
        said.append(f"{many} to no run, since nobody had its turn then{what}")
    return said


def _name_tools_or_requests(calls: Sequence[Call], wire: ModelCallObserver) -> str:
    try:
        tools = wire.build_step(calls[0].seq - 1).tools
    except LLMProxyError:  # a damaged recording: the calls are named all the same
        tools = ()
    asked = {tool.seq for tool in tools}
    named = [f"{tool.name} ({tool.label})" for tool in tools]
    named += [
        f"a request to {call.model or call.operation} (call {call.seq})" for call in calls if call.seq not in asked
    ]
    return name_some(named, shown=_SHOWN)


class CleanupFailed(MachineError):
    """A run passed, but its cleanup failed: the next one starts from another state."""

    code = "llmproxy_suite_untidy"


class UnusedFaultsError(MachineError):
    """A run passed without its injected faults: it proves nothing about them."""

    code = "llmproxy_suite_unused_faults"


@dataclass(frozen=True, slots=True)
class SessionToOpen:
    proxy: str
    cassette: str
    sample: int
    how: Mapping[str, Any]
    must_inject: bool = False
    """Whether a run without its injected faults has not passed."""
    kind: type[RunSession] | None = None


class RunStepsInterface[S, R](Protocol):
    """Content of a run: steps, each an `S`. `R` is its result."""

    @property
    def steps(self) -> Sequence[S]: ...

    @property
    def describe_actor(self) -> str:
        """Return the current actor if no adapter is called, for an error: ``a step of the script``."""

    @property
    def forbids_late_calls(self) -> bool:
        """Return whether any check relies on the agent's calls, so that late ones are errors."""

    @property
    def late_hint(self) -> str: ...

    async def choose_session(self) -> SessionToOpen | None:
        """Return its session request; None without a proxy."""

    async def open(self, session: RunSession | None) -> None: ...

    def emit_start(self) -> None: ...

    async def begin(self) -> None: ...

    async def take_step(self, number: int, step: S) -> R | None:
        """Execute step `number`, from 0; a result ends the run."""

    async def conclude(self) -> R: ...

    def build_time_limit_error(self, *, blocked: bool = False) -> LLMProxyError:
        """Return the error of a run that exceeded its limit; `blocked`: its thread continues."""

    async def leave(self) -> list[str]:
        """Release everything that `open` opened, however far it came; returns errors."""

    def has_passed(self, result: R) -> bool: ...

    def build_error_result(self, error: BaseException) -> R:
        """Return the result of a run that an error ended; nothing is released yet."""

    def emit_end(self, result: R, error: BaseException | None) -> R: ...


class RunLifecycle[S, R]:
    def __init__(
        self, played: RunStepsInterface[S, R], *, limit: float | None, call_limit: float | None,
        clock: Callable[[], float], thorough: bool = False,
    ) -> None:  # fmt: skip
        """Run this once, in at most `limit` seconds, `call_limit` for each call of an adapter.

        `thorough`: a run with effects outside. Its opening counts for the limit, a canceller waits until all is
        released, and a failed release is no success. Otherwise a canceller continues at once.
        """
        self.played, self.limit, self.call_limit, self.clock, self.thorough = played, limit, call_limit, clock, thorough
        self.session: RunSession | None = None  # while it is open; None without a proxy
        self.unattributed = 0
        self.report: SessionReport | None = None
        self.usage: dict[str, PartyUse] = {}
        self.late: Sequence[str] = ()
        """Late calls of the agent that were not reported yet."""
        self.problems: list[str] = []  # errors of releasing
        self.outcome: R | None = None
        self.error: BaseException | None = None
        self._asked: SessionToOpen | None = None
        self._played = False
        self._queue: FairLock | None = None
        self._since: float | None = None
        self.renew_caller()

    def renew_caller(self) -> None:
        self.caller = AgentCaller(self.call_limit, AgentTraffic(self.session), self.clock)

    @property
    def traffic(self) -> AgentTraffic:
        return self.caller.traffic

    async def run(self) -> R:
        """Run it to its end and return its result. Raises only on cancellation. A second call is another run."""
        self.outcome, self.error, self.problems, self.late, self._played = None, None, [], (), False
        # SDKs look for it in `sys.modules` (openai 3): half of it is there while the thread of another run imports it.
        importlib.import_module("httpx")
        shielded: Callable[[Awaitable[R]], Awaitable[R]] = wait_despite_cancel if self.thorough else lambda work: work
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
        """Emit that the run could not be started, and return its known facts."""
        self.played.emit_start()
        return self._set_outcome(self.played.build_error_result(error), error)

    async def _end_played(self, result: R) -> R:
        self._played = True
        try:
            self.problems = await self._close_all(raising=not self.thorough)
            self._raise_if_pass_invalid(result)
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
        self.never_ran(error)  # whoever waits must not wait for a proxy
        await self._close_all(raising=False)

    def _set_outcome(self, result: R, error: BaseException | None) -> R:
        if self.outcome is None:
            self.error, self.outcome = error, result  # before it is told: whoever hears it may look
            self.outcome = self.played.emit_end(result, error)
        return self.outcome

    async def _run_timed(self) -> R:
        scope = asyncio.timeout(None)
        try:
            async with scope:
                if self.thorough:
                    self._start_time_limit(scope)
                self._asked = await self.played.choose_session()
                if self._asked is not None:
                    await self._open_session(self._asked)
                await self.played.open(self.session)
                self.played.emit_start()
                if not self.thorough:
                    self._start_time_limit(scope)
                await self.played.begin()
                for number, step in enumerate(self.played.steps):
                    if (result := await self.played.take_step(number, step)) is not None:
                        return result
                return await self.played.conclude()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise self.played.build_time_limit_error() from error
        except SystemExit as error:  # an adapter's is the adapter's (`AgentCaller`)
            raise MachineError(f"{describe_sys_exit(self.played.describe_actor, error)}.") from error

    def _start_time_limit(self, scope: asyncio.Timeout) -> None:
        self._since = self.clock()
        if self.limit is not None:
            scope.reschedule(asyncio.get_running_loop().time() + self.limit)

    async def _open_session(self, asked: SessionToOpen) -> None:
        # Runs of one recording in this process come one after the other, however long one takes.
        queue = get_session_lock(asked.proxy, f"open:{asked.cassette}~{asked.sample}")
        await queue.acquire_lock()
        self._queue = queue
        kind = asked.kind or RunSession
        self.session = await kind.open(asked.proxy, cassette=asked.cassette, sample=asked.sample, **asked.how)
        self.renew_caller()

    async def _close_all(self, *, raising: bool) -> list[str]:
        """Close everything, the session last; returns errors. Raises the error of the session's end."""
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
        if not session.interrupted and (late or self.unattributed):
            self.late = name_late_calls(late, self.traffic.wire_observer, self.unattributed, strays)
        return []

    def _raise_if_pass_invalid(self, result: R) -> None:
        """Raise the reason why a pass is withdrawn, if any."""
        if not self.played.has_passed(result):
            return
        if self.late and self.played.forbids_late_calls:
            said, self.late = self.late, ()
            raise LateCallsError(f"{'; '.join(said)}.", hint=self.played.late_hint)
        if self._asked is not None and self.report is not None:
            if self._asked.must_inject and self.report.unused_faults:
                raise UnusedFaultsError("\n".join(self.report.unused_faults))
            has_mocks = self._asked.how.get("mocks") is not None
            if has_mocks and (idle := build_unused_mocks_error(self.report.overrides)) is not None:
                raise idle
        if self.thorough and self.problems:
            said, self.problems = self.problems, []
            raise CleanupFailed("\n".join(said))

    def read_measures(self) -> dict[str, Any]:
        report = self.report
        found: dict[str, Any] = {"misses": tuple(self.traffic.misses), "usage": self.usage}
        if report is not None:
            lived = report.live_calls or report.recorded or report.misses
            found |= {name: getattr(report, name) for name in ("bound", "dealt", "stale", "carried")}
            found |= {"replayed": report.hits > 0 and not lived, "carried_names": tuple(report.carried_names)}
            found["bound_names"] = tuple(sorted(report.bound_names))
        return found

    def get_nearest_limit_seconds(self) -> float | None:
        """Return the seconds until a limit is reached, negative when it is passed; None without a limit."""
        now = self.clock()
        limits = [] if self.limit is None else [(now if self._since is None else self._since) + self.limit]
        if self.call_limit is not None:
            limits.append((self.caller.since if self.caller.busy else now) + self.call_limit)
        return min(limits) - now if limits else None

    def build_exceeded_time_limit_error(self) -> LLMProxyError:
        busy = self.caller.busy
        whole = self.limit is not None and self._since is not None and self.clock() - self._since > self.limit
        if busy is None or whole:
            return self.played.build_time_limit_error(blocked=True)
        return self.caller.build_timeout_error(busy, self.call_limit or 0.0, blocked=True)

    def end_hung_run(self, error: BaseException) -> None:
        """Emit the end from outside: the run's thread is blocked and cannot."""
        self.caller.broke = self.caller.current_party
        self.played.emit_start()
        self.problems = ["blocked thread"]
        self._set_outcome(self.played.build_error_result(error), error)
        self._release_recording_lock()  # whoever is next learns from the proxy that the session is still open
