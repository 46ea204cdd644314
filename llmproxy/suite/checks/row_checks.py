"""Assertions `created`, `verify` and `wait` about rows.

`created` is about rows that did not exist when the step started, of the run's user unless the fields name another. A
failure shows similar rows: the nearest new row with each wrong field, or an older row that matches. For `verify`, a row
with the id must exist (`exists: false`: must not). With filters, at least one row must be selected, unless `count`
allows none, and the fields must hold for every one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from llmproxy.amount_formatting import format_count
from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.report.events import Assertion
from llmproxy.suite.checks.row_selection import (
    MOST_ROWS,
    POLL,
    RowCheckContext,
    RowWithColumnMatches,
    append_to_failed_assertion,
    capture_row_as_variable,
    check_row_against_field_matchers,
    compute_column_matches_of_rows,
    describe_row_user_filter,
    filter_rows_by_matchers,
    find_nearest_row,
    format_entity_row_key,
    format_row_values,
    require_known_columns,
    select_entity_rows_by_filters,
)
from llmproxy.suite.matchers.apply import (
    all_assertions_hold,
    assertion,
    check_number_against_matcher,
    check_value,
    make_error_assertion,
    may_count_be_zero,
)
from llmproxy.suite.matchers.variable_references import StepError
from llmproxy.suite.schema.assertions import CreatedRowsAssertion, Verify, WaitForRows
from llmproxy.suite.stores.protocol import (
    ColumnType,
    EntityInfo,
    Id,
    Row,
    RowKeySnapshot,
    Rows,
    StoreError,
    UnknownColumn,
    convert_key_to_column_type,
    index_rows_by_key,
    to_driver_value,
)

_BIRTH = frozenset(
    {"created", "createdat", "createdon", "createtime", "creationdate", "creationtime", "datecreated", "insertedat"}
)
"""Names of creation time columns, without underscores."""
_SHOWN_DOUBTS = 3
_SHOWN_OTHERS = 3
_FAILING_ROWS = 5


@dataclass(frozen=True, slots=True)
class RowSnapshotBeforeStep:
    own: RowKeySnapshot
    everybody: RowKeySnapshot | None = None
    contents: Mapping[str, Mapping[Id, Row]] = field(default_factory=dict)


def take_row_snapshot_before_step(
    run: RowCheckContext, entities: Sequence[str]
) -> RowSnapshotBeforeStep | LLMProxyError:
    names = list(dict.fromkeys(entities))
    everybody: RowKeySnapshot | None = None
    try:
        infos = [run.store.describe(name) for name in names]
        own = run.store.snapshot(names, run.user)
        if others := [info.name for info in infos if info.user is not None and run.user is not None]:
            with suppress(LLMProxyError):  # a service that tells nobody about everybody's rows
                everybody = run.store.snapshot(others, None)
        listed = [(info, index_rows_by_key(info, _list_all_rows(run, info))) for info in infos if info.reuses]
    except LLMProxyError as error:
        return error
    contents: dict[str, Mapping[Id, Row]] = {}
    for info, rows in listed:
        if len(rows) > MOST_ROWS:
            said = (
                f"{info.name} has more than {MOST_ROWS} rows, so one that was deleted and made anew under its number "
                "is not seen"
            )
            run.remarks.extend([said] if said not in run.remarks else [])
        else:
            contents[info.name] = rows
    return RowSnapshotBeforeStep(own, everybody, contents)


def find_new_rows_of_other_users(run: RowCheckContext, info: EntityInfo, before: RowSnapshotBeforeStep) -> Rows:
    """Return new rows of other owners, except users whose runs may be active."""
    if before.everybody is None or info.name not in before.everybody.ids:
        return []
    only = RowKeySnapshot({info.name: before.everybody.ids[info.name]}, None)
    with suppress(LLMProxyError):
        return [
            row for row in run.store.changes(only)[info.name] if run.may_be_created_by_run(row.get(info.user or ""))
        ]
    return []


def find_entity_rows_with_reused_keys(
    run: RowCheckContext, info: EntityInfo, before: RowSnapshotBeforeStep
) -> list[tuple[Row, Row]]:
    """Return (before, now) of possible new rows with old numbers, newest first: a number and all above were free."""
    if not (old := before.contents.get(info.name)):
        return []
    now = index_rows_by_key(info, _list_all_rows(run, info))
    found: list[tuple[Row, Row]] = []
    numbers = {key: float(key) for key in old if isinstance(key, int | float) or key.isdecimal()}
    for key in sorted(numbers, key=numbers.__getitem__, reverse=True):
        if key in now and now[key] == old[key]:
            break
        if key in now:
            found.append((old[key], now[key]))
    return found


def _is_recreated(before: Row, now: Row) -> bool:
    births = [name for name in now if name.replace("_", "").lower() in _BIRTH and before.get(name) is not None]
    return any(now[name] not in {None, before[name]} for name in births)


def _list_all_rows(run: RowCheckContext, info: EntityInfo) -> Rows:
    """Return all users' rows; for a service that does not list them, the user's."""
    try:
        return run.store.list(info.name, {}, MOST_ROWS + 1)
    except LLMProxyError:
        if info.user is None or run.user is None:
            raise
        return run.store.list(info.name, {info.user: run.user}, MOST_ROWS + 1)


def check_created_rows(
    run: RowCheckContext, before: RowSnapshotBeforeStep | LLMProxyError, wanted: Sequence[CreatedRowsAssertion]
) -> list[Assertion]:
    made: list[Assertion] = []
    for number, item in enumerate(wanted):
        name = f"created[{number}]"
        if isinstance(before, LLMProxyError):
            made.append(make_error_assertion(name, before))
        else:
            made += _check_created_until_deadline(run, name, before, item)
    return made


def _check_created_until_deadline(
    run: RowCheckContext, name: str, before: RowSnapshotBeforeStep, item: CreatedRowsAssertion
) -> list[Assertion]:
    end = run.clock() + (item.within or 0) / 1000
    while True:
        matching: list[Row] = []
        try:
            info, assertions, matching = _check_created_rows(run, name, before, item)
        except LLMProxyError as error:
            assertions, info = [make_error_assertion(name, error)], None
            if isinstance(error, SuiteError | StepError):
                return assertions
        left = end - run.clock()
        passed = all_assertions_hold(assertions)
        # Nothing yet is no proof that nothing comes: only rows that are there end the wait early.
        if (passed and matching) or left <= 0:
            if passed and item.as_ and info is not None:
                assertions += capture_row_as_variable(run, name, info, matching, item.as_, overwrite=item.overwrite)
            return assertions
        run.sleep(min(left, POLL / 4000))


def _check_created_rows(
    run: RowCheckContext, name: str, before: RowSnapshotBeforeStep, item: CreatedRowsAssertion
) -> tuple[EntityInfo, list[Assertion], list[Row]]:
    info = run.store.describe(item.entity)
    info.check(item.fields, f"{name}.fields")
    mine = run.store.changes(RowKeySnapshot({info.name: before.own.ids[info.name]}, before.own.user))[info.name]
    there = frozenset[Id]() if before.everybody is None else before.everybody.ids.get(info.name, frozenset())
    rows, given = [row for row in mine if row[info.key] not in there], [row for row in mine if row[info.key] in there]
    foreign = find_new_rows_of_other_users(run, info, before)
    if info.user is not None and info.user in item.fields:  # the fields say whose
        rows, foreign = [*rows, *foreign], []
    changed = find_entity_rows_with_reused_keys(run, info, before)
    rows += [now for old, now in changed if _is_recreated(old, now) and _belongs_to_user(run, info, item, now)]
    if run.cleaner:
        for row in rows:
            run.cleaner.add_row(item.entity, row[info.key])
    require_known_columns(run.store, info, item.fields, f"{name}.fields", rows)
    judged = compute_column_matches_of_rows(
        rows, item.fields, run.scope, negated=may_count_be_zero(item.count, run.scope)
    )
    matching = [each.row for each in judged if each.all_match]
    unclear = [each for each in judged if each.is_unclear]
    if unclear and (item.count is not None or not matching):
        return info, check_row_against_field_matchers(f"{name}.fields", info, unclear[0], item.fields, run.scope), []
    unsure = [now for old, now in changed if not _is_recreated(old, now)]
    doubts = _list_row_doubts(run, info, item, foreign, given, unsure)
    none = "no row with a new key was added" if any(each.changed for each in doubts) else "no row was added"
    none = f"{none} to {info.name} in this step{describe_row_user_filter(info, run.user)}"
    found = _check_new_rows(run, name, info, item, judged, none)
    return info, _report_doubtful_rows(run, name, item, found, len(matching), doubts), matching


@dataclass(frozen=True, slots=True)
class _RowDoubt:
    said: str
    wanted: bool
    """Whether it matches the fields, and is the user's (unless the fields name the owner)."""
    changed: bool = False
    """Whether its key existed before, so that it is unknown whether it is new."""


