"""What a step may say about entities, as plain values, and what one run needs to look at them. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llmproxy.errors import SuiteError
from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.entities.cleanup import Cleaner
from llmproxy.suite.checks.entities.rows import build_broken
from llmproxy.suite.matchers.variables import StepError, VariableScope
from llmproxy.suite.stores.protocol import EntityInfo, Row, StoreAdapter

TIMEOUT = 30_000
POLL = 1_000
_SHOWN_IDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedEntity:
    """One item of `created`."""

    entity: str
    fields: Mapping[str, object] = field(default_factory=dict)
    count: object = None
    """A number or comparisons; None: at least one."""
    alias: str = ""
    """`as`, with or without $."""
    within: float = 0
    overwrite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyItem:
    """What `verify` says."""

    entity: str
    id: object = None
    filters: Mapping[str, object] = field(default_factory=dict)
    fields: Mapping[str, object] = field(default_factory=dict)
    count: object = None
    exists: bool | None = None
    alias: str = ""
    overwrite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSpec:
    """What `wait` says."""

    entity: str
    until: Mapping[str, object]
    id: object = None
    filters: Mapping[str, object] = field(default_factory=dict)
    timeout: float = TIMEOUT
    poll: float = POLL
    alias: str = ""
    overwrite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """One run of one scenario, as far as rows are concerned."""

    adapter: StoreAdapter | None
    """None where the suite has no store: every look at an entity is an error then."""
    scope: VariableScope
    """Names; rows are captured into it."""
    user: str | None
    """Whose rows are looked at, where an entity knows users; None: everybody's."""
    clock: Callable[[], float]
    """Seconds that only grow."""
    sleep: Callable[[float], None]
    """Waits this many seconds; may raise to end a wait early."""
    cleaner: Cleaner | None = None
    """Is told of every row that is to be removed afterwards."""
    alone: bool = True
    """Whether no other run writes meanwhile, so that every new row is the agent's."""
    beside: frozenset[str] = frozenset()
    """Users of the other runs; where they may go on meanwhile, empty says that nobody knows them."""
    remarks: list[str] = field(default_factory=list)
    """What should be said beside the result, although it changes nothing."""

    def is_foreign(self, owner: object) -> bool:
        """Tell whether a row of this owner is of nobody whose run goes on, so that the agent of this one may have made it."""
        return owner != self.user and (self.alone or bool(self.beside and owner not in self.beside))

    @property
    def store(self) -> StoreAdapter:
        """The store; SuiteError if there is none."""
        if self.adapter is None:
            raise SuiteError(
                "the suite looks at entities, and no store is configured",
                hint="Say where they are: store: {sqlalchemy: 'sqlite:///tasks.db'}",
            )
        return self.adapter


def all_passed(assertions: Sequence[Assertion]) -> bool:
    """Tell whether there is none that did not pass."""
    return all(each.status is Status.PASSED for each in assertions)


def with_more(assertion: Assertion, more: str) -> Assertion:
    """Add to the message of an assertion that did not pass."""
    if assertion.status is Status.PASSED:
        return assertion
    return replace(assertion, message=f"{assertion.message} ({more})" if assertion.message else more)


def whose(info: EntityInfo, user: str | None) -> str:
    """Say whose rows were looked at, where that narrows anything."""
    return f" for the user {user!r} ({info.user})" if info.user is not None and user is not None else ""


def bind(
    run: Looking, name: str, info: EntityInfo, rows: Sequence[Row], alias: str, *, overwrite: bool
) -> list[Assertion]:
    """Capture the one row; which one is meant must not be guessed. Returns what went wrong."""
    if len(rows) == 1:
        try:
            run.scope.capture(alias, rows[0], primary=info.key, overwrite=overwrite)
        except StepError as error:
            return [build_broken(f"{name}.as", error)]
        run.scope.note_row(alias, info.name, rows[0], info.key)
        return []
    more = " ..." if len(rows) > _SHOWN_IDS else ""
    ids = ", ".join(repr(row[info.key]) for row in rows[:_SHOWN_IDS]) + more
    what = f"{len(rows)} rows of {info.name} could be meant ({info.key} {ids})" if rows else "there is no row to name"
    return [
        build_broken(
            f"{name}.as", StepError(f"{alias}: {what}", hint="Add fields that only one row has." if rows else "")
        )
    ]
