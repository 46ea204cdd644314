"""``llmproxy ls`` lists what a store holds, ``why`` says what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.amounts import number, when
from llmproxy.cli.parts.bindings import (
    plain_bindings,
    tell_cassette,
)
from llmproxy.cli.parts.completing import cassettes
from llmproxy.cli.parts.printing import dump, line, paragraphs, say, table
from llmproxy.cli.parts.stores.naming import list_names, session_name
from llmproxy.cli.parts.stores.opening import STORE, open_given, store_path
from llmproxy.errors import SettingsError
from llmproxy.protocol import Channel

if TYPE_CHECKING:
    from llmproxy.core.forks.table import Fork
    from llmproxy.core.store.reading import CassetteInfo
    from llmproxy.core.store.rows import RowSummary

_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ls")(ls)
    app.command("why")(why)


# --- ls --------------------------------------------------------------------------------------------------------------


def ls(
    what: str | None = typer.Argument(
        None, metavar="CASSETTE", autocompletion=cassettes, help="Only this cassette, as --cassette says it."
    ),
    store: Path | None = STORE,
    cassette: str | None = typer.Option(
        None, "--cassette", metavar="NAME", autocompletion=cassettes, help="Only this cassette."
    ),
    channel: Channel | None = typer.Option(
        None, "--channel", help="Only what is about models (llm), servers of tools (mcp), or other services (http)."
    ),
    limit: int = typer.Option(50, "--limit", min=0, help="Show the last so many interactions; 0 for all."),
    superseded: bool = typer.Option(False, "--superseded", help="Also those that a newer recording replaced."),
    as_json: bool = _JSON,
) -> None:
    """List cassettes and the interactions recorded in them."""
    from llmproxy.core.forks.table import forks
    from llmproxy.core.store.queries import list_declared, slots_of

    if what is not None and cassette not in (None, what):
        raise SettingsError(f"one cassette at a time: {line(what)} or {line(cassette or '')}.")
    cassette = what if what is not None else cassette
    with open_given(store) as database:
        few = limit if limit and cassette is None and not as_json else None
        infos = database.cassettes(cassette, latest=few)
        total = database.count(cassette, superseded=superseded)
        rows = database.summaries(cassette, superseded=superseded, limit=limit or None, channel=channel)
        bound = {
            (info.name, info.sample): (list_declared(database, info.name, info.sample), slots_of(database, info.name))
            for info in infos
        }
        there = "" if infos else list_names(database)
        children = {(each.cassette, each.sample): each for each in forks(database)}
    if as_json:
        plain = {
            "cassettes": [asdict(info) | plain_bindings(*bound[info.name, info.sample]) for info in infos],
            "interactions": [asdict(row) | {"channel": row.channel} for row in rows],
        }
        dump(plain | {"forks": [each.to_json() for each in children.values() if cassette in (None, each.cassette)]})
        return
    if not infos:
        say(f"Nothing is recorded in cassette {line(cassette)}." if cassette else "Nothing is recorded.")
        if there:
            say(there)
        return
    _print_cassettes(infos, children)
    for (name, sample), (said, slots) in bound.items():
        for text in tell_cassette(session_name(line(name), sample), said, slots if sample == 1 else ()):
            say(text)
    say()
    _print_interactions(rows)
    if channel and len(rows) < (limit or len(rows) + 1):
        total = len(rows)
    if len(rows) < total:
        typer.echo(f"(the last {len(rows)} of {total}; --limit 0 shows all)", err=True)
    if few == len(infos):
        typer.echo(f"(the last {few} cassettes; --limit 0 shows all)", err=True)


def _print_cassettes(infos: Sequence[CassetteInfo], children: Mapping[tuple[str, int], Fork]) -> None:
    """Print a row for each cassette; `children` are forks by name and sample."""
    table(
        ("cassette", "live", "replaced", "tokens in", "out", "last", "state"),
        [
            (
                session_name(info.name, info.sample),
                number(info.live),
                number(info.stored - info.live),
                number(info.tokens_in),
                number(info.tokens_out),
                when(info.last_at),
                _state(info, children.get((info.name, info.sample))),
            )
            for info in infos
        ],
        measures=("replaced", "tokens in", "out"),
    )


def _print_interactions(rows: Sequence[RowSummary]) -> None:
    """Print a row for each interaction, with its channel where not all are about models."""
    told = any(row.channel is not Channel.LLM for row in rows)
    first = ("id", "started", "cassette", "party", *(("channel",) if told else ()))
    table(
        (*first, "model", "operation", "status", "ms", "in", "out", "text"),
        [_row(row, told=told) for row in rows],
        alike=("operation", "party", "channel", "model"),
        measures=("ms", "in", "out"),
        breaks={"started": len("2027-01-15 ")},
    )


def _state(info: CassetteInfo, fork: Fork | None) -> str:
    state = "complete" if info.closed_cleanly else f"recorded by {info.holder}" if info.holder else "not closed"
    return state if fork is None else f"{state}, {fork.describe()}"


def _row(row: RowSummary, *, told: bool) -> tuple[str, ...]:
    """Return a line of the table; `told` is whether it has a column for the channel."""
    status = str(row.status) if row.ending.value == "complete" else f"{row.status} {row.ending.value}"
    return (
        str(row.id),
        when(row.started_at),
        session_name(row.cassette, row.sample),
        row.party,
        *((row.channel.value,) if told else ()),
        row.model or "",
        f"{row.method} {row.provider.removeprefix('http:')}{row.target}"
        if row.channel is Channel.HTTP
        else row.operation,
        f"{status} replaced" if row.superseded else status,
        "" if row.duration_ms is None else f"{row.duration_ms:,.0f}",
        "" if row.tokens_in is None else number(row.tokens_in),
        "" if row.tokens_out is None else number(row.tokens_out),
        " -> ".join(text for text in (row.last_user_text, row.answer_text) if text),
    )


SHOWN_FAULTS = 20
"""Faults on purpose of the last run that `why` tells."""

# --- why ------------------------------------------------------------------------------------------------------


def why(
    number: int = typer.Option(1, "-n", min=1, help="Show the last so many misses."),
    store: Path | None = STORE,
    as_json: bool = _JSON,
) -> None:
    """Say why the last requests were refused: what was nearest, where it differs, what to type."""
    from llmproxy.core.sessions.journal_reading import read_misses, read_struck
    from llmproxy.core.store.file.connect import advise_missing

    path = Path(f"{store_path(store)}.state.db")
    found, struck = read_misses(path, number), read_struck(path, SHOWN_FAULTS)
    if as_json:
        dump(
            [{"at": missed.at, **missed.data} for missed in found]
            + [{"fault": each.note, **each._asdict()} for each in struck]
        )
        return
    if struck:
        say("The last run met faults on purpose, which are no misses:")
    for each in struck:
        say(f"  {when(each.at)}  {each.provider} {each.operation} {each.model}  {each.status or '-'}  {each.note}")
    if not found:
        if path.is_file():
            say(f"No request was refused, as far as {path} knows.")
        else:
            say(f"Nothing is known: there is no {path}, so nothing has run with this store.")
            say(advise_missing(store_path(store)))
    for n, missed in enumerate(found):
        say(("\n" if n else "") + f"--- {when(missed.at)}")
        say(paragraphs(missed.text))
