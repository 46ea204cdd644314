"""``llmproxy addon``: print the path of the script for ``mitmdump -s``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import typer

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import MachineError, SettingsError

ADDONS = ("record_replay", "inject_faults")


def addon(
    name: str = typer.Argument("record_replay", help="record_replay, or inject_faults, which only injects faults."),
) -> None:
    """Print the path of the mitmproxy addon: mitmdump -s "$(llmproxy addon)"."""
    if name not in ADDONS:
        raise SettingsError(
            f"there is no addon {name[:60]!r}{did_you_mean(name, ADDONS)}", hint=f"There is: {', '.join(ADDONS)}"
        )
    path = Path(str(files("llmproxy"))) / "data" / f"{name}.py"
    if not path.is_file():
        raise MachineError(f"the addon script is missing: {path}", hint="Install llmproxy again.")
    typer.echo(path)
