"""Entry points of scenarios: `run` on a thread of its own, `arun` on the caller's loop, `run_sync` without a loop.

`run` gives every scenario a worker thread with its own event loop, so that a blocking adapter does not stop others.
Context variables are copied into it. A caller that cancels `run` gets control back within a second, even if the worker
is blocked: Python cannot stop a thread, so it is abandoned (it does not prevent the program's exit) and reported. The
same holds for timeouts that a blocked thread cannot notice.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast, overload
from weakref import WeakKeyDictionary

from llmproxy.report.event_handlers import HandlerLike
from llmproxy.report.events import Status
from llmproxy.scenario.config import UNSET, refuse_unsupported
from llmproxy.scenario.repeats.repeats import RepeatResult, RunEnded, run_repeatedly
from llmproxy.scenario.running.executor import ScenarioExecutor, choose_cassette_name
from llmproxy.scenario.running.run_thread import run_in_new_thread, run_to_end
from llmproxy.scenario.types import Message, ScenarioResult, ScriptStep
from llmproxy.scenario.values.run_ids_and_options import CALL_TIMEOUT, RunOptions, classify_run_error, shorten_traceback

_LIMITS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] = WeakKeyDictionary()
"""Semaphores of `max_concurrency`: runs of one loop with the same number share one."""


REMOTE: list[Callable[[RunPlan, int, int], Awaitable[RunEnded]]] = []
"""Runs one sample of a plan on another machine, as `RunPlan.once`; empty: local. Set by `scenario.on`."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A scenario to run, once or several times."""

    name: str
    description: str
    agents: Sequence[Any] = ()
    max_turns: int | None = None
    verbose: bool | int | None = None
    cache_key: str | None = UNSET
    debug: bool | None = None
    script: Sequence[ScriptStep] | None = None
    set_id: str | None = None
    min_turns: int | None = None
    options: RunOptions = field(default_factory=RunOptions)
    threaded: bool = True
    """Whether each run has a thread of its own."""

    def build_executor(self, sample: int = 1, runs: int = 1) -> ScenarioExecutor:
        """Return an executor for one sample; of several, each has adapters of its own."""
        given = {name: getattr(self, name) for name in _OF_PLAN}
        if runs > 1:
            given["agents"] = [_clone_adapter(agent) for agent in self.agents]
        return ScenarioExecutor(**given, options=replace(self.options, sample=sample, runs=runs))

    async def once(self, sample: int = 1, runs: int = 1) -> RunEnded:
        """Run one sample and return its outcome. Raises only if cancelled, or if the plan is invalid."""
        if REMOTE:
            return await REMOTE[-1](self, sample, runs)
        executor, number = self.build_executor(sample, runs), self.options.max_concurrency
        limits = _LIMITS.setdefault(asyncio.get_running_loop(), {})
        async with nullcontext() if number is None else limits.setdefault(number, asyncio.Semaphore(number)):
            try:
                result = await (run_in_new_thread(executor) if self.threaded else _run_on_callers_loop(executor))
            except Exception as error:  # noqa: BLE001 (handed to the caller, who decides)
                broken = executor.outcome or executor.build_error_result(error)
                return RunEnded(broken.status or classify_run_error(error, None), broken, error)
            return RunEnded(result.status or Status.FAILED, result)


_OF_PLAN = tuple(each.name for each in fields(RunPlan) if each.name not in ("options", "threaded"))
"""Arguments of an executor besides its options."""


async def _run_on_callers_loop(executor: ScenarioExecutor) -> ScenarioResult:
    try:
        return await executor.run()
    finally:
        if executor.event_bus.busy:
            await asyncio.to_thread(executor.event_bus.drain)


def _clone_adapter(agent: Any) -> Any:
    clone = None if isinstance(agent, type) else getattr(agent, "clone", None)
    return clone() if callable(clone) else agent


