"""The interface of a store: `StoreReader` reads a file on this machine, `Store` also writes to a file or a server.

Each change is one transaction, and an occurrence is assigned under a lock, so that no two writers take the same slot.
A stored row's content never changes (only the superseded mark does), and ids are never reused, so what was read by id
may be cached. tests/core/store/test_conformance.py tests both kinds.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Self

from llmproxy.core.store import reader
from llmproxy.core.store.bodies import Group
from llmproxy.core.store.reader import CassetteFileSyncState, Place, RecordingHead, RecordingKeyUpdate, StoreReader
from llmproxy.core.store.row_conversion import Described, to_sql
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import StoreReadOnly
from llmproxy.postgres_store_paths import format_store_location
from llmproxy.protocol import AUTHENTICATION, TRANSIENT

_STATUS = f"{{0}}.status < 500 AND {{0}}.status NOT IN ({', '.join(map(str, sorted(TRANSIENT | AUTHENTICATION)))})"
GOOD = f"{{0}}.ending = 'complete' AND {_STATUS}"
_LEFT_AGAIN = f"""
i.ending = 'left' AND {_STATUS.format("i")} AND i.occurrence > (SELECT COUNT(*) FROM interactions AS k
    WHERE k.cassette = i.cassette AND k.sample = i.sample AND k.party = i.party AND k.key = i.key
        AND k.superseded_at IS NULL AND k.occurrence <= i.occurrence)
"""
"""SQL of `was_abandoned_twice`."""
UNFINISHED = f"""
SELECT 1 FROM interactions AS i WHERE i.cassette = ? AND i.sample = ? AND i.superseded_at IS NULL
    AND NOT ({GOOD.format("i")}) AND NOT ({_LEFT_AGAIN})
    AND NOT EXISTS (SELECT 1 FROM interactions AS j WHERE j.cassette = i.cassette AND j.sample = i.sample
        AND j.party = i.party
        AND j.key = i.key AND j.superseded_at IS NULL AND j.id > i.id AND {GOOD.format("j")}) LIMIT 1
