"""Checks of a whole store: different requests with one key, which answer each other's requests, and damage."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llmproxy.core.keys.equal_key_explanations import (
    IgnoredRequestDifference,
    explain_ignored_differences,
    list_fields_ignored_in_key,
)
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.file.connect import translate_sqlite_store_error
from llmproxy.core.store.queries import derive_keys_under_current_rules, derive_route_of_recording
from llmproxy.core.store.row_conversion import to_sql
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Request
from llmproxy.errors import CassetteError, RefusedError
from llmproxy.protocol import Channel


@dataclass(frozen=True, slots=True)
class KeyCollision:
    recording: int
    other: int | None  # id of the other recording; None for a request from the journal
    operation: str
    differences: tuple[IgnoredRequestDifference, ...]

    @property
    def unexplained_differences(self) -> tuple[IgnoredRequestDifference, ...]:
        return tuple(each for each in self.differences if not each.why)


def find_key_collisions(store: Store, rules: Rules, upstreams: Mapping[str, str]) -> Iterator[KeyCollision]:
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row in store.list_summaries():
        derive_keys_under_current_rules(store, row.cassette, row.sample, rules, upstreams)
        key, _ = store.find_current_key(row.cassette, row.sample, row.id, row.key, row.occurrence)
        groups[row.cassette, row.sample, row.party, key].append(row.id)
    for first, *others in groups.values():
        for other in others:
            try:
                old, new = store.load(first), store.load(other)
                routes = derive_route_of_recording(old, upstreams), derive_route_of_recording(new, upstreams)
            except (CassetteError, RefusedError):
                continue  # `verify` reports the damage
            if differences := tuple(explain_ignored_differences(old.request, new.request, routes, rules)):
                yield KeyCollision(first, other, old.operation, differences)


@dataclass(frozen=True, slots=True)
class IgnoredFieldsOfService:
    """Fields of requests to a service other than a model's that do not count for their keys."""

    provider: str
    fields: Mapping[str, str]
    """Reasons by header field, cookie or member of the query."""
    alike: tuple[tuple[int, int], ...]
    """Pairs of recordings with one key but different answers: only ignored fields can differ in their requests."""


def list_ignored_fields_by_service(
    store: Store, rules: Rules, upstreams: Mapping[str, str]
) -> list[IgnoredFieldsOfService]:
    fields: dict[str, dict[str, str]] = {}
    answers: dict[str, dict[tuple[object, ...], tuple[int, bytes]]] = defaultdict(dict)
    alike: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in store.list_summaries(channel=Channel.HTTP):
        derive_keys_under_current_rules(store, row.cassette, row.sample, rules, upstreams)
        key, _ = store.find_current_key(row.cassette, row.sample, row.id, row.key, row.occurrence)
        try:
            one = store.load(row.id)
            where = derive_route_of_recording(one, upstreams)
        except (CassetteError, RefusedError):
            continue
        fields.setdefault(row.provider, {}).update(list_fields_ignored_in_key(one.request, where))
        slot = (row.cassette, row.sample, row.party, key)
        first, body = answers[row.provider].setdefault(slot, (row.id, one.response.body))
        if body != one.response.body:
            alike[row.provider].append((first, row.id))
    rows = sorted(fields.items())
    return [IgnoredFieldsOfService(name, dict(sorted(found.items())), tuple(alike[name])) for name, found in rows]


def diff_journal_requests_with_recordings(
    store: Store, asked: Iterable[tuple[int, Request, bool]], rules: Rules, upstreams: Mapping[str, str]
) -> Iterator[KeyCollision]:
    """Yield differences of journal requests from recordings; `asked`: interaction, request, whether it has its body."""
    for id_, said, same_body in asked:
        try:
            old = store.load(id_)
            request = replace(said, body=old.request.body) if same_body else said
            then = derive_route_of_recording(old, upstreams)
            now = derive_route_of_recording(replace(old, request=request), upstreams)
        except (CassetteError, RefusedError):
            continue  # pruned since, or damaged
        differences = explain_ignored_differences(old.request, request, (then, now), rules)
        yield KeyCollision(id_, None, old.operation, tuple(differences))


@dataclass(frozen=True, slots=True)
class Damage:
    interaction: int | None  # None: the whole file
    what: str


def find_damages(
    store: Store,
    through: Callable[[Sequence[int], int], Iterable[int]] = lambda ids, _: ids,
    cassette: str | None = None,
) -> Iterator[Damage]:
    """Check the file's structure (not with `cassette`), and read the content of its interactions against its sha256.
    `through` gets their ids and their number, and iterates over them (progress).
    """
    try:
        if cassette is None:
            for (finding,) in store.conn.execute("PRAGMA integrity_check(20)").fetchall():
                if finding != "ok":
                    yield Damage(None, str(finding))
        only, values = ("", ()) if cassette is None else (" WHERE cassette = ?", (to_sql(cassette),))
        ids = [row[0] for row in store.conn.execute(f"SELECT id FROM interactions{only} ORDER BY id", values)]
    except sqlite3.Error as error:
        yield Damage(None, translate_sqlite_store_error(error, store.path, writing=False).message)
        return
    for id_ in through(ids, len(ids)):
        try:
            store.load(id_)
        except CassetteError as error:
            yield Damage(id_, error.message)
    if cassette is not None:
        return
    try:
        broken = store.conn.execute("PRAGMA foreign_key_check").fetchall()
    except sqlite3.Error as error:
        yield Damage(None, str(error))
        return
    for table, row, parent, _ in broken:
        yield Damage(
            row if table == "interactions" else None, f"row {row} of {table} names a row of {parent} that is gone"
        )


def count_bytes_freed_by_deletion(store: Store, ids: Collection[int]) -> int:
    """Return the approximate number of bytes that only these interactions use in the store."""
    total, chosen, bodies = 0, frozenset(ids), set()
    for id_ in chosen:
        sql = "SELECT request_body, response_body, length(request_headers) + length(response_headers) + length(chunks)"
        for request, response, own in store.conn.execute(f"{sql} FROM interactions WHERE id = ?", (id_,)):
            bodies |= {request, response}
            total += own + 400
    users = (
        "SELECT id FROM interactions WHERE request_body = ? UNION SELECT id FROM interactions WHERE response_body = ?"
    )
    for body in bodies:
        if all(user in chosen for (user,) in store.conn.execute(users, (body, body))):
            total += store.conn.execute("SELECT length(data) FROM bodies WHERE id = ?", (body,)).fetchone()[0]
    return total
