"""``llmproxy push`` and ``pull``: a cassette between a file and a team's server."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import typer

from llmproxy.amount_formatting import format_count
from llmproxy.cli.parts.printing import ProgressLine, to_line
from llmproxy.cli.parts.store_arguments import STORE, refuse_url, resolve_store_path
from llmproxy.core.cassettes.merging import copy_cassette
from llmproxy.core.store.file.store import open_store
from llmproxy.errors import SettingsError
from llmproxy.protocol import DEFAULT_STORE
from llmproxy.server_store_copies import find_server_of_copy, show_store

_HELP = "The team's server: postgresql://USER@HOST/DATABASE. Without it, LLMPROXY_STORE names the server."
_SERVER = typer.Option(None, "--store", metavar="URL", parser=STORE.parser, help=_HELP)
_NAMES = typer.Argument(..., metavar="CASSETTE", help="Names of cassettes.")
_FILE = typer.Option(Path(DEFAULT_STORE), "--file", metavar="PATH", help="The SQLite store.")
_AS = typer.Option(None, "--as", metavar="NAME", help="Name of the copy; default: the same.")
_REPLACE = typer.Option(False, "--replace", help="Replace a different cassette of the same name.")


def register(app: typer.Typer) -> None:
    _add_command(app, "push", "Copy cassettes from a file to the team's PostgreSQL server.")
    _add_command(app, "pull", "Copy cassettes from the team's PostgreSQL server into a file.")


def _add_command(app: typer.Typer, name: str, text: str) -> None:
    @app.command(name, help=text)
    def bring(
        names: list[str] = _NAMES,
        store: Path | None = _SERVER,
        file: Path = _FILE,
        new: str | None = _AS,
        instead: bool = _REPLACE,
    ) -> None:
        refuse_url(file)
        path = resolve_store_path(store)
        if find_server_of_copy(path) is None:
            raise SettingsError(
                f"{show_store(path)} is a file; this command brings cassettes to a server, or from one.",
                hint="--store postgresql://USER@HOST/DATABASE, or LLMPROXY_STORE",
            )
        if new is not None and len(names) > 1:
            raise SettingsError("--as names one cassette.")
        source, target = (file, path) if name == "push" else (path, file)
        holder = f"llmproxy {name} {os.getpid()} on {platform.node()}"
        with (
            open_store(source, writable=False, now=time.time, whole=False) as one,
            open_store(target, writable=True, now=time.time, whole=False) as other,
        ):
            for cassette in names:
                one.refresh_cassette(cassette)
                other.refresh_cassette(new or cassette)
                with ProgressLine(f"bringing {to_line(cassette)} to {show_store(target)}"):
                    done = copy_cassette(one, other, cassette, new or cassette, instead=instead, holder=holder)
                many = format_count(done.interactions, "interaction")
                said = f"there already, the same {many}" if done.same else f"{many} brought to {show_store(target)}"
                before = f"; {done.replaced} that it had there are replaced" if done.replaced else ""
                typer.echo(f"{new or cassette}: {said}{before}.")