"""
"""Finds a live recording that failed or is cut (not one that was left twice) and has no later good answer."""


class InteractionToStore(NamedTuple):
    interaction: Interaction
    supersede: bool = False
    """Whether it replaces the older live recordings of its key: all, or with `healing` as stated there."""
    healing: Collection[int] | None = None
    """Failures of its key that it may not replace, of the same session. A good one replaces other failures, and with
    `supersede` good ones; a failed one with `supersede` only failures after the last good one. None: it replaces none.
    """
    instead: int | None = None
    """Id of the one live recording that it replaces."""
    described: Described | None = None
    """Result of `extract_texts_and_cost`, if known already."""


class DeletionCounts(NamedTuple):
    interactions: int
    bodies: int  # number of contents that no other interaction used
    freed: int | None  # bytes by which the file shrank; None on a server, which frees space later


class Store(StoreReader, ABC):
    """A store of any kind. One thread at a time may read; any thread may write."""

    writable: bool  # whether it was opened for writing; else all but `refresh_cassette` and `close` raise StoreReadOnly

    @abstractmethod
    def add_interactions(self, many: Sequence[InteractionToStore], *, instead_of: str | None = None) -> list[int]:
        """Store several interactions: all, or (when this raises) none; returns their ids, committed. `instead_of`: all
        live recordings of this cassette are superseded first.

        Raises RecordingError: the disk is full or failed; nothing was stored, existing recordings stay readable;
        CassetteBusy: another process held the store, or one of its cassettes, all the time; StoreReadOnly: the store is
        not, or cannot be, opened for writing.
        """

    @abstractmethod
    def begin_writing(self, cassette: str, sample: int, *, exclusive: bool, holder: str, anew: bool = True) -> None:
        """Open a writing session. An `exclusive` one (record, once) takes the lease, to be renewed at least every 5 s;
        `anew`: it records the cassette from its start. Raises CassetteBusy naming the holder of a live lease.
        """

    @abstractmethod
    def renew_lease(self, cassette: str, sample: int, holder: str) -> bool:
        """Renew the lease; return False if it is gone."""

    @abstractmethod
    def end_writing(self, cassette: str, sample: int, holder: str, *, clean: bool | None) -> None:
        """End a writing session; `clean`: the cassette is complete, None: complete if no recording failed or is cut."""

    def wait_for_server(self) -> None:
        """Wait, as writing does, until a server's store is available; thread-safe. Raises CassetteServerLost."""

    def refresh_cassette(self, cassette: str) -> None:
        """Make other processes' recordings of a cassette readable; in a file they are. Raises LLMProxyError."""

    @abstractmethod
    def promote_staged(self, staged: Place, place: Place, gone: Collection[int], *, holder: str, clean: bool) -> None:
        """Move the recordings of `staged` to `place`, superseding `gone`; `clean`: `place` is complete then."""

    @abstractmethod
    def write_volatile_fields(self, cassette: str, texts: Sequence[str]) -> None:
        """Replace the volatile fields of a cassette by these (JSON)."""

    @abstractmethod
    def record_synced_file(self, cassette: str, seen: CassetteFileSyncState) -> None:
        """Record that the store is synchronized with a cassette's file."""

    @abstractmethod
    def delete_interactions(self, ids: Collection[int]) -> DeletionCounts:
        """Delete interactions, and every body that only they used."""

    @abstractmethod
    def rename_cassette(self, old: str, new: str) -> None:
        """Rename a cassette and all its samples. Raises SettingsError if the new name is taken."""

    @abstractmethod
    def rekey_recordings(self, made: Sequence[RecordingKeyUpdate]) -> None:
        """Rekey live recordings, except those whose key is no longer `RecordingKeyUpdate.old`."""

    @abstractmethod
    def sqlite_transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Hold the write lock of a store in a file; the block is one transaction. Raises StoreReadOnly: no file."""

    @abstractmethod
    def close(self) -> None: ...

    def add_interaction(self, interaction: Interaction, *, supersede: bool) -> int:
        return self.add_interactions([InteractionToStore(interaction, supersede)])[0]

    def _require_writable(self) -> None:
        if not self.writable:
            raise StoreReadOnly(f"The store {format_store_location(self.path)} is open for replay, which never writes.")

    def write_current_keys(self, places: Collection[Place]) -> None:
        """Write today's keys of cassettes recorded under other rules, before anything else is stored there."""
        for place, derived in list(self.derived.items()):
            if derived is not None and place in places:
                self.rekey_recordings(derived.changes)
                self.derived[place] = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def get_delta_compression_group(interaction: Interaction) -> Group:
    return to_sql(interaction.cassette), to_sql(interaction.provider), to_sql(interaction.operation)


def find_superseded_and_occurrence(
    given: InteractionToStore, live: Sequence[RecordingHead], before: int | None
) -> tuple[frozenset[int], int]:
    """Return the ids that an interaction supersedes, and its occurrence; `before`: the first id of its batch."""
    gone = _find_replaced(given, live, before)
    gone |= set() if given.instead is None else {given.instead}  # may have another key: another run's request
    taken = [each.occurrence for each in live if each.id not in gone]
    # What takes the place of another answer to this request takes its turn too.
    nth = next((each.occurrence for each in live if each.id == given.instead), given.interaction.occurrence)
    return gone, nth if nth not in taken else taken[-1] + 1


def _find_replaced(given: InteractionToStore, live: Sequence[RecordingHead], before: int | None) -> frozenset[int]:
    """Return the ids that a new answer replaces; without `supersede` a left one replaces the first left one."""
    if given.healing is None:
        return frozenset(each.id for each in live if given.supersede)
    made = RecordingHead(0, 0, given.interaction.response.status, given.interaction.response.ending)
    every = given.supersede or made.is_good_answer
    if given.supersede and made.is_good_answer:
        old = live
    elif every:
        old = reader.list_failed_recordings_after_good(live)
    else:
        old = reader.list_first_time_abandoned_answers(live) if made.was_left else ()
    ids = [each.id for each in old if each.id not in given.healing and (before is None or each.id < before)]
    return frozenset(ids if every else ids[:1])
