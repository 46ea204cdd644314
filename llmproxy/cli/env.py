"""``llmproxy env``, ``status`` and ``stop``: what a shell asks of a running proxy."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import typer

from llmproxy.client.child_env import list_env_ca_bundles, plan_env, write_ca_bundle_files
from llmproxy.client.control import ControlApiClient, ControlError, ProxyUnreachable
from llmproxy.client.proxy_process import TOKEN_VARIABLE, read_llmproxy_url
from llmproxy.client.session_reports import Health, format_session_counts
from llmproxy.errors import MachineError, SettingsError
from llmproxy.protocol import OFFLINE
from llmproxy.settings import convert_listen_to_connect_host, load

_BUNDLE = "llmproxy-bundle.pem"
_URL = typer.Option("", "--url", metavar="URL", help="URL of the proxy. [LLMPROXY_URL; default as `llmproxy start`]")


def env_command(
    url: str = _URL,
    session: str = typer.Option(
        "", "--session", metavar="NAME", help="Session in the base URLs; default: the proxy's own cassette."
    ),
    form: str = typer.Option("sh", "--format", metavar="sh|fish|powershell|dotenv|json", help="Output format."),
    intercept: bool = typer.Option(
        False, "--intercept", help="Also print proxy and certificate variables, for a proxy with --forward."
    ),
) -> None:
    """Print the variables that send SDKs to a running proxy: eval "$(llmproxy env)"."""
    if form not in FORMATS:
        raise SettingsError(f"--format is {form!r}; it can be {', '.join(FORMATS)}")
    control = open_control(url)
    named = url or read_llmproxy_url(os.environ)  # known to run, or to have ended; else it may be starting
    url, health = control.url, wait_until_serving(control, 0.0 if named else PATIENCE)
    interception = None
    if intercept:
        ours = [path for path in list_env_ca_bundles(os.environ) if path.name != _BUNDLE]
        # Beside the proxy's certificate, with the same lifetime.
        interception = write_ca_bundle_files(url, health.ca, ours, Path(health.ca or "").parent / _BUNDLE)
    aws = (Path.home() / ".aws").is_dir()
    replay = health.mode in OFFLINE
    made = plan_env(url, session or None, os.environ, replay=replay, interception=interception, aws_files=aws)
    for note in made.notes:
        typer.echo(f"llmproxy: {note}", err=True)
    typer.echo(format_env_assignments(made.changes, form))
    if form == "sh" and sys.stdout.isatty():
        typer.echo('# to set them in this shell: eval "$(llmproxy env)"', err=True)


def open_control(url: str) -> ControlApiClient:
    """Return a client of the proxy at `url`; if empty, at :func:`find_llmproxy_url`. Raises SettingsError."""
    return ControlApiClient(url.rstrip("/") or find_llmproxy_url(os.environ), token=os.environ.get(TOKEN_VARIABLE, ""))


def find_llmproxy_url(environ: Mapping[str, str]) -> str:
    """Return the URL of a running proxy: LLMPROXY_URL, else from the settings. Raises SettingsError for port 0."""
    if found := read_llmproxy_url(environ):
        return found
    loaded = load({}, environ, Path.cwd())
    settings = loaded.settings
    if not settings.port:
        msg = f"with port = 0 ({loaded.sources['port']}) the proxy takes any free port, so its port is unknown."
        hint = "The proxy printed its address at its start: export LLMPROXY_URL=http://127.0.0.1:PORT"
        raise SettingsError(msg, hint=hint)
    return f"http://{convert_listen_to_connect_host(settings.host)}:{settings.port}"


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
FORMATS = (*_SET, "json")


def format_env_assignments(values: Mapping[str, str], form: str) -> str:
    if form == "json":
        return json.dumps(dict(values), indent=2)
    return "\n".join(_SET[form](name, value) for name, value in values.items())


PATIENCE = 20.0
"""Seconds that a proxy may take to begin, in the background, or to end."""
LOOK = 0.05
SILENT = 1.0
"""Seconds of waiting before a line says so."""


def status_command(url: str = _URL) -> None:
    """Show whether a proxy runs, its mode, and the counts of its sessions so far."""
    control = open_control(url)
    health = control.health()
    typer.echo(f"{control.url}  mode {health.mode}  llmproxy {health.version}")
    for report in control.sessions():
        mode = "" if report.mode == health.mode else f" ({report.mode})"
        typer.echo(f"  session {report.name}{mode}: {format_session_counts(report)}")


def stop_command(url: str = _URL) -> None:
    """Stop a running proxy, after open answers have finished; recordings are kept.

    The exit code is the proxy's own: 0, 3 if a recording was lost, 4 with --fail-on-miss or --strict.
    """
    control = open_control(url)
    control.health()  # of another server's answer nothing would be known
    code = control.stop()
    _wait_until_gone(control)
    typer.echo(f"{control.url}  stopped" + (f" with exit code {code}" if code else ""))
    raise typer.Exit(code)


def wait_until_serving(control: ControlApiClient, seconds: float) -> Health:
    """Return its health once something listens, at the latest after `seconds`. Raises ProxyUnreachable."""
    until, silent_until = time.monotonic() + seconds, time.monotonic() + SILENT
    while True:
        try:
            return control.health()
        except ProxyUnreachable as error:
            if not isinstance(error.__cause__, ConnectionRefusedError) or time.monotonic() >= until:
                raise
        if time.monotonic() >= silent_until:
            silent_until = until
            typer.echo(f"llmproxy: nothing listens at {control.url} yet: waiting, {seconds:g} s at most", err=True)
        time.sleep(LOOK)


def _wait_until_gone(control: ControlApiClient) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            control.health(timeout=1.0)
        except ProxyUnreachable:
            return
        except ControlError:
            pass  # it says that it is ending
        time.sleep(LOOK)
    msg = f"the proxy at {control.url} still answers after {PATIENCE:g} s; it was asked to end."
    raise MachineError(msg, hint="A second SIGTERM ends it at once.")
