"""The store that a command looks into."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy import sqlite_file
from llmproxy.errors import SettingsError
from llmproxy.store_server import is_server, place, server_of

if TYPE_CHECKING:
    from llmproxy.core.store.store import Store


def typed_store(text: str) -> Path | str:
    """Return what was typed behind --store; of a URL every slash counts, so it is no `Path` before `settings` has read
    it.
    """
    return text if is_server(text) else Path(text)


STORE = typer.Option(
    None,
    "--store",
    metavar="PATH",
    parser=typed_store,
    help="The database of recordings: a file, or a server's URL.",
)


_SQLITE = b"SQLite format 3\0"
JOURNAL = ".state.db"
_CASSETTES = (".yaml", ".yml", ".jsonl", ".har")
"""Files of a folder that may hold recordings."""


def is_database(path: Path) -> bool:
    """Tell by its first bytes."""
    return sqlite_file.first_bytes(path) == _SQLITE


def is_store(path: Path) -> bool:
    """Tell whether a file is a database and not a store's journal."""
    return is_database(path) and not path.name.endswith(JOURNAL)


def no_url(
    typed: Path | str, hint: str = "Give the path of a file; a server's store is named by --store postgresql://..."
) -> None:
    """Raise SettingsError for a URL where a file is meant; it may hold a password, and is not repeated."""
    from llmproxy.values import read_path

    try:
        read_path(typed)
    except ValueError as error:
        raise SettingsError(f"{error}.", hint=hint) from error


def recordings(given: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield stores (True) and cassette files (False): those that are given, and those in folders that are given."""
    for path in given:
        no_url(path)
        if not path.is_dir():
            yield path, not path.exists() or is_store(path) or path.suffix not in _CASSETTES
            continue
        for each in sorted(each for each in path.rglob("*") if each.is_file() and ".git" not in each.parts):
            if is_store(each):
                yield each, True
            elif each.suffix in _CASSETTES and _is_recordings(each):
                yield each, False


def _is_recordings(path: Path) -> bool:
    """Tell whether a file of a folder holds recordings: settings and the like lie there too."""
    from llmproxy.core.cassettes.formats import open_source, recognise

    return recognise(open_source(path)) is not None


@contextmanager
def read_anew(path: Path) -> Iterator[Path]:
    """Give the path of a store; of a server's a copy that is made now, so that what is checked is what the server
    holds.
    """
    server = server_of(path)
    if server is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="llmproxy-verify-") as folder:
        yield place(server.url, {"XDG_CACHE_HOME": folder})


def store_path(given: Path | None) -> Path:
    """Return the store that was asked for, here, in the environment or in pyproject.toml."""
    from llmproxy.cli.parts.options import gather

    return Path(gather({"store": given}).settings.store)


def open_given(given: Path | None, *, writable: bool = False) -> Store:
    """Open the store; looking never changes it, and one that is not there is not made. Raises CassetteError."""
    from llmproxy.core.store.file.store import open_store

    path = store_path(given)
    there = server_of(path) is not None or path.exists()
    return open_store(path, writable=writable and there, now=time.time)
