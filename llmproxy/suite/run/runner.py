"""Execution of cases with limited concurrency, verdicts of scenarios from their runs, and the exit code of the test.

Runs that check entities disturb each other unless each has its own rows; agents in this process always take turns
(`llmproxy.scenario.run_session`). Ctrl-C lets every started run clean up, and ends with 130. Runs that say nothing
about the agent (the proxy, the store or the provider failed, a request was never recorded) are not counted, and make
the scenario an error.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from llmproxy.amount_formatting import format_count, format_seconds, mean_if_all_known, name_some
from llmproxy.calls_and_totals import describe_replayed_failures, find_fail_on_exit_code
from llmproxy.client import fault_sweep_judging as judging
from llmproxy.client.child_env import in_ci
from llmproxy.client.session_reports import sum_session_reports
from llmproxy.core.faults.rules import FaultKind
from llmproxy.core.traffic.canonical_json import format_value_as_one_line_json, parse_json_or_text
from llmproxy.errors import Exit, LLMProxyError, MissError, SuiteError
from llmproxy.protocol import AGENT, OFFLINE, Mode, append_sample_number_to_name
from llmproxy.report.events import Completed, Event, Selected, Status, convert_to_event_handlers
from llmproxy.scenario.repeats.verdicts import COUNTED, RunStatusCounts, decide_repeated_run_status
from llmproxy.scenario.run_session import wait_despite_cancel
from llmproxy.scenario.values.run_ids_and_options import describe_error
from llmproxy.suite.reading.load import USER, SuiteCase
from llmproxy.suite.run.case_resources import run_hook
from llmproxy.suite.run.case_runner import CaseResult, build_run_event_emitter, run_case_once
from llmproxy.suite.run.run_context import SuiteRunContext, list_checked_entities
from llmproxy.suite.schema.suite import Suite
from llmproxy.suite.selection import RunNotRecorded, advise_recording, append_runs_flag
from llmproxy.suite.stores.protocol import RestorableEntityStore

_ORDER = (Exit.USAGE, Exit.ENVIRONMENT, Exit.MISS, Exit.FAILED, Exit.NOTHING)
_NAMED = 5  # scenarios in a note
_WHOLE = ("truncate", "copy", "hook", "http")
"""Reset policies that remove all users' rows."""
_OWN = ("$userId", "${userId}")


def get_matrix_axis_values_of_case(case: SuiteCase) -> dict[str, Any]:
    axes = {name: _format_axis_value(case.values.get(name)) for name in case.scenario.matrix or ()}
    return {"axes": axes} if axes else {}


def _format_axis_value(value: object) -> str:
    """Return a text for each value: plain, in quotes where it would read as a value of another type."""
    return (
        value if isinstance(value, str) and parse_json_or_text(value) == value else format_value_as_one_line_json(value)
    )


def summarize_scenario_runs(scenario: str, ran: Sequence[CaseResult], least: float = 1.0) -> dict[str, Any]:
    found = RunStatusCounts.from_statuses([each.status for each in ran])
    counted = found.counted_runs
    made = found.to_row(scenario, decide_repeated_run_status(found, least).value)
    made["pass_all"] = found.passed == counted if counted else None
    made["min_pass_rate"] = least
    judged = [each for each in ran if each.status in COUNTED]
    parties = [{} if each.wire is None else each.wire.parties for each in judged]
    cost = mean_if_all_known([each[AGENT].whole_cost if AGENT in each else None for each in parties])
    made["cost_usd"] = None if cost is None else format(cost, "f")  # of a run's calls of the agent, as recorded
    made["latency_ms"] = mean_if_all_known([each.latency for each in judged])
    if len(ran) > 1:
        made["pass_hat"] = {k: found.pass_hat_k(k) for k in range(1, counted + 1)}
        wrong = (each for each in ran if each.status is not Status.PASSED)
        reasons = (each.reasoning or (str(each.error) if each.error else "") for each in wrong)
        made["errors"] = list(dict.fromkeys(text.splitlines()[0] for text in reasons if text))
        made["told"] = _describe_rate(made, counted) + _describe_recording_dates(ran)
    return made


