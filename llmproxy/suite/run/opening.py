"""What a run needs, opened in order and given back in the opposite one, however far it came.

    session at the proxy -> store (reset, remembered) -> hooks -> agent        steps        agent -> teardown -> store -> hooks -> session

What goes wrong on the way back does not change how the run ended; it is told beside it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.scenario.proxy.uncancelled import in_thread, to_the_end
from llmproxy.scenario.values.fault import told
from llmproxy.suite.checks.entities.cleanup import Cleaner, hook_of
from llmproxy.suite.checks.entities.ids import agent_environment, user_of
from llmproxy.suite.checks.entities.items import Looking
from llmproxy.suite.checks.entities.looking import Entities
from llmproxy.suite.checks.entities.rows import select
from llmproxy.suite.reading.load import USER
from llmproxy.suite.run.acting.conversations import Conversations
from llmproxy.suite.run.acting.faults import asked_faults
from llmproxy.suite.run.acting.late import find_late_calls
from llmproxy.suite.run.acting.stage import Stage
from llmproxy.suite.run.hooks import run_hook
from llmproxy.suite.run.mocks import asked_mocks
from llmproxy.suite.run.world import entities_of

if TYPE_CHECKING:
    from llmproxy.client.control.client import Report
    from llmproxy.report.events import Started
    from llmproxy.scenario.agent_adapter import AgentAdapter
    from llmproxy.scenario.proxy.session import RunSession
    from llmproxy.suite.matchers.variables import Scope
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.acting.rejudge import RecordedRuns
    from llmproxy.suite.run.world import World
    from llmproxy.suite.schema.suite import Hook, Teardown
    from llmproxy.suite.stores import StoreAdapter

__all__ = ["Opened", "closed", "opened"]

_PATIENCE = 30.0
"""Seconds while another process has the session open."""


@dataclass(slots=True)
class Opened:
    """A run that may begin."""

    stage: Stage
    back: list[tuple[str, Callable[[], Awaitable[list[str]]]]] = field(default_factory=list)
    """What has to be given back, the last one first: what it is, and how; gives what went wrong."""
    late: list[str] = field(default_factory=list)
    """Calls of the agent that came after the end of the scenario, named."""


async def opened(
    world: World, case: SuiteCase, begun: Started, *, alone: bool, see: Callable[[Report | None], None] = lambda _: None
) -> Opened:
    """Open everything for a run. Raises what stands in the way, after what was opened is given back.

    `see` is shown the session first, and may raise: where nothing is recorded, neither store nor agent is of interest.
    """
    back: list[tuple[str, Callable[[], Awaitable[list[str]]]]] = []
    try:
        return await _opened(world, case, begun, back, alone=alone, see=see)
    except BaseException:
        await to_the_end(_give_back(back))
        raise


async def _opened(
    world: World,
    case: SuiteCase,
    begun: Started,
    back: list[tuple[str, Callable[[], Awaitable[list[str]]]]],
    *,
    alone: bool,
    see: Callable[[Report | None], None],
) -> Opened:
    user = user_of(case.scenario.user_id or USER, begun.sample)
    scope = case.scope(run=begun.sample, user=user)
    if world.recorded is not None:
        return await _recorded(world, case, begun, back, world.recorded, scope=scope, user=user)
    session = await _session(world, begun, case, scope)
    if session is not None:
        back.append(("the session", lambda: _quiet(session.close())))
    see(None if session is None else session.opened)
    made = await in_thread(world.store_for, case)
    cleaner: Cleaner | None = None
    if made is not None:
        store, policy = made
        cleaner = Cleaner(store, policy, user=user, alone=alone, hook=hook_of(policy, case.folder))
        names = world.entities_for(case)
        await in_thread(lambda: cleaner.begin(_known(store, names, entities_of(case.scenario))))
        finish = cleaner.finish
        back.append(("the store", lambda: asyncio.to_thread(finish)))
    looking = Looking(
        adapter=None if made is None else made[0],
        scope=scope,
        user=user,
        clock=world.clock,
        sleep=world.sleep,
        cleaner=cleaner,
        alone=alone,
        beside=world.users - {user},
    )
    deterministic = made is not None and made[1].ids == "deterministic"
    agent = _settled(world.agent_for(case), case, begun.sample)
    if session is not None and (declared := _circumstances(agent)):
        await session.declare(declared)
    remarks = (looking.remarks, cleaner.remarks if cleaner else [])
    stage = Stage(
        remarks=remarks,
        case=case,
        run_id=begun.run_id,
        sample=begun.sample,
        options=world.options,
        scope=scope,
        entities=Entities(
            looking, scenario=case.id, sample=begun.sample, deterministic=deterministic, names=world.entities_for(case)
        ),
        agent=agent,
        session=session,
        conversations=Conversations(begun.cassette, begun.sample, fresh=_outlives(agent)),
        snapshots=world.snapshots_for(case),
        user=user,
        emit=world.emit,
        clock=world.clock,
        now=world.now,
        rerun=begun.rerun,
    )
    hooks = case.suite.hooks
    if hooks is not None:
        back.append(("afterEach", lambda: _hooks(hooks.after_each, stage)))
        for hook in hooks.before_each:
            await run_hook(hook, case.folder, stage.environment(), "beforeEach")
    back.append(("teardown", lambda: _teardown(stage, looking)))
    back.append(("the agent", lambda: _quiet(agent.close())))
    await agent.open(session)
    made_up = Opened(stage, back)
    if session is not None:
        back[0] = ("the session", lambda: _last(made_up, session))
    return made_up


async def _last(run: Opened, session: RunSession) -> list[str]:
    """Close the session, and name the calls that nobody has looked at."""
    strays = await run.stage.strays()
    named = await session.strays() if strays else []
    report = await session.close(run.stage.cursor)
    if report.further is None:
        return ["the proxy is of an earlier version: it does not tell which calls came last."]
    run.late += find_late_calls(run.stage, report.further, strays, named)
    return []


def _known(store: StoreAdapter, names: list[str], own: list[str]) -> list[str]:
    """Leave out what only other scenarios name and the store does not have: that is their error, not this one's."""
    found = []
    for name in names:
        try:
            store.describe(name)
        except SuiteError:
            if name not in own:
                continue
        found.append(name)
    return found


