"""A store of the user's own, in Python: ``module:attr``, or ``./stores.py:attr`` beside the suite.

    store: {python: "myapp.testing:TaskStore", options: {url: "..."}}

The attribute is a store, or something that is called with `options` and returns one. `StoreBase` supplies snapshots, so
describe, insert, get, list and delete are enough.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SuiteError
from llmproxy.suite.stores.protocol import StoreAdapter

METHODS = ("describe", "insert", "get", "list", "delete", "snapshot", "changes", "reset", "close")


def plugin_store(reference: str, folder: Path, options: Mapping[str, Any] | None = None) -> StoreAdapter:
    """Load the attribute and make the store; SuiteError with what is missing if it is none."""
    made = load_attribute(reference, folder, "store.python")
    if isinstance(made, type) or not all(hasattr(made, name) for name in METHODS):
        if not callable(made):
            raise SuiteError(f"store.python: {reference} is no store: it lacks {_lacking(made)}")
        try:
            made = made(**(options or {}))
        except TypeError as error:
            raise SuiteError(
                f"store.python: {reference} could not be called with the options {dict(options or {})!r}: {error}"
            ) from error
    elif options:
        raise SuiteError(f"store.python: {reference} is a store already and takes no options")
    if lacking := _lacking(made):
        raise SuiteError(
            f"store.python: {reference} made no store: {type(made).__name__} lacks {lacking}",
            hint="Derive it from llmproxy.suite.stores.StoreBase.",
        )
    return cast("StoreAdapter", made)


def _lacking(made: object) -> str:
    return ", ".join(name for name in METHODS if not callable(getattr(made, name, None)))


def load_attribute(reference: str, folder: Path, where: str) -> Any:  # noqa: ANN401 - whatever the module has
    """Import ``module:attr``, modules beside the suite included; `where` says who asks."""
    name, colon, attribute = reference.rpartition(":")
    if not colon or not name or not attribute:
        raise SuiteError(f"{where}: {reference!r} is not of the form module:attribute")
    module = _file(name, folder, where) if name.endswith(".py") else _module(name, folder, where)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SuiteError(f"{where}: {name} has no {attribute!r}{did_you_mean(part, vars(module))}")
        found = getattr(found, part)
    return found


def _file(name: str, folder: Path, where: str) -> ModuleType:
    path = (folder / name).resolve()
    spec = importlib.util.spec_from_file_location(f"llmproxy_suite_{path.stem}_{abs(hash(path))}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SuiteError(f"{where}: there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise SuiteError(f"{where}: {path} could not be imported: {type(error).__name__}: {error}") from error
    return module


def _module(name: str, folder: Path, where: str) -> ModuleType:
    sys.path.insert(0, str(folder.resolve()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise SuiteError(f"{where}: {name} could not be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder.resolve()))