def _describe_rate(made: dict[str, Any], counted: int) -> str:
    if made["rate"] is None:
        return "no run could be judged"
    low, high = made["interval"]
    every = "yes" if made["pass_all"] else "no"
    interval = f"95 % interval {low:.0%} to {high:.0%}"
    told = f"{made['passed']} of {counted} runs passed ({made['rate']:.0%}, {interval}); all passed: {every}"
    if counted < made["runs"]:
        told += f"; {made['runs'] - counted} of {made['runs']} could not be judged"
    return told


def _describe_recording_dates(ran: Iterable[CaseResult]) -> str:
    times = {each.recorded_at for each in ran if each.recorded_at is not None}
    days = sorted({datetime.fromtimestamp(at, UTC).date() for at in times})
    if not days:
        return ""
    when = f"on {days[0]}" if len(days) == 1 else f"between {days[0]} and {days[-1]}"
    return f"; the samples were recorded {when}"


def choose_exit_code(rows: Iterable[dict[str, Any]], ran: Sequence[CaseResult], *, trouble: bool = False) -> Exit:
    """Return the exit code that decides what to do first; `trouble`: something outside the runs failed."""
    found = {Exit.ENVIRONMENT} if trouble else set()
    if ran and all(each.status is Status.SKIPPED for each in ran):
        found.add(Exit.NOTHING)
    for each in ran:
        if each.status is Status.ENVIRONMENT_ERROR:
            known = each.error.exit_code if isinstance(each.error, LLMProxyError) else Exit.ENVIRONMENT
            found.add(known if known in (Exit.USAGE, Exit.MISS) else Exit.ENVIRONMENT)
    bad = (Status.FAILED.value, Status.AGENT_ERROR.value, Status.FLAKY.value)
    if any(made["status"] in bad for made in rows):
        found.add(Exit.FAILED)
    return next((code for code in _ORDER if code in found), Exit.OK)


@dataclass(frozen=True, slots=True)
class ParallelCasesPermission:
    users: bool = False
    why_not: str = ""
    bound: frozenset[str] = frozenset()
    """Ids of cases whose concurrent runs rely on bindings: a miss is repeated alone."""
    counters: Sequence[tuple[RestorableEntityStore, Mapping[str, tuple[int, bool]]]] = ()


async def plan_parallel_cases(run_context: SuiteRunContext, cases: Iterable[SuiteCase]) -> ParallelCasesPermission:
    """Decide which runs may be concurrent, and which would disturb each other; queries the stores.

    Runs whose rows have a user of their own are: there is one lock a user, else one for all. In a store that numbers
    its keys, concurrent runs get varying row ids, so not while recording: the recording would depend on the order of
    runs. In replay the proxy binds the ids (`llmproxy.core.bindings`); a run that misses anyway is repeated alone.
    """
    if run_context.options.parallel < 2:
        return ParallelCasesPermission()
    bound, stores = set[str](), dict[int, tuple[RestorableEntityStore, list[str]]]()
    for case in {each.id: each for each in cases}.values():
        if not (names := run_context.list_case_entities(case)):
            continue
        why, counted = await asyncio.to_thread(_explain_serial_execution, run_context, case, names)
        if why:
            return ParallelCasesPermission(why_not=why)
        if counted and (made := run_context.get_shared_suite_store(case)) is not None:
            bound.add(case.id)
            store, policy = made
            if isinstance(store, RestorableEntityStore) and (policy.reset, policy.counters) == ("delete", "restore"):
                stores.setdefault(id(store), (store, []))[1].extend(names)
    counters = [(store, await asyncio.to_thread(store.counters, names)) for store, names in stores.values()]
    return ParallelCasesPermission(users=True, bound=frozenset(bound), counters=counters)


