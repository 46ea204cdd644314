"""Arguments that name stores, cassettes and recordings (path, name, id), and comparison of recorded runs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from llmproxy import sqlite_file
from llmproxy.advice import format_llmproxy_command
from llmproxy.cli.parts.options import format_record_command, load_settings, suggest_cassette_file_replay
from llmproxy.cli.parts.printing import LongTaskProgressLine, to_safe_line
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import CassetteBusy, CassetteNotFound, RefusedError, SettingsError, remove_program_prefix
from llmproxy.parsers import parse_path_setting_refusing_urls, read_name
from llmproxy.postgres_store_paths import (
    find_postgres_of_local_copy,
    format_store_location,
    is_postgres_url,
    map_postgres_store_to_copy_path,
    store_exists,
)
from llmproxy.protocol import append_sample_number_to_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llmproxy.calls_and_totals import Miss
    from llmproxy.core.bindings.volatile_learning import LearnedField
    from llmproxy.core.store.reader import StoreReader
    from llmproxy.core.store.store import Store
    from llmproxy.settings import Loaded


STORE = typer.Option(
    None,
    "--store",
    metavar="PATH",
    parser=lambda text: text if is_postgres_url(text) else Path(text),  # a `Path` would drop slashes of a URL
    help="The database of recordings: a file, or a server's URL.",
)
_SQLITE = b"SQLite format 3\0"
JOURNAL = ".state.db"
_CASSETTES = (".yaml", ".yml", ".jsonl", ".har")


def is_sqlite_file(path: Path) -> bool:
    return sqlite_file.read_head_of_non_database(path) == _SQLITE


def is_store_file(path: Path) -> bool:
    return is_sqlite_file(path) and not path.name.endswith(JOURNAL)


def refuse_url_as_file(
    typed: Path | str, hint: str = "Give the path of a file; a server's store is named by --store postgresql://..."
) -> None:
    """Raise SettingsError for a URL in place of a file, without repeating it: it may hold a password."""
    try:
        parse_path_setting_refusing_urls(typed)
    except ValueError as error:
        raise SettingsError(f"{error}.", hint=hint) from error


def list_stores_and_cassette_files(given: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield stores (True) and cassette files (False): given ones, and those in given folders."""
    from llmproxy.core.cassettes.formats import find_matching_format, read_file_of_recordings

    for path in given:
        refuse_url_as_file(path)
        if not path.is_dir():
            yield path, not path.exists() or is_store_file(path) or path.suffix not in _CASSETTES
            continue
        for each in sorted(each for each in path.rglob("*") if each.is_file() and ".git" not in each.parts):
            if is_store_file(each):
                yield each, True
            elif each.suffix in _CASSETTES and find_matching_format(read_file_of_recordings(each)) is not None:
                yield each, False  # no settings or such


@contextmanager
def copy_postgres_store_temporarily(path: Path) -> Iterator[Path]:
    """Yield a store's path; for a server's store a fresh copy, so that its current state is checked."""
    if (server := find_postgres_of_local_copy(path)) is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="llmproxy-verify-") as folder:
        yield map_postgres_store_to_copy_path(server.url, {"XDG_CACHE_HOME": folder})


def get_chosen_store(given: Path | None) -> Path:
    return Path(load_settings({"store": given}).settings.store)


def open_given_store(given: Path | None, *, writable: bool = False) -> Store:
    """Open the store for reading; it is neither changed nor created. Raises CassetteError."""
    from llmproxy.core.store.file.store import open_store

    path = get_chosen_store(given)
    return open_store(path, writable=writable and store_exists(path), now=time.time)


def require_not_being_recorded(store: Store, places: Collection[tuple[str, int]]) -> None:
    """Check that no session records one of the cassettes, each with its sample. Raises CassetteBusy."""
    for name, _ in places:
        store.refresh_cassette(name)
    for each in store.cassettes():
        if each.holder and (each.name, each.sample) in places:
            name = to_safe_line(append_sample_number_to_name(each.name, each.sample))
            raise CassetteBusy(f"cassette {name} is being recorded by {each.holder}.", hint="End that session first.")


def build_cassette_not_recorded_error(loaded: Loaded) -> CassetteNotFound:
    store, there = loaded.settings.store, ""
    if store_exists(store):
        with open_given_store(store) as database:
            there = f" {describe_stored_cassette_names(database)}".rstrip()
    said = f"nothing is recorded in cassette {loaded.settings.cassette!r} of {format_store_location(store)}.{there}"
    hint = suggest_cassette_file_replay(loaded) or f"Record it first: {format_record_command(loaded)}"
    return CassetteNotFound(said, hint=hint)


