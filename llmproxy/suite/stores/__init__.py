"""Stores in which the agent under test keeps its entities: databases, REST services, plugins, memory."""

from __future__ import annotations

from llmproxy.suite.stores.config import MemoryStore, StoreResetSettings, build_store, parse_reset_policy
from llmproxy.suite.stores.protocol import (
    Column,
    ColumnType,
    EntityInfo,
    Id,
    Restorable,
    Row,
    RowKeySnapshot,
    StoreAdapter,
    StoreBase,
    StoreError,
    StoreLost,
    StoreRefused,
    UnknownColumn,
    UnknownEntity,
)

__all__ = [
    "Column", "ColumnType", "EntityInfo", "Id", "MemoryStore", "Restorable", "Row", "RowKeySnapshot", "StoreAdapter",
    "StoreBase", "StoreError", "StoreLost", "StoreRefused", "StoreResetSettings", "UnknownColumn", "UnknownEntity",
    "build_store", "parse_reset_policy",
]  # fmt: skip
