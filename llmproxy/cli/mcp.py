"""``llmproxy mcp -- SERVER ARGS...``: stands where the command of an MCP server over stdio stood, and records or replays it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.cli.parts.opening import STORE
from llmproxy.errors import SettingsError
from llmproxy.protocol import DEFAULT_SESSION, RUN_VARIABLE

if TYPE_CHECKING:
    from llmproxy.client.tools.hosts import Host

_URL = "LLMPROXY_URL"
_SECRET = re.compile(r"token|secret|passw|credential|api_?key|access_?key|_key$|(?:^|_)pat$", re.IGNORECASE)
SHORTEST_SECRET = 8
"""Characters of a value that is worth hiding."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mcp", context_settings={"allow_interspersed_args": False})(mcp)


def mcp(
    command: list[str] = typer.Argument(..., metavar="-- SERVER...", help="The server's own command and arguments."),
    name: str = typer.Option("", "--name", help="Name of the server in recordings. [made of its command]"),
    proxy: str = typer.Option("", "--proxy", metavar="URL", help=f"A proxy that runs. [{_URL}]"),
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
    from llmproxy.client.tools.naming import server_name
    from llmproxy.client.tools.shim import Shim, to_stdout

    if "--" not in sys.argv:
        raise SettingsError("write -- before the server's command: llmproxy mcp -- npx -y some-server")
    flags = {"mode": mode, "cassette": cassette, "store": store, "faults": faults}
    places = {"cwd": str(Path.cwd()), "home": str(Path.home()), "tmp": os.environ.get("TMPDIR", "/tmp").rstrip("/")}  # noqa: S108 - compared with
    host = _host(name or server_name(command, places), proxy, session, flags, os.environ)
    signal.signal(signal.SIGTERM, _interrupt)
    shim = Shim(command, _own(os.environ), host, to_stdout())
    code = 0
    try:
        code = shim.serve(lambda size: os.read(0, size))
    except KeyboardInterrupt:
        code = 0
    raise typer.Exit(code)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _host(server: str, proxy: str, session: str, flags: Mapping[str, object], env: Mapping[str, str]) -> Host:
    secrets = [
        value
        for name, value in env.items()
        if _SECRET.search(name) and len(value) >= SHORTEST_SECRET and not value.startswith(("/", "~"))
    ]
    url = proxy or env.get(_URL, "")
    if url:
        from llmproxy.client.tools.hosts import ProxyHost

        if typed := [f"--{name}" for name, value in flags.items() if value is not None]:
            raise SettingsError(f"{', '.join(typed)}: a proxy runs at {url}, and it has options of its own.")
        named = session or env.get(RUN_VARIABLE, "") or DEFAULT_SESSION
        return ProxyHost(url, named, server, f"{os.getpid()}-{os.urandom(4).hex()}", secrets)
    from llmproxy.cli.parts.options import gather
    from llmproxy.client.tools.alone import OwnHost

    return OwnHost(gather(flags).settings, server, env, secrets)


def _own(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that the server would have had: without what is ours."""
    return {name: value for name, value in env.items() if name not in (_URL, RUN_VARIABLE)}