def _list_row_doubts(
    run: RowCheckContext, info: EntityInfo, item: CreatedRowsAssertion, foreign: Rows, given: Rows, changed: Rows
) -> list[_RowDoubt]:
    made = []
    for each in compute_column_matches_of_rows(foreign, item.fields, run.scope):
        owner = f"{info.user}={each.row.get(info.user or '')!r}"
        by = "" if run.alone else ", maybe in another run"
        said = f"{format_entity_row_key(info, each.row)} was added for another user ({owner}){by}"
        made.append(_RowDoubt(said, each.all_match))
    for row in changed:
        (now,) = compute_column_matches_of_rows([row], item.fields, run.scope)
        said = (
            f"{format_entity_row_key(info, row)} was there before with other contents: it was changed, or deleted and "
            "made anew under the same number, which nobody can tell apart here"
        )
        made.append(_RowDoubt(said, now.all_match and _belongs_to_user(run, info, item, row), changed=True))
    known = {row[info.key] for row in changed}
    return made + [
        _RowDoubt(f"{format_entity_row_key(info, row)} was there before, for another user", wanted=False)
        for row in given
        if row[info.key] not in known
    ]


def _belongs_to_user(run: RowCheckContext, info: EntityInfo, item: CreatedRowsAssertion, row: Row) -> bool:
    return info.user is None or run.user is None or info.user in item.fields or row.get(info.user) == run.user


