"""Helpers of `llmproxy test`: shards (``--shard 3/10``), signals, event handlers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from llmproxy.amount_formatting import format_count
from llmproxy.errors import Exit, LLMProxyError, SettingsError
from llmproxy.report import sharding
from llmproxy.report.events import (
    Completed,
    Event,
    EventHandlerWithNothingToClose,
    Handler,
    RedactingEventHandler,
    Selected,
)
from llmproxy.report.proxy_console import wants_colour
from llmproxy.report.run_console import SuiteConsole

if TYPE_CHECKING:
    from llmproxy.suite.reading.load import SuiteCase


class SelectedShardCases(NamedTuple):
    cases: list[SuiteCase]
    title: str
    told: Mapping[str, Any]


def select_shard_cases(
    text: str, times: Path | None, cases: Sequence[SuiteCase], runs: int | None, command: str, *, partly: bool
) -> SelectedShardCases | None:
    """Return a shard of the cases; None without --shard. Raises SettingsError: no such shard, or no durations."""
    if not text:
        if times is not None:
            raise SettingsError("--shard-times balances parts of a test: it goes with --shard 1/10.")
        return None
    # late: the schema of suites, of which `--help` and a wrong option need nothing
    from llmproxy.suite.selection import append_runs_flag

    shard = sharding.parse_shard(text)
    counts = {case.id: runs or case.scenario.runs for case in cases}
    parts = sharding.assign_items_to_shards(
        sharding.weigh_tests_for_shards(counts, {} if times is None else sharding.read_test_times_from_report(times)),
        shard.of,
    )
    title = ", ".join(dict.fromkeys(case.suite.name for case in cases))
    mine = [case for case in cases if parts[case.id] == shard.number]
    told = sharding.shard_split_to_json(shard, parts, "test", command=append_runs_flag(command, runs), partly=partly)
    return SelectedShardCases(mine, title, told)


def emit_empty_shard(part: SelectedShardCases, handlers: Sequence[Handler], mode: str, at: float) -> str:
    """Emit that a shard had nothing to run, which is no failure, and return it as text."""
    for handler in handlers:
        handler.handle(Selected(title=part.title, scenarios=0, runs=0, mode=mode, at=at, shard=part.told))
        handler.handle(Completed(exit_code=int(Exit.OK), seconds=0.0))
    many = format_count(len(part.told["items"]), "scenario")
    return f"part {part.told['number']}/{part.told['of']} has none of {many}: nothing to run"


def advise_recording(unrecorded: Sequence[str], shard: Mapping[str, Any], some_runs: bool) -> str:
    from llmproxy.suite.selection import advise_recording

    command, partly = shard.get("command", "llmproxy test"), bool(shard.get("partly"))
    return advise_recording(unrecorded, len(shard["items"]), command, partly=partly, some_runs=some_runs)


_ENDS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a test: Ctrl-C, a CI timeout, a closed terminal."""


@contextmanager
def treat_signals_as_interrupt() -> Iterator[None]:
    """Treat every such signal like Ctrl-C, so that proxy, agents and reports are closed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    try:
        for number in _ENDS:
            with suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def run_or_raise_interrupt[T](pending: Coroutine[Any, Any, T]) -> T:
    """Run; at a signal let running work clean up, then raise KeyboardInterrupt."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(pending)
    heard = 0

    def interrupt() -> None:
        nonlocal heard
        heard += 1
        typer.echo("llmproxy: interrupted; " + ("cleaning up" if heard == 1 else "still cleaning up"), err=True)
        task.cancel()

    before = {number: signal.getsignal(number) for number in _ENDS}
    try:
        for number in before:
            loop.add_signal_handler(number, interrupt)
    except (NotImplementedError, ValueError, RuntimeError):  # no such signals here
        before = {}
    try:
        return await task
    except asyncio.CancelledError:
        if heard:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


class AbortedTestRunEndEmitter(EventHandlerWithNothingToClose):
    """Tracks whether reports got the end of the test, and emits it if an error came first."""

    def __init__(self) -> None:
        self._told, self._since = False, time.monotonic()

    def handle(self, event: Event) -> None:
        self._told = self._told or isinstance(event, Completed)

    def emit_test_end_with_error(self, reports: Sequence[Handler], error: BaseException) -> None:
        code = error.exit_code if isinstance(error, LLMProxyError) else Exit.INTERRUPTED
        note = str(error) if isinstance(error, LLMProxyError) else "interrupted"
        for report in () if self._told else reports:
            report.handle(Completed(exit_code=code, seconds=time.monotonic() - self._since, notes=(note,)))


def print_warning(text: str) -> None:
    typer.echo(f"llmproxy: {text}", err=True)


def make_suite_console_handler(*, verbose: bool) -> Handler:
    def write(text: str) -> None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()

    colour = wants_colour(sys.stdout, os.environ)
    return RedactingEventHandler(SuiteConsole(write, colour=colour, live=sys.stdout.isatty(), verbose=verbose))
