"""A sweep over scenarios: each is run undisturbed, then again and again with one fault on purpose at one call of its recording."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmproxy.amounts import format_count, seconds
from llmproxy.client.sweep import SweepFinding, Went, find, last_words, trials_of
from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.report.events import Status
from llmproxy.scenario.agents.command import ON_STDERR
from llmproxy.scenario.values.run import describe_error
from llmproxy.suite.run.one import Ran
from llmproxy.suite.run.runner import run_cases

if TYPE_CHECKING:
    from llmproxy.core.faults import FaultKind
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.world import World


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
    world.faults, world.keeps_calls = None, True
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
        f"sweep: {case.id}: {format_count(calls, 'call')}, {format_count(len(trials), 'fault')}; undisturbed it takes {seconds(baseline.seconds)}"
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
    since = time.monotonic()
    tested = await run_cases(world, [case])
    (ran,) = tested.runs[case.id]
    return went_of(ran, time.monotonic() - since), ran


def went_of(ran: Ran, seconds: float) -> Went:
    """Return a run as a sweep looks at it: an agent that crashed gave up, a scenario that failed is wrong though it ended."""
    if ran.status is Status.FAILED:
        return Went(calls=ran.calls, seconds=seconds, wrong=ran.reasoning.partition("\n")[0])
    failed, crashed = ("", False) if ran.status is Status.PASSED else _last_words(ran)
    return Went(calls=ran.calls, seconds=seconds, failed=failed, crashed=crashed)


def _last_words(ran: Ran) -> tuple[str, bool]:
    """Return with which message a run ended that neither passed nor failed, and whether its command left an error that nobody caught."""
    error = ran.error
    said = (
        error.message if isinstance(error, LLMProxyError) else ran.reasoning if error is None else describe_error(error)
    )
    how, _, complaints = said.partition(ON_STDERR)
    first = how.partition("\n")[0] or ran.status.value
    return last_words("", complaints, 1) if complaints.strip() else (first, False)
