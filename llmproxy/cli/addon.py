"""``llmproxy addon``: where the script for ``mitmdump -s`` lies."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import typer

from llmproxy.errors import MachineError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("addon")(addon)


def addon() -> None:
    """Print the path of the mitmproxy addon: mitmdump -s "$(llmproxy addon)"."""
    path = Path(str(files("llmproxy"))) / "data" / "record_replay.py"
    if not path.is_file():
        raise MachineError(f"the addon script is missing: {path}", hint="Install llmproxy again.")
    typer.echo(path)