def _explain_serial_execution(run_context: SuiteRunContext, case: SuiteCase, names: Sequence[str]) -> tuple[str, bool]:
    try:
        made = run_context.get_shared_suite_store(case)
        known = [] if made is None else [made[0].describe(name) for name in names]
    except LLMProxyError:  # the run itself says so
        made, known = None, []
    without = next((info.name for info in known if info.user is None), "" if known else names[0])
    if without:
        return f"{without} has no user column, so their rows are not told apart", False
    if made is not None and made[1].reset in _WHOLE:
        return f"`store.reset: {made[1].reset}` takes the rows of all of them away", False
    if other := _find_entity_with_fixed_owner(case, {info.name: info.user for info in known}):
        return f"{case.id} says whose rows of {other} it means, which another run may make as well", False
    counted = next((info.name for info in known if info.counted), "")
    if not counted or made is None or made[1].counters == "unused":
        return "", False
    if run_context.options.mode in OFFLINE:
        return "", True
    return (
        f"the store counts the keys of {counted} up, so a row's id would depend on which run comes first, and what is "
        "recorded would not be the same twice; in replay they go on at the same time (`store.counters: unused` says "
        "that the agent gives ids of its own)"
    ), False


def _find_entity_with_fixed_owner(case: SuiteCase, owners: Mapping[str, str | None]) -> str:
    for entity, said in list_checked_entities(case.scenario):
        owner = said.get(owners.get(entity) or "")
        if owner is not None and owner not in (*_OWN, case.scenario.user_id or USER):
            return entity
    return ""


@dataclass(slots=True)
class SuiteResult:
    exit_code: Exit
    runs: dict[str, list[CaseResult]] = field(default_factory=dict)
    """Runs by case id, in the order of their samples."""

    def has_passed(self, case: SuiteCase) -> bool:
        """Return whether all runs of a case passed, or were skipped as it says; False if it did not run."""
        ran = self.runs.get(case.id)
        good = (Status.PASSED, Status.SKIPPED) if case.scenario.skip else (Status.PASSED,)
        return bool(ran) and all(each.status in good for each in ran or ())


@dataclass(frozen=True, slots=True)
class _CaseJob:
    case: SuiteCase
    sample: int
    runs: int

    @property
    def user(self) -> str:
        return append_sample_number_to_name(self.case.scenario.user_id or USER, self.sample)


