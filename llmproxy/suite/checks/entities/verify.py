"""Assertions `verify` and `wait`: the current and the eventual state of rows.

With an id that row must exist (`exists: false`: must not). With filters, at least one row must be selected, unless
`count` allows none, and the fields must hold for every one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from llmproxy.amount_formatting import format_count
from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.report.events import Assertion
from llmproxy.suite.checks.entities.row_selection import (
    RowCheckContext,
    apply_filters,
    capture_row,
    check_row_fields,
    describe_owner_filter,
    extend_failure_message,
    judge_rows,
    name_row,
    require_known_columns,
    select_rows,
    show_row,
)
from llmproxy.suite.matchers.apply import all_hold, assertion, build_unclear, check_number, may_be_zero
from llmproxy.suite.matchers.variables import StepError
from llmproxy.suite.schema.values import Verify, WaitFor
from llmproxy.suite.stores.protocol import EntityInfo, Kind, Row, StoreError, UnknownColumn, from_plain, parse_key

_SHOWN = 3
_FAILING_ROWS = 5


def check_verify(run: RowCheckContext, name: str, wanted: Verify) -> list[Assertion]:
    try:
        info, rows, made = _check_rows(run, name, wanted)
    except LLMProxyError as error:
        return [build_unclear(name, error)]
    if wanted.as_ and all_hold(made):
        made += capture_row(run, name, info, rows, wanted.as_, overwrite=wanted.overwrite)
    return made


def check_wait(run: RowCheckContext, name: str, wanted: WaitFor) -> list[Assertion]:
    if wanted.id is None and not wanted.filters:
        return [build_unclear(name, SuiteError(f"{name} for {wanted.entity} says neither id nor filters"))]
    verify = Verify.model_construct(entity=wanted.entity, id=wanted.id, filters=wanted.filters, fields=wanted.until)
    start = run.clock()
    ends = start + wanted.timeout / 1000
    last: Row | None = None
    while True:
        try:
            _, rows, assertions = _check_rows(run, name, verify)
            last = rows[0] if rows else last
        except LLMProxyError as error:
            assertions = [build_unclear(name, error)]
            # A service may leave a member out until it has a value; a table has all of its columns.
            late = isinstance(error, UnknownColumn) and not run.store.describe(wanted.entity).closed
            if not late and not isinstance(error, StoreError):
                return assertions
        now = run.clock()
        if all_hold(assertions):
            return assertions
        if now >= ends:
            seen = f"; last seen: {show_row(last)}" if last else ""
            return [
                extend_failure_message(each, f"waited {round((now - start) * 1000)} ms{seen}") for each in assertions
            ]
        run.sleep(min(wanted.poll_interval / 1000, ends - now))


def _check_rows(run: RowCheckContext, name: str, wanted: Verify) -> tuple[EntityInfo, list[Row], list[Assertion]]:
    info = run.store.describe(wanted.entity)
    info.check(wanted.fields, f"{name}.fields")
    rows, said = _select_rows(run, info, wanted)
    require_known_columns(run.store, info, wanted.fields, f"{name}.fields", rows)
    made: list[Assertion] = []
    if wanted.count is not None:
        there = "; there is " + "; ".join(show_row(row) for row in rows[:3]) if rows else ""
        counted = check_number(f"{name}.count", len(rows), wanted.count, run.scope)
        made += [extend_failure_message(each, f"{said}{there}") for each in counted]
    if wanted.exists is not None:
        made.append(_check_existence(f"{name}.exists", rows, said, exists=wanted.exists))
    if wanted.fields and not rows and wanted.count is not None:
        none = StepError(f"there is no {said}, so nothing can be said about `fields`")
        made.append(build_unclear(f"{name}.fields", none))
    made += _check_every_row(run, f"{name}.fields", info, rows, wanted.fields)
    if not made:  # of no row nothing else was said: it had to be there
        made = [_check_existence(f"{name}.exists", rows, said, exists=True)]
    if wanted.id is None and all_hold(made):
        _note_other_users_rows(run, name, info, wanted, len(rows))
    return info, rows, made


def _note_other_users_rows(run: RowCheckContext, name: str, info: EntityInfo, wanted: Verify, mine: int) -> None:
    """Describe matching rows of other users, if it holds only because they are excluded."""
    if info.user is None or run.user is None or info.user in wanted.filters:
        return
    with suppress(LLMProxyError):
        others = [
            row
            for row in select_rows(run.store, info, wanted.filters, run.scope, None)
            if run.may_be_created_by_run(row.get(info.user))
        ]
        number = mine + len(others)
        counts = wanted.count is None or all_hold(check_number("", number, wanted.count, run.scope))
        if not others or (counts and not (wanted.exists is False and number)):
            return  # it would hold for them, too
        names = ", ".join(f"{name_row(info, row)} ({info.user}={row.get(info.user)!r})" for row in others[:_SHOWN])
        many = format_count(len(others), "row")
        said = f"{name} held without {many} of other users, which it does not look at: {names}"
        if said not in run.remarks:
            run.remarks.append(said)


def _check_existence(name: str, rows: Sequence[Row], said: str, *, exists: bool) -> Assertion:
    message = f"there is a {said}: {show_row(rows[0])}" if rows else f"there is no {said}"
    return assertion(name, message, holds=bool(rows) is exists, expected=exists, actual=bool(rows))


def _select_rows(run: RowCheckContext, info: EntityInfo, wanted: Verify) -> tuple[list[Row], str]:
    id_, filters = wanted.id, wanted.filters
    negated = wanted.exists is False or may_be_zero(wanted.count, run.scope)
    shown = ", ".join(f"{name}: {value!r}" for name, value in filters.items())
    if id_ is None:
        said = f"row of {info.name}" + (f" with {shown}" if filters else "") + describe_owner_filter(info, run.user)
        return select_rows(run.store, info, filters, run.scope, run.user, negated=negated), said
    key = run.scope.resolve_value(id_)
    if not isinstance(key, str | int | float) or isinstance(key, bool) or (isinstance(key, str) and not key.strip()):
        raise StepError(f"id: {id_!r} is {key!r}, which is no row's id")
    info.check(filters, "filters")
    row = run.store.get(info.name, key)
    if row is None:
        _require_possible_id_value(info, key)
    rows = [row] if row is not None else []
    said = f"row {info.key}={key!r} of {info.name}"
    if filters:
        require_known_columns(run.store, info, filters, "filters", rows)
        rows = apply_filters(info, rows, filters, run.scope, negated=negated)
        said += f" with {shown}"
    return rows, said


def _require_possible_id_value(info: EntityInfo, key: str | float) -> None:
    """Refuse an id that no row can have: a text is no valid numeric key. Raises StepError."""
    kind = info.columns[info.key].kind if info.key in info.columns else Kind.UNKNOWN
    try:
        from_plain(parse_key(key, kind), kind)
    except ValueError as error:
        raise StepError(f"id: {error}, and {info.name} has no other ids") from None


def _check_every_row(
    run: RowCheckContext, name: str, info: EntityInfo, rows: Sequence[Row], fields: Mapping[str, object]
) -> list[Assertion]:
    judged = judge_rows(rows, fields, run.scope)
    wrong = [each for each in judged if not each.all_match]
    shown = wrong[:_FAILING_ROWS] or judged[:1]
    made = [each for row in shown for each in check_row_fields(name, info, row, fields, run.scope)]
    if len(wrong) > _FAILING_ROWS:
        more = f"{len(wrong)} of {len(rows)} rows are wrong; {_FAILING_ROWS} are shown"
        made.append(assertion(name, more, actual=len(wrong)))
    return made
