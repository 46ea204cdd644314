"""``llmproxy settings``: list every option with its value and source."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from llmproxy.amount_formatting import align_rows
from llmproxy.cli.parts.options import load_settings
from llmproxy.settings import HIDDEN, format_value, list_options


def settings(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Show every option: its value, the value's source, its environment variable."""
    loaded = load_settings({})
    if as_json:
        values, sources = asdict(loaded.settings), loaded.sources
        values |= {o.name: HIDDEN for o in list_options() if o.secret and values[o.name]}
        facts = [
            {"name": o.key, "value": values[o.name], "source": str(sources[o.name]), "env": o.env, "flag": o.flag}
            for o in list_options()
        ]
        typer.echo(json.dumps(facts, indent=2, default=str))
        return
    rows = [("option", "value", "source", "environment")]
    for o in list_options():
        value = format_value(getattr(loaded.settings, o.name))
        rows.append((o.key, (HIDDEN if value and o.secret else value) or "-", str(loaded.sources[o.name]), o.env))
    typer.echo("\n".join(align_rows(rows)))
