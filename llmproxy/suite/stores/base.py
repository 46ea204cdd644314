"""What follows for every store from `describe` and `list`: snapshots and what changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmproxy.suite.stores.protocol import EntityInfo, Id, Ids, Rows, Snapshot, StoreError, sort_rows


class StoreBase:
    """A store that can describe and list; to be completed by `describe`, `insert`, `get`, `list` and `delete`."""

    def describe(self, entity: str) -> EntityInfo:
        """Say what is known about an entity."""
        raise NotImplementedError

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        """Return the rows whose columns equal these values, in the order of their keys."""
        raise NotImplementedError

    def snapshot(self, entities: Sequence[str], user: str | None = None) -> Snapshot:
        """Remember which rows there are."""
        return Snapshot({name: frozenset(self.ids(name, user)) for name in dict.fromkeys(entities)}, user)

    def changes(self, snapshot: Snapshot) -> dict[str, Rows]:
        new: dict[str, Rows] = {}
        for name, before in snapshot.ids.items():
            info = self.describe(name)
            rows = self.list(name, self.scope(info, snapshot.user))
            new[name] = sort_rows((row for row in rows if self.key(info, row) not in before), info.key)
        return new

    def ids(self, entity: str, user: str | None) -> Ids:
        """Return the keys of all rows, of this user where the entity knows users."""
        info = self.describe(entity)
        return [self.key(info, row) for row in self.list(entity, self.scope(info, user))]

    @staticmethod
    def scope(info: EntityInfo, user: str | None) -> dict[str, Any]:
        """Return the filter that narrows an entity to a user."""
        return {} if user is None or info.user is None else {info.user: user}

    @staticmethod
    def key(info: EntityInfo, row: Mapping[str, Any]) -> Id:
        """Return a row's key; StoreError if it has none."""
        value = row.get(info.key)
        if not isinstance(value, str | int | float):
            raise StoreError(
                f"a row of {info.name} has no usable key {info.key!r}: {dict(row)!r:.300}",
                hint=f"Name the column that tells rows apart: store.entities.{info.name}.id",
            )
        return value

    def reset(self) -> None:
        """Do nothing: this store cannot be brought back as a whole."""

    def close(self) -> None:
        """Nothing to let go."""