def _report_doubtful_rows(
    run: RowCheckContext,
    name: str,
    item: CreatedRowsAssertion,
    found: list[Assertion],
    sure: int,
    doubts: Sequence[_RowDoubt],
) -> list[Assertion]:
    """Report doubtful rows: as an error if they decide, or if it held only without them."""
    if not doubts:
        return found
    said = "; ".join(each.said for each in doubts[:_SHOWN_DOUBTS])
    unknown = sum(each.wanted and each.changed for each in doubts)
    wanted = {"gte": 1} if item.count is None else item.count
    if len({all_assertions_hold(check_value(name, sure + more, wanted, run.scope)) for more in range(unknown + 1)}) > 1:
        hint = f"`store.entities.{item.entity}.reuses: false` says that no number is given out twice"
        return [_build_unknown_count(name, item, said, hint)]
    if not all_assertions_hold(found):
        return [append_to_failed_assertion(each, said) for each in found]
    if run.alone and item.count is not None and any(each.wanted and not each.changed for each in doubts):
        return [_build_unknown_count(name, item, said, "Say in `fields` whose rows are meant")]
    if said not in run.remarks:
        run.remarks.append(said)
    return found


def _build_unknown_count(name: str, item: CreatedRowsAssertion, said: str, hint: str) -> Assertion:
    what, where = ("whether a row was", "") if item.count is None else ("how many rows were", ".count")
    return make_error_assertion(f"{name}{where}", StepError(f"it is not known {what} added: {said}", hint=hint))