def require_store_exists_or_dir_given(loaded: Loaded) -> None:
    """Check that there is a store, or a folder to make it from. Raises CassetteNotFound."""
    if not store_exists(loaded.settings.store) and loaded.settings.cassette_dir is None:
        raise build_cassette_not_recorded_error(loaded)


LONGEST_NUMBER = 19


class CassetteAndSampleNumber(NamedTuple):
    cassette: str
    sample: int | None
    """None for all samples."""


def is_interaction_number(typed: str) -> bool:
    return typed.isascii() and typed.isdecimal() and len(typed) <= LONGEST_NUMBER


def find_cassette(store: StoreReader, typed: str) -> CassetteAndSampleNumber:
    """Return the cassette of a name, without ``~N`` all samples. Raises CassetteNotFound with similar names."""
    from llmproxy.core.sessions.session import split_cassette_and_sample

    if store.cassettes(typed):
        return CassetteAndSampleNumber(typed, None)
    known = {(info.name, info.sample) for info in store.cassettes()}
    name, sample = split_cassette_and_sample(typed)
    if (name, sample) in known:
        return CassetteAndSampleNumber(name, sample)
    raise build_unknown_cassette_error(store, typed)


def build_unknown_cassette_error(store: StoreReader, typed: str) -> CassetteNotFound:
    known = {(info.name, info.sample) for info in store.cassettes()}
    names = sorted({name for name, _ in known})
    near = did_you_mean(
        typed, [*names, *(append_sample_number_to_name(name, sample) for name, sample in known if sample > 1)]
    )
    hint = _describe_names(names, store) + (" A number names an interaction." if is_interaction_number(typed) else "")
    return CassetteNotFound(
        f"there is no cassette {to_safe_line(typed)} in {format_store_location(store.path)}{near}", hint=hint
    )


def suggest_option_for_numeric_name(store: StoreReader, typed: str, command: str) -> str:
    """Return how to name a cassette whose name is a number, after `command`, if there is one: a number is an id."""
    shown = f"The cassette {typed}: {format_llmproxy_command(f'{command} --cassette {typed}', store.path)}"
    return shown if store.has_recordings(typed, 1) else ""


def parse_interaction_number(typed: str, wanted: str) -> int:
    """Return an interaction's id. Raises SettingsError if invalid; `wanted` names its purpose."""
    if is_interaction_number(typed):
        return int(typed)
    msg = f"{wanted} takes the number of an interaction, and {typed!r} is none."
    raise SettingsError(msg, hint=f"It is in the column id of `ls --cassette {to_safe_line(typed)}`.")


def validate_cassette_name(name: str) -> str:
    """Return a valid name for a new cassette. Raises SettingsError."""
    from llmproxy.core.sessions.session import split_cassette_and_sample

    try:
        cassette, _ = split_cassette_and_sample(str(read_name(name)))
    except RefusedError as error:
        raise SettingsError(remove_program_prefix(error.message)) from error
    except ValueError as error:
        raise SettingsError(f"{error}.") from error
    if cassette != name or is_interaction_number(name):
        why = "a number is an interaction's" if is_interaction_number(name) else "~ and a number name a sample of one"
        raise SettingsError(f"{name!r} cannot be the name of a cassette: {why}.")
    return name


def describe_stored_cassette_names(store: StoreReader) -> str:
    names = sorted({info.name for info in store.cassettes()})
    return _describe_names(names, store) if names else ""


def _describe_names(names: Sequence[str], store: StoreReader) -> str:
    shown = ", ".join(to_safe_line(name) for name in names[:8])
    more = f", and {len(names) - 8} more: {format_llmproxy_command('ls', store.path)}" if len(names) > 8 else ""
    return f"Cassettes there: {shown}{more}." if names else "Nothing is recorded in it."


class VolatileFieldLearningRunResult(NamedTuple):
    lessons: Sequence[LearnedField]
    code: int = 0
    misses: tuple[Miss, ...] = ()


def learn_fields_from_recorded_runs(loaded: Loaded) -> VolatileFieldLearningRunResult:
    """Compare recorded runs with each other. Raises CassetteError."""
    from llmproxy.core.engine.learn_fields_from_recordings import learn_fields_from_cassette
    from llmproxy.core.keys.user_rules import Rules

    settings = loaded.settings
    rules = Rules.from_settings(settings.normalize)
    with open_given_store(settings.store) as store, LongTaskProgressLine(f"comparing the runs of {settings.cassette}"):
        find_cassette(store, settings.cassette)
        return VolatileFieldLearningRunResult(
            learn_fields_from_cassette(store, settings.cassette, rules, settings.upstream)
        )
