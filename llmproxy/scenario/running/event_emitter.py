"""Emits the events of one run to handlers: one Started, one Finished, which is always the last.

Handlers may be shared by runs that go on in parallel threads; they are called one at a time. A handler that raises is
logged and never disturbs the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmproxy.report.events import Event, Finished, Handler, Message as MessageEvent, Started, Status, Step, Verdict
from llmproxy.report.handlers import tell
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.messages import copy_value

_ONE_AT_A_TIME = threading.RLock()


@dataclass
class EventEmitter:
    """Emits the events of one run."""

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
        """Emit that a message joined the conversation."""
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
            tell(self.handlers, event)

    def _goes_on(self) -> bool:
        """Return whether the run has begun and not ended: an executor that is used without `run` emits nothing."""
        return self._begun and not self._over