async def run_cases(
    run_context: SuiteRunContext,
    cases: Sequence[SuiteCase],
    notes: Sequence[str] = (),
    remarks: Callable[[], Sequence[str]] = tuple,
) -> SuiteResult:
    """Run cases and emit all events to the handlers; `notes` and the later result of `remarks` go into the end."""
    since = run_context.clock()
    jobs = [
        _CaseJob(case, n + 1, runs) for case in cases for runs in [run_context.count_samples(case)] for n in range(runs)
    ]
    asked = run_context.options
    title = asked.title or ", ".join(dict.fromkeys(case.suite.name for case in cases))
    mode, at = asked.mode or "", run_context.now()
    run_context.emit_event(
        Selected(title=title, scenarios=len(cases), runs=len(jobs), mode=mode, at=at, shard=asked.shard)
    )
    run_context.users = frozenset(job.user for job in jobs)
    batch = _CaseBatch(run_context, jobs)
    batch.notes += notes
    interrupted = False
    try:
        await batch.run_jobs()
    except asyncio.CancelledError:
        interrupted = True
        over = sum(map(len, batch.ran.values()))
        kept = ", but what they recorded is kept" * any(each == mode and each.policy.writes for each in Mode)
        batch.notes.append(f"interrupted: {over} of {len(jobs)} runs were over; the others have no result{kept}")
        raise
    finally:
        batch.advise_on_missing_recordings([case.id for case in cases])
        done = [case for case in cases if batch.ran.get(case.id)]
        rows = [
            summarize_scenario_runs(case.id, batch.ran[case.id], case.scenario.min_pass_rate)
            | get_matrix_axis_values_of_case(case)
            for case in done
        ]
        every = [each for ran in batch.ran.values() for each in ran]
        code = Exit.INTERRUPTED if interrupted else choose_exit_code(rows, every, trouble=batch.trouble)
        if unfiled := describe_hits_missing_from_folder(run_context.files, every):
            batch.notes.append(unfiled)
            code = Exit.MISS if code is Exit.OK and in_ci(os.environ) else code
        totals = sum_session_reports(each.wire for each in every if each.wire)
        if failures := describe_replayed_failures(totals, f"{asked.mode_flag} auto"):
            batch.notes.append(failures)
        forbidden = find_fail_on_exit_code(totals, carried=asked.fail_on_carried, stale=asked.fail_on_stale)
        if code is Exit.OK and forbidden:
            code, reason = forbidden
            batch.notes.append(reason)
        if code == Exit.NOTHING:
            batch.part_notes.append(f"nothing ran: {len(every)} of {len(jobs)} runs were skipped")
        seconds = run_context.clock() - since
        times = {case.id: round(batch.seconds[case.id] * 1000) for case in cases if case.id in batch.seconds}
        own = tuple(batch.part_notes)
        notes = (*batch.notes, *own, *remarks())
        run_context.emit_event(
            Completed(exit_code=code, seconds=seconds, notes=notes, part_notes=own, scenarios=rows, times=times)
        )
    return SuiteResult(code, batch.ran)


def describe_hits_missing_from_folder(files: tuple[Path, Path] | None, ran: Iterable[CaseResult]) -> str:
    served: dict[str, set[int | None]] = {}
    for each in ran:
        if each.wire is not None and each.wire.mode in OFFLINE:
            served.setdefault(each.wire.cassette, set()).update(each.served)
    if files is None or not served:
        return ""
    from llmproxy.core.cassettes.folder_sync import CassetteDir, describe_hits_missing_from_files

    store, folder = files
    asked = {cassette: partial(iter, ids) for cassette, ids in served.items()}
    return describe_hits_missing_from_files(store, CassetteDir(folder, now=time.time), asked)


