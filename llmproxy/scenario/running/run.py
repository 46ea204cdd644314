"""Entry points of scenarios: `run` on a thread of its own, `arun` on the caller's loop, `run_sync` without a loop.

A caller that cancels `run` gets control back within a second, even if the worker is blocked: Python cannot stop a
thread, so it is abandoned and reported. The same holds for timeouts that a blocked thread cannot notice.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, cast, overload
from weakref import WeakKeyDictionary

from llmproxy.report.events import HandlerLike, Status
from llmproxy.scenario.config import UNSET, refuse_unsupported_arguments
from llmproxy.scenario.repeats.repeats import RepeatResult, RunOutcome, run_repeatedly
from llmproxy.scenario.running.agent_caller import submit_call_to_daemon_thread
from llmproxy.scenario.running.executor import ScenarioExecutor, choose_cassette_name
from llmproxy.scenario.types import Message, ScenarioResult, ScriptStep
from llmproxy.scenario.values.run_ids_and_options import (
    CALL_TIMEOUT,
    ScenarioRunOptions,
    classify_run_error,
    strip_own_frames_from_error,
)

_GRACE = 0.8
"""Seconds that a cancelled run may take to end; within one second the waiter is released."""
_SLACK = 1.0
"""Seconds that a run may take to notice a timeout by itself."""
_PATIENCE = 3600.0
"""Seconds between two checks of a run without any time limit."""
_log = logging.getLogger(__name__)


@dataclass
class _RunThread:
    executor: ScenarioExecutor
    ended: Future[ScenarioResult] = field(default_factory=Future)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    task: asyncio.Task[ScenarioResult] | None = None

    def run_thread(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.task = self.loop.create_task(self.executor.run())
            end = partial(self.ended.set_result, self.loop.run_until_complete(self.task))
        except BaseException as error:  # noqa: BLE001 (raised again where somebody waits)
            end = partial(self.ended.set_exception, error)
        try:
            _close_loop(self.loop)
            self.executor.event_bus.drain()
        finally:
            end()

    def cancel_run(self) -> None:
        try:
            self.loop.call_soon_threadsafe(lambda: self.task.cancel() if self.task else None)
        except RuntimeError:
            _log.debug("cancel: the run had ended")


async def run_scenario_in_new_thread(executor: ScenarioExecutor) -> ScenarioResult:
    """Run a scenario on a thread of its own. Raises its exceptions, for a blocked thread its time limit's error."""
    worker = _RunThread(executor)
    worker.ended.set_running_or_notify_cancel()
    done = asyncio.wrap_future(worker.ended)
    context = contextvars.copy_context()
    name = f"scenario {executor.name}"[:40]
    threading.Thread(target=context.run, args=(worker.run_thread,), name=name, daemon=True).start()
    try:
        await _wait_within_limit(worker, done)
    except asyncio.CancelledError:
        worker.cancel_run()
        await asyncio.wait((done,), timeout=_GRACE)
        if not done.done():
            _abandon_thread(executor, asyncio.CancelledError("cancelled"))
        raise
    finally:
        if not done.cancel():  # nobody waits for a thread that was given up
            done.exception()  # it was looked at
    return worker.ended.result()  # `done` has a copy of some errors, without their traceback


async def _wait_within_limit(worker: _RunThread, done: asyncio.Future[ScenarioResult]) -> None:
    """Wait for the end. Raises the error of an exceeded time limit that the blocked thread cannot notice."""
    while not done.done():
        left = worker.executor.lifecycle.get_nearest_limit_seconds()
        await asyncio.wait((done,), timeout=_PATIENCE if left is None else max(left, 0.0) + _SLACK)
        left = worker.executor.lifecycle.get_nearest_limit_seconds()
        if not done.done() and left is not None and left < -_SLACK / 2:
            error = worker.executor.lifecycle.build_exceeded_time_limit_error()
            worker.cancel_run()
            _abandon_thread(worker.executor, error)
            raise error


