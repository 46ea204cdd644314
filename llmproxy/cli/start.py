"""``llmproxy start``: the proxy in the foreground, until Ctrl-C."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING

import typer

from llmproxy.advice import requirement
from llmproxy.cli.parts.options import SettingsCommand, flags_of, gather
from llmproxy.errors import MachineError

if TYPE_CHECKING:
    from types import ModuleType

_OF_THE_EXTRA = frozenset({"mitmproxy"})
"""Top-level modules that the extra brings."""


def register(app: typer.Typer) -> None:
    app.command("start", cls=SettingsCommand)(start)


def start(ctx: typer.Context) -> None:
    """Start the proxy; then point your agent's base URL at it."""
    import asyncio
    import gc

    from llmproxy.report.console import Console, room_of, wants_colour

    gc.disable()  # what is imported stays; `serve` enables it when it serves
    try:
        loaded = gather(flags_of(ctx))
        serve = proxy_module("llmproxy.mitm.serve")
        _log(verbose=loaded.settings.verbose)
        terminal = sys.stdout.isatty()
        console = Console(
            sys.stdout,
            colour=wants_colour(sys.stdout, os.environ),
            quiet=loaded.settings.quiet,
            verbose=loaded.settings.verbose,
            room=partial(room_of, sys.stdout) if terminal else lambda: None,
            later=None if terminal else lambda job: asyncio.get_running_loop().call_soon(job),
        )
        try:
            code = serve.run(loaded, console)
        finally:
            console.flush()
    finally:
        gc.enable()
    raise typer.Exit(int(code))


def proxy_module(name: str) -> ModuleType:
    """Import a module that needs the extra `proxy`.

    Raises:
        MachineError: The extra is not installed.

    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_THE_EXTRA:
            raise
        raise MachineError(
            f"the proxy needs {missing}, which is not installed here.", hint=_how_to_install(shutil.which("uv"))
        ) from error


def _how_to_install(uv: str | None) -> str:
    """Describe what to type; `uv` is where it was found."""
    package = requirement("proxy")
    if uv:
        return f"Run it at once:  uvx --from '{package}' llmproxy start\nOr install it:   uv tool install '{package}'"
    return f"Install it:  uv tool install '{package}'  (or the same with pipx install, or pip install)"


def _log(*, verbose: bool) -> None:
    """Send our log to stderr: warnings, and with `verbose` each step."""
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("llmproxy")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
