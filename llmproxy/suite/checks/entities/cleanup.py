"""Cleanup of the store after a run, so that the next run, and the replay, find the same rows.

`delete` removes what setup inserted and what `created` found, and where rows have a user, every row that appeared for
the run's user. Counters of keys go back to where they stood before the run, if nothing else ran meanwhile. What could
not be cleaned is said, not raised: the run's result stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmproxy.amount_formatting import format_count
from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.suite.stores.config import ResetPolicy, load_attribute
from llmproxy.suite.stores.protocol import Id, Restorable, Snapshot, StoreAdapter

_SHOWN = 5


@dataclass(slots=True)
class RowCleaner:
    store: StoreAdapter
    policy: ResetPolicy = field(default_factory=ResetPolicy)
    user: str | None = None
    alone: bool = True
    """Whether no other run uses the store meanwhile; only then counters are restored."""
    hook: Callable[[StoreAdapter], object] | None = None
    remarks: list[str] = field(default_factory=list)
    """New rows that remain in the store, one sentence an entity; set by `clean_up`."""
    _rows: dict[tuple[str, Id], None] = field(default_factory=dict)
    _before: Snapshot | None = None
    _counters: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    _all: Snapshot | None = None

    def begin_run(self, entities: Sequence[str]) -> None:
        """Reset the store if requested, and remember existing rows of the entities. Raises StoreError, SuiteError."""
        if self.policy.reset == "copy" and isinstance(self.store, Restorable):
            self.store.mark()
        elif self.policy.reset in {"truncate", "http", "hook"}:
            self._reset_store()
        if self.policy.reset != "delete":
            return
        known = [self.store.describe(name) for name in dict.fromkeys(entities)]
        owned = [info.name for info in known if info.user is not None] if self.user is not None else []
        if owned:
            self._before = self.store.snapshot(owned, self.user)
        if known and (owned or self.alone):
            with suppress(LLMProxyError):  # a service that tells nobody about everybody's rows
                self._all = self.store.snapshot([info.name for info in known], None)
        if self.alone and self.policy.counters == "restore" and isinstance(self.store, Restorable):
            self._counters = self.store.counters([info.name for info in known])

    def add_row(self, entity: str, id: Id) -> None:  # noqa: A002 - the word that suites use
        self._rows[entity, id] = None

    def clean_up(self) -> list[str]:
        """Clean up; returns failures, one sentence each."""
        try:
            if self.policy.reset != "delete":
                if self.policy.reset != "none":
                    self._reset_store()
                return []
            if self._before is not None:
                for entity, rows in self.store.changes(self._before).items():
                    key = self.store.describe(entity).key
                    there = self._all.ids.get(entity, frozenset()) if self._all else frozenset()
                    # A row that was there before for somebody else is not the run's to delete.
                    self._rows |= {(entity, row[key]): None for row in rows if row[key] not in there}
            notes = self._delete_rows()
            self._report_leftover_rows()
            if self._counters and isinstance(self.store, Restorable):
                self.store.rewind(self._counters)
        except LLMProxyError as error:
            return [f"the store was not cleaned up: {error}"]
        return notes

    def _report_leftover_rows(self) -> None:
        """Note new rows that remain: of other users or without one, so not known to be the run's."""
        if self._all is None or not self.alone:
            return
        with suppress(LLMProxyError):
            for entity, rows in self.store.changes(self._all).items():
                if rows:
                    key = self.store.describe(entity).key
                    shown = ", ".join(repr(row[key]) for row in rows[:_SHOWN]) + (" ..." if len(rows) > _SHOWN else "")
                    which = f"{format_count(len(rows), 'row')} of {entity}"
                    self.remarks.append(
                        f"{which} appeared and stay{'' if len(rows) > 1 else 's'} ({key} {shown}); see `store.reset`"
                    )

    def _delete_rows(self) -> list[str]:
        """Delete newest first; rows that others still reference are retried after those."""
        left = list(reversed(self._rows))
        while left:
            errors: dict[tuple[str, Id], LLMProxyError] = {}
            for entity, id_ in left:
                try:
                    self.store.delete(entity, id_)
                except LLMProxyError as error:
                    errors[entity, id_] = error
            if len(errors) == len(left):
                return [f"{entity} {id_!r} could not be deleted: {error}" for (entity, id_), error in errors.items()]
            left = list(errors)
        return []

    def _reset_store(self) -> None:
        if self.policy.reset != "hook":
            self.store.reset()
            return
        if self.hook is None:
            raise SuiteError("store.reset: hook, and no hook was loaded")
        try:
            self.hook(self.store)
        except LLMProxyError:
            raise
        except Exception as error:
            raise SuiteError(
                f"store.reset: the hook {self.policy.target} failed: {type(error).__name__}: {error}"
            ) from error


def load_reset_hook(policy: ResetPolicy, folder: Path) -> Callable[[StoreAdapter], object] | None:
    """Load a policy's hook; None if it has none. Raises SuiteError if it is not callable."""
    if policy.reset != "hook":
        return None
    found: Any = load_attribute(policy.target, folder, "store.reset.hook")
    if not callable(found):
        raise SuiteError(f"store.reset.hook: {policy.target} is no function")
    hook: Callable[[StoreAdapter], object] = found
    return hook
