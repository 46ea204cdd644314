"""Who runs the scenarios of this process, if it is not the user alone: a test runner hears of every run, and says how
it is recorded.

The one thing that scenarios and the pytest plugin share. It is no part of `llmproxy.scenario`, so that the plugin,
which is loaded in every pytest run of whoever has us installed, can be there before scenarios are imported, and need
not import them. What `configure` says is the user's and stays his.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from llmproxy.report.events import Handler


class ScenarioRunListener(Handler, Protocol):
    """Is called for every run of a scenario in this process, from whatever thread it runs in, and its events."""

    # An executor and its result: this layer is below scenarios.
    def on_run_end(self, scenario: Any, result: Any) -> None:
        """Take how a run ended, once, also when it raised."""


@dataclass(slots=True)
class ScenarioRunHooks:
    """What the runner says; empty: nobody says anything."""

    listener: ScenarioRunListener | None = None
    mode: str = ""
    """Of sessions of runs that say none themselves; empty: the proxy's."""
    place: Callable[[str], str] | None = None
    """Gives the name of a recording where the run stands (in a test), from the name that it has by itself."""
    faults: Any = None
    """Injected faults of sessions of runs, as plain values; None: the proxy's."""
    session: str = ""
    """The session of the running test, for what the process calls in no agent's turn. Empty: there is none."""
    ready: Callable[[], object] | None = None
    """Waits until the proxy that the environment names serves; called before a session is opened, in a thread."""

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """Who hears the events, beside whom the user named."""
        return () if self.listener is None else (self.listener,)

    def emit_run_end(self, scenario: Any, result: Any) -> None:
        if self.listener is not None:
            self.listener.on_run_end(scenario, result)

    def wait_for_proxy(self) -> None:
        """Wait for the proxy. Raises MachineError."""
        if self.ready is not None:
            self.ready()


HOST = ScenarioRunHooks()
"""Of this process."""
