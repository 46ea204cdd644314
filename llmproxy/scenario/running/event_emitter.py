"""Emits the events of one run to handlers: one Started, one Finished, which is always the last.

Handlers may be shared by runs that go on in parallel threads; they are called one at a time. A handler that raises is
logged and never disturbs the run.

A program that runs scenarios by itself, under no test runner, is a test as well (`Program`): what its runs came to is
kept when it ends, for `llmproxy test --trend`. Only runs that a proxy recorded or replayed count: where there is none,
nothing is written. A program that Ctrl-C ended is not kept, and of one that was killed nobody hears.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmproxy.errors import Exit, LLMProxyError
from llmproxy.files import make_ignored
from llmproxy.protocol import AGENT, TESTS_STORE
from llmproxy.report.events import (
    Completed,
    Event,
    Finished,
    Handler,
    Message as MessageEvent,
    Selected,
    Started,
    Status,
    Step,
    Verdict,
)
from llmproxy.report.handlers import notify
from llmproxy.report.rows import row_of_runs
from llmproxy.report.trend import Trend
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.messages import copy_value
from llmproxy.settings import load

_ONE_AT_A_TIME = threading.RLock()


@dataclass
class EventEmitter:
    about: Started
    """What is known of the run before it begins."""
    handlers: Sequence[Handler]
    clock: Callable[[], float] = time.time
    _begun: bool = False
    _over: bool = False
    _steps: int = 0

    def emit_start(self, **found: Any) -> None:  # noqa: ANN401 (fields of the event)
        """Emit Started, once, with what was found since."""
        if not self._begun:
            self._begun, self.about = True, replace(self.about, **found, at=self.clock())
            self.emit(self.about)

    def emit_message(self, message: Message, **about: Any) -> None:  # noqa: ANN401 (fields of the event)
        if self._goes_on():
            copy = copy_value(message)
            self.emit(MessageEvent(run_id=self.about.run_id, message=copy, at=self.clock(), **about))

    def emit_step(self, kind: str, **about: Any) -> None:  # noqa: ANN401 (fields of the event)
        if self._goes_on():
            self.emit(Step(run_id=self.about.run_id, index=self._steps, kind=kind, **about))
            self._steps += 1

    def emit_verdict(self, judge: str, result: ScenarioResult | None, *, forced: bool, decided: bool) -> None:
        """Emit what a judge said; `result` is None where it wants to see more."""
        if not self._goes_on():
            return
        said = ScenarioResult(success=False, messages=[]) if result is None else result
        self.emit(
            Verdict(
                run_id=self.about.run_id,
                judge=judge,
                success=said.success if result is not None and decided else None,
                reasoning=said.reasoning or "",
                criteria=tuple(each.to_event() for each in said.criteria),
                forced=forced,
            )
        )

    def emit_result(self, result: ScenarioResult) -> bool:
        """Emit how a run of a script ended; only the first end counts, and returns True."""
        return self.emit_end(
            status=result.status or Status.FAILED,
            reasoning=result.reasoning or "",
            criteria=tuple(each.to_event() for each in result.criteria),
            total_seconds=result.total_time,
            agent_seconds=result.agent_time,
            waited_seconds=result.waited,
            usage=dict(result.usage),
            replayed=result.replayed,
            bound=result.bound,
            bound_names=tuple(result.bound_names),
            carried=result.carried,
            carried_names=tuple(result.carried_names),
            stale=result.stale,
            dealt=result.dealt,
            misses=tuple(result.misses),
            error=result.error,
            labels=tuple(result.labels),
        )

    def emit_end(self, **about: Any) -> bool:  # noqa: ANN401 (fields of the event)
        """Emit Finished; only the first call counts, and returns True."""
        with _ONE_AT_A_TIME:
            over, self._over = self._over, True
        if not over:
            self.emit(Finished(run_id=self.about.run_id, scenario=self.about.scenario, at=self.clock(), **about))
        return not over

    def emit(self, event: Event) -> None:
        with _ONE_AT_A_TIME:
            notify(self.handlers, event)

    def _goes_on(self) -> bool:
        """Return whether the run has begun and not ended: an executor that is used without `run` emits nothing."""
        return self._begun and not self._over


class Program:
    """Remembers what the runs of a process came to; for any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._runs: dict[str, list[Mapping[str, Any]]] = {}
        self._process = 0
        self._since = 0.0
        self._folder = Path()

    def record_end(self, result: ScenarioResult) -> None:
        if not result.cassette:
            return
        use = result.usage.get(AGENT)
        run = {"status": str(result.status or Status.FAILED), "cost_usd": None if use is None else use.cost_usd}
        with self._guard:
            if self._process != os.getpid():  # the first run; or a fork, which has none of its parent's
                self._runs, self._process, self._folder = {}, os.getpid(), Path.cwd()
                self._since = time.time() - (result.total_time or 0.0)
                atexit.register(self.end)
            self._runs.setdefault(result.cassette, []).append(run)

    def end(self) -> None:
        """Keep the test that this program was."""
        interrupted = isinstance(getattr(sys, "last_exc", None), KeyboardInterrupt)
        if self._process != os.getpid() or not self._runs or interrupted:
            return
        runs, self._runs = self._runs, {}
        try:
            self._write_trend(runs)
        except (LLMProxyError, OSError) as error:
            _print_line(f"this test is not in the trend: {error}")

    def _write_trend(self, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        known = load({}, os.environ, self._folder)
        store = known.settings.store
        if known.is_default("store"):
            store = self._folder / TESTS_STORE
            make_ignored(store.parent)
        rows = [row_of_runs(name, each) for name, each in runs.items()]
        bad = any(row["status"] not in ("passed", "skipped") for row in rows)
        kept = Trend(store.with_name(f"{store.name}.state.db"), _print_line)
        count = sum(map(len, runs.values()))
        kept.handle(Selected(title=Path(sys.argv[0]).name, scenarios=len(rows), runs=count, at=self._since))
        code = Exit.FAILED if bad else Exit.OK
        kept.handle(Completed(exit_code=code, seconds=time.time() - self._since, scenarios=rows))


def _print_line(text: str) -> None:
    sys.stderr.write(f"llmproxy: {text}\n")


PROGRAM = Program()
"""Of this process."""