def _check_new_rows(
    run: RowCheckContext,
    name: str,
    info: EntityInfo,
    item: CreatedRowsAssertion,
    judged: list[RowWithColumnMatches],
    none: str,
) -> list[Assertion]:
    matching = [each for each in judged if each.all_match]
    if item.count is not None:
        rows = "; ".join(format_row_values(each.row) for each in judged[:3])
        said = f"{format_count(len(judged), 'new row')} of {info.name}, {len(matching)} as wanted: {rows}"
        checked = check_number_against_matcher(f"{name}.count", len(matching), item.count, run.scope)
        return [append_to_failed_assertion(each, said if judged else none) for each in checked]
    if matching:
        there = format_entity_row_key(info, matching[0].row)
        fields = check_row_against_field_matchers(f"{name}.fields", info, matching[0], item.fields, run.scope)
        return [assertion(name, "", holds=True, actual=len(matching), where=there), *fields]
    if judged:
        near = find_nearest_row(judged)
        which = f"{len(judged)} new rows of {info.name}, and none is" if len(judged) > 1 else "the new row is not"
        message = f"{which} as wanted; the nearest is {format_row_values(near.row)}"
        fields = check_row_against_field_matchers(f"{name}.fields", info, near, item.fields, run.scope)
        return [assertion(name, message, actual=0), *fields]
    # A matching older row is the usual reason of a wrong expectation.
    older = select_entity_rows_by_filters(run.store, info, item.fields, run.scope, run.user) if item.fields else []
    there = f"; {format_entity_row_key(info, older[0])} has these fields, but was there before" if older else ""
    return [assertion(name, f"{none}{there}", expected=dict(item.fields), actual=0)]


def run_verify_step_row_checks(run: RowCheckContext, name: str, wanted: Verify) -> list[Assertion]:
    try:
        info, rows, made = _check_rows(run, name, wanted)
    except LLMProxyError as error:
        return [make_error_assertion(name, error)]
    if wanted.as_ and all_assertions_hold(made):
        made += capture_row_as_variable(run, name, info, rows, wanted.as_, overwrite=wanted.overwrite)
    return made


def wait_until_rows_match(run: RowCheckContext, name: str, wanted: WaitForRows) -> list[Assertion]:
    if wanted.id is None and not wanted.filters:
        return [make_error_assertion(name, SuiteError(f"{name} for {wanted.entity} says neither id nor filters"))]
    verify = Verify.model_construct(entity=wanted.entity, id=wanted.id, filters=wanted.filters, fields=wanted.until)
    start = run.clock()
    ends = start + wanted.timeout / 1000
    last: Row | None = None
    while True:
        try:
            _, rows, assertions = _check_rows(run, name, verify)
            last = rows[0] if rows else last
        except LLMProxyError as error:
            assertions = [make_error_assertion(name, error)]
            # A service may leave a member out until it has a value; a table has all of its columns.
            late = isinstance(error, UnknownColumn) and not run.store.describe(wanted.entity).closed
            if not late and not isinstance(error, StoreError):
                return assertions
        now = run.clock()
        if all_assertions_hold(assertions):
            return assertions
        if now >= ends:
            seen = f"; last seen: {format_row_values(last)}" if last else ""
            return [
                append_to_failed_assertion(each, f"waited {round((now - start) * 1000)} ms{seen}")
                for each in assertions
            ]
        run.sleep(min(wanted.poll_interval / 1000, ends - now))


def _check_rows(run: RowCheckContext, name: str, wanted: Verify) -> tuple[EntityInfo, list[Row], list[Assertion]]:
    info = run.store.describe(wanted.entity)
    info.check(wanted.fields, f"{name}.fields")
    rows, said = _select_rows(run, info, wanted)
    require_known_columns(run.store, info, wanted.fields, f"{name}.fields", rows)
    made: list[Assertion] = []
    if wanted.count is not None:
        there = "; there is " + "; ".join(format_row_values(row) for row in rows[:3]) if rows else ""
        counted = check_number_against_matcher(f"{name}.count", len(rows), wanted.count, run.scope)
        made += [append_to_failed_assertion(each, f"{said}{there}") for each in counted]
    if wanted.exists is not None:
        made.append(_check_existence(f"{name}.exists", rows, said, exists=wanted.exists))
    if wanted.fields and not rows and wanted.count is not None:
        none = StepError(f"there is no {said}, so nothing can be said about `fields`")
        made.append(make_error_assertion(f"{name}.fields", none))
    made += _check_every_row(run, f"{name}.fields", info, rows, wanted.fields)
    if not made:  # of no row nothing else was said: it had to be there
        made = [_check_existence(f"{name}.exists", rows, said, exists=True)]
    if wanted.id is None and all_assertions_hold(made):
        _note_other_users_rows(run, name, info, wanted, len(rows))
    return info, rows, made


