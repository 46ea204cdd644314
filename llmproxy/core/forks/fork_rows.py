"""Rows of forked cassettes in the store, and creation of forks.

A child has *copies* of the recordings that it shares with its parent (rows; bodies are shared), so that no change of
the parent affects it. Overridden results of tools are stored in its row, and are applied again whenever the child is
replayed: the agent still runs its real tool.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from llmproxy.advice import format_llmproxy_command, quote_word
from llmproxy.core.forks.overrides import AnswerOverrides, parse_answer_overrides_from_json
from llmproxy.core.store import row_conversion
from llmproxy.core.store.file import leases_and_deletes
from llmproxy.core.store.reader import Place, StoreReader
from llmproxy.core.store.row_conversion import decode_sql_text, to_sql
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteBusy, CassetteNotFound, SettingsError, remove_program_prefix
from llmproxy.protocol import append_sample_number_to_name

_COPIED = ", ".join(name for name in row_conversion.COLUMNS if name not in ("cassette", "sample", "started_at"))
_COPY = f"""
INSERT INTO interactions (cassette, sample, started_at, position, occurrence, request_body, response_body, {_COPIED})
SELECT ?, ?, ?, ?, ?, request_body, response_body, {_COPIED} FROM interactions WHERE id = ?
"""  # noqa: S608 - constants only
_TIME = "SELECT started_at, coalesce(duration_ms, 0) / 1000 FROM interactions WHERE id = ?"
_COPY_IDS = """
INSERT INTO made_ids SELECT ?, ordinal, ?, ?, made_id FROM made_ids WHERE interaction_id = ?
"""
_COPY_DECLARED = "INSERT INTO declared SELECT ?, run_variables FROM declared WHERE interaction_id = ?"
_COPY_FIELDS = "INSERT OR IGNORE INTO volatile_fields SELECT ?, position, field FROM volatile_fields WHERE cassette = ?"
_COUNT = "UPDATE cassettes SET recorded = recorded + 1 WHERE name = ? AND sample = ? RETURNING recorded"
_NUMBERS = 10_000
"""Maximum children of one cassette with a generated name."""


class CassetteNameTaken(SettingsError):
    code = "llmproxy_cassette_exists"
    status = 409


@dataclass(frozen=True, slots=True)
class Fork:
    cassette: str
    parent: str
    step: int
    """Number of the agent's request, from 1, at which they diverged."""
    why: str
    sample: int = 1
    parent_sample: int = 1
    shared: int = 0
    """Number of interactions copied from its parent."""
    path: str | None = None
    """First place of that request that differs; None if none does or it is unknown."""
    overrides: AnswerOverrides = field(default_factory=AnswerOverrides)
    created_at: float = 0.0
    live: str = ""
    """Live channels of a live run, separated by commas; else empty."""

    def describe_origin(self) -> str:
        where = f" (first at {self.path})" if self.path else ""
        parent = append_sample_number_to_name(self.parent, self.parent_sample)
        return f"fork of {parent} at request {self.step}: {self.why}{where}"

    def was_channel_offline(self, channel: str) -> bool:
        """Return whether a channel of a live run was not live: its tools were served from the parent, or refused."""
        return bool(self.live) and channel not in self.live.split(", ")

    def to_json(self) -> dict[str, Any]:
        told = asdict(self) | {"overrides": self.overrides.to_json()}
        return {name: value for name, value in told.items() if name != "live"}

    def to_member(self) -> dict[str, Any]:
        """Return the form of a cassette's file, for :func:`parse_fork_in_cassette_file`, without default values."""
        said = {name: getattr(self, name) for name in _MEMBERS if name != "overrides"}
        if self.overrides:
            said["overrides"] = {name: rows for name, rows in self.overrides.to_json().items() if rows}
        return {name: value for name, value in said.items() if name in _NEEDED or value != _USUAL.get(name)}


_FIELDS = ", ".join(each.name for each in fields(Fork))


@dataclass(frozen=True, slots=True)
class CopiedRecording:
    id: int
    occurrence: int
    """Occurrence of its key in the child."""


