"""``eval "$(llmproxy env)"``: print the variables that send all SDKs of this shell to a running proxy."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import typer

from llmproxy.client.child_env import (
    BASE_URLS,
    NODE_OPTIONS,
    NODE_PRELOAD,
    URL_VARIABLE,
    is_proxy_url,
    list_preset_bundles,
    make_ca_files,
    plan_env,
)
from llmproxy.client.control import Control
from llmproxy.client.proxy_process import TOKEN_VARIABLE, read_proxy_url
from llmproxy.errors import SettingsError
from llmproxy.protocol import BUNDLES, NODE_CA, NODE_PROXY, OFFLINE, PLACEHOLDER_KEY, PROXIES
from llmproxy.settings import find_reachable_host, load

_BUNDLE = "llmproxy-bundle.pem"


def env(
    url: str = typer.Option(
        "", "--url", metavar="URL", help="URL of the proxy. [LLMPROXY_URL; default as `llmproxy start`]"
    ),
    session: str = typer.Option(
        "", "--session", metavar="NAME", help="Session in the base URLs; default: the proxy's own cassette."
    ),
    form: str = typer.Option("sh", "--format", metavar="sh|fish|powershell|dotenv|json", help="Output format."),
    unset: bool = typer.Option(False, "--unset", help="Print commands that unset the variables."),
    intercept: bool = typer.Option(
        False, "--intercept", help="Also print proxy and certificate variables, for a proxy with --forward."
    ),
) -> None:
    """Print the variables that send SDKs to a running proxy: eval "$(llmproxy env)"."""
    if form not in FORMATS:
        raise SettingsError(f"--format is {form!r}; it can be {', '.join(FORMATS)}")
    if unset:
        if form == "dotenv":
            raise SettingsError("--unset: a dotenv file cannot take a variable away; remove the lines.")
        typer.echo(render_unset_commands(find_set_proxy_variables(os.environ), form))
        return
    control = open_control(url)
    url, health = control.url, control.health()
    interception = None
    if intercept:
        ours = [path for path in list_preset_bundles(os.environ) if path.name != _BUNDLE]
        # Beside the proxy's certificate, with the same lifetime.
        interception = make_ca_files(url, health.ca, ours, Path(health.ca or "").parent / _BUNDLE)
    aws = (Path.home() / ".aws").is_dir()
    made = plan_env(
        url, session or None, os.environ, replay=health.mode in OFFLINE, interception=interception, aws_files=aws
    )
    for note in made.notes:
        typer.echo(f"llmproxy: {note}", err=True)
    typer.echo(render_assignments(made.changes, form))
    if form == "sh" and sys.stdout.isatty():
        typer.echo('# to set them in this shell: eval "$(llmproxy env)"', err=True)


def open_control(url: str) -> Control:
    """Return a client of the proxy at `url`; if empty, at :func:`find_configured_proxy_url`. Raises SettingsError."""
    return Control(url.rstrip("/") or find_configured_proxy_url(os.environ), token=os.environ.get(TOKEN_VARIABLE, ""))


def find_configured_proxy_url(environ: Mapping[str, str]) -> str:
    """Return the URL of a running proxy: LLMPROXY_URL, else from the settings. Raises SettingsError for port 0."""
    if found := read_proxy_url(environ):
        return found
    loaded = load({}, environ, Path.cwd())
    settings = loaded.settings
    if not settings.port:
        raise SettingsError(
            f"by port = 0 ({loaded.sources['port']}) a proxy takes any free port, so nobody knows which one to ask.",
            hint="It said its address when it started: export LLMPROXY_URL=http://127.0.0.1:PORT",
        )
    return f"http://{find_reachable_host(settings.host)}:{settings.port}"


def find_set_proxy_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that point to a proxy of ours, and placeholder keys."""
    try:
        url = find_configured_proxy_url(environ)
    except SettingsError:  # our address is not known any more: what is marked as ours is taken back all the same
        url = ""
    names = [
        name
        for name in (*(each.name for each in BASE_URLS), *PROXIES)
        if url and environ.get(name) and is_proxy_url(environ[name], url)
    ]
    names += [name for name, value in environ.items() if value == PLACEHOLDER_KEY and name not in names]
    names += [name for name in BUNDLES if environ.get(name, "").endswith(_BUNDLE)]
    if any(name in names for name in (*BUNDLES, *PROXIES)):
        names += [name for name in (NODE_CA, NODE_PROXY) if name in environ]
    names += [NODE_OPTIONS] if environ.get(NODE_OPTIONS) == NODE_PRELOAD else []
    return [*names, *([URL_VARIABLE] if URL_VARIABLE in environ else [])]


def _quote_dotenv(value: str) -> str:
    """Quote for the dotenv readers of Python, Node and Docker: single quotes are literal to all of them."""
    if "'" not in value:
        return f"'{value}'"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


_SET: Mapping[str, Callable[[str, str], str]] = {
    "sh": lambda name, value: f"export {name}={shlex.quote(value)}",
    "fish": lambda name, value: f"set -gx {name} '{value.replace('\\', '\\\\').replace("'", "\\'")}';",
    "powershell": lambda name, value: f"$env:{name} = '{value.replace("'", "''")}'",
    "dotenv": lambda name, value: f"{name}={_quote_dotenv(value)}",
}
_UNSET: Mapping[str, Callable[[str], str]] = {
    "sh": lambda name: f"unset {name}",
    "fish": lambda name: f"set -e {name};",
    "powershell": lambda name: f"Remove-Item Env:{name} -ErrorAction SilentlyContinue",
}
FORMATS = (*_SET, "json")
"""Output formats of :func:`render_assignments`."""


def render_assignments(values: Mapping[str, str], form: str) -> str:
    """Return one assignment a line in one of FORMATS."""
    if form == "json":
        return json.dumps(dict(values), indent=2)
    return "\n".join(_SET[form](name, value) for name, value in values.items())


def render_unset_commands(names: Iterable[str], form: str) -> str:
    """Return commands that unset variables, in one of FORMATS except dotenv."""
    if form == "json":
        return json.dumps(dict.fromkeys(names), indent=2)
    return "\n".join(map(_UNSET[form], names))