async def _session(world: World, begun: Started, case: SuiteCase, scope: Scope) -> RunSession | None:
    mocks = asked_mocks(case, scope, proxy=bool(world.proxy))
    faults = asked_faults(case.scenario.faults, case.folder)
    if not world.proxy and faults is not None:
        raise SuiteError("faults: this scenario has no proxy, so nothing can be broken on purpose.")
    if not world.proxy:
        return None
    from llmproxy.scenario.proxy.session import RunSession
    from llmproxy.suite.run.acting.simulate import upstreams_for

    return await RunSession.open(
        world.proxy,
        cassette=begun.cassette,
        sample=begun.sample,
        mode=world.options.mode,
        token=world.token,
        patience=_PATIENCE,
        upstreams=upstreams_for(case),
        faults=world.faults or faults,
        mocks=mocks,
    )


async def _recorded(
    world: World,
    case: SuiteCase,
    begun: Started,
    back: list[tuple[str, Callable[[], Awaitable[list[str]]]]],
    recorded: RecordedRuns,
    *,
    scope: Scope,
    user: str,
) -> Opened:
    """Open a recorded run to be judged again: with a session for judges; no store, no hook and no agent."""
    from llmproxy.suite.run.acting.rejudge import RecordedAgent, RejudgeSession
    from llmproxy.suite.run.acting.simulate import upstreams_for

    run = recorded.find(case.id, begun.sample)
    if not world.proxy:
        raise SuiteError(f"{case.id}: what was recorded is looked at through a proxy, and there is none.")
    session = await RejudgeSession.open(
        world.proxy,
        cassette=f"{begun.cassette}.rejudge",
        sample=begun.sample,
        mode=world.options.mode,
        token=world.token,
        patience=_PATIENCE,
        upstreams=upstreams_for(case),
    )
    back.append(("the session", lambda: _quiet(session.close())))
    agent = RecordedAgent(run, session, await in_thread(recorded.calls, run, session.control))
    looking = Looking(adapter=None, scope=scope, user=user, clock=world.clock, sleep=world.sleep)
    stage = Stage(
        case=case,
        run_id=begun.run_id,
        sample=begun.sample,
        options=world.options,
        scope=scope,
        entities=Entities(looking, scenario=case.id, sample=begun.sample),
        agent=agent,
        recorded=agent,
        session=session,
        conversations=Conversations(begun.cassette, begun.sample),
        snapshots=world.snapshots_for(case),
        user=user,
        emit=world.emit,
        clock=world.clock,
        now=world.now,
        rerun=begun.rerun,
    )
    stage.labels.append(f"judged again: what was recorded as {run.run_id}")
    return Opened(stage, back)


