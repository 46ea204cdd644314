"""Keeping a store in order: ``llmproxy verify`` and ``llmproxy prune``."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.cli.look import STORE, opened
from llmproxy.cli.parts.printing import line, say, size
from llmproxy.core.misses.again import store_words
from llmproxy.errors import Exit, MachineError

if TYPE_CHECKING:
    from llmproxy.core.store.rederive import Rekeyed
    from llmproxy.core.store.rows import Summary
    from llmproxy.core.store.store import Store

_SHOWN = 20
"""Groups of changed keys that are listed one by one."""
_DAY = 86_400


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("verify")(verify)
    app.command("prune")(prune)


def verify(
    store: Path | None = STORE,
    rekey: bool = typer.Option(False, "--rekey", help="Give each recording its key under the rules of today."),
) -> None:
    """Check every recording: the file, each body's hash, and each key under the rules of today."""
    from llmproxy.cli.parts.options import gather
    from llmproxy.core.keys.normalize import Rules
    from llmproxy.core.store.rederive import merges, rekey as rekey_all, rekeyed, splits
    from llmproxy.core.store.upkeep import damages

    settings = gather({"store": store}).settings
    rules = Rules.from_config(settings.normalize.model_dump())
    with opened(store) as database:
        damaged = list(damages(database))
        found = (
            list(rekeyed(database, rules, settings.upstream)) if not any(d.interaction is None for d in damaged) else []
        )
        path = database.path
    for damage in damaged:
        say(
            f"damaged: {'' if damage.interaction is None else f'interaction {damage.interaction}: '}{line(damage.what)}"
        )
    for each in (each for each in found if each.damaged):
        damaged_key = f"its key is {each.old[:15]}..., its request gives {each.new[:15]}..."
        say(f"damaged: interaction {each.id}: {damaged_key}")
    changed = [each for each in found if each.old != each.new and each.other_rules]
    older = [each for each in found if each.older and not each.other_rules and not each.damaged]
    if older and not rekey:
        say(
            f"{len(older)} interactions have keys of an older version; replay derives today's whenever it opens their cassette."
        )
        say("To make them last: llmproxy verify --rekey")
    if changed:
        say(f"{len(changed)} interactions were recorded under other rules and have another key under today's:")
        _groups("one key now (they would answer each other's requests)", merges(found))
        _groups("different keys now (they were one request before)", splits(found))
        typed = f"llmproxy verify --rekey{store_words(str(path))}"
        say("Replay will not find them" + (" until now." if rekey else f". Re-key them: {typed}"))
    if rekey and not damaged:
        with opened(store, writable=True) as database:
            count = rekey_all(database, rules, settings.upstream)
        say(f"{count} keys were derived anew." if count else "Every key is as it should be.")
        changed = []
    wrong = len(damaged) + sum(each.damaged for each in found) + len(changed)
    say(
        f"{path}: {len(found)} live interactions, "
        + ("nothing is wrong." if not wrong else f"{wrong} are not as they should be.")
    )
    if wrong:
        raise typer.Exit(int(Exit.FAILED))


def _groups(what: str, groups: list[list[Rekeyed]]) -> None:
    for group in groups[:_SHOWN]:
        say(f"  {', '.join(str(each.id) for each in group)}: {what}")
    if len(groups) > _SHOWN:
        say(f"  ... and {len(groups) - _SHOWN} more groups with {what}")


def prune(
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
    from llmproxy.core.store.upkeep import prune as delete, stored_bytes

    with opened(store, writable=True) as database:
        rows = database.summaries(cassette, superseded=True)
        if older_than is not None:
            until = time.time() - older_than * _DAY
            rows = [row for row in rows if row.started_at < until]
        everything = not superseded and not unused and (cassette is not None or older_than is not None)
        chosen = rows if everything else _chosen(database, rows, superseded=superseded or not unused, unused=unused)
        if not chosen:
            say(f"There is nothing to delete in {database.path}.")
            return
        ids = [row.id for row in chosen]
        live = sum(not row.superseded for row in chosen)
        say(f"{len(ids)} interactions of {_names(chosen)}: {live} live, {len(ids) - live} replaced by newer ones;")
        say(f"about {size(stored_bytes(database, ids))} of {database.path}.")
        if not yes and not _confirmed():
            say("Nothing was deleted.")
            raise typer.Exit(int(Exit.FAILED))
        done = delete(database, ids)
    say(f"Deleted {done.interactions} interactions; the file is {size(done.freed)} smaller.")


def _confirmed() -> bool:
    """Ask; the end of the input, or Ctrl-C, is a no."""
    try:
        return typer.confirm("Delete them?")
    except typer.Abort:
        say()
        return False


def _chosen(database: Store, rows: Collection[Summary], *, superseded: bool, unused: bool) -> list[Summary]:
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


def _names(rows: Collection[Summary]) -> str:
    names = sorted({row.cassette for row in rows})
    shown = ", ".join(line(name) for name in names[:5])
    return (
        f"cassette {shown}"
        if len(names) == 1
        else f"{len(names)} cassettes ({shown}{', ...' if len(names) > 5 else ''})"
    )
