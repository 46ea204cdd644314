"""Stores in which the agent under test keeps its entities: databases, REST services, plugins, memory."""

from __future__ import annotations

from llmproxy.suite.stores.config import MemoryStore, ResetPolicy, build_store, parse_reset_policy
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
    "Column", "EntityInfo", "Id", "Kind", "MemoryStore", "ResetPolicy", "Restorable", "Row", "Snapshot", "StoreAdapter",
    "StoreBase", "StoreError", "StoreLost", "StoreRefused", "UnknownColumn", "UnknownEntity", "build_store",
    "parse_reset_policy",
]  # fmt: skip