def _note_other_users_rows(run: RowCheckContext, name: str, info: EntityInfo, wanted: Verify, mine: int) -> None:
    """Describe matching rows of other users, if it holds only because they are excluded."""
    if info.user is None or run.user is None or info.user in wanted.filters:
        return
    with suppress(LLMProxyError):
        others = [
            row
            for row in select_entity_rows_by_filters(run.store, info, wanted.filters, run.scope, None)
            if run.may_be_created_by_run(row.get(info.user))
        ]
        number = mine + len(others)
        counts = wanted.count is None or all_assertions_hold(
            check_number_against_matcher("", number, wanted.count, run.scope)
        )
        if not others or (counts and not (wanted.exists is False and number)):
            return  # it would hold for them, too
        names = ", ".join(
            f"{format_entity_row_key(info, row)} ({info.user}={row.get(info.user)!r})" for row in others[:_SHOWN_OTHERS]
        )
        many = format_count(len(others), "row")
        said = f"{name} held without {many} of other users, which it does not look at: {names}"
        if said not in run.remarks:
            run.remarks.append(said)


def _check_existence(name: str, rows: Sequence[Row], said: str, *, exists: bool) -> Assertion:
    message = f"there is a {said}: {format_row_values(rows[0])}" if rows else f"there is no {said}"
    return assertion(name, message, holds=bool(rows) is exists, expected=exists, actual=bool(rows))


def _select_rows(run: RowCheckContext, info: EntityInfo, wanted: Verify) -> tuple[list[Row], str]:
    id_, filters = wanted.id, wanted.filters
    negated = wanted.exists is False or may_count_be_zero(wanted.count, run.scope)
    shown = ", ".join(f"{name}: {value!r}" for name, value in filters.items())
    if id_ is None:
        said = f"row of {info.name}" + (f" with {shown}" if filters else "") + describe_row_user_filter(info, run.user)
        return select_entity_rows_by_filters(run.store, info, filters, run.scope, run.user, negated=negated), said
    key = run.scope.resolve_value(id_)
    if not isinstance(key, str | int | float) or isinstance(key, bool) or (isinstance(key, str) and not key.strip()):
        raise StepError(f"id: {id_!r} is {key!r}, which is no row's id")
    info.check(filters, "filters")
    row = run.store.get(info.name, key)
    if row is None:  # an id that no row can have is refused: a text is no valid numeric key
        kind = info.columns[info.key].kind if info.key in info.columns else ColumnType.UNKNOWN
        try:
            to_driver_value(convert_key_to_column_type(key, kind), kind)
        except ValueError as error:
            raise StepError(f"id: {error}, and {info.name} has no other ids") from None
    rows = [row] if row is not None else []
    said = f"row {info.key}={key!r} of {info.name}"
    if filters:
        require_known_columns(run.store, info, filters, "filters", rows)
        rows = filter_rows_by_matchers(info, rows, filters, run.scope, negated=negated)
        said += f" with {shown}"
    return rows, said


def _check_every_row(
    run: RowCheckContext, name: str, info: EntityInfo, rows: Sequence[Row], fields: Mapping[str, object]
) -> list[Assertion]:
    judged = compute_column_matches_of_rows(rows, fields, run.scope)
    wrong = [each for each in judged if not each.all_match]
    shown = wrong[:_FAILING_ROWS] or judged[:1]
    made = [each for row in shown for each in check_row_against_field_matchers(name, info, row, fields, run.scope)]
    if len(wrong) > _FAILING_ROWS:
        more = f"{len(wrong)} of {len(rows)} rows are wrong; {_FAILING_ROWS} are shown"
        made.append(assertion(name, more, actual=len(wrong)))
    return made
