"""Parsing of the `store:` of a suite: its kind, entities, and reset policy; stores of plugins, and in memory.

    store:
      sqlalchemy: sqlite:///tasks.db      # or http: URL | python: module:attr | memory: {}

A kind may also be a table of its own, like agents: ``store: {sqlalchemy: {url: ..., entities: ...}}``. A store in this
process's memory is for trying suites, and for agents that are functions in the same process. Without `columns` an
entity there accepts any, and knows those that it has seen. Rows are copies.
"""

from __future__ import annotations

import copy
import importlib
import os
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from llmproxy.advice import build_install_command
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import MachineError, SuiteError
from llmproxy.suite.stores.protocol import (
    DeclaredEntityColumns,
    EntityInfo,
    Id,
    Row,
    Rows,
    StoreAdapter,
    StoreBase,
    StoreOperationRejectedError,
    build_unknown_entity_error,
    filter_sort_and_limit_rows,
    parse_declared_entity,
    to_plain,
)


@dataclass(slots=True)
class _MemoryTable:
    rows: dict[Id, Row] = field(default_factory=dict)
    last: int = 0
    seen: dict[str, None] = field(default_factory=dict)


class MemoryEntityStore(StoreBase):
    def __init__(self, entities: Mapping[str, DeclaredEntityColumns] | None = None) -> None:
        """Start empty. Without `entities` any name is valid, with the key `id` and no user."""
        self._shapes = dict(entities or {})
        self._open = not self._shapes
        self._tables: dict[str, _MemoryTable] = {}
        self._lock = threading.Lock()

    def describe(self, entity: str) -> EntityInfo:
        if not self._open and entity not in self._shapes:
            raise build_unknown_entity_error(entity, self._shapes, f"Declare it: store.entities.{entity}")
        table = self._tables.get(entity)
        return self._shapes.get(entity, DeclaredEntityColumns()).describe(entity, table.seen if table else ())

    def insert(self, entity: str, data: Mapping[str, Any]) -> Row:
        info = self.describe(entity)
        info.check(data, "insert")
        with self._lock:
            table = self._tables.setdefault(entity, _MemoryTable())
            row: Row = {name: to_plain(copy.deepcopy(value)) for name, value in data.items()}
            if row.get(info.key) is None:
                table.last += 1
                row = {info.key: table.last, **{k: v for k, v in row.items() if k != info.key}}
            if (key := self.key(info, row)) in table.rows:
                raise StoreOperationRejectedError(f"{entity} has a row {info.key}={key!r} already")
            if isinstance(key, int):
                table.last = max(table.last, key)
            table.rows[key] = row
            table.seen |= dict.fromkeys(row)
        return copy.deepcopy(row)

    def update(self, entity: str, id: Id, data: Mapping[str, Any]) -> Row | None:  # noqa: A002 - suites' word
        """Change a row, like an agent in this process; None if it does not exist."""
        self.describe(entity).check(data, "update")
        with self._lock:
            table = self._tables.setdefault(entity, _MemoryTable())
            if (row := table.rows.get(id)) is not None:
                row.update({name: to_plain(copy.deepcopy(value)) for name, value in data.items()})
                table.seen |= dict.fromkeys(row)
        return copy.deepcopy(row)

    def get(self, entity: str, id: Id) -> Row | None:  # noqa: A002 - suites' word
        self.describe(entity)
        with self._lock:
            if (table := self._tables.get(entity)) is None:
                return None
            # A key that came out of a text (an interpolated id) finds the number that it spells.
            same = table.rows.get(id) or next((r for key, r in table.rows.items() if str(key) == str(id)), None)
            return copy.deepcopy(same)

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        info = self.describe(entity)
        info.check(filters or {}, "filters")
        with self._lock:
            table = self._tables.get(entity)
            rows = list(table.rows.values()) if table else []
            return copy.deepcopy(filter_sort_and_limit_rows(rows, filters or {}, info.key, limit))

    def delete(self, entity: str, id: Id) -> bool:  # noqa: A002 - suites' word
        self.describe(entity)
        with self._lock:
            table = self._tables.get(entity)
            return table is not None and table.rows.pop(id, None) is not None

    def reset(self) -> None:
        with self._lock:
            self._tables.clear()


