"""A program that runs scenarios by itself, under no test runner: what they came to is kept when it ends, for `llmproxy
test --trend`.

Only runs that a proxy recorded or replayed count: where there is none, nothing is written. A program that Ctrl-C ended
is not kept, and of one that was killed nobody hears.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmproxy.errors import Exit, LLMProxyError
from llmproxy.files import make_ignored
from llmproxy.protocol import AGENT, TESTS_STORE
from llmproxy.report.events import Completed, Selected, Status
from llmproxy.report.rows import row_of_runs
from llmproxy.report.trend import Trend
from llmproxy.scenario.types import ScenarioResult
from llmproxy.settings import load


class Program:
    """Remembers what the runs of a process came to; for any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._runs: dict[str, list[Mapping[str, Any]]] = {}
        self._process = 0
        self._since = 0.0
        self._folder = Path()

    def record_end(self, result: ScenarioResult) -> None:
        """Remember how a run ended."""
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
            self._keep(runs)
        except (LLMProxyError, OSError) as error:
            _say(f"this test is not in the trend: {error}")

    def _keep(self, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        known = load({}, os.environ, self._folder)
        store = known.settings.store
        if known.is_default("store"):
            store = self._folder / TESTS_STORE
            make_ignored(store.parent)
        rows = [row_of_runs(name, each) for name, each in runs.items()]
        bad = any(row["status"] not in ("passed", "skipped") for row in rows)
        kept = Trend(store.with_name(f"{store.name}.state.db"), _say)
        count = sum(map(len, runs.values()))
        kept.handle(Selected(title=Path(sys.argv[0]).name, scenarios=len(rows), runs=count, at=self._since))
        code = Exit.FAILED if bad else Exit.OK
        kept.handle(Completed(exit_code=code, seconds=time.time() - self._since, scenarios=rows))


def _say(text: str) -> None:
    sys.stderr.write(f"llmproxy: {text}\n")


PROGRAM = Program()
"""Of this process."""
