"""Resources of a run, opened in order and closed in reverse, however far it came.

The run engine opens and closes the session around them. An error while closing does not change the run's outcome; it is
reported separately.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmproxy.core.forks.overrides import parse_mocks
from llmproxy.errors import LLMProxyError, MachineError, SuiteError
from llmproxy.protocol import append_sample_number_to_name
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.agents.command import CommandAgent
from llmproxy.scenario.run_session import RunSession, run_in_thread_to_end
from llmproxy.scenario.running.agent_caller import AgentCaller, read_run_variables_from_agent_env
from llmproxy.scenario.running.run_lifecycle import EventEmitter, SessionToOpen
from llmproxy.scenario.values.run_ids_and_options import describe_error, describe_sys_exit
from llmproxy.suite.checks.row_selection import (
    CaseStoreCleaner,
    RowCheckContext,
    build_now_and_seed_env,
    load_store_reset_hook,
    select_entity_rows_by_filters,
)
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.reading.load import USER, SuiteCase
from llmproxy.suite.run.run_context import (
    RejudgingSession,
    ReplayingAgentAdapter,
    RunsToRejudge,
    SuiteRunContext,
    list_store_entities_of_scenario,
)
from llmproxy.suite.run.step_context import (
    NamedConversationRegistry,
    StepContext,
    find_judge_and_user_upstreams,
    normalize_suite_faults,
)
from llmproxy.suite.schema.suite import SuiteHook, Teardown
from llmproxy.suite.stores import StoreAdapter
from llmproxy.suite.stores.config import import_module_attribute

_TAIL = 1000


async def run_hook(hook: SuiteHook | Teardown, folder: Path, env: Mapping[str, str], name: str) -> None:
    """Run a hook in the suite's folder, with `env`; `name` is for errors. Raises SuiteError, MachineError."""
    limit = hook.timeout / 1000
    try:
        async with asyncio.timeout(limit):
            if hook.python:
                await _run_hook_function(hook.python, folder, env, name)
            elif hook.command:
                await _run_hook_command(hook.command, folder, env, name)
    except TimeoutError as error:
        raise MachineError(
            f"{name}: the hook did not end within {limit:g} s.", hint="`timeout:` beside it allows more."
        ) from error


async def _run_hook_function(target: str, folder: Path, env: Mapping[str, str], name: str) -> None:
    found: Any = import_module_attribute(target, folder, name)
    if not callable(found):
        raise SuiteError(f"{name}: {target} is no function.")
    given: tuple[dict[str, str], ...] = ()
    with suppress(TypeError, ValueError):  # a callable without a known signature gets nothing
        given = (dict(env),) if inspect.signature(found).parameters else ()
    try:
        value = found(*given) if inspect.iscoroutinefunction(found) else await asyncio.to_thread(found, *given)
        if inspect.isawaitable(value):
            await value
    except LLMProxyError:
        raise
    except SystemExit as error:
        raise MachineError(f"{name}: {describe_sys_exit(target, error)}.") from error
    except Exception as error:
        raise MachineError(f"{name}: {target} failed: {type(error).__name__}: {error}") from error


