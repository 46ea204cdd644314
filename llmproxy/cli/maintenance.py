"""Store maintenance: ``llmproxy verify``, ``prune``, ``rm`` and ``rename``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection
from pathlib import Path

import typer

from llmproxy.advice import format_command
from llmproxy.amounts import format_count
from llmproxy.cli.parts.completion import complete_cassettes
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import format_size, print_line, to_line
from llmproxy.cli.parts.store_arguments import (
    STORE,
    check_new_name,
    copy_server_store,
    find_cassette,
    is_id,
    list_recording_files,
    open_given,
    resolve_store_path,
    suggest_cassette_named_by_number,
)
from llmproxy.cli.parts.verify_store import Verifier
from llmproxy.core.cassettes.folder import CassetteDir
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.sessions.journal import read_served_ids
from llmproxy.core.store.integrity_checks import count_bytes_freed_by_deletion
from llmproxy.core.store.rows import RowSummary
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteError, CassetteNotFound, Exit, MachineError, SettingsError
from llmproxy.server_store_path import show_store

_DAY = 86_400


def verify(
    paths: list[Path] | None = typer.Argument(
        None, metavar="PATH", help="Stores, cassette files, folders of them; default: the store."
    ),
    store: Path | None = STORE,
    cassette: str | None = typer.Option(None, "--cassette", metavar="NAME", help="Only this cassette."),
    rekey: bool = typer.Option(False, "--rekey", help="Replace stored keys by keys under the current rules."),
) -> None:
    """Check every recording: the file, each body's hash, and each key under the current rules."""
    if rekey and cassette is not None:
        raise SettingsError("--rekey derives the keys of a whole store: leave --cassette out.")
    settings = load_settings({"store": store}).settings
    verifier = Verifier(Rules.from_settings(settings.normalize), settings.upstream, cassette, rekey)
    wrong, failed, looked = 0, False, False
    for path, is_store in list_recording_files(paths or [settings.store]):
        looked = True
        try:
            with copy_server_store(path) as here:
                wrong += verifier.verify_store(here) if is_store else verifier.count_file_errors(here)
        except CassetteError as error:
            if len(paths or ()) <= 1:
                raise
            failed = True
            typer.echo(f"error: {error}", err=True)
    if not looked:
        where = ", ".join(map(str, paths or ()))
        raise CassetteNotFound(f"there is nothing to verify in {where}: no store, and no file of recordings.")
    if verifier.lacking and not verifier.held:  # a name that is nowhere: nothing was verified
        raise verifier.lacking[0]
    if wrong or failed:
        raise typer.Exit(int(Exit.ENVIRONMENT if failed else Exit.FAILED))


