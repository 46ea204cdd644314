"""Who hears of a test beside its reports: the terminal, the trend, what `label` reads; and what they hear when an error ends it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.cli.parts.suites import LAST_REPORT, store_of
from llmproxy.errors import Exit, LLMProxyError, SettingsError

if TYPE_CHECKING:
    from llmproxy.report.events import Event, Handler
    from llmproxy.settings import Loaded as LoadedSettings


class TestEnded:
    """Knows whether reports were told how the test ended, and tells them where an error came before that."""

    def __init__(self) -> None:
        self._told, self._since = False, time.monotonic()

    def handle(self, event: Event) -> None:
        from llmproxy.report.events import Completed

        self._told = self._told or isinstance(event, Completed)

    def close(self) -> None:
        """Nothing is kept back."""

    def tell(self, reports: Sequence[Handler], error: BaseException) -> None:
        """Tell that an error ended the test, unless its end was told."""
        from llmproxy.report.events import Completed

        code = error.exit_code if isinstance(error, LLMProxyError) else Exit.INTERRUPTED
        note = str(error) if isinstance(error, LLMProxyError) else "interrupted"
        for report in () if self._told else reports:
            report.handle(Completed(exit_code=code, seconds=time.monotonic() - self._since, notes=(note,)))


def last_report() -> Handler | None:
    """Return who keeps what this test tells, for `label` and `--rejudge last`; None where nothing can be written."""
    from llmproxy.files import make_ignored
    from llmproxy.report.choices import handler_of

    try:
        make_ignored(Path.cwd() / LAST_REPORT.parent)
        return handler_of(f"jsonl={Path.cwd() / LAST_REPORT}")
    except (OSError, SettingsError) as error:
        typer.echo(f"llmproxy: this test is not kept for `llmproxy label`: {error}", err=True)
        return None


def state_path(settings: LoadedSettings) -> Path:
    """Return the database of what is known beside the recordings."""
    store = store_of(settings)
    return store.with_name(f"{store.name}.state.db")


def trend_of(settings: LoadedSettings) -> Handler:
    """Return who keeps the test for --trend."""
    from llmproxy.report.trend import Trend

    return Trend(state_path(settings), lambda text: typer.echo(f"llmproxy: {text}", err=True))


def console(*, verbose: bool) -> Handler:
    """Return what shows a suite at this terminal."""
    from llmproxy.report.redaction import Hiding
    from llmproxy.report.terminal.console import wants_colour
    from llmproxy.report.terminal.suite_console import SuiteConsole

    def write(text: str) -> None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()

    colour = wants_colour(sys.stdout, os.environ)
    return Hiding(SuiteConsole(write, colour=colour, live=sys.stdout.isatty(), verbose=verbose))
