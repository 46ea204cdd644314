"""Hooks by which a test runner observes the scenarios of this process, and decides how they are recorded.

Outside `llmproxy.scenario`, so that the plugin, which is loaded in every pytest run, need not import scenarios.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from llmproxy.report.events import Handler


class ScenarioRunListener(Handler, Protocol):
    """Gets every scenario run of this process and its events, from any thread."""

    # An executor and its result: this layer is below scenarios.
    def on_run_end(self, scenario: Any, result: Any) -> None:
        """Handle the end of a run, once, also after an exception."""


@dataclass(slots=True)
class RunSettingsFromPytest:
    listener: ScenarioRunListener | None = None
    mode: str = ""
    """Mode of sessions of runs that set none; empty: the proxy's."""
    place: Callable[[str], str] | None = None
    """Returns a recording's name at the current place (in a test) from its own name."""
    faults: Any = None
    """Injected faults for sessions of runs, as plain values; None: the proxy's."""
    session: str = ""
    """Session of the running test, for calls outside an agent's turn. Empty: none."""
    ready: Callable[[], object] | None = None
    """Waits until the environment's proxy serves; called in a thread before a session opens. Raises MachineError."""

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return () if self.listener is None else (self.listener,)

    def emit_scenario_run_end(self, scenario: Any, result: Any) -> None:
        if self.listener is not None:
            self.listener.on_run_end(scenario, result)


HOST = RunSettingsFromPytest()
