"""One run of a scenario on a store in memory, with a clock that only moves when somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmproxy.report.events import Assertion
from llmproxy.suite.checks.row_checks import check_created_rows
from llmproxy.suite.checks.row_selection import CaseStoreCleaner, RowCheckContext
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import CreatedRowsAssertion
from llmproxy.suite.stores import MemoryEntityStore, Row, StoreLost
from llmproxy.suite.stores.protocol import DeclaredEntityColumns

COLUMNS = ("title", "status", "priority", "parentId", "data", "dueDate")


@dataclass
class Run:
    """A run, with hands on its clock and its store."""

    store: MemoryEntityStore
    scope: CaseVariables
    look: RowCheckContext
    cleaner: CaseStoreCleaner
    later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        due = [act for at, act in self.later if at <= self.now]
        self.later = [(at, act) for at, act in self.later if at > self.now]
        for act in due:
            act()

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self.later.append((self.now + seconds, act))

    def add(self, title: str, **more: Any) -> Row:
        return self.store.insert("tasks", {"title": title, "userId": "anna", **more})


class Flaky(MemoryEntityStore):
    """A store that is away while it is told to be."""

    away = False

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> list[Row]:
        if self.away:
            raise StoreLost("the store cannot be reached")
        return super().list(entity, filters, limit)


def run(*, columns: Sequence[str] = COLUMNS, user: str | None = "anna", names: Sequence[str] = (), **more: Any) -> Run:
    """Begin a run for the user anna; without `columns` the store knows only what it has seen."""
    store = Flaky(
        {"tasks": DeclaredEntityColumns(user="userId", columns=tuple(columns)), "notes": DeclaredEntityColumns()}
    )
    scope = CaseVariables({"userId": user}, declared=names)
    cleaner = CaseStoreCleaner(store, user=user)
    made: Run
    look = RowCheckContext(adapter=store, scope=scope, user=user, cleaner=cleaner, clock=lambda: made.now,
                   sleep=lambda seconds: made.sleep(seconds), **more)  # fmt: skip  # noqa: PLW0108 - made a few lines below
    made = Run(store, scope, look, cleaner)
    return made


def created(look: RowCheckContext, before: Any, **wanted: Any) -> list[str]:
    """Check one item of `created`, of tasks."""
    return lines(check_created_rows(look, before, [CreatedRowsAssertion(entity="tasks", **wanted)]))


def lines(assertions: Sequence[Assertion]) -> list[str]:
    return [f"{each.status} {each.name}" + (f": {each.message}" if each.message else "") for each in assertions]
