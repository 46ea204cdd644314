"""``llmproxy start``: run the proxy in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import typer

from llmproxy.cli.parts.options import CommandWithSettingsFlags, get_given_flag_values, load_settings
from llmproxy.report.proxy_console import ProxyConsole, get_width_if_terminal, wants_colour


def register(app: typer.Typer) -> None:
    app.command("start", cls=CommandWithSettingsFlags)(start_proxy_in_foreground)


def start_proxy_in_foreground(
    ctx: typer.Context, *, announce: bool = typer.Option(False, "--announce", hidden=True)
) -> None:
    """Start the proxy; then point your agent's base URL at it."""
    gc.disable()  # what is imported stays; `serve` enables it when it serves
    try:
        loaded = load_settings(get_given_flag_values(ctx))
        if not find_spec("mitmproxy"):
            raise typer.Exit(_delegate_to_other_install())
        from llmproxy.mitm import serve

        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("llmproxy")
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if loaded.settings.verbose else logging.WARNING)
        console = ProxyConsole(
            sys.stdout,
            colour=wants_colour(sys.stdout, os.environ),
            quiet=loaded.settings.quiet,
            verbose=loaded.settings.verbose,
            room=partial(get_width_if_terminal, sys.stdout),
            later=lambda *job: asyncio.get_running_loop().call_later(*job),
        )
        try:
            code = serve.run_proxy(loaded, console, announce=announce)
        finally:
            console.flush()
    finally:
        gc.enable()
    raise typer.Exit(int(code))


def _delegate_to_other_install() -> int:
    """Run the same command with an llmproxy that includes the proxy, found like `run` does. Raises MachineError."""
    from llmproxy.client.proxy_process import COMMAND_VARIABLE, find_proxy_command

    found = find_proxy_command(os.environ)
    if found.notice:
        sys.stderr.write(f"llmproxy: {found.notice}\n")
        sys.stderr.flush()
    env = {name: value for name, value in os.environ.items() if name != COMMAND_VARIABLE}
    words = [*found.words, *sys.argv[1:]]
    if os.name == "posix":
        os.execvpe(words[0], words, env)  # noqa: S606 - the user's own words, without a shell
    return subprocess.run(words, env=env, check=False).returncode  # noqa: S603 - as above
