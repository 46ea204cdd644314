"""A sweep over scenarios: each is run undisturbed, then again and again with one fault on purpose at one call of its recording."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmproxy.client.sweep import SweepFinding, Went, find, trials_of
from llmproxy.errors import SuiteError
from llmproxy.report.amounts import counted
from llmproxy.report.events import Status
from llmproxy.scenario.values.fault import told
from llmproxy.suite.run.one import Ran
from llmproxy.suite.run.runner import run_cases

if TYPE_CHECKING:
    from llmproxy.core.faults import FaultKind
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.world import World

__all__ = ["NoScenarioSweep", "has_faults", "sweep_case"]


class NoScenarioSweep(SuiteError):
    """The undisturbed scenario is none to compare with."""

    code = "llmproxy_sweep"


def has_faults(case: SuiteCase) -> bool:
    """Tell whether a scenario has faults of its own, so that it is never undisturbed."""
    return case.scenario.faults is not None or any(getattr(step, "faults", None) for step in case.scenario.steps)


async def sweep_case(
    world: World, case: SuiteCase, kinds: Sequence[FaultKind], said: Callable[[str], object], found: list[SweepFinding]
) -> None:
    """Sweep one scenario into `found`; `said` hears how far it is. Raises NoSweep."""
    world.faults = None
    baseline, ran = await _once(world, case)
    if ran.status is not Status.PASSED:
        why = baseline.failed or baseline.wrong or ran.reasoning or ran.status.value
        raise NoScenarioSweep(
            f"{case.id}: undisturbed it does not pass, so there is nothing to compare with: {why.partition(chr(10))[0]}",
            hint=f"{world.options.command} --id {shlex.quote(case.id)}",
        )
    trials = trials_of(baseline.calls, kinds)
    calls = len({(trial.key, trial.occurrence) for trial in trials})
    said(
        f"sweep: {case.id}: {counted(calls, 'call')}, {counted(len(trials), 'fault')}; undisturbed it takes {baseline.seconds:.1f} s"
    )
    try:
        for number, trial in enumerate(trials, 1):
            world.faults = {"faults": [trial.rule]}
            went, _ = await _once(world, case)
            found.append(find(trial, went, [baseline]))
            said(f"\r{number}/{len(trials)}")
    finally:
        world.faults = None


async def _once(world: World, case: SuiteCase) -> tuple[Went, Ran]:
    """Run a scenario once."""
    since = time.monotonic()
    tested = await run_cases(world, [case])
    (ran,) = tested.runs[case.id]
    return went_of(ran, time.monotonic() - since), ran


def went_of(ran: Ran, seconds: float) -> Went:
    """Return a run as a sweep looks at it: an agent that crashed gave up, a scenario that failed is wrong though it ended."""
    failed = "" if ran.error is None or ran.status is Status.PASSED else told(ran.error)
    wrong = ran.reasoning.partition("\n")[0] if ran.status is Status.FAILED else ""
    if ran.status not in (Status.PASSED, Status.FAILED) and not failed:
        failed = ran.reasoning.partition("\n")[0] or ran.status.value
    return Went(calls=ran.calls, seconds=seconds, failed="" if wrong else failed.partition("\n")[0], wrong=wrong)