_MEMBERS: Mapping[str, type | tuple[type, ...]] = {
    "parent": str, "parent_sample": int, "step": int, "shared": int, "why": str, "path": str, "overrides": dict,
    "created_at": (int, float), "live": str,
}  # fmt: skip
_NEEDED = ("parent", "step", "why")
_USUAL: Mapping[str, object] = {"parent_sample": 1, "shared": 0, "created_at": 0.0, "live": ""}
_LEAST = {"parent_sample": 1, "step": 1, "shared": 0, "created_at": 0}
_MOST = 1 << 53
"""Maximum of each number: up to it, YAML, JSON and SQLite agree."""


def parse_fork_in_cassette_file(cassette: str, tree: Any) -> Fork:
    """Return the fork in a cassette's file. Raises ValueError with a description."""
    if not isinstance(tree, dict):
        raise ValueError(f"`fork` is {tree!r}, not a mapping")  # noqa: TRY004 - of a file, not of a caller
    if unknown := sorted(set(tree) - set(_MEMBERS), key=repr):
        raise ValueError(f"`fork` has no member {unknown[0]!r}; there are {', '.join(_MEMBERS)}")
    if missing := [name for name in _NEEDED if name not in tree]:
        raise ValueError(f"`fork` says no `{missing[0]}`")
    for name, value in tree.items():
        good = isinstance(value, _MEMBERS[name]) and not isinstance(value, bool)
        if not good or (name in _LEAST and not _LEAST[name] <= value <= _MOST):
            raise ValueError(f"`{name}` of `fork` cannot be {value!r}")
    try:
        overrides = parse_answer_overrides_from_json(tree.get("overrides"))
    except SettingsError as error:
        raise ValueError(f"`fork`: {remove_program_prefix(error).removesuffix('.')}") from error
    return Fork(**tree | {"cassette": cassette, "overrides": overrides})


def store_fork_row(store: Store, fork: Fork) -> None:
    with store.sqlite_transaction() as conn:
        _insert_fork(conn, fork)


def delete_fork_row(store: Store, cassette: str) -> None:
    with store.sqlite_transaction() as conn:
        conn.execute("DELETE FROM forks WHERE cassette = ? AND sample = 1", (to_sql(cassette),))


def _insert_fork(conn: sqlite3.Connection, fork: Fork) -> None:
    values = {each.name: getattr(fork, each.name) for each in fields(fork)}
    values["overrides"] = json.dumps(fork.overrides.to_json())
    row = [to_sql(value) if isinstance(value, str) else value for value in values.values()]
    marks = ", ".join("?" * len(row))
    conn.execute(f"INSERT OR REPLACE INTO forks ({_FIELDS}) VALUES ({marks})", row)  # noqa: S608 - our own names


def find_fork(store: StoreReader, cassette: str, sample: int) -> Fork | None:
    return next(_query_forks(store, "WHERE cassette = ? AND sample = ?", (to_sql(cassette), sample)), None)


def list_all_forks_in_store(store: StoreReader) -> list[Fork]:
    return list(_query_forks(store, "ORDER BY created_at, cassette, sample", ()))


def _query_forks(store: StoreReader, rest: str, values: tuple[object, ...]) -> Iterator[Fork]:
    found = store.query(f"SELECT {_FIELDS} FROM forks {rest}", values)  # noqa: S608 - constants
    for cassette, parent, step, why, sample, parent_sample, shared, path, overrides, created_at, live in found:
        yield Fork(
            decode_sql_text(cassette), decode_sql_text(parent), step, decode_sql_text(why), sample, parent_sample,
            shared, None if path is None else decode_sql_text(path),
            parse_answer_overrides_from_json(json.loads(overrides)), created_at, decode_sql_text(live),
        )  # fmt: skip


