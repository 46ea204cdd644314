"""What was there when a step began, and what can be said of rows that are not plainly new rows of the run's user.

own          rows of the run's user (of everybody, where rows belong to nobody)
everybody    rows of all users, where no other run makes some meanwhile
contents     of rows whose number may be given out again (SQLite without AUTOINCREMENT, REST): a row that was deleted and another
one under its number look like one row that was changed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmproxy.errors import LLMProxyError
from llmproxy.suite.checks.entities.rows import MOST_ROWS
from llmproxy.suite.stores.protocol import EntityInfo, Id, Row, Rows, Snapshot

if TYPE_CHECKING:
    from llmproxy.suite.checks.entities.items import Looking

__all__ = ["Baseline", "Changed", "find_changed", "find_foreign", "take_baseline"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The store when a step began."""

    own: Snapshot
    everybody: Snapshot | None = None
    contents: Mapping[str, Mapping[Id, Row]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changed:
    """A row that is another one than before, under the same key."""

    before: Row
    now: Row


def take_baseline(run: Looking, entities: Sequence[str]) -> Baseline:
    """Remember what is there. Raises LLMProxyError if it cannot be looked at."""
    names = list(dict.fromkeys(entities))
    infos = [run.store.describe(name) for name in names]
    own = run.store.snapshot(names, run.user)
    everybody: Snapshot | None = None
    others = [info.name for info in infos if info.user is not None and run.user is not None]
    if others and run.alone:
        with suppress(LLMProxyError):  # a service that tells nobody about everybody's rows
            everybody = run.store.snapshot(others, None)
    contents: dict[str, Mapping[Id, Row]] = {}
    for info in (each for each in infos if each.reuses):
        rows = run.store.list(info.name, _scope(info, run.user), MOST_ROWS + 1)
        if len(rows) <= MOST_ROWS:
            contents[info.name] = {row[info.key]: row for row in rows}
    return Baseline(own, everybody, contents)


def find_foreign(run: Looking, info: EntityInfo, before: Baseline) -> Rows:
    """Return the new rows that are not the run's user's."""
    if before.everybody is None or info.name not in before.everybody.ids:
        return []
    only = Snapshot({info.name: before.everybody.ids[info.name]}, None)
    with suppress(LLMProxyError):
        return [row for row in run.store.changes(only)[info.name] if row.get(info.user or "") != run.user]
    return []


def find_changed(run: Looking, info: EntityInfo, before: Baseline) -> list[Changed]:
    """Return the rows that may be new ones under old numbers, newest number first.

    A number is given out again only where it and all above it were free: below a row that is as it was, everything was only changed.
    """
    old = before.contents.get(info.name)
    if not old:
        return []
    now = {row[info.key]: row for row in run.store.list(info.name, _scope(info, run.user), MOST_ROWS + 1)}
    found: list[Changed] = []
    for key in sorted((each for each in old if isinstance(each, int | float)), reverse=True):
        if key in now and now[key] == old[key]:
            break
        if key in now:
            found.append(Changed(old[key], now[key]))
    return found


def _scope(info: EntityInfo, user: str | None) -> dict[str, str]:
    return {} if info.user is None or user is None else {info.user: user}
