"""``llmproxy status`` and ``llmproxy stop``: query or stop a running proxy, in any terminal or container."""

from __future__ import annotations

import time

import typer

from llmproxy.cli.env import open_control
from llmproxy.client.control import Control, ControlError, ProxyUnreachable
from llmproxy.client.session_reports import format_counts
from llmproxy.errors import MachineError

PATIENCE = 20.0
LOOK = 0.05
_URL = typer.Option("", "--url", metavar="URL", help="URL of the proxy. [LLMPROXY_URL; default as `llmproxy start`]")


def status(url: str = _URL) -> None:
    """Show whether a proxy runs, its mode, and the counts of its sessions so far."""
    control = open_control(url)
    health = control.health()
    typer.echo(f"{control.url}  mode {health.mode}  llmproxy {health.version}")
    for report in control.sessions():
        mode = "" if report.mode == health.mode else f" ({report.mode})"
        typer.echo(f"  session {report.name}{mode}: {format_counts(report)}")


def stop(url: str = _URL) -> None:
    """Stop a running proxy, after open answers have finished; recordings are kept.

    The exit code is the proxy's own: 0, 3 if a recording was lost, 4 with --fail-on-miss or --strict.
    """
    control = open_control(url)
    code = control.stop()
    _wait_until_gone(control)
    typer.echo(f"{control.url}  stopped" + (f" with exit code {code}" if code else ""))
    raise typer.Exit(code)


def _wait_until_gone(control: Control) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            control.health(timeout=1.0)
        except ProxyUnreachable:
            return
        except ControlError:
            pass  # it says that it is ending
        time.sleep(LOOK)
    raise MachineError(
        f"the proxy at {control.url} still answers after {PATIENCE:g} s; it was asked to end.",
        hint="A second SIGTERM ends it at once.",
    )