def lease_cassette_name(
    store: Store, parent: str, wanted: str | None, holder: str, taken: Collection[str] = (), *, kind: str = "fork"
) -> str:
    """Lease a child: `wanted`, or the first free ``PARENT@KIND-N``. Raises CassetteNameTaken, CassetteBusy."""
    if wanted is not None:
        if wanted in taken or store.has_recordings(wanted, 1):
            gone = format_llmproxy_command(f"prune --cassette {quote_word(wanted)}", store.path)
            hint = f"Take another name with --as, or throw it away: {gone}"
            raise CassetteNameTaken(f"llmproxy: there is a cassette {wanted!r} already.", hint=hint)
        store.begin_writing(wanted, 1, exclusive=True, holder=holder)
        return wanted
    for number in range(1, _NUMBERS):
        name = f"{parent}@{kind}-{number}"
        if name in taken or store.has_recordings(name, 1):
            continue
        try:
            store.begin_writing(name, 1, exclusive=True, holder=holder)
        except CassetteBusy:
            continue
        return name
    raise CassetteNameTaken(f"llmproxy: {parent!r} has {_NUMBERS} forks.", hint="Name this one: --as NAME")


def _date_copies(served: Sequence[tuple[int, float, float]], until: float | None) -> list[float]:
    """Return begins (Unix seconds) of copies; `served`: id, begin and seconds of their recordings, in order.

    They lie as recorded, since overlaps count, up to `until` if it is given; one served again follows all before it.
    """
    begins, seen, moved, last = list[float](), set[int](), 0.0, -math.inf
    for id_, began, seconds in served:
        if id_ in seen:
            moved, seen = last - began, set()
        seen.add(id_)
        begins.append(began + moved)
        last = max(last, began + moved + seconds)
    return begins if until is None else [each + until - last for each in begins]


def store_fork_with_copies(
    store: Store, fork: Fork, shared: Sequence[CopiedRecording], now: float, *, as_recorded: bool = False
) -> list[int]:
    """Store a fork and its copies, which end at `now`, or have their recorded times. Returns the copies' ids."""
    name, made = to_sql(fork.cassette), []
    with store.sqlite_transaction() as conn:
        leases_and_deletes.ensure_cassette_row_exists(conn, name, fork.sample, now)
        served = [(each.id, *conn.execute(_TIME, (each.id,)).fetchall()[0]) for each in shared]
        for copy, began in zip(shared, _date_copies(served, None if as_recorded else now), strict=True):
            position = conn.execute(_COUNT, (name, fork.sample)).fetchall()[0][0]
            values = (name, fork.sample, began, position, copy.occurrence, copy.id)
            made.append(int(conn.execute(_COPY, values).lastrowid or 0))
            conn.execute(_COPY_IDS, (made[-1], name, fork.sample, copy.id))
            conn.execute(_COPY_DECLARED, (made[-1], copy.id))
        conn.execute(_COPY_FIELDS, (name, to_sql(fork.parent)))
        _insert_fork(conn, replace(fork, shared=len(made), created_at=now))
    return made


def fork_cassette(store: Store, parent: Place, at: int | None, wanted: str | None, holder: str, now: float) -> Fork:
    """Fork a cassette after its first `at` interactions (None: all). Raises CassetteNotFound, CassetteNameTaken."""
    if not (found := store.list_summaries(*parent)) or (at is not None and not 0 < at <= len(found)):
        there = f"{len(found)} interactions are recorded: none is number {at}" if found else "nothing is recorded"
        msg = f"llmproxy: in cassette {parent[0]!r}, sample {parent[1]}, {there}."
        raise CassetteNotFound(msg, hint=format_llmproxy_command("ls", store.path))
    taken = found if at is None else found[:at]
    name = lease_cassette_name(store, parent[0], wanted, holder)
    inherited = find_fork(store, *parent)
    fork = Fork(
        cassette=name, parent=parent[0], parent_sample=parent[1], step=len(taken) + 1, shared=len(taken),
        why="made by hand", overrides=inherited.overrides if inherited else AnswerOverrides(), created_at=now,
    )  # fmt: skip
    copies = [CopiedRecording(row.id, row.occurrence) for row in taken]
    store_fork_with_copies(store, fork, copies, now, as_recorded=True)
    store.end_writing(name, 1, holder, clean=True)
    return fork
