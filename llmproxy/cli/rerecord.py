"""``llmproxy rerecord ID``: one recorded question asked again of its provider, with the environment's credentials.

``llmproxy rerecord --changed -- COMMAND``: the command in replay, and what has changed asked anew
(`engine.replacement`).

A proxy of our own records the answer into a store of its own; only a whole good one takes the old one's place. So a
wrong key or a bad day costs nothing that was recorded, and the question's key and place in its conversation stay.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import typer

from llmproxy.advice import suggest_command
from llmproxy.cli.changes import execute_on_recordings
from llmproxy.cli.parts.options import OnRecordings, flags_of, gather, options_of, record_first
from llmproxy.cli.parts.printing import line, print_line
from llmproxy.cli.parts.run_options import RunArguments, RunOptions
from llmproxy.cli.parts.store_arguments import number_of, open_given
from llmproxy.errors import CassetteBusy, Exit, MachineError, SettingsError
from llmproxy.protocol import UPDATE_VARIABLE, Update

if TYPE_CHECKING:
    from llmproxy.core.store.store import Store
    from llmproxy.core.traffic.interaction import Headers, Interaction

_UNSENT = frozenset({"host", "content-length", "accept-encoding", "connection", "transfer-encoding", "cookie"})
_PATIENCE = 600.0
"""Seconds that an answer may take."""


def register(app: typer.Typer) -> None:
    app.command("rerecord", cls=OnRecordings)(rerecord)


def rerecord(
    ctx: typer.Context,
    words: list[str] = typer.Argument(
        ..., metavar="ID | -- COMMAND", help="Number of an interaction, see `llmproxy ls`; with --changed what to run."
    ),
    changed: bool = typer.Option(
        False, "--changed", help="Run a command on its recording, and ask only what has changed since."
    ),
    max_cost: str = typer.Option("", "--max-cost", metavar="USD", help="With --changed: stop before more is spent."),
    change: list[str] = typer.Option([], "--change", metavar="NAME", help="With --changed: only this change. Repeat."),
) -> None:
    """Ask one recorded question again, with the environment's credentials, and keep the new answer instead; or all that
    has changed since a command was recorded.
    """
    if changed:
        raise typer.Exit(_ask_changed(flags_of(ctx), options_of(ctx), tuple(words), max_cost, change))
    if len(words) > 1 or max_cost or change:
        raise SettingsError("one interaction at a time; --max-cost, --change and a command go with --changed.")
    flags = flags_of(ctx)
    _ask_again(words[0], Path(str(flags["store"])) if flags.get("store") else None, flags)


def _ask_changed(
    flags: Mapping[str, object], options: RunOptions, command: tuple[str, ...], max_cost: str, change: Sequence[str]
) -> int:
    """Run a command in replay, ask live what has changed, and put that in its place when all of it is here."""
    from llmproxy.values import read_cost

    try:
        read_cost(max_cost or None)
    except ValueError as error:
        raise SettingsError(f"--max-cost: {error}") from error
    flags = {**flags, "mode": "replay", "allow_live": True}
    more = {UPDATE_VARIABLE: Update.CHANGED.value, "LLMPROXY_MAX_COST": max_cost, "LLMPROXY_CHANGE": ",".join(change)}
    return execute_on_recordings(RunArguments(flags, command, options), gather(flags), more)


def _ask_again(interaction: str, store: Path | None, flags: Mapping[str, object]) -> None:
    from llmproxy.core.store.rows import describe

    id_ = number_of(interaction, "rerecord")
    loaded = gather(flags)
    with open_given(store) as database:
        found = database.load(id_)
        live = {row.id for row in database.summaries(found.cassette)}
        place, listed = (found.cassette, found.sample), database.cassettes()
        holder = next((each.holder for each in listed if (each.name, each.sample) == place), "")
    if holder:
        raise CassetteBusy(f"cassette {found.cassette} is being recorded by {holder}.", hint="End that session first.")
    if id_ not in live:
        hint = f"The numbers of today: {suggest_command('ls', database.path)}"
        raise SettingsError(f"interaction {id_} was replaced by a newer one.", hint=hint)
    headers = live_headers(found, os.environ, record_first(loaded, found.cassette))
    target = live_upstream(found, dict(loaded.settings.upstream))
    typer.echo(f"asking {found.model or found.operation} at {target or found.upstream} again ...", err=True)
    made = _ask(found, headers, target)
    if made.response.status >= 400 or made.response.ending.value != "complete":
        answer = made.response
        said = f"{answer.status} {line(answer.reason)} ({answer.ending.value})"
        print_line(f"The answer was {said}; the recording stays as it is.")
        print_line(line(answer.body[:600].decode("utf-8", "replace")))
        raise typer.Exit(int(Exit.FAILED))
    with open_given(store, writable=True) as database:
        new = _put(database, found, made)
    same = describe(made)[:2] == describe(found)[:2]
    print_line(f"#{id_} is replaced by #{new}, whose answer is {'the same' if same else 'another one'}.")
    if not same:
        print_line(
            f"What was asked after it knew the old answer: if your agent goes on otherwise, that is a miss. "
            f"{suggest_command(f'diff {id_} {new}', database.path)}"
        )


def live_headers(found: Interaction, env: Mapping[str, str], record: str) -> Headers:
    """Return headers with a key of the environment where one was recorded; `record` is advice. Raises SettingsError."""
    from llmproxy.core.providers.table import PROVIDERS, KeyVariable
    from llmproxy.core.secrets.redact import is_marked
    from llmproxy.core.traffic.frames import is_frames

    request = found.request
    if is_frames(found.response.headers):
        raise SettingsError("a WebSocket cannot be asked again by one request: record it with your agent.")
    if is_marked(request):
        raise SettingsError(
            f"a secret was taken out of the request of {found.id}, and nobody knows it any more: it cannot be asked "
            f"again.",
            hint=f"Record it with your agent: {record}",
        )
    plain = [
        (name, value) for name, value in request.headers if name.lower() not in _UNSENT and "REDACTED" not in value
    ]
    asked = any("REDACTED" in value for name, value in request.headers if name.lower() not in _UNSENT)
    row = PROVIDERS.get(found.provider)
    if row is not None and row.signed:
        raise SettingsError(f"requests to {found.provider} are signed anew for each call: record it with your agent.")
    keys = (row and row.keys) or (KeyVariable(f"{re.sub('[^A-Z0-9]', '_', found.provider.upper())}_API_KEY"),)
    fields = {name: held for key in keys for name, held in key.fields().items()}
    name = next((name for name in fields if env.get(name)), None)
    if name is None:
        if asked:
            raise SettingsError(f"{found.provider} wants a key: set {' or '.join(fields)}.")
        return tuple(plain)
    return (*plain, (fields[name], env[name]) if fields[name] else ("authorization", f"Bearer {env[name]}"))


def live_upstream(found: Interaction, configured: Mapping[str, str]) -> str:
    """Return where to ask, as ``NAME=URL``; empty for the provider's own host.

    A recording may come from somebody else: where it says that it was made decides nothing about where our key goes.
    Raises SettingsError.
    """
    from llmproxy.core.providers.table import PROVIDERS

    if found.provider in configured:
        return f"{found.provider}={configured[found.provider]}"
    known = PROVIDERS.get(found.provider)
    if known is not None and known.upstream and known.upstream.startswith(found.upstream):
        return ""
    raise SettingsError(
        f"interaction {found.id} was recorded from {line(found.upstream)}, which is not {found.provider}'s own host.",
        hint=f"To send it there, with your credentials: --upstream {found.provider}={line(found.upstream)}/v1",
    )


def _ask(found: Interaction, headers: Headers, upstream: str) -> Interaction:
    """Return the question with the answer of now, recorded by a proxy of our own. Raises MachineError."""
    from llmproxy.client.process import attach

    env = {name: value for name, value in os.environ.items() if name != "LLMPROXY_URL"}
    with tempfile.TemporaryDirectory(prefix="llmproxy-rerecord-") as folder:
        path = Path(folder) / "new.db"
        options = [
            "--mode=record",
            f"--store={path}",
            "--cassette=new",
            *([f"--upstream={upstream}"] if upstream else []),
        ]
        with attach(options, env, log=Path(folder) / "proxy.log", started_by="llmproxy rerecord") as proxy:
            url = f"{proxy.url}/{quote(found.provider)}{found.request.target}"
            body = found.request.body or None
            request = Request(url, body, dict(headers), method=found.request.method)  # noqa: S310 - ours
            try:
                with build_opener(ProxyHandler({})).open(request, timeout=_PATIENCE) as answer:
                    answer.read()
            except HTTPError as error:
                error.read()
            except (URLError, OSError) as error:
                raise MachineError(f"the answer did not arrive: {error}") from error
        with open_given(path) as database:
            rows = database.summaries("new")
            if len(rows) != 1:
                raise MachineError(
                    f"{found.provider} could not be asked: nothing was recorded.", hint="Is it reachable from here?"
                )
            return database.load(rows[0].id)


def _put(database: Store, old: Interaction, new: Interaction) -> int:
    """Let the new answer take the old one's place; returns its number."""
    from llmproxy.core.store.store import Addition

    kept = {name: getattr(new, name) for name in ("response", "usage", "model", "redacted", "made_ids")}
    made = replace(old, id=None, **kept)
    return database.add_all([Addition(made, instead=old.id)])[0]