METHODS = ("describe", "insert", "get", "list", "delete", "snapshot", "changes", "reset", "close")
KINDS = ("sqlalchemy", "http", "python", "memory")
COMMON = ("reset", "ids", "counters")
FIRST = {"sqlalchemy": "url", "http": "url", "python": "make", "memory": "memory"}
"""Key of a kind's main value if the kind is a table."""
ALLOWED = {
    "sqlalchemy": ("entities", "user"),
    "http": ("entities", "headers", "timeout"),
    "python": ("options",),
    "memory": ("entities",),
}
RESETS = {
    "sqlalchemy": ("none", "delete", "truncate", "copy", "hook"),
    "http": ("none", "delete", "http", "hook"),
    "python": ("none", "delete", "truncate", "hook"),
    "memory": ("none", "delete", "truncate", "hook"),
}
_CHOICES = {"ids": ("database", "deterministic"), "counters": ("restore", "keep", "unused")}
"""Other keys with their valid values, the default first."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?")
Reset = Literal["none", "delete", "truncate", "copy", "hook", "http"]


def create_custom_python_store(reference: str, folder: Path, options: Mapping[str, Any] | None = None) -> StoreAdapter:
    made = import_module_attribute(reference, folder, "store.python")
    if isinstance(made, type) or not all(hasattr(made, name) for name in METHODS):
        if not callable(made):
            raise SuiteError(f"store.python: {reference} is no store: it lacks {_missing_methods(made)}")
        try:
            made = made(**(options or {}))
        except TypeError as error:
            raise SuiteError(
                f"store.python: {reference} could not be called with the options {dict(options or {})!r}: {error}"
            ) from error
    elif options:
        raise SuiteError(f"store.python: {reference} is a store already and takes no options")
    if lacking := _missing_methods(made):
        raise SuiteError(
            f"store.python: {reference} made no store: {type(made).__name__} lacks {lacking}",
            hint="Derive it from llmproxy.suite.stores.StoreBase.",
        )
    return cast("StoreAdapter", made)


def _missing_methods(made: object) -> str:
    return ", ".join(name for name in METHODS if not callable(getattr(made, name, None)))


def import_module_attribute(reference: str, folder: Path, where: str) -> Any:
    """Import ``module:attr``, also from modules next to the suite; `where` is the place for errors."""
    name, colon, attribute = reference.rpartition(":")
    if not colon or not name or not attribute:
        raise SuiteError(f"{where}: {reference!r} is not of the form module:attribute")
    module = _import_module(name, folder, where)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SuiteError(f"{where}: {name} has no {attribute!r}{did_you_mean(part, vars(module))}")
        found = getattr(found, part)
    return found


def _import_module(name: str, folder: Path, where: str) -> ModuleType:
    from llmproxy.scenario.agents.function import load_module_file

    path = (folder / name).resolve() if name.endswith(".py") else None
    if path is not None and not path.is_file():
        raise SuiteError(f"{where}: there is no file {path}")
    if path is None:
        sys.path.insert(0, str(folder.resolve()))
    try:
        if path is None:
            return importlib.import_module(name)
        return load_module_file(path, f"llmproxy_suite_{path.stem}_{abs(hash(path))}")
    except (Exception, SystemExit) as error:
        said = f"{path or name} could not be imported: {type(error).__name__}: {error}"
        raise SuiteError(f"{where}: {said}") from error
    finally:
        if path is None and str(folder.resolve()) in sys.path:  # else the module has removed it
            sys.path.remove(str(folder.resolve()))


@dataclass(frozen=True, slots=True)
class StoreResetSettings:
    reset: Reset = "delete"
    target: str = ""
    """``module:attr`` of a hook, or the request of http."""
    ids: Literal["database", "deterministic"] = "database"
    counters: Literal["restore", "keep", "unused"] = "restore"


def build_suite_store(
    mapping: Mapping[str, Any], folder: Path, environment: Mapping[str, str] | None = None
) -> StoreAdapter:
    """Create the store that `store:` describes, relative to `folder`. Raises SuiteError, MachineError: no library."""
    given, kind = _normalize_store_config(mapping, environment)
    policy = parse_store_reset_method(mapping, environment)
    entities = _require_mapping(given, "entities")
    if kind == "sqlalchemy":
        try:
            from llmproxy.suite.stores.sql import (
                SqlEntityStore,
                parse_suite_entity_table_mappings,
                read_owner_column_setting,
            )
        except ImportError:
            said = "the store is a database, and SQLAlchemy is not installed"
            raise MachineError(said, hint=build_install_command("runner")) from None
        user = read_owner_column_setting(given, "store", None)
        maps = parse_suite_entity_table_mappings(entities, user)
        return SqlEntityStore(_require_text(given, kind), folder, maps, user=user, reset=policy.reset)
    if kind == "http":
        from llmproxy.suite.stores.http import HttpEntityStore, parse_entity_http_endpoints, parse_reset_http_template

        headers = {str(k): str(v) for k, v in _require_mapping(given, "headers").items()}
        spoken = {name: parse_entity_http_endpoints(name, value) for name, value in entities.items()}
        again = parse_reset_http_template(policy.target) if policy.reset == "http" else None
        return HttpEntityStore(
            _require_text(given, kind), spoken, headers=headers, timeout=_read_timeout(given), reset=again
        )
    if kind == "python":
        return create_custom_python_store(_require_text(given, kind), folder, _require_mapping(given, "options"))
    if given["memory"] not in ({}, None, True):
        raise SuiteError(f"store.memory: expected {{}}, got {given['memory']!r}; entities stand beside it")
    return MemoryEntityStore({name: _read_memory_entity_shape(name, value) for name, value in entities.items()})


def parse_store_reset_method(
    mapping: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> StoreResetSettings:
    given, kind = _normalize_store_config(mapping, environment)
    reset, target = given.get("reset", "delete"), ""
    if isinstance(reset, Mapping):
        if len(reset) != 1 or not (set(reset) <= {"hook", "http"}):
            raise SuiteError(f"store.reset: expected `hook: module:attr` or `http: POST /reset`, got {dict(reset)!r}")
        reset, target = next((str(k), str(v)) for k, v in reset.items())
    elif reset is None:
        reset = "none"
    elif reset in ("hook", "http"):
        raise SuiteError(f"store.reset: {reset} needs to know what: `reset: {{{reset}: ...}}`")
    if reset not in RESETS[kind]:
        near = did_you_mean(str(reset), RESETS[kind])
        raise SuiteError(f"store.reset: {reset!r} is not one of {', '.join(RESETS[kind])} ({kind}){near}")
    chosen = [given.get(key, names[0]) for key, names in _CHOICES.items()]
    for key, name in zip(_CHOICES, chosen, strict=True):
        if name not in _CHOICES[key]:
            raise SuiteError(f"store.{key}: {name!r} is not one of {', '.join(_CHOICES[key])}")
    return StoreResetSettings(cast("Reset", reset), target, *chosen)


def _normalize_store_config(
    mapping: Mapping[str, Any], environment: Mapping[str, str] | None
) -> tuple[dict[str, Any], str]:
    if not isinstance(mapping, Mapping):
        raise SuiteError(f"store: expected a mapping with one of {', '.join(KINDS)}, got {mapping!r}")
    kinds = [key for key in mapping if key in KINDS]
    if len(kinds) != 1:
        known = {*KINDS, *COMMON, *(word for words in ALLOWED.values() for word in words)}
        odd = next((str(key) for key in mapping if key not in known), "")
        near = f" ({odd!r} is unknown{did_you_mean(odd, known)})" if odd else ""
        said = f"it has {' and '.join(kinds)}" if kinds else "it has none"
        raise SuiteError(
            f"store: exactly one of {', '.join(KINDS)} says what it is; {said}{near}",
            hint="For example: store: {sqlalchemy: 'sqlite:///tasks.db'}",
        )
    kind = kinds[0]
    inner = mapping[kind]
    if isinstance(inner, Mapping) and inner:
        first = FIRST[kind]
        if twice := next((key for key in inner if key in mapping and key != kind), None):
            raise SuiteError(f"store: {twice!r} stands in {kind} and beside it")
        if first not in inner and kind != "memory":
            raise SuiteError(f"store.{kind}: {first!r} is missing")
        rest = {key: value for key, value in inner.items() if key != first}
        mapping = {**mapping, kind: inner.get(first, {}), **rest}
    allowed = (kind, *ALLOWED[kind], *COMMON)
    for key in mapping:
        if key not in allowed:
            raise SuiteError(
                f"store: unknown key {key!r}{did_you_mean(str(key), allowed)} (allowed: {', '.join(allowed)})"
            )
    from llmproxy.scenario.agents.http import fill_env_variables

    filled = fill_env_variables(dict(mapping), "store", os.environ if environment is None else environment)
    return cast("dict[str, Any]", filled), kind


def _require_text(given: Mapping[str, Any], key: str) -> str:
    if not isinstance(given[key], str) or not given[key]:
        raise SuiteError(f"store.{key}: expected a text, got {given[key]!r}")
    return str(given[key])


def _require_mapping(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = given.get(key) or {}
    if not isinstance(value, Mapping):
        raise SuiteError(f"store.{key}: expected a mapping, got {value!r}")
    return {str(name): member for name, member in value.items()}


def _read_timeout(given: Mapping[str, Any]) -> float:
    """Parse a duration: milliseconds as everywhere in a suite, or with a unit."""
    text = str(given.get("timeout", "10s")).strip()
    if not (found := _DURATION.fullmatch(text)):
        raise SuiteError(f"store.timeout: {text!r} is no time; write 10000 (ms) or 10s")
    return float(found[1]) * {"ms": 0.001, "s": 1, "m": 60}[found[2] or "ms"]


def _read_memory_entity_shape(name: str, given: Any) -> DeclaredEntityColumns:
    if not isinstance(given or {}, Mapping):
        raise SuiteError(f"store.entities.{name}: expected a mapping, got {given!r}")
    return parse_declared_entity(given or {}, f"store.entities.{name}", ("id", "user", "columns"))
