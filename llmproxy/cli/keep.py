"""Keeping a store in order: ``llmproxy verify`` and ``llmproxy prune``."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from llmproxy.cli.parts.opening import STORE, opened, store_path
from llmproxy.cli.parts.printing import line, say, size
from llmproxy.errors import CassetteError, Exit, MachineError, SettingsError

if TYPE_CHECKING:
    from llmproxy.core.store.rows import RowSummary
    from llmproxy.core.store.store import Store

_DAY = 86_400


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("verify")(verify)
    app.command("prune")(prune)


def verify(
    paths: list[Path] | None = typer.Argument(
        None, metavar="[PATHS]", help="Stores, cassette files, folders of them; default: the store."
    ),
    store: Path | None = STORE,
    cassette: str | None = typer.Option(None, "--cassette", metavar="NAME", help="Only of this cassette."),
    rekey: bool = typer.Option(False, "--rekey", help="Give each recording its key under the rules of today."),
) -> None:
    """Check every recording: the file, each body's hash, and each key under the rules of today."""
    from llmproxy.cli.parts.opening import recordings
    from llmproxy.cli.parts.options import gather
    from llmproxy.cli.parts.verifying import Verifier
    from llmproxy.core.keys.normalize import Rules

    if rekey and cassette is not None:
        raise SettingsError("--rekey derives the keys of a whole store: leave --cassette out.")
    settings = gather({"store": store}).settings
    verifier = Verifier(Rules.from_config(settings.normalize.model_dump()), settings.upstream, cassette, rekey)
    wrong, failed = 0, False
    for path, is_store in recordings(paths or [settings.store]):
        try:
            wrong += verifier.store(path) if is_store else verifier.file(path)
        except CassetteError as error:
            if len(paths or ()) <= 1:
                raise
            failed = True
            typer.echo(f"error: {error}", err=True)
    if wrong or failed:
        raise typer.Exit(int(Exit.ENVIRONMENT if failed else Exit.FAILED))


def prune(
    paths: list[Path] | None = typer.Argument(None, metavar="[STORES]", help="Default: the store."),
    store: Path | None = STORE,
    superseded: bool = typer.Option(False, "--superseded", help="What a newer recording replaced (the default)."),
    unused: bool = typer.Option(False, "--unused", help="What the last run had at hand and did not use."),
    cassette: str | None = typer.Option(
        None, "--cassette", metavar="NAME", help="Only of this cassette; alone: all of it."
    ),
    older_than: float | None = typer.Option(
        None, "--older-than", metavar="DAYS", min=0, help="Only what was recorded longer ago; alone: all that is older."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
) -> None:
    """Delete recordings that are not wanted any more, after saying which and asking."""
    asked = Asked(superseded, unused, cassette, older_than, yes)
    done = [_prune(path, asked) for path in paths or [store_path(store)]]
    if not all(done):
        raise typer.Exit(int(Exit.FAILED))


class Asked(NamedTuple):
    """What is to go."""

    superseded: bool
    unused: bool
    cassette: str | None
    older_than: float | None
    yes: bool

    @property
    def everything(self) -> bool:
        """Whether a cassette, or what is old, goes as a whole."""
        return not self.superseded and not self.unused and (self.cassette is not None or self.older_than is not None)


def _prune(path: Path, asked: Asked) -> bool:
    """Delete of one store what was asked for; returns False if somebody said no."""
    from llmproxy.core.store.upkeep import prune as delete, stored_bytes

    with opened(path, writable=True) as database:
        rows = database.summaries(asked.cassette, superseded=True)
        if asked.older_than is not None:
            until = time.time() - asked.older_than * _DAY
            rows = [row for row in rows if row.started_at < until]
        superseded = asked.superseded or not asked.unused
        chosen = rows if asked.everything else _chosen(database, rows, superseded=superseded, unused=asked.unused)
        if not chosen:
            say(f"There is nothing to delete in {database.path}.")
            return True
        ids = [row.id for row in chosen]
        live = sum(not row.superseded for row in chosen)
        say(f"{len(ids)} interactions of {_names(chosen)}: {live} live, {len(ids) - live} replaced by newer ones;")
        say(f"about {size(stored_bytes(database, ids))} of {database.path}.")
        if not asked.yes and not _confirmed():
            say("Nothing was deleted.")
            return False
        done = delete(database, ids)
    say(f"Deleted {done.interactions} interactions; the file is {size(done.freed)} smaller.")
    return True


def _confirmed() -> bool:
    """Ask; the end of the input, or Ctrl-C, is a no."""
    try:
        return typer.confirm("Delete them?")
    except typer.Abort:
        say()
        return False


def _chosen(database: Store, rows: Collection[RowSummary], *, superseded: bool, unused: bool) -> list[RowSummary]:
    """Return what was asked for. Raises MachineError if nothing is known about use."""
    chosen = [row for row in rows if row.superseded] if superseded else []
    if unused:
        from llmproxy.core.sessions.journal import read_served

        journal = Path(f"{database.path}.state.db")
        served = read_served(journal)
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


def _names(rows: Collection[RowSummary]) -> str:
    names = sorted({row.cassette for row in rows})
    shown = ", ".join(line(name) for name in names[:5])
    return (
        f"cassette {shown}"
        if len(names) == 1
        else f"{len(names)} cassettes ({shown}{', ...' if len(names) > 5 else ''})"
    )
