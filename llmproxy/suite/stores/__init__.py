"""Stores in which the agent under test keeps its entities: databases, REST services, plugins, memory."""

from __future__ import annotations

from llmproxy.suite.stores.config import (
    MemoryEntityStore,
    StoreResetSettings,
    build_suite_store,
    parse_store_reset_method,
)
from llmproxy.suite.stores.protocol import (
    Column,
    ColumnType,
    EntityInfo,
    Id,
    RestorableEntityStore,
    Row,
    RowKeySnapshot,
    StoreAdapter,
    StoreBase,
    StoreError,
    StoreLost,
    StoreOperationRejectedError,
    UnknownColumn,
    UnknownEntity,
)

__all__ = [
    "Column", "ColumnType", "EntityInfo", "Id", "MemoryEntityStore", "RestorableEntityStore", "Row", "RowKeySnapshot",
    "StoreAdapter", "StoreBase", "StoreError", "StoreLost", "StoreOperationRejectedError", "StoreResetSettings",
    "UnknownColumn", "UnknownEntity", "build_suite_store", "parse_store_reset_method",
]  # fmt: skip
