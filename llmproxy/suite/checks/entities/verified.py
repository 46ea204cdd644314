"""Checks `verify` and `wait`: what is there now, and what is there in the end.

With an id that row must exist (`exists: false`: must not). With filters the rows that they select: at least one, unless `count` allows
none, and the fields must hold for every one. `wait` asks this until it holds; a store that fails meanwhile is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from llmproxy.amounts import format_count as amount
from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.entities.items import Looking, VerifyItem, WaitSpec, all_passed, bind, whose, with_more
from llmproxy.suite.checks.entities.rows import (
    build_broken,
    choose_rows,
    judge_rows,
    key_text,
    known_columns,
    row_assertions,
    row_text,
    select,
)
from llmproxy.suite.matchers.table import check_number
from llmproxy.suite.matchers.variables import StepError
from llmproxy.suite.stores.plain import from_plain
from llmproxy.suite.stores.protocol import EntityInfo, Kind, Row, StoreError, UnknownColumn
from llmproxy.suite.stores.sql_map import key_value

_SHOWN = 3
"""Rows of other users that are named."""
_FAILING_ROWS = 5
"""Rows whose fields are shown one by one when several are wrong."""


@dataclass(frozen=True, slots=True)
class _Look:
    info: EntityInfo
    rows: list[Row]
    assertions: list[Assertion]


def check_verify(run: Looking, name: str, wanted: VerifyItem) -> list[Assertion]:
    try:
        if wanted.id is None and not wanted.filters and wanted.count is None:
            raise SuiteError(
                f"{name} of {wanted.entity} says neither id, filters nor count", hint="Which rows are meant?"
            )
        look = _look(run, name, wanted)
    except LLMProxyError as error:
        return [build_broken(name, error)]
    if wanted.alias and all_passed(look.assertions):
        bound = bind(run, name, look.info, look.rows, wanted.alias, overwrite=wanted.overwrite)
        return look.assertions + bound
    return look.assertions


def check_wait(run: Looking, name: str, wanted: WaitSpec) -> list[Assertion]:
    """Look until it holds, or the time is over."""
    if wanted.id is None and not wanted.filters:
        return [build_broken(name, SuiteError(f"{name} for {wanted.entity} says neither id nor filters"))]
    verify = VerifyItem(entity=wanted.entity, id=wanted.id, filters=wanted.filters, fields=wanted.until)
    start = run.clock()
    last: Row | None = None
    while True:
        look: _Look | None = None
        try:
            look = _look(run, name, verify)
            assertions = look.assertions
            last = look.rows[0] if look.rows else last
        except StoreError as error:
            assertions = [build_broken(name, error)]
        except LLMProxyError as error:
            # A service may leave a member out until it has a value; a table has all of its columns.
            if not isinstance(error, UnknownColumn) or _is_closed(run, wanted.entity):
                return [build_broken(name, error)]
            assertions = [build_broken(name, error)]
        waited = (run.clock() - start) * 1000
        if look is not None and all_passed(assertions):
            if not wanted.alias:
                return assertions
            return assertions + bind(run, name, look.info, look.rows, wanted.alias, overwrite=wanted.overwrite)
        if waited >= wanted.timeout:
            seen = f"; last seen: {row_text(last)}" if last else ""
            return [with_more(each, f"waited {round(waited)} ms{seen}") for each in assertions]
        run.sleep(min(wanted.poll, wanted.timeout - waited) / 1000)


def _is_closed(run: Looking, entity: str) -> bool:
    """Tell whether all columns are known."""
    return run.store.describe(entity).closed


def _look(run: Looking, name: str, wanted: VerifyItem) -> _Look:
    """Find the rows and check them."""
    info = run.store.describe(wanted.entity)
    info.check(wanted.fields, f"{name}.fields")
    rows, said = _select_rows(run, info, wanted.id, wanted.filters)
    known_columns(run.store, info, wanted.fields, f"{name}.fields", rows)
    made: list[Assertion] = []
    if wanted.count is not None:
        there = "; there is " + "; ".join(row_text(row) for row in rows[:3]) if rows else ""
        counted = check_number(f"{name}.count", len(rows), wanted.count, run.scope)
        made += [with_more(each, f"{said}{there}") for each in counted]
    if wanted.exists is not None:
        made.append(_existence(f"{name}.exists", rows, said, exists=wanted.exists))
    if wanted.fields and not rows and wanted.count is not None:
        none = StepError(f"there is no {said}, so nothing can be said about `fields`")
        made.append(build_broken(f"{name}.fields", none))
    made += _every(run, f"{name}.fields", info, rows, wanted.fields)
    if not made:  # of no row nothing else was said: it had to be there
        made = [_existence(f"{name}.exists", rows, said, exists=True)]
    if wanted.id is None and all_passed(made):
        _say_others(run, name, info, wanted, len(rows))
    return _Look(info, rows, made)


def _say_others(run: Looking, name: str, info: EntityInfo, wanted: VerifyItem, mine: int) -> None:
    """Name rows of other users that are as the filters say, where it holds only because they are not looked at."""
    if info.user is None or run.user is None or info.user in wanted.filters:
        return
    with suppress(LLMProxyError):
        others = [
            row
            for row in select(run.store, info, wanted.filters, run.scope, None)
            if run.is_foreign(row.get(info.user))
        ]
        if not others or _holds(run, wanted, mine + len(others)):
            return
        names = ", ".join(f"{key_text(info, row)} ({info.user}={row.get(info.user)!r})" for row in others[:_SHOWN])
        said = f"{name} held without {amount(len(others), 'row')} of other users, which it does not look at: {names}"
        if said not in run.remarks:
            run.remarks.append(said)


def _holds(run: Looking, wanted: VerifyItem, number: int) -> bool:
    """Tell whether what is said of how many rows there are would hold of this number."""
    if wanted.count is not None and not all_passed(check_number("", number, wanted.count, run.scope)):
        return False
    return wanted.exists is not False or not number


def _existence(name: str, rows: Sequence[Row], said: str, *, exists: bool) -> Assertion:
    right = bool(rows) is exists
    message = "" if right else f"there is no {said}" if exists else f"there is a {said}: {row_text(rows[0])}"
    status = Status.PASSED if right else Status.FAILED
    return Assertion(name=name, status=status, expected=exists, actual=bool(rows), message=message)


def _select_rows(run: Looking, info: EntityInfo, id_: object, filters: Mapping[str, object]) -> tuple[list[Row], str]:
    """Return the rows that are meant, and words for them."""
    shown = ", ".join(f"{name}: {value!r}" for name, value in filters.items())
    if id_ is None:
        said = f"row of {info.name}" + (f" with {shown}" if filters else "") + whose(info, run.user)
        return select(run.store, info, filters, run.scope, run.user), said
    key = run.scope.resolve(id_)
    if not isinstance(key, str | int | float) or isinstance(key, bool) or (isinstance(key, str) and not key.strip()):
        raise StepError(f"id: {id_!r} is {key!r}, which is no row's id")
    info.check(filters, "filters")
    row = run.store.get(info.name, key)
    if row is None:
        _check_key(info, key)
    rows = [row] if row is not None else []
    said = f"row {info.key}={key!r} of {info.name}"
    if filters:
        known_columns(run.store, info, filters, "filters", rows)
        rows = choose_rows(info, rows, filters, run.scope)
        said += f" with {shown}"
    return rows, said


def _check_key(info: EntityInfo, key: str | float) -> None:
    """Refuse an id that no row can have: of a text where keys are numbers nobody may say that it is gone. Raises StepError."""
    kind = info.columns[info.key].kind if info.key in info.columns else Kind.UNKNOWN
    try:
        from_plain(key_value(key, kind), kind)
    except ValueError as error:
        raise StepError(f"id: {error}, and {info.name} has no other ids") from None


def _every(
    run: Looking, name: str, info: EntityInfo, rows: Sequence[Row], fields: Mapping[str, object]
) -> list[Assertion]:
    """Check the fields of every row; of many, the wrong ones are shown."""
    judged = judge_rows(rows, fields, run.scope)
    wrong = [each for each in judged if not each.holds]
    shown = wrong[:_FAILING_ROWS] or judged[:1]
    made = [each for row in shown for each in row_assertions(name, info, row, fields, run.scope)]
    if len(wrong) > _FAILING_ROWS:
        more = f"{len(wrong)} of {len(rows)} rows are wrong; {_FAILING_ROWS} are shown"
        made.append(Assertion(name=name, status=Status.FAILED, actual=len(wrong), message=more))
    return made