# The parameters twice more, so that type checkers know that `runs=N` gives a RepeatResult.
# fmt: off
@overload
async def run(
    name: str, description: str, agents: Sequence[Any] = (), max_turns: int | None = None,
    verbose: bool | int | None = None, cache_key: str | None = UNSET, debug: bool | None = None,
    script: Sequence[ScriptStep] | None = None, set_id: str | None = None, *,
    runs: int,
    proxy: str | bool | None = None, pass_rate: float = 1.0, early_stop: bool = False,
    allow_environment_errors: bool = False, timeout: float | None = None, call_timeout: float | None = CALL_TIMEOUT,
    max_concurrency: int | None = None, fresh_ids: bool = False, cassette: str | None = None, mode: str | None = None,
    handlers: Sequence[HandlerLike] = (), history: Sequence[Message] | str | None = None, min_turns: int | None = None,
    metadata: Mapping[str, Any] | None = None, parameters: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None, mock: Mapping[str, Any] | None = None,
    **unsupported: Any,
) -> RepeatResult: ...
@overload
async def run(
    name: str, description: str, agents: Sequence[Any] = (), max_turns: int | None = None,
    verbose: bool | int | None = None, cache_key: str | None = UNSET, debug: bool | None = None,
    script: Sequence[ScriptStep] | None = None, set_id: str | None = None, *,
    runs: int | None = None,
    proxy: str | bool | None = None, pass_rate: float = 1.0, early_stop: bool = False,
    allow_environment_errors: bool = False, timeout: float | None = None, call_timeout: float | None = CALL_TIMEOUT,
    max_concurrency: int | None = None, fresh_ids: bool = False, cassette: str | None = None, mode: str | None = None,
    handlers: Sequence[HandlerLike] = (), history: Sequence[Message] | str | None = None, min_turns: int | None = None,
    metadata: Mapping[str, Any] | None = None, parameters: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None, mock: Mapping[str, Any] | None = None,
    **unsupported: Any,
) -> ScenarioResult: ...
# fmt: on
async def run(
    name: str, description: str, agents: Sequence[Any] = (), max_turns: int | None = None,
    verbose: bool | int | None = None, cache_key: str | None = UNSET, debug: bool | None = None,
    script: Sequence[ScriptStep] | None = None, set_id: str | None = None, *, proxy: str | bool | None = None,
    runs: int | None = None, pass_rate: float = 1.0, early_stop: bool = False, allow_environment_errors: bool = False,
    timeout: float | None = None, call_timeout: float | None = CALL_TIMEOUT, max_concurrency: int | None = None,
    fresh_ids: bool = False, cassette: str | None = None, mode: str | None = None, handlers: Sequence[HandlerLike] = (),
    history: Sequence[Message] | str | None = None, min_turns: int | None = None,
    metadata: Mapping[str, Any] | None = None, parameters: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None, mock: Mapping[str, Any] | None = None, **unsupported: Any,
) -> ScenarioResult:  # fmt: skip
    """Run a scenario on a thread of its own and return its result.

    Args:
        name: name in reports; with `set_id` also of its recording
        description: the situation; the simulated user acts on it
        agents: the agent under test, a simulator, a judge, in any order; a class or function makes one for each run
        max_turns: turns before it ends without a conclusion
        verbose: whether to print the conversation; from 2 on each line names the scenario
        cache_key: enables the cache; None or "" disables it, whatever `configure` set
        debug: whether a person may write in place of the simulator
        script: steps; without any, the conversation continues by itself
        set_id: group of scenarios
        proxy: URL of a running llmproxy, True to start one, False for none; None: as configured, else LLMPROXY_URL
        runs: number of runs; the result (a RepeatResult) then combines all of them
        pass_rate: of several runs, the share that must pass
        early_stop: of several runs, whether to stop when `pass_rate` is decided; never while recording
        allow_environment_errors: of several runs, whether those in which the environment failed may be left out
        timeout: seconds for the whole run
        call_timeout: seconds for one call of an adapter
        max_concurrency: maximum concurrent runs among those with the same number
        fresh_ids: random thread ids although there is a recording
        cassette: name of the recording
        mode: mode of the session at the proxy
        handlers: get the events of this run (`report.events`): functions, or objects with `handle` and `close`
        history: earlier messages, or a recorded session "store.db::cassette"
        min_turns: turns before a judge ends the run by itself; a demanded verdict may come earlier
        metadata: included in the start event and reports
        parameters: for connected agents
        fields: values of `state.field(name)`
        mock: tool -> result that the agent's model reads instead (docs/suites.md); the tool still runs
        unsupported: other parameters of LangWatch Scenario (voice, evaluators, remote traces): refused

    Raises exceptions of adapters and steps, AgentError and UpstreamError at timeouts, MissError for a request that was
    never recorded.
    """
    return await _run_with_arguments(locals(), threaded=True)


def _make_arun[F: Callable[..., Any]](function: F) -> F:
    """Return `run` as `arun`, with the same parameters, types and results."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    async def arun(*args: Any, **kwargs: Any) -> ScenarioResult:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return await _run_with_arguments(given.arguments, threaded=False)

    arun.__name__ = arun.__qualname__ = "arun"
    arun.__doc__ = (
        "Run a scenario on the caller's loop, for adapters whose clients belong to it: one that blocks stops the loop."
        " Else as `run`."
    )
    return cast("F", arun)


arun = _make_arun(run)


def run_sync(name: str, description: str, *args: Any, **kwargs: Any) -> ScenarioResult:
    """Run a scenario from code without an event loop, or from a notebook that has one; parameters as of `run`."""
    try:
        return run_to_end(lambda: run(name, description, *args, **kwargs))
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None
    except BaseException as error:  # noqa: BLE001 (raised again)
        raise shorten_traceback(error)  # noqa: B904 (the same error, without the frames between)


async def _run_with_arguments(given: dict[str, Any], *, threaded: bool) -> ScenarioResult:
    """Execute the arguments of `run` and `arun`."""
    for name in refuse_unsupported("run", given.pop("unsupported")):
        raise TypeError(f"run() got an unexpected keyword argument {name!r}")
    runs, threshold = given.pop("runs"), given.pop("pass_rate")
    repeats = {name: given.pop(name) for name in ("early_stop", "allow_environment_errors")}
    of_plan = {name: given.pop(name) for name in _OF_PLAN}
    options = RunOptions(**given)
    # Once for all samples: the second scenario of a name in one test has a recording of its own.
    plan = RunPlan(**of_plan, options=options, threaded=threaded)
    place = choose_cassette_name(plan.name, plan.set_id, plan.description, plan.script, options)
    many_at_once = options.max_concurrency or (runs if REMOTE else None)
    plan = replace(plan, options=replace(options, cassette=place, max_concurrency=many_at_once))
    if runs is None:
        return (await plan.once()).result_or_raise()
    return await run_repeatedly(plan.once, runs, max_concurrency=many_at_once, threshold=threshold, **repeats)
