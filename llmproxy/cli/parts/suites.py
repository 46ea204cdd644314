"""Where recordings of suites lie unless the settings say so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llmproxy import protocol

if TYPE_CHECKING:
    from llmproxy.settings import Loaded as LoadedSettings

CASSETTES = Path("tests") / "cassettes"
STORE = Path(protocol.TESTS_STORE)
LAST_REPORT = Path(protocol.LAST_REPORT)


def store_of(settings: LoadedSettings) -> Path:
    """Return the database of recordings of tests."""
    return Path.cwd() / STORE if settings.is_default("store") else settings.settings.store
