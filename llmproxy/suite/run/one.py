"""One run of one case, from its session to its clean-up. Whatever happens in between, it is cleaned up and told how it ended.

    Started -> session, store, setup, agent -> steps, until one does not pass -> teardown, clean-up, session closed -> Finished

A step that does not pass ends the run, because later ones build on what it captured; those are told as skipped (`Options.keep_going`
goes on). The status of a run is that of its worst step; what raised decides whether it was the agent's fault.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from llmproxy.errors import AgentError, LLMProxyError, MachineError
from llmproxy.protocol import OFFLINE
from llmproxy.report.events import Finished, Started, Status, Step
from llmproxy.scenario.agent_adapter import Offered
from llmproxy.scenario.proxy.uncancelled import to_the_end
from llmproxy.scenario.running.late import LateCallsError
from llmproxy.scenario.types import AgentRole
from llmproxy.scenario.values.fault import left, status_of as fault_of, told
from llmproxy.scenario.values.naming import run_id
from llmproxy.suite.checks.tools import passed, unseen
from llmproxy.suite.checks.traffic import why_unseen
from llmproxy.suite.checks.usage import check_usage
from llmproxy.suite.choose.cassettes import cassette_name
from llmproxy.suite.choose.selection import until
from llmproxy.suite.choose.unrecorded import NothingRecorded, nothing_recorded
from llmproxy.suite.matchers.variables import StepError
from llmproxy.suite.run.acting.late import refuse_late_calls, watches_wire
from llmproxy.suite.run.acting.stage import Done, Stage, status_of
from llmproxy.suite.run.acting.steps import insert_all, perform
from llmproxy.suite.run.opening import Opened, closed, opened
from llmproxy.suite.schema.steps import Talk
from llmproxy.trace.observing.wire import latency_of

if TYPE_CHECKING:
    from llmproxy.client.control.client import Call, Report
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.world import World
    from llmproxy.suite.schema.steps import StepBase
    from llmproxy.suite.yaml.places import YamlPlace

__all__ = ["Ran", "run_once"]

_WORST = (Status.AGENT_ERROR, Status.FAILED, Status.ENVIRONMENT_ERROR, Status.SKIPPED, Status.PASSED)


class Untidy(MachineError):
    """A run passed, and what it left behind could not be cleaned up: the next one starts from something else."""

    code = "llmproxy_suite_untidy"


class Unstruck(MachineError):
    """A run passed without the faults on purpose that it was to meet: nothing is proved about them."""

    code = "llmproxy_suite_unstruck"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended."""

    status: Status
    error: BaseException | None = None
    reasoning: str = ""
    spent: Decimal | None = None
    """US dollars; None if no price is known."""
    live: int = 0
    """Calls that went to a provider."""
    wire: Report | None = None
    recorded_at: float | None = None
    """Of what was replayed, Unix time; None if nothing was."""
    calls: Sequence[Call] = ()
    """What passed the proxy; kept where somebody looks at it afterwards (`World.keeps_calls`): a thousand runs have a thousand bodies."""
    latency: float | None = None
    """Milliseconds that the agent's calls of models took, as recorded; None if one is not known."""


@dataclass(slots=True)
class _Progress:
    """How far a run is."""

    statuses: list[Status] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    pending: list[tuple[Step, Done]] = field(default_factory=list)
    """A talking step that is evaluated once more before the next one, and the quiet steps since: told when that is over."""
    next: int = 0


async def run_once(world: World, case: SuiteCase, sample: int, runs: int, *, alone: bool = True) -> Ran:
    """Run a case once; `alone`: nothing else uses the store meanwhile. Raises only what cancels it."""
    begun = Started(
        run_id=run_id(),
        scenario=case.id,
        name=case.title or case.id,
        description=case.description,
        suite=case.suite.name,
        set_id=case.suite.name,
        sample=sample,
        runs=runs,
        tags=tuple(case.tags),
        cassette=cassette_name(case.suite.name, case.id),
        mode=world.options.mode or "",
        rerun=" ".join(
            [world.options.command, *([only, shlex.quote(case.id)] if (only := world.options.only) else [])]
        ),
        place=place_text(case.place),
        at=world.now(),
    )
    world.emit(begun)
    return await _Run(world, case, begun, alone=alone).live()


def place_text(place: YamlPlace | None) -> str:
    """Return a place as events have it: file and line."""
    return f"{place.file}:{place.line}" if place else ""