def _abandon_thread(executor: ScenarioExecutor, error: BaseException) -> None:
    busy = executor.lifecycle.caller.busy
    _log.warning(
        "scenario %r was given up while its thread is blocked%s; the thread goes on until the call returns",
        executor.name,
        f" in {type(busy).__name__}.call" if busy else "",
    )
    executor.lifecycle.end_hung_run(error)


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel tasks that an adapter left on the loop, and close it."""
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_GRACE))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def run_coroutine_to_end(make: Callable[[], Coroutine[Any, Any, ScenarioResult]]) -> ScenarioResult:
    """Run a coroutine to its end and return its result, whether or not a loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    done = submit_call_to_daemon_thread(lambda: asyncio.run(make()))
    while not done.done():
        wait((done,), timeout=0.1)  # in pieces, so that Ctrl-C is heard
    return done.result()


_LIMITS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] = WeakKeyDictionary()
"""Semaphores of `max_concurrency`: runs of one loop with the same number share one."""


REMOTE: list[Callable[[ScenarioRunFunctionArguments, int, int], Awaitable[RunOutcome]]] = []
"""Runs a sample of a plan on another machine, as `ScenarioRunFunctionArguments.once`; empty: local (`scenario.on`)."""


@dataclass(frozen=True, kw_only=True)
class ScenarioRunFunctionArguments:
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
    options: ScenarioRunOptions = field(default_factory=ScenarioRunOptions)
    threaded: bool = True

    def build_executor(self, sample: int = 1, runs: int = 1) -> ScenarioExecutor:
        """Return an executor for one sample; of several, each has adapters of its own."""
        given = {name: getattr(self, name) for name in _OF_PLAN}
        if runs > 1:
            given["agents"] = [_clone_adapter(agent) for agent in self.agents]
        return ScenarioExecutor(**given, options=replace(self.options, sample=sample, runs=runs))

    async def once(self, sample: int = 1, runs: int = 1) -> RunOutcome:
        """Run one sample and return its outcome. Raises only if cancelled, or if the plan is invalid."""
        if REMOTE:
            return await REMOTE[-1](self, sample, runs)
        executor, number = self.build_executor(sample, runs), self.options.max_concurrency
        limits = _LIMITS.setdefault(asyncio.get_running_loop(), {})
        async with nullcontext() if number is None else limits.setdefault(number, asyncio.Semaphore(number)):
            try:
                result = await (
                    run_scenario_in_new_thread(executor) if self.threaded else _run_on_callers_loop(executor)
                )
            except Exception as error:  # noqa: BLE001 (handed to the caller, who decides)
                broken = executor.outcome or executor.build_error_result(error)
                return RunOutcome(broken.status or classify_run_error(error, None), broken, error)
            return RunOutcome(result.status or Status.FAILED, result)


_OF_PLAN = tuple(each.name for each in fields(ScenarioRunFunctionArguments) if each.name not in ("options", "threaded"))


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
        return run_coroutine_to_end(lambda: run(name, description, *args, **kwargs))
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None
    except BaseException as error:  # noqa: BLE001 (raised again)
        raise strip_own_frames_from_error(error)  # noqa: B904 (the same error, without the frames between)


async def _run_with_arguments(given: dict[str, Any], *, threaded: bool) -> ScenarioResult:
    for name in refuse_unsupported_arguments("run", given.pop("unsupported")):
        raise TypeError(f"run() got an unexpected keyword argument {name!r}")
    runs, threshold = given.pop("runs"), given.pop("pass_rate")
    repeats = {name: given.pop(name) for name in ("early_stop", "allow_environment_errors")}
    of_plan = {name: given.pop(name) for name in _OF_PLAN}
    options = ScenarioRunOptions(**given)
    # Once for all samples: the second scenario of a name in one test has a recording of its own.
    plan = ScenarioRunFunctionArguments(**of_plan, options=options, threaded=threaded)
    place = choose_cassette_name(plan.name, plan.set_id, plan.description, plan.script, options)
    many_at_once = options.max_concurrency or (runs if REMOTE else None)
    plan = replace(plan, options=replace(options, cassette=place, max_concurrency=many_at_once))
    if runs is None:
        return (await plan.once()).result_or_raise()
    return await run_repeatedly(plan.once, runs, max_concurrency=many_at_once, threshold=threshold, **repeats)