def prune(
    paths: list[Path] | None = typer.Argument(None, metavar="STORE", help="Default: the store."),
    store: Path | None = STORE,
    superseded: bool = typer.Option(False, "--superseded", help="Recordings that a newer one replaced (the default)."),
    unused: bool = typer.Option(False, "--unused", help="Recordings of the last run's cassettes that it did not use."),
    cassette: str | None = typer.Option(
        None,
        "--cassette",
        metavar="NAME",
        autocompletion=complete_cassettes,
        help="Only this cassette; without other options: all of it.",
    ),
    older_than: float | None = typer.Option(
        None, "--older-than", metavar="DAYS", min=0, help="Only older recordings; without other options: all of them."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
) -> None:
    """Delete replaced, unused or old recordings, after showing them and asking."""
    whole = not superseded and not unused and (cassette is not None or older_than is not None)
    places = paths or [resolve_store_path(store)]
    if cassette is not None:
        _require_cassette(places, cassette)
    done = []
    for path in places:
        with open_given(path, writable=True) as database:
            rows = database.list_summaries(cassette, superseded=True)
            if older_than is not None:
                until = time.time() - older_than * _DAY
                rows = [row for row in rows if row.started_at < until]
            if not whole:
                rows = _select_superseded_or_unused(database, rows, superseded=superseded or not unused, unused=unused)
            done.append(_confirm_and_delete(database, rows, yes=yes))
    if not all(done):
        raise typer.Exit(int(Exit.FAILED))


def _require_cassette(places: Collection[Path], cassette: str) -> None:
    """Check that a store has a cassette of this name. Raises CassetteNotFound, SettingsError."""
    lacking = []
    for path in places:
        with open_given(path) as database:
            try:
                named = find_cassette(database, cassette)
            except CassetteNotFound as error:
                lacking.append(error)
                continue
        if named.sample is not None:
            again = format_command(f"rm {shlex.quote(cassette)}", path)
            raise SettingsError(f"{to_line(cassette)} is a sample, and prune takes cassettes. To delete it: {again}")
    if len(lacking) == len(places):
        raise lacking[0]


def _confirm_and_delete(database: Store, chosen: Collection[RowSummary], *, yes: bool) -> bool:
    """Delete recordings; returns False if the user declined."""
    if not chosen:
        print_line(f"There is nothing to delete in {show_store(database.path)}.")
        return True
    ids = [row.id for row in chosen]
    live = sum(not row.superseded for row in chosen)
    what = f"{format_count(len(ids), 'interaction')} of {_format_cassette_names(chosen)}"
    print_line(f"{what}: {live:,} live, {len(ids) - live:,} replaced by newer ones;")
    print_line(f"about {format_size(count_bytes_freed_by_deletion(database, ids))} of {show_store(database.path)}.")
    if not yes and not _ask_confirmation():
        print_line("Nothing was deleted.")
        return False
    done = database.delete_interactions(ids)
    freed = "" if not done.freed else f"; the file is {format_size(done.freed)} smaller"
    print_line(f"Deleted {format_count(done.interactions, 'interaction')}{freed}.")
    return True


def rm(
    what: list[str] = typer.Argument(
        ...,
        autocompletion=complete_cassettes,
        metavar="CASSETTE|ID",
        help="Cassettes, samples of them (NAME~2), numbers of interactions.",
    ),
    store: Path | None = STORE,
    cassette: bool = typer.Option(False, "--cassette", help="Treat numbers as names of cassettes."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
) -> None:
    """Delete cassettes or single interactions, after showing them and asking."""
    with open_given(store, writable=True) as database:
        numbers = [] if cassette else [typed for typed in what if is_id(typed)]
        rows = {row.id: row for row in (database.list_summaries(None, superseded=True) if numbers else ())}
        if lacking := next((typed for typed in numbers if int(typed) not in rows), ""):
            raise CassetteNotFound(
                f"There is no interaction {lacking} in {show_store(database.path)}.",
                hint=suggest_cassette_named_by_number(database, lacking, "rm")
                or f"Their numbers: {format_command('ls', database.path)}",
            )
        wanted = {int(typed): rows[int(typed)] for typed in numbers}
        whole = []
        for typed in what:
            if typed in numbers:
                continue
            named = find_cassette(database, typed)
            whole += [named.cassette] if named.sample is None else []
            wanted |= {row.id: row for row in database.list_summaries(named.cassette, named.sample, superseded=True)}
        done = _confirm_and_delete(database, list(wanted.values()), yes=yes)
        if done:
            _warn_of_cassette_files(store, whole)
    if not done:
        raise typer.Exit(int(Exit.FAILED))


def rename(
    old: str = typer.Argument(
        ..., metavar="CASSETTE", autocompletion=complete_cassettes, help="The current name; all samples are renamed."
    ),
    new: str = typer.Argument(..., metavar="NAME", help="The new name."),
    store: Path | None = STORE,
) -> None:
    """Rename a cassette."""
    with open_given(store, writable=True) as database:
        if find_cassette(database, old).sample is not None:
            raise SettingsError(f"{to_line(old)} is a sample; a cassette is renamed with all of them.")
        database.rename_cassette(old, check_new_name(new))
        print_line(f"{to_line(old)} is now {to_line(new)}.")
        _warn_of_cassette_files(store, [old])


def _warn_of_cassette_files(store: Path | None, cassettes: Collection[str]) -> None:
    """Print files that still hold the deleted recordings: the next start imports them again."""
    folder = load_settings({"store": store}).settings.cassette_dir
    if folder is None or not folder.is_dir():
        return
    files = CassetteDir(folder, now=time.time).list_cassette_files()
    for name in cassettes:
        if name in files:
            print_line(f"{files[name]} still holds it, and is read again where it changes: remove it, too.")


def _ask_confirmation() -> bool:
    """Ask for confirmation; end of input or Ctrl-C means no."""
    try:
        return typer.confirm("Delete them?")
    except typer.Abort:
        print_line()
        return False


def _select_superseded_or_unused(
    database: Store, rows: Collection[RowSummary], *, superseded: bool, unused: bool
) -> list[RowSummary]:
    """Return the selected recordings. Raises MachineError if their use is unknown."""
    chosen = [row for row in rows if row.superseded] if superseded else []
    if unused:
        journal = Path(f"{database.path}.state.db")
        served = read_served_ids(journal)
        if served is None:
            raise MachineError(
                f"What is unused is not known: there is no run in {journal}.", hint="Run your agent once, then prune."
            )
        # Only cassettes that the run walked through: what it never opened is not unused, it was not asked.
        walked = {(row.cassette, row.sample) for row in rows if row.id in served}
        chosen += [
            row for row in rows if not row.superseded and row.id not in served and (row.cassette, row.sample) in walked
        ]
    return chosen


def _format_cassette_names(rows: Collection[RowSummary]) -> str:
    names = sorted({row.cassette for row in rows})
    shown = ", ".join(to_line(name) for name in names[:5])
    more = ", ..." if len(names) > 5 else ""
    return f"cassette {shown}" if len(names) == 1 else f"{len(names)} cassettes ({shown}{more})"