class _Run:
    def __init__(self, world: World, case: SuiteCase, begun: Started, *, alone: bool) -> None:
        self.world, self.case, self.begun, self.alone = world, case, begun, alone
        self.progress = _Progress()
        self.open: Opened | None = None
        self.since = world.clock()
        self.steps = until(case, world.options.label)

    async def live(self) -> Ran:
        """Run, clean up, tell."""
        error: BaseException | None = None
        limit = self.case.scenario.timeout
        scope = asyncio.timeout(None if limit is None else limit / 1000)
        try:
            async with scope:
                self.open = await opened(self.world, self.case, self.begun, alone=self.alone, see=self._recorded)
                await self._play(self.open.stage)
        except TimeoutError as late:
            error = self._late(late) if scope.expired() else late
        except SystemExit as ended:
            error = MachineError(f"{left('something in the run', ended)}.")
            error.__cause__ = ended
        except Exception as broken:  # noqa: BLE001 - told, whatever it is
            error = broken
        except BaseException as cancelled:
            await to_the_end(self._end(cancelled))
            raise
        return await to_the_end(self._end(error))

    async def _play(self, stage: Stage) -> None:
        if stage.recorded is None:
            await insert_all(stage, self.case.scenario.setup)
        for index, step in enumerate(self.steps):
            stage.index = self.progress.next = index
            if isinstance(step, Talk):
                await self._late_calls(stage)
            await stage.declare()
            went = await self._step(stage, index, step)
            if not went and not self.world.options.keep_going:
                break
        await stage.declare()
        await self._late_calls(stage)
        self._whole_usage(stage)

    def _recorded(self, report: Report | None) -> None:
        """See that there is something to replay. Raises NothingRecorded."""
        talks = any(
            step.kind in ("chat", "simulate", "judge") and getattr(step, "observe", None) != "none"
            for step in self.steps
        )
        silent = self.case.scenario.observe == "none"
        if report is None or report.mode not in OFFLINE or report.unused != () or not talks or silent:
            return
        if report.live is not None:  # there is something; only what is live is not among the unused
            return
        again, flag = self.begun.rerun, self.world.options.mode_flag
        raise nothing_recorded(self.case.id, again, self.begun.sample, self.begun.runs, flag=flag)

    # -- steps

    async def _step(self, stage: Stage, index: int, step: StepBase) -> bool:
        """Execute a step; tells whether the run may go on."""
        since = self.world.clock()
        told_as = Step(
            run_id=self.begun.run_id, index=index, kind=step.kind, label=step.label or "", place=place_text(step.place)
        )
        try:
            done = await perform(stage, step)
        except LLMProxyError as error:
            self.progress.pending.append(
                (replace(told_as, ms=self._ms(since)), Done(message=told(error), status=fault_of(error, None)))
            )
            if self.world.options.keep_going and isinstance(error, StepError):
                return False
            raise
        told_as = replace(told_as, ms=self._ms(since))
        if self.progress.pending or (done.again is not None and done.wire):
            self.progress.pending.append((told_as, done))
        else:
            self._tell(told_as, done)
        return passed(done.assertions)

    async def _late_calls(self, stage: Stage) -> None:
        """Tell the last talking step, and those after it; calls that came after its answer are its own, and are judged with it."""
        try:
            if self.progress.pending and await stage.pull():
                self.progress.pending[0][1].look_again()
        finally:
            self._tell_pending()

    def _tell_pending(self) -> None:
        pending, self.progress.pending = self.progress.pending, []
        for told_as, done in pending:
            self._tell(told_as, done)

    def _tell(self, step: Step, done: Done) -> None:
        status = status_of(done)
        self.progress.statuses.append(status)
        self.progress.next = step.index + 1
        name = f"step {step.index + 1}" + (f" ({step.label})" if step.label else "")
        self.progress.reasons += [f"{name}: {each.name}: {each.message}" for each in done.assertions if each.message][
            :3
        ]
        self.world.emit(
            replace(
                step,
                status=status,
                assertions=tuple(done.assertions),
                message=done.message,
                interactions=tuple(done.interactions),
                recordings=tuple(done.recordings),
            )
        )

    def _ms(self, since: float) -> float:
        return (self.world.clock() - since) * 1000

    def _whole_usage(self, stage: Stage) -> None:
        """Check what the scenario says about the usage of all its steps."""
        wanted = self.case.scenario.usage
        if wanted is None:
            return
        measured = stage.wire.step(0)
        reason = why_unseen(stage, wanted, measured)
        made = unseen(["usage"], reason) if reason else check_usage(wanted, measured, stage.scope)
        index = len(self.steps)
        self._tell(Step(run_id=self.begun.run_id, index=index, kind="usage", label="all steps"), Done(wire=made))

    # -- the end

    def _late(self, error: TimeoutError) -> LLMProxyError:
        limit = (self.case.scenario.timeout or 0) / 1000
        at = f"step {self.progress.next + 1}" if self.open else "before its first step"
        step = self.steps[min(self.progress.next, len(self.steps) - 1)]
        kind = AgentError if self.open and step.kind in ("chat", "simulate") else MachineError
        made = kind(
            f"{self.case.id} did not end within {limit:g} s; it was at {at}.",
            hint="`timeout:` of the scenario allows more.",
        )
        made.__cause__ = error
        return made

    async def _end(self, error: BaseException | None) -> Ran:
        """Clean up and tell how it ended."""
        stage = self.open.stage if self.open else None
        self._tell_pending()  # the run ended before it could be looked at again
        for index in range(self.progress.next, len(self.steps)):
            self._skip(index, error)
        notes: Sequence[str] = ()
        report: Report | None = None
        if self.open is not None:
            if stage is not None and stage.session is not None:
                stage.session.interrupted = not isinstance(error, Exception | None)
            notes, report = await closed(self.open)
        ran = self._ran(error, report, notes)
        error = ran.error
        usage = {} if self.open is None or self.open.stage.session is None else await self.open.stage.session.usage()
        self.world.emit(
            Finished(
                run_id=self.begun.run_id,
                scenario=self.case.id,
                status=ran.status,
                reasoning=ran.reasoning,
                total_seconds=self.world.clock() - self.since,
                agent_seconds=None if stage is None else stage.agent_seconds,
                waited_seconds=None if stage is None else stage.caller.waited + Offered.by(stage.agent).waited,
                usage=usage,
                replayed=None if report is None else bool(report.hits) and not (report.recorded or report.live_calls),
                bound=None if report is None else report.bound,
                bound_names=() if report is None else report.bound_names,
                live=None if report is None else report.live,
                misses=() if stage is None else tuple(stage.traffic.misses),
                unrecorded=isinstance(error, NothingRecorded),
                error="" if error is None else told(error) if isinstance(error, Exception) else "interrupted",
                labels=(
                    *(
                        (
                            *stage.labels,
                            *Offered.by(stage.agent).notes,
                            *(said for each in stage.remarks for said in each),
                        )
                        if stage
                        else ()
                    ),
                    *([] if isinstance(error, Untidy) else notes),
                    *([] if self.open is None or isinstance(error, LateCallsError) else self.open.late),
                ),
                at=self.world.now(),
            )
        )
        return ran

    def _skip(self, index: int, error: BaseException | None) -> None:
        step = self.steps[index]
        why = "an earlier step did not pass" if error is None else "the run ended before it"
        self.world.emit(
            Step(
                run_id=self.begun.run_id,
                index=index,
                kind=step.kind,
                label=step.label or "",
                status=Status.SKIPPED,
                message=why,
            )
        )

    def _ran(self, error: BaseException | None, report: Report | None, notes: Sequence[str] = ()) -> Ran:
        status = next((each for each in _WORST if each in self.progress.statuses), Status.PASSED)
        if error is not None:
            role = (
                None
                if isinstance(error, (LLMProxyError, asyncio.CancelledError, KeyboardInterrupt))
                else AgentRole.JUDGE
            )
            status = fault_of(error, role)
        status, reason = self._expected_to_fail(status)
        late = self.open.late if self.open is not None and watches_wire(self.open.stage) else []
        if late and error is None and status is Status.PASSED:
            error, status = refuse_late_calls(late), Status.ENVIRONMENT_ERROR
        asked = self.case.scenario.faults is not None
        if asked and report is not None and report.unstruck and error is None and status is Status.PASSED:
            error, status = Unstruck("\n".join(report.unstruck)), Status.ENVIRONMENT_ERROR
        idle = report.unmocked if self.case.scenario.mock is not None and report is not None else None
        if idle and error is None and status is Status.PASSED:
            error, status = idle, Status.ENVIRONMENT_ERROR
        if notes and error is None and status is Status.PASSED:
            error, status = Untidy("\n".join(notes)), Status.ENVIRONMENT_ERROR
        reasoning = "\n".join([reason, *self.progress.reasons] if reason else self.progress.reasons)
        spent = None if report is None else report.cost_spent
        beside_live = report is not None and report.live is not None
        since = None if self.open is None or beside_live else self.open.stage.traffic.recorded_at()
        live, calls = (
            0 if report is None else report.live_calls,
            () if self.open is None else self.open.stage.traffic.calls,
        )
        kept = calls if self.world.keeps_calls else ()
        return Ran(status, error, reasoning, spent, live, report, since, kept, latency_of(calls))

    def _expected_to_fail(self, status: Status) -> tuple[Status, str]:
        """Turn round what a scenario with `xfail` came to; an error stays one."""
        said = self.case.scenario.xfail
        if not said:
            return status, ""
        why = f": {said}" if isinstance(said, str) else ""
        if status is Status.PASSED:
            return Status.FAILED, f"it was expected to fail{why}, and passed; remove `xfail`"
        if status in (Status.FAILED, Status.AGENT_ERROR):
            return Status.PASSED, f"failed as expected{why}"
        return status, ""
