"""``llmproxy mcp -- SERVER ARGS...``: stands where the command of an MCP server over stdio stood, and records or replays it.

`__main__` reads the words of a plain call by itself (`client.tools.standing`); what comes here is the rest: help, completion, mistakes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from llmproxy.cli.parts.opening import STORE
from llmproxy.errors import SettingsError
from llmproxy.protocol import RUN_VARIABLE, URL_VARIABLE

_DASHES = "write -- before the server's command: llmproxy mcp -- npx -y some-server"
_SERVER = "llmproxy.server"


class McpGroup(TyperGroup):
    """Takes what stands behind ``--`` for the command of a server."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (typer 0.29 carries its own click)
        """Cut the server's command off."""
        at = args.index("--") if "--" in args else len(args)
        if not set(args[:at]) & set(self.commands):
            ctx.meta[_SERVER], args = args[at + 1 :], args[:at]
        return list(super().parse_args(ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 (as above)
        """Say what is missing where a server's command stands in the place of one of ours."""
        if args[0] not in self.commands:
            raise SettingsError(_DASHES)
        return super().resolve_command(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=McpGroup, invoke_without_command=True, subcommand_metavar="-- SERVER ARGS...", rich_markup_mode=None
    )
    group.callback()(mcp)
    app.add_typer(group, name="mcp")


def mcp(
    ctx: typer.Context,
    name: str = typer.Option("", "--name", help="Name of the server in recordings. [made of its command]"),
    proxy: str = typer.Option("", "--proxy", metavar="URL", help=f"A proxy that runs. [{URL_VARIABLE}]"),
    session: str = typer.Option("", "--session", metavar="NAME", help=f"Session of that proxy. [{RUN_VARIABLE}]"),
    mode: str | None = typer.Option(None, "--mode", help="Without a proxy: replay, auto, record, once or passthrough."),
    cassette: str | None = typer.Option(None, "--cassette", metavar="NAME", help="Without a proxy: the cassette."),
    store: Path | None = STORE,
    faults: str | None = typer.Option(
        None,
        "--faults",
        metavar="FILE|PRESET",
        help="Without a proxy: faults on purpose; `llmproxy faults` lists them.",
    ),
) -> None:
    """Stand before an MCP server over stdio: its calls are replayed, or recorded. In replay it is never started."""
    if ctx.invoked_subcommand is not None:
        return
    from llmproxy.client.tools.standing import ShimAsked, stand

    if not (command := ctx.meta.get(_SERVER)):
        raise SettingsError(_DASHES)
    raise typer.Exit(stand(ShimAsked(tuple(command), name, proxy, session, mode, cassette, None if store is None else str(store), faults), os.environ))
