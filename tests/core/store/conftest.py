"""What every test of the store may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.store import Store
from tests.support.recordings import NOW


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a store may be made, alone in its folder."""
    folder = tmp_path / "a folder with ümlaut & %20"
    folder.mkdir()
    return folder / "llmproxy.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    seconds = count()
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW + next(seconds)) as opened:
        yield opened