def _circumstances(agent: AgentAdapter) -> list[dict[str, str]]:
    """Return what is true of an agent's run: of one that we start, or that runs here. Of a service nobody knows where it runs."""
    from llmproxy.client.environment.circumstances import gather_circumstances
    from llmproxy.scenario.agents.command import CommandAgent

    if isinstance(agent, CommandAgent):
        return gather_circumstances({**os.environ, **agent.env}, agent.cwd or Path.cwd())
    return gather_circumstances(os.environ, Path.cwd()) if agent.in_process else []


def _settled(agent: AgentAdapter, case: SuiteCase, sample: int) -> AgentAdapter:
    """Tell a spawned agent a time and a seed that are the same in every execution, unless its description says others."""
    from llmproxy.scenario.agents.command import CommandAgent

    if isinstance(agent, CommandAgent):
        agent.env = {**agent_environment(case.id, sample), **agent.env}
    return agent


def _outlives(agent: AgentAdapter) -> bool:
    """Tell whether an agent lives longer than a run, so that it may remember conversations of earlier ones."""
    from llmproxy.scenario.agents.command import CommandAgent

    return not agent.in_process and not isinstance(agent, CommandAgent)


# -- back ------------------------------------------------------------------------------------------------------------------


async def closed(opened_run: Opened) -> tuple[list[str], Report | None]:
    """Give everything back; returns what went wrong, and what the session came to."""
    notes = await _give_back(opened_run.back)
    session = opened_run.stage.session
    try:
        return notes, None if session is None else await session.close()
    except LLMProxyError:  # it was told when the session was given back
        return notes, None


async def _give_back(back: list[tuple[str, Callable[[], Awaitable[list[str]]]]]) -> list[str]:
    notes: list[str] = []
    while back:
        what, give = back.pop()
        try:
            notes += await give()
        except Exception as error:  # noqa: BLE001 - the rest has to be given back too
            notes.append(f"{what} could not be closed: {told(error)}")
    return notes


async def _quiet(pending: Awaitable[object]) -> list[str]:
    await pending
    return []


async def _hooks(hooks: tuple[Hook, ...], stage: Stage) -> list[str]:
    notes: list[str] = []
    for hook in hooks:
        try:
            await run_hook(hook, stage.case.folder, stage.environment(), "afterEach")
        except LLMProxyError as error:
            notes.append(str(error))
    return notes


async def _teardown(stage: Stage, looking: Looking) -> list[str]:
    notes: list[str] = []
    for item in stage.case.scenario.teardown:
        try:
            if item.delete:
                await in_thread(_delete, item, stage, looking)
            else:
                await run_hook(item, stage.case.folder, stage.environment(), "teardown")
        except LLMProxyError as error:
            notes.append(f"teardown: {error}")
    return notes


def _delete(item: Teardown, stage: Stage, looking: Looking) -> None:
    store: StoreAdapter = looking.store
    info = store.describe(item.delete or "")
    if item.id is not None:
        store.delete(info.name, stage.scope.resolve(item.id))
    if item.filters is not None:
        for row in select(store, info, item.filters, stage.scope, looking.user):
            store.delete(info.name, row[info.key])