class _CaseBatch:
    def __init__(self, run_context: SuiteRunContext, jobs: Sequence[_CaseJob]) -> None:
        self.run_context, self.jobs = run_context, jobs
        self.ran: dict[str, list[CaseResult]] = {}
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        self.part_notes: list[str] = []
        """Notes that count only scenarios that ran here."""
        self.spent: Decimal | None = None
        self.trouble = False
        """Whether something outside the runs failed, or some were left out."""
        self._unpriced = ""
        self._together = asyncio.Semaphore(max(run_context.options.parallel, 1))
        self._user_locks: dict[str, asyncio.Lock] = {}
        self._again: list[_CaseJob] = []

    def advise_on_missing_recordings(self, cases: Sequence[str]) -> None:
        errors = {case: [each.error for each in self.ran.get(case, ())] for case in cases}
        found = [case for case in cases if any(isinstance(each, RunNotRecorded) for each in errors[case])]
        if found:
            options = self.run_context.options
            command = append_runs_flag(options.command, options.runs)
            some = any(not isinstance(error, RunNotRecorded) for case in found for error in errors[case])
            self.part_notes.append(advise_recording(found, len(cases), command, partly=options.partly, some_runs=some))

    async def run_jobs(self) -> None:
        suites = list({id(job.case.suite): job.case for job in self.jobs}.values())
        if self.run_context.recorded is not None:  # no agent runs, so nothing is made ready for one
            await self._finish_tasks(
                [asyncio.ensure_future(self._run_job(job, ParallelCasesPermission())) for job in self.jobs]
            )
            return
        try:
            ready = [each for each in suites if await self._run_suite_hooks(each, "beforeAll")]
            good = {id(each.suite) for each in ready}
            jobs = [job for job in self.jobs if id(job.case.suite) in good]
            plan = await plan_parallel_cases(self.run_context, (job.case for job in jobs))
            if plan.why_not:
                self.notes.append(f"scenarios that look at entities ran one at a time: {plan.why_not}")
            await self._finish_tasks([asyncio.ensure_future(self._run_job(job, plan)) for job in jobs])
            await self._rerun_missed_jobs_alone(plan)
        finally:
            for each in suites:
                await wait_despite_cancel(self._run_suite_hooks(each, "afterAll"))

    async def _finish_tasks(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            self.run_context.stopped.set()  # waits in threads end now
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _run_suite_hooks(self, case: SuiteCase, name: str) -> bool:
        suite: Suite = case.suite
        hooks = () if suite.hooks is None else suite.hooks.before_all if name == "beforeAll" else suite.hooks.after_all
        try:
            for hook in hooks:
                await run_hook(hook, case.folder, {"LLMPROXY_SUITE": suite.name}, name)
        except LLMProxyError as error:
            self.trouble = True
            more = ": its scenarios were not run" if name == "beforeAll" else ""
            self.notes.append(f"{suite.name}: {describe_error(error)}{more}")
            return False
        return True

    async def _run_job(self, job: _CaseJob, plan: ParallelCasesPermission) -> None:
        lock: AbstractAsyncContextManager[object] = nullcontext()
        if checks_rows := bool(self.run_context.list_case_entities(job.case)):
            lock = self._user_locks.setdefault(job.user if plan.users else "", asyncio.Lock())
        async with lock, self._together:
            if job.case.id in plan.bound:
                await self._run_or_repeat_later(job)
            else:
                alone = checks_rows and not plan.users
                self._record_result(job, await self._run_case(job, self.run_context, alone=alone))

    async def _run_or_repeat_later(self, job: _CaseJob) -> None:
        """Run concurrently with runs that advance the key counter; after a miss the run is repeated, not reported."""
        held: list[Event] = []
        again = False
        try:
            tentative = replace(self.run_context, handlers=convert_to_event_handlers([held.append]))
            ran = await self._run_case(job, tentative, alone=False)
            again = isinstance(ran.error, MissError) and not isinstance(ran.error, RunNotRecorded)
        finally:
            for event in [] if again else held:
                self.run_context.emit_event(event)
        if again:
            self._again.append(job)
        else:
            self._record_result(job, ran)

    async def _rerun_missed_jobs_alone(self, plan: ParallelCasesPermission) -> None:
        for store, known in plan.counters:
            await asyncio.to_thread(store.rewind, known)
        if self._again:
            named = name_some(dict.fromkeys(job.case.id for job in self._again), shown=_NAMED)
            self.notes.append(
                f"ran again, one at a time: {named}. Side by side their rows have other ids, and what is recorded of "
                "them holds ids that cannot be bound (in a sentence)"
            )
        for job in self._again:
            self._record_result(job, await self._run_case(job, self.run_context, alone=True))

    def _record_result(self, job: _CaseJob, ran: CaseResult) -> None:
        self.ran.setdefault(job.case.id, []).append(ran)

    async def _run_case(self, job: _CaseJob, run_context: SuiteRunContext, *, alone: bool) -> CaseResult:
        skip, limit = job.case.scenario.skip, self.run_context.options.max_cost
        if skip:
            return self._skip_job(job, skip if isinstance(skip, str) else "skip: true")
        if limit is not None and (why := self._explain_over_limit(limit)):
            reason = f"--max-cost {limit}: {why}"
            if not self.trouble:
                self.notes.append(f"not all was run: {reason}")
            self.trouble = True  # the test is incomplete
            return self._skip_job(job, reason)
        since = self.run_context.clock()
        execute = run_context.execute or run_case_once
        ran = await execute(run_context, job.case, job.sample, job.runs, alone=alone)
        self.seconds[job.case.id] = self.seconds.get(job.case.id, 0.0) + self.run_context.clock() - since
        if ran.wire is not None:
            if ran.wire.spent.cost is not None:
                self.spent = (self.spent or Decimal(0)) + ran.wire.spent.cost
            if ran.wire.live_calls and ran.wire.spent.whole_cost is None:
                self._unpriced = job.case.id
        return ran

    def _explain_over_limit(self, limit: Decimal) -> str:
        if self._unpriced:
            return f"the price of what {self._unpriced} asked is not known, so nobody can tell what is spent"
        return f"${self.spent} are spent" if self.spent is not None and self.spent >= limit else ""

    def _skip_job(self, job: _CaseJob, reason: str) -> CaseResult:
        emitter = build_run_event_emitter(self.run_context, job.case, job.sample, job.runs)
        emitter.emit_start()
        emitter.emit_end(status=Status.SKIPPED, reasoning=reason)
        return CaseResult(Status.SKIPPED, reasoning=reason)


class SweepNotPossible(SuiteError):
    """The undisturbed scenario cannot serve as a baseline."""

    code = "llmproxy_sweep"


def has_case_or_step_faults(case: SuiteCase) -> bool:
    return case.scenario.faults is not None or any(getattr(step, "faults", None) for step in case.scenario.steps)


async def sweep_faults_of_case(
    run_context: SuiteRunContext,
    case: SuiteCase,
    kinds: Sequence[FaultKind],
    said: Callable[[str], object],
    found: list[judging.FaultTrialFinding],
) -> None:
    """Sweep one scenario into `found`; `said` gets progress. Raises SweepNotPossible."""
    run_context.faults, run_context.keeps_calls = None, True
    baseline, ran = await _run_case_once(run_context, case)
    if ran.status is not Status.PASSED:
        why = baseline.failed or baseline.wrong or ran.reasoning or ran.status.value
        message = "undisturbed it does not pass, so there is nothing to compare with"
        raise SweepNotPossible(
            f"{case.id}: {message}: {why.splitlines()[0]}", hint=run_context.options.build_rerun_command(case.id)
        )
    trials = judging.plan_fault_trials(baseline.calls, kinds)
    calls = len({(trial.key, trial.occurrence) for trial in trials})
    said(
        f"sweep: {case.id}: {format_count(calls, 'call')}, {format_count(len(trials), 'fault')}; without faults:"
        f" {format_seconds(baseline.seconds)}"
    )
    try:
        for number, trial in enumerate(trials, 1):
            run_context.faults = {"faults": [trial.rule]}
            went, _ = await _run_case_once(run_context, case)
            found.append(judging.judge_fault_trial(trial, went, [baseline]))
            said(f"\r{number}/{len(trials)}")
    finally:
        run_context.faults = None


async def _run_case_once(
    run_context: SuiteRunContext, case: SuiteCase
) -> tuple[judging.FaultSweepRunOutcome, CaseResult]:
    """Run a case; also in the form of a sweep: a crashed agent gave up, a failed scenario is wrong though it ended."""
    since = time.monotonic()
    tested = await run_cases(run_context, [case])
    (ran,), seconds = tested.runs[case.id], time.monotonic() - since
    failed, wrong, crashed, error = "", "", False, ran.error
    if ran.status is Status.FAILED:
        wrong = ran.reasoning.partition("\n")[0]
    elif ran.status is not Status.PASSED and isinstance(error, LLMProxyError) and error.stderr:
        failed, crashed = judging.find_failure_in_output("", error.stderr, 1)
    elif ran.status is not Status.PASSED:
        said = ran.reasoning if error is None else describe_error(error)
        failed = said.partition("\n")[0] or ran.status.value
    return judging.FaultSweepRunOutcome(
        calls=ran.calls, seconds=seconds, failed=failed, wrong=wrong, crashed=crashed
    ), ran
