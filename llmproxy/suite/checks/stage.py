"""What a check may ask of the run that it belongs to; `suite.run.acting.stage.Stage` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.session import RunSession
    from llmproxy.suite.checks.snapshots import Snapshots
    from llmproxy.suite.choose.options import Options
    from llmproxy.suite.matchers.variables import VariableScope
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.trace.observing.wire import Wire


class CheckedStage(Protocol):
    case: SuiteCase
    options: Options
    scope: VariableScope
    session: RunSession | None
    snapshots: Snapshots
    declared: list[tuple[int, Any]]
    index: int
    """Of the step that is being executed, from 0."""

    @property
    def wire(self) -> Wire:
        """What the agent said to models and servers."""
