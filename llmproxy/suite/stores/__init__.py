"""Where the agent under test keeps its entities: databases, REST services, plugins, memory."""

from __future__ import annotations

from llmproxy.suite.stores.config import Policy, policy_from, store_from
from llmproxy.suite.stores.memory import MemoryStore
from llmproxy.suite.stores.protocol import (
    Column,
    EntityInfo,
    Id,
    Kind,
    Restorable,
    Row,
    Snapshot,
    StoreAdapter,
    StoreBase,
    StoreError,
    StoreLost,
    StoreRefused,
    UnknownColumn,
    UnknownEntity,
)

__all__ = [
    "Column", "EntityInfo", "Id", "Kind", "MemoryStore", "Policy", "Restorable", "Row", "Snapshot", "StoreAdapter",
    "StoreBase", "StoreError", "StoreLost", "StoreRefused", "UnknownColumn", "UnknownEntity", "policy_from",
    "store_from",
]  # fmt: skip
