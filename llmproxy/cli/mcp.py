"""``llmproxy mcp -- SERVER ARGS...`` replaces the command of an MCP server over stdio; ``mcp serve`` is an MCP server
over recordings.

`__main__` parses plain calls itself (`client.tools.mcp_shim`); this module handles the rest: help, completion, errors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from llmproxy.cli.parts.options import (
    STORE as SUITES,
    CommandWithSettingsFlags,
    load_settings,
    read_run_command_options,
)
from llmproxy.cli.parts.store_arguments import STORE
from llmproxy.client.tools.mcp_shim import McpShimOptions, run_mcp_shim
from llmproxy.errors import LLMProxyError, SettingsError
from llmproxy.postgres_store_paths import is_postgres_url
from llmproxy.protocol import DEFAULT_STORE, RUN_VARIABLE, URL_VARIABLE

_DASHES = "write -- before the server's command: llmproxy mcp -- npx -y some-server"
_BEHIND = "llmproxy.behind"


class DoubleDashCommandGroup(TyperGroup):
    """Separates the words after ``--``: the command of a server or an agent, with its own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_BEHIND] = tuple(args[at + 1 :])
        return list(super().parse_args(ctx, args[:at]))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Explain the missing ``--`` if a server's command stands where a subcommand is expected."""
        if args[0] not in self.commands:
            raise SettingsError(_DASHES)
        return super().resolve_command(ctx, args)


class CliCommandWithoutProxyOptions(CommandWithSettingsFlags):
    with_settings = False
    run_options = "mcp serve"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=DoubleDashCommandGroup,
        invoke_without_command=True,
        subcommand_metavar="-- SERVER ARGS... | serve",
        rich_markup_mode=None,
    )
    group.callback()(mcp)
    group.command("serve", cls=CliCommandWithoutProxyOptions)(serve_cassette_store_over_mcp)
    app.add_typer(group, name="mcp")


def mcp(
    ctx: typer.Context,
    name: str = typer.Option("", "--name", help="Name of the server in recordings. [derived from its command]"),
    proxy: str = typer.Option("", "--proxy", metavar="URL", help=f"URL of a running proxy. [{URL_VARIABLE}]"),
    session: str = typer.Option("", "--session", metavar="NAME", help=f"Session at that proxy. [{RUN_VARIABLE}]"),
    mode: str | None = typer.Option(None, "--mode", help="Without a proxy: replay, auto, record, once or passthrough."),
    cassette: str | None = typer.Option(None, "--cassette", metavar="NAME", help="Without a proxy: the cassette."),
    store: Path | None = STORE,
    faults: str | None = typer.Option(
        None, "--faults", metavar="FILE|PRESET", help="Without a proxy: injected faults; `llmproxy faults` lists them."
    ),
) -> None:
    """Record or replay the calls of a client to an MCP stdio server. A replay does not start the server."""
    if ctx.invoked_subcommand is not None:
        return
    if not (command := ctx.meta[_BEHIND]):
        raise SettingsError(_DASHES)
    path = None if store is None else str(store)
    raise typer.Exit(
        run_mcp_shim(McpShimOptions(command, name, proxy, session, mode, cassette, path, faults), os.environ)
    )


def serve_cassette_store_over_mcp(
    ctx: typer.Context,
    what: str = typer.Argument("", metavar="STORE|CASSETTE", help="A store (file or URL), or the name of a cassette."),
    store: Path | None = STORE,
    write: bool = typer.Option(False, "--write", help="Also offer tools that change recordings."),
) -> None:
    """Serve recordings to a coding agent, as an MCP server on stdio. Its tool `replay` may run the command after --."""
    from llmproxy.client.tools.mcp_server import McpServeOptions, serve_llmproxy_tools_on_stdio as serve_tools

    is_store = is_postgres_url(what) or Path(what).suffix in (".db", ".sqlite", ".sqlite3") or Path(what).is_file()
    if is_store and store is not None:
        raise SettingsError(f"{what} and --store {store}: one store at a time.")
    named = what if is_store else str(store or "")
    named, other = (named, "") if named else choose_store_for_llmproxy_mcp(Path.cwd())
    behind = ctx.meta[_BEHIND]
    options = tuple(read_run_command_options(ctx).list_flags_to_repeat())
    if options and not behind:
        flag, value = options[0]
        raise SettingsError(f"{flag} {value}: this option is for the agent's command, but no command follows --.")
    serve_tools(McpServeOptions(named, "" if is_store else what, write, behind, other, options))


def choose_store_for_llmproxy_mcp(folder: Path) -> tuple[str, str]:
    """Return the store to serve if none was named (empty: the settings'), and the tests' store if both exist."""
    try:
        settings = load_settings({})
    except LLMProxyError:  # each tool says it
        return "", ""
    if not settings.is_default("store") or not (folder / SUITES).is_file():
        return "", ""
    return ("", str(SUITES)) if (folder / DEFAULT_STORE).is_file() else (str(SUITES), "")
