"""Which runs may go on at the same time, and which go one after the other because they would disturb each other.

    no entities                            all at once
    rows of a user of its own              one lane a user, unless a scenario looks at another one's rows
    else                                   one lane for all, which is said

A store that counts keys up gives rows other ids when runs go on at once. While something is recorded that must not be:
what is recorded would depend on which run came first. In replay it may be: the proxy is told the ids of every run's
rows and answers with them (`llmproxy.core.bindings`). A run that misses all the same, because an id stands where it
cannot be bound, is repeated alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from llmproxy.errors import LLMProxyError
from llmproxy.protocol import OFFLINE
from llmproxy.report.events import Event
from llmproxy.suite.reading.load import USER, SuiteCase
from llmproxy.suite.run.run_context import RunContext
from llmproxy.suite.schema.steps import Talk, VerifyStep, WaitStep
from llmproxy.suite.schema.values import WaitFor
from llmproxy.suite.stores import ResetPolicy, StoreAdapter
from llmproxy.suite.stores.protocol import Restorable

_WHOLE = ("truncate", "copy", "hook", "http")
"""Ways to reset a store that take everybody's rows away."""


@dataclass(frozen=True, slots=True)
class CaseSchedule:
    users: bool = False
    """Whether runs of different users go on at the same time."""
    why_not: str = ""
    """What to say where runs that were meant to do not."""
    bound: frozenset[str] = frozenset()
    """Ids of cases whose runs are told apart by bindings only: what misses is repeated alone."""
    counters: Sequence[tuple[Restorable, Mapping[str, tuple[int, bool]]]] = ()
    """Where the counters of keys stood before."""

    async def rewind_key_counters(self) -> None:
        """Set counters back to where they stood, as far as no key is in use."""
        for store, known in self.counters:
            await asyncio.to_thread(store.rewind, known)


async def plan_parallel_cases(run_context: RunContext, cases: Iterable[SuiteCase]) -> CaseSchedule:
    """Decide; looks into the stores."""
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
        if counted:
            bound.add(case.id)
            if (store := _find_restorable(run_context.store_for(case))) is not None:
                stores.setdefault(id(store), (store, []))[1].extend(names)
    counters = [(store, await asyncio.to_thread(store.counters, names)) for store, names in stores.values()]
    return CaseSchedule(users=True, bound=frozenset(bound), counters=counters)


def _find_restorable(made: tuple[StoreAdapter, ResetPolicy] | None) -> Restorable | None:
    """Return a store whose counters are to go back."""
    if made is None or not isinstance(made[0], Restorable):
        return None
    return made[0] if made[1].reset == "delete" and made[1].counters == "restore" else None


def _explain_conflict(run_context: RunContext, case: SuiteCase, names: Sequence[str]) -> tuple[str, bool]:
    """Return why runs of a suite with these entities disturb each other, and whether ids differ when run at once."""
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
        f"the store counts the keys of {counted} up, so a row's id would depend on which run comes first, and what is"
        f" recorded would"
        " not be the same twice; in replay they go on at the same time (`store.counters: unused` says that the agent"
        " gives ids of its own)"
    ), False


def _find_entity_of_other_owner(case: SuiteCase, owners: Mapping[str, str | None]) -> str:
    """Return an entity of which a scenario selects rows by their owner, whoever that is; empty if there is none."""
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
"""A run's own user, as suites write it."""


@dataclass(slots=True)
class TentativeEvents:
    """Keeps back what a run tells until it is known whether it counts."""

    run_context: RunContext
    events: list[Event] = field(default_factory=list)

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Nothing to let go."""

    def release_events(self) -> None:
        events, self.events = self.events, []
        for event in events:
            self.run_context.emit_event(event)