async def _run_hook_command(command: str | tuple[str, ...], folder: Path, env: Mapping[str, str], name: str) -> None:
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env={**os.environ, **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(f"{name}: {error.filename or command} cannot be executed: {error.strerror}") from error
    except ValueError as error:  # an open quote, a NUL
        raise SuiteError(f"{name}: {command!r} is no command: {error}") from error
    try:
        said, _ = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        await process.wait()
        raise
    if process.returncode:
        tail = said.decode("utf-8", "replace")[-_TAIL:].strip()
        raise MachineError(
            f"{name}: `{shlex.join(words)}` ended with {process.returncode}" + (f":\n{tail}" if tail else "")
        )


def resolve_variables_in_tool_mocks(case: SuiteCase, scope: CaseVariables, *, proxy: bool) -> Mapping[str, Any] | None:
    """Return `mock:` in the form of a session. Raises SuiteError: no proxy; StepError, OverrideError: a reference."""
    if (mock := case.scenario.mock) is None:
        return None
    if not proxy or case.scenario.observe == "none":
        why = "this scenario has no proxy" if not proxy else "with `observe: none` the agent's traffic passes no proxy"
        raise SuiteError(f"mock: {why}, so nothing that the model reads can be swapped.")
    resolved: Mapping[str, Any] = scope.resolve_value(mock)
    parse_mocks(resolved)
    return resolved


class CaseResources:
    scope: CaseVariables
    """The run's variables; set when its session is asked for."""

    def __init__(self, run_context: SuiteRunContext, case: SuiteCase, emitter: EventEmitter, *, alone: bool) -> None:
        self.run_context, self.case, self.emitter, self.alone = run_context, case, emitter, alone
        self.cassette, self.sample = emitter.about.cassette, emitter.about.sample
        self.user = append_sample_number_to_name(case.scenario.user_id or USER, self.sample)
        self.context: StepContext | None = None
        self._back: list[tuple[str, Callable[[], Awaitable[list[str] | None]]]] = []
        """Resources to close, the last one first, with their functions, which return errors."""

    def require_context(self) -> StepContext:
        assert self.context is not None  # noqa: S101 - for who reads types
        return self.context

    async def build_session_request(self) -> SessionToOpen | None:
        """Return the session that the run wants. Raises SuiteError for what takes a proxy where there is none."""
        run_context, case = self.run_context, self.case
        self.scope = scope = case.scope(run=self.sample, user=self.user)
        mode, token = run_context.options.mode, run_context.token
        upstreams = find_judge_and_user_upstreams(case) if run_context.proxy else {}
        how: dict[str, Any] = {"mode": mode, "token": token, "upstreams": upstreams}
        if run_context.recorded is not None:  # judged again, with a session for judges
            run_context.recorded.get_judgeable_run(case.id, self.sample)
            if not run_context.proxy:
                raise SuiteError(f"{case.id}: what was recorded is looked at through a proxy, and there is none.")
            return SessionToOpen(run_context.proxy, self.cassette, self.sample, how, kind=RejudgingSession)
        mocks = resolve_variables_in_tool_mocks(case, scope, proxy=bool(run_context.proxy))
        faults = normalize_suite_faults(case.scenario.faults, case.folder)
        if not run_context.proxy:
            if faults is not None:
                raise SuiteError("faults: this scenario has no proxy, so nothing can be broken on purpose.")
            return None
        how |= {"faults": run_context.faults or faults, "mocks": mocks}
        return SessionToOpen(
            run_context.proxy, self.cassette, self.sample, how, must_inject=case.scenario.faults is not None
        )

    async def open_all_but_session(self, session: RunSession | None, caller: AgentCaller) -> None:
        """Open all but the session. Raises what stands in the way; what was opened by then is to be given back."""
        if self.run_context.recorded is not None:
            await self._open_for_rejudging(self.run_context.recorded, session, caller)
            return
        run_context, case, scope = self.run_context, self.case, self.scope
        made = await run_in_thread_to_end(run_context.get_shared_suite_store, case)
        looking = RowCheckContext(
            adapter=None if made is None else made[0], scope=scope, user=self.user, clock=run_context.clock,
            sleep=run_context.sleep, alone=self.alone, beside=run_context.users - {self.user}, scenario=case.id,
            sample=self.sample, deterministic=made is not None and made[1].ids == "deterministic",
            names=run_context.list_case_entities(case),
        )  # fmt: skip
        if made is not None:
            store, policy = made
            cleaner = looking.cleaner = CaseStoreCleaner(
                store, policy, user=self.user, alone=self.alone, hook=load_store_reset_hook(policy, case.folder),
                remarks=looking.remarks,
            )  # fmt: skip
            own = list_store_entities_of_scenario(case.scenario)
            known = await run_in_thread_to_end(_drop_other_scenarios_unknown_entities, store, looking.names, own)
            await run_in_thread_to_end(cleaner.begin_run, known)
            self._back.append(("the store", lambda: asyncio.to_thread(cleaner.clean_up)))
        agent = run_context.agent_for_case(case)
        if isinstance(agent, CommandAgent):  # with a fixed time and seed, unless its description sets others
            agent.env = {**build_now_and_seed_env(case.id, self.sample), **agent.env}
        if session is not None and (declared := read_run_variables_from_agent_env(agent)):
            await session.declare_run_variables(declared)
        context = self._make_context(session, caller, agent, looking)
        if (hooks := case.suite.hooks) is not None:
            self._back.append(("afterEach", lambda: _run_hooks(hooks.after_each, context)))
            for hook in hooks.before_each:
                await run_hook(hook, case.folder, context.hook_environment(), "beforeEach")
        self._back.append(("teardown", lambda: _run_teardown(context, looking)))
        self._back.append(("the agent", agent.close))
        await agent.open(session)
        self.context = context

    async def _open_for_rejudging(
        self, recorded: RunsToRejudge, session: RunSession | None, caller: AgentCaller
    ) -> None:
        assert isinstance(session, RejudgingSession)  # noqa: S101 - it was asked for
        run = recorded.get_judgeable_run(self.case.id, self.sample)
        calls = await run_in_thread_to_end(recorded.list_run_calls, run, session.control)
        agent = ReplayingAgentAdapter(run, session, calls)
        run_context = self.run_context
        looking = RowCheckContext(
            adapter=None, scope=self.scope, user=self.user, clock=run_context.clock, sleep=run_context.sleep
        )
        context = self._make_context(session, caller, agent, looking)
        context.recorded = agent
        context.labels.append(f"judged again: what was recorded as {run.run_id}")
        self.context = context

    def _make_context(
        self, session: RunSession | None, caller: AgentCaller, agent: AgentAdapter, rows: RowCheckContext
    ) -> StepContext:
        run_context, case = self.run_context, self.case
        context = StepContext(
            run_context=run_context, case=case, emitter=self.emitter, scope=self.scope, user=self.user,
            rows=rows, agent=agent, session=session, caller=caller, snapshots=run_context.snapshots_for(case),
        )  # fmt: skip
        # An agent that lives longer than a run may remember earlier conversations.
        fresh = run_context.recorded is None and not agent.in_process and not isinstance(agent, CommandAgent)
        context.conversations = NamedConversationRegistry(
            self.cassette, self.sample, context.create_conversation, fresh=fresh
        )
        return context

    async def close_all(self) -> list[str]:
        notes: list[str] = []
        while self._back:
            what, give = self._back.pop()
            try:
                notes += await give() or []
            except Exception as error:  # noqa: BLE001 - the rest has to be given back too
                notes.append(f"{what} could not be closed: {describe_error(error)}")
        return notes


def _drop_other_scenarios_unknown_entities(store: StoreAdapter, names: Sequence[str], own: list[str]) -> list[str]:
    """Drop entities that only other scenarios name and the store lacks: that is their error."""
    found = []
    for name in names:
        try:
            store.describe(name)
        except SuiteError:
            if name not in own:
                continue
        found.append(name)
    return found


async def _run_hooks(hooks: tuple[SuiteHook, ...], context: StepContext) -> list[str]:
    notes: list[str] = []
    for hook in hooks:
        try:
            await run_hook(hook, context.case.folder, context.hook_environment(), "afterEach")
        except LLMProxyError as error:
            notes.append(str(error))
    return notes


async def _run_teardown(context: StepContext, looking: RowCheckContext) -> list[str]:
    def delete_rows(item: Teardown, entity: str) -> None:
        store = looking.store
        info = store.describe(entity)
        if item.id is not None:
            store.delete(info.name, context.scope.resolve_value(item.id))
        if item.filters is not None:
            for row in select_entity_rows_by_filters(store, info, item.filters, context.scope, looking.user):
                store.delete(info.name, row[info.key])

    notes: list[str] = []
    for item in context.case.scenario.teardown:
        try:
            if item.delete:
                await run_in_thread_to_end(delete_rows, item, item.delete)
            else:
                await run_hook(item, context.case.folder, context.hook_environment(), "teardown")
        except LLMProxyError as error:
            notes.append(f"teardown: {error}")
    return notes
