"""Recordings of an older version under the names of today: beside the store, since a store that is replayed never changes.

`store.rederive` fills a `Derived` when a session opens its cassette; `Reading` looks into it; the first write makes it last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llmproxy.core.traffic.interaction import Key

Place = tuple[str, int]
"""Cassette and sample."""
Asked = tuple[str, Key]
"""Party and key."""


@dataclass(slots=True)
class Derived:
    """What the older recordings of one cassette and sample are called today. Ids are in the order in which they were requested."""

    rules: str
    """Digest of the rules under which the keys were derived."""
    keyed: dict[Asked, list[int]] = field(default_factory=dict)
    names: dict[int, tuple[Key, int]] = field(default_factory=dict)
    """By id: key and occurrence."""
    before: dict[Asked, list[int]] = field(default_factory=dict)
    """Those whose key cannot be derived, under the key that they have: they match as before."""
    settled: bool = False
    """The store says the same meanwhile."""

    def add(self, id_: int, party: str, key: Key) -> None:
        ids = self.keyed.setdefault((party, key), [])
        ids.append(id_)
        self.names[id_] = key, len(ids)

    def keep(self, id_: int, party: str, key: Key) -> None:
        """Note a recording that keeps its key."""
        self.before.setdefault((party, key), []).append(id_)
