"""The life of one run: session, adapters, limits of time, how it ended.

    open the session -> reset -> open adapters -> Started -> play -> close everything -> Finished -> result or exception

What an adapter, a step or a callback raises leaves `run` unchanged, after the events have said so. Finished comes exactly once, also when
the thread of the run is blocked and somebody else has to say it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmproxy.client.host import HOST
from llmproxy.errors import AgentError, LLMProxyError, MachineError, SettingsError
from llmproxy.report.events import PartyUse
from llmproxy.report.langwatch import ScenarioEventBus
from llmproxy.scenario.agent_adapter import AgentAdapter, Offered
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.running.cast import Cast
from llmproxy.scenario.running.late import LateCallsError, name_late_calls
from llmproxy.scenario.running.program import PROGRAM
from llmproxy.scenario.running.scripted import Scripted
from llmproxy.scenario.types import AgentRole, CriterionResult, ScenarioResult
from llmproxy.scenario.values.checkpoints import added_up
from llmproxy.scenario.values.context import context_scenario
from llmproxy.scenario.values.fault import left, status_of, told
from llmproxy.scenario.values.naming import thread_id

if TYPE_CHECKING:
    from llmproxy.client.control.client import Report
    from llmproxy.scenario.proxy.binding import Queue
    from llmproxy.scenario.proxy.session import RunSession

__all__ = ["Life"]


def _of_step(text: str) -> CriterionResult:
    """Return the criterion that an assertion in a step is."""
    return CriterionResult(id="step", criterion=text, status="failed", reasoning="a step of the script raised it")


class Life(Scripted):
    """An engine that can be run from start to end."""

    cassette: str
    event_bus: ScenarioEventBus
    session: RunSession | None = None
    """Of the run that goes on; None without a proxy."""
    outcome: ScenarioResult | None = None
    """How the run ended, once it has; also when it ended with an exception."""
    unattributed = 0
    """Calls that arrived at the proxy while nobody had the turn: whose they are is not known."""
    _played = False
    """Whether it was played to its end."""
    _late: Sequence[str] = ()
    """What the agent called after the end, as far as it has not been told."""
    _cast: Cast
    _door: Queue | None = None
    _since: float | None = None
    _usage: dict[str, PartyUse] | None = None
    _report: Report | None = None

    async def run(self) -> ScenarioResult:
        """Play the scenario and return how it ended. Raises what an adapter or a step raises."""
        token = context_scenario.set(self._me)
        try:
            return await self._live()
        finally:
            context_scenario.reset(token)

    async def _play(self) -> ScenarioResult:
        """Play the scenario. What there is to play, the subclass knows."""
        raise NotImplementedError

    async def _live(self) -> ScenarioResult:
        try:
            await self._open()
            self.narrator.started(criteria=self.criteria, mode=self.session.mode if self.session else "")
            result = await self._timed()
            self._played = True
            problems = await self._close()
            self._refuse_late(result)
            self._refuse_unmocked(result)
        except Exception as error:
            self.narrator.started(criteria=self.criteria)
            broken = self.broken(error)
            problems = await self._close_anyway()
            self._end(self._measured(broken, problems), broken=True)
            raise
        except BaseException as error:
            # Cancelled, or interrupted: whoever waits must not wait for a proxy.
            if self.session is not None:
                self.session.interrupted = True
            self.narrator.started(criteria=self.criteria)
            self._end(self._measured(self.broken(error), ()), broken=True)
            await self._close_anyway()
            raise
        return self._end(self._measured(result, problems))

    def _refuse_late(self, result: ScenarioResult) -> None:
        """Say what the agent called after the end. Raises LateCallsError if the run passed, and somebody looked at its calls."""
        if not (result.success and self._looked and self._late):
            return
        said, self._late = self._late, []
        raise LateCallsError(
            f"{'; '.join(said)}.",
            hint="Judges and steps of the script looked at the agent's calls before them. Its `call` should return, or its `close` wait,"
            " until everything is over that it began; calls that it makes outside of `call` should go by input.llm (uses_session = True).",
        )

    def _refuse_unmocked(self, result: ScenarioResult) -> None:
        """Raise Unmocked if the run passed and a mock changed nothing."""
        if not result.success or self.options.mock is None or self._report is None:
            return
        if (idle := self._report.unmocked) is not None:
            raise idle

    def _end(self, result: ScenarioResult, *, broken: bool = False) -> ScenarioResult:
        first, self.outcome = self.outcome is None, self.outcome or result
        self.narrator.finished(result, broken=broken)
        if first and HOST.listener is None:
            PROGRAM.ended(result)
        elif first:
            HOST.ended(self, result)
        return result

    def never_ran(self, error: BaseException) -> ScenarioResult:
        """Tell that the run could not be made, and return what is known of it."""
        self.narrator.started(criteria=self.criteria)
        return self._end(self._measured(self.broken(error), ()), broken=True)

    def broken(self, error: BaseException) -> ScenarioResult:
        """Return the result of a run that an error ended."""
        check = isinstance(error, AssertionError) and self._at_work is None
        stated = str(error) or "an assertion in a step of the script"
        result = self._complete(
            ScenarioResult(
                success=False,
                messages=[],
                reasoning=f"Scenario failed with error: {error if isinstance(error, Exception) else told(error)}",
                status=status_of(error, self._at_work),
                error=told(error),
                failed_criteria=[stated] if check else [],
                criteria=[_of_step(stated)] if check else [],
                inconclusive_criteria=list(self.criteria),
            )
        )
        return added_up(self._checkpoints, result)

    # -- open and close

    async def _open(self) -> None:
        """Open the session, if there is a proxy, and the adapters."""
        self.session = await self._open_session()
        self._cast.enter()
        self.reset()
        self._traffic.session = self.session
        if self.session is not None:
            self.narrator.who = replace(self.narrator.who, cassette=self.cassette)
        try:
            await self._cast.open(self.session)
        except BaseException:
            self._at_work = self._cast.opening.role if self._cast.opening else None
            raise

    async def _proxy(self) -> str | None:
        said, configured = self.options.proxy, ScenarioConfig.defaults.proxy
        if said is False or not (said or configured or os.environ.get("LLMPROXY_URL")):
            return None
        from llmproxy.scenario.proxy.session import proxy_of

        starts = True in (said, configured)  # that alone takes time
        found = (said, configured, os.environ)
        return await asyncio.to_thread(proxy_of, *found) if starts else proxy_of(*found)

    async def _open_session(self) -> RunSession | None:
        proxy = await self._proxy()
        if not proxy:
            if self.options.mode:  # who asks for a replay must not be sent to the provider
                raise SettingsError(
                    f"mode={self.options.mode!r} is a mode of the proxy, and there is none.",
                    hint="LLMPROXY_URL or `proxy` names one, proxy=True starts one; or leave the mode out.",
                )
            if self.options.mock is not None:
                raise SettingsError(
                    "mock= swaps what the agent's model reads on its way through the proxy, and there is none.",
                    hint="LLMPROXY_URL or `proxy` names one, proxy=True starts one.",
                )
            return None
        from llmproxy.scenario.models.route import upstreams_of_models
        from llmproxy.scenario.proxy.binding import queue_of
        from llmproxy.scenario.proxy.session import RunSession

        if HOST.ready is not None:
            await asyncio.to_thread(HOST.wait)
        sample = self.options.sample
        # Runs of one recording in this process come one after the other, however long one takes.
        door = queue_of(proxy, f"open:{self.cassette}~{sample}")
        await door.take()
        self._door = door
        models = [model for agent in self.agents for model in Offered.by(agent).models]
        return await RunSession.open(
            proxy,
            cassette=self.cassette,
            sample=sample,
            mode=self.options.mode or HOST.mode or None,
            upstreams=upstreams_of_models(models, proxy),
            faults=HOST.faults,
            mocks=self.options.mock,
        )

    async def _close(self) -> list[str]:
        """Close adapters and session; returns what went wrong and does not matter to the result."""
        self._since = None
        try:
            return await self._cast.leave()
        finally:
            try:
                await self._close_session()
            finally:
                door, self._door = self._door, None
                if door is not None:
                    door.give()

    async def _close_session(self) -> None:
        session, self.session = self.session, None
        if session is None:
            return
        try:
            self.unattributed = await session.unattributed()
        finally:  # what came since is told by the same answer: nothing is asked twice
            self._report = await session.close(self._traffic.seen if self._played else None)
        self._usage = await session.usage()
        if self._played:
            late = await self._traffic.late(session, self._report.further)
            strays = await session.strays() if self.unattributed else []
            self._late = (
                name_late_calls(late, self._traffic.wire, self.unattributed, strays)
                if late or self.unattributed
                else []
            )

    async def _close_anyway(self) -> list[str]:
        """Close after an error, which must not be hidden by another one."""
        try:
            return await self._close()
        except Exception as error:  # noqa: BLE001 (the first error is the one to tell)
            return [f"could not close: {told(error)}"]

    def _measured(self, result: ScenarioResult, problems: Sequence[str]) -> ScenarioResult:
        """Return the result with what the proxy measured."""
        report, traffic = self._report, self._traffic
        labels = [*result.labels, *self.marks, *problems, *self._late]
        labels += [] if report is None else report.unstruck
        if self.unattributed:
            labels.append(f"unattributed traffic: {self.unattributed} calls")
        if self.from_cache:
            names = ", ".join(dict.fromkeys(self.from_cache))
            labels.append(f"answered from cache.db, unseen on the wire: {len(self.from_cache)} calls of {names}")
        found: dict[str, Any] = {
            "run_id": self.narrator.who.run_id,
            "sample": self.options.sample,
            "labels": tuple(labels),
            "misses": tuple(traffic.misses),
        }
        if traffic.session is not None:
            found |= {"cassette": self.cassette, "waited": self._caller.waited, "usage": dict(self._usage or {})}
            found["tool_calls"] = tuple(traffic.wire.tools())
            found["recorded_at"] = traffic.recorded_at()
        if report is not None:
            found["replayed"] = report.hits > 0 and not (report.live_calls or report.recorded or report.misses)
            found |= {"bound": report.bound, "bound_names": report.bound_names}
        return result.model_copy(update=found)

    def _thread_id(self) -> str:
        known = self.session is not None and not self.options.fresh_ids
        return thread_id(self.cassette, self.options.sample, self.name) if known else thread_id()

    @property
    def wire_report(self) -> Report | None:
        """What the session came to, once it is closed; None without a proxy."""
        return self._report

    # -- limits of time

    async def _timed(self) -> ScenarioResult:
        self._since = self.clock()
        scope = asyncio.timeout(self.options.timeout)
        try:
            async with scope:
                return await self._play()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise self.out_of_time() from error
        except SystemExit as error:  # an adapter's is the adapter's (`Caller`)
            raise MachineError(f"{left('a step of the script', error)}.") from error

    @property
    def busy(self) -> AgentAdapter | None:
        """Who is being called now."""
        return self._caller.busy

    def time_left(self) -> float | None:
        """Return the seconds until a limit is reached, negative when it is passed; None without a limit."""
        now, run, call = self.clock(), self.options.timeout, self.options.call_timeout
        limits = [] if run is None else [(now if self._since is None else self._since) + run]
        if call is not None:
            limits.append((self._caller.since if self._caller.busy else now) + call)
        return min(limits) - now if limits else None

    def late(self) -> LLMProxyError:
        """Return the error for the limit that is passed, by somebody who blocks the thread."""
        run, busy = self.options.timeout, self._caller.busy
        if busy is None or (run is not None and self._since is not None and self.clock() - self._since > run):
            return self.out_of_time(blocked=True)
        return self._caller.too_long(busy, self.options.call_timeout or 0.0, blocked=True)

    def out_of_time(self, *, blocked: bool = False) -> LLMProxyError:
        """Return the error for a run that took longer than it may."""
        who = self._at_work or (self._caller.busy.role if self._caller.busy else None)
        kind = AgentError if who is AgentRole.AGENT else MachineError
        at = f" while {who.value} was called" if who else ""
        how = "; its thread is blocked and goes on until it returns" if blocked else ""
        limit, turn = self.options.timeout or 0.0, self._state.current_turn
        return kind(
            f"scenario {self.name!r} did not end in {limit:g} s: it was in turn {turn}{at}{how}.",
            hint="timeout=<seconds> allows more.",
        )

    def give_up(self, error: BaseException) -> None:
        """Tell that the run is over, from outside: its thread is blocked and cannot."""
        busy = self._caller.busy
        self._at_work = busy.role if busy else self._at_work
        self.narrator.started(criteria=self.criteria)
        self._end(self._measured(self.broken(error), ("blocked thread",)), broken=True)
        door, self._door = self._door, None
        if door is not None:
            door.give()  # whoever is next learns from the proxy that the session is still open
