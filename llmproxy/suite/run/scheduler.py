"""Decision which runs may be concurrent, and which would disturb each other.

    no entities                            all concurrent
    rows of a user of its own              one lane a user, unless a scenario checks another one's rows
    else                                   one lane for all, with a note

In a store that numbers its keys, concurrent runs get varying row ids. That is not allowed while recording: the
recording would depend on the order of runs. In replay it is allowed: the proxy gets the ids of every run's rows and
binds them (`llmproxy.core.bindings`). A run that misses anyway, because an id is at a place that cannot be bound, is
repeated alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmproxy.errors import LLMProxyError
from llmproxy.protocol import OFFLINE
from llmproxy.suite.reading.load import USER, SuiteCase
from llmproxy.suite.run.run_context import RunContext
from llmproxy.suite.schema.steps import Talk, VerifyStep, WaitStep
from llmproxy.suite.schema.values import WaitFor
from llmproxy.suite.stores.protocol import Restorable

_WHOLE = ("truncate", "copy", "hook", "http")
"""Reset policies that remove all users' rows."""


@dataclass(frozen=True, slots=True)
class CaseSchedule:
    users: bool = False
    """Whether runs of different users are concurrent."""
    why_not: str = ""
    """Message if requested concurrency is not possible."""
    bound: frozenset[str] = frozenset()
    """Ids of cases whose concurrent runs rely on bindings: a miss is repeated alone."""
    counters: Sequence[tuple[Restorable, Mapping[str, tuple[int, bool]]]] = ()
    """Key counters at the start."""


async def plan_parallel_cases(run_context: RunContext, cases: Iterable[SuiteCase]) -> CaseSchedule:
    """Return the schedule; queries the stores."""
    if run_context.options.parallel < 2:
        return CaseSchedule()
    bound, stores = set[str](), dict[int, tuple[Restorable, list[str]]]()
    for case in {each.id: each for each in cases}.values():
        names = run_context.list_entities(case)
        if not names:
            continue
        why, counted = await asyncio.to_thread(_explain_conflict, run_context, case, names)
        if why:
            return CaseSchedule(why_not=why)
        if counted and (made := run_context.store_for(case)) is not None:
            bound.add(case.id)
            store, policy = made
            if isinstance(store, Restorable) and (policy.reset, policy.counters) == ("delete", "restore"):
                stores.setdefault(id(store), (store, []))[1].extend(names)
    counters = [(store, await asyncio.to_thread(store.counters, names)) for store, names in stores.values()]
    return CaseSchedule(users=True, bound=frozenset(bound), counters=counters)


def _explain_conflict(run_context: RunContext, case: SuiteCase, names: Sequence[str]) -> tuple[str, bool]:
    """Return why runs of a suite with these entities disturb each other, and whether concurrent ids vary."""
    try:
        made = run_context.store_for(case)
        known = [] if made is None else [made[0].describe(name) for name in names]
    except LLMProxyError:  # the run itself says so
        made, known = None, []
    without = next((info.name for info in known if info.user is None), "" if known else names[0])
    if without:
        return f"{without} has no user column, so their rows are not told apart", False
    if made is not None and made[1].reset in _WHOLE:
        return f"`store.reset: {made[1].reset}` takes the rows of all of them away", False
    if other := _find_entity_of_other_owner(case, {info.name: info.user for info in known}):
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


def _find_entity_of_other_owner(case: SuiteCase, owners: Mapping[str, str | None]) -> str:
    """Return an entity whose rows a scenario selects by owner, whoever that is; empty if there is none."""
    for step in case.scenario.steps:
        looks: list[tuple[str, Mapping[str, object] | None]] = []
        if isinstance(step, Talk):
            looks += [(item.entity, item.fields) for item in step.created or ()]
        elif isinstance(step, VerifyStep):
            looks.append((step.verify.entity, step.verify.filters))
        elif isinstance(step, WaitStep) and isinstance(step.wait, WaitFor):
            looks.append((step.wait.entity, step.wait.filters))
        for entity, said in looks:
            owner = (said or {}).get(owners.get(entity) or "")
            if owner is not None and owner not in (*_OWN, case.scenario.user_id or USER):
                return entity
    return ""


_OWN = ("$userId", "${userId}")
"""A run's own user, as written in suites."""
