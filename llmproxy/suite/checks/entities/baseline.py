"""What was there when a step began, and what can be said of rows that are not plainly new rows of the run's user.

own          rows of the run's user (of everybody, where rows belong to nobody)
everybody    rows of all users: one of them that is the user's now was given to him, not made
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
    if others:
        with suppress(LLMProxyError):  # a service that tells nobody about everybody's rows
            everybody = run.store.snapshot(others, None)
    contents: dict[str, Mapping[Id, Row]] = {}
    for info in (each for each in infos if each.reuses):
        rows = _all_rows(run, info)
        if len(rows) > MOST_ROWS:
            said = f"{info.name} has more than {MOST_ROWS} rows, so one that was deleted and made anew under its number is not seen"
            run.remarks.extend([said] if said not in run.remarks else [])
        else:
            contents[info.name] = {row[info.key]: row for row in rows}
    return Baseline(own, everybody, contents)


def find_new(run: Looking, info: EntityInfo, before: Baseline) -> tuple[Rows, Rows]:
    """Return the rows of the run's user that were not there, and those that were there and have become his."""
    rows = run.store.changes(Snapshot({info.name: before.own.ids[info.name]}, before.own.user))[info.name]
    there = frozenset[Id]() if before.everybody is None else before.everybody.ids.get(info.name, frozenset())
    return [row for row in rows if row[info.key] not in there], [row for row in rows if row[info.key] in there]


def find_foreign(run: Looking, info: EntityInfo, before: Baseline) -> Rows:
    """Return the new rows that are not the run's user's; none of users whose runs may go on meanwhile."""
    if before.everybody is None or info.name not in before.everybody.ids:
        return []
    only = Snapshot({info.name: before.everybody.ids[info.name]}, None)
    with suppress(LLMProxyError):
        return [row for row in run.store.changes(only)[info.name] if run.is_foreign(row.get(info.user or ""))]
    return []


def find_changed(run: Looking, info: EntityInfo, before: Baseline) -> list[Changed]:
    """Return the rows that may be new ones under old numbers, newest number first.

    A number is given out again only where it and all above it were free: below a row that is as it was, everything was only changed.
    """
    old = before.contents.get(info.name)
    if not old:
        return []
    now = {row[info.key]: row for row in _all_rows(run, info)}
    found: list[Changed] = []
    for key in sorted(
        (each for each in old if _number(each) is not None), key=lambda each: _number(each) or 0, reverse=True
    ):
        if key in now and now[key] == old[key]:
            break
        if key in now:
            found.append(Changed(old[key], now[key]))
    return found


def _number(key: Id) -> float | None:
    """Return the number that a key is, or spells."""
    return float(key) if isinstance(key, int | float) or key.isdecimal() else None


def _all_rows(run: Looking, info: EntityInfo) -> Rows:
    """Return everybody's rows; of a service that tells nobody about them, the user's."""
    try:
        return run.store.list(info.name, {}, MOST_ROWS + 1)
    except LLMProxyError:
        if info.user is None or run.user is None:
            raise
        return run.store.list(info.name, {info.user: run.user}, MOST_ROWS + 1)
