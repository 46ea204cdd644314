"""Results of tools that a scenario makes up: `mock:` with its references written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmproxy.errors import SuiteError

if TYPE_CHECKING:
    from llmproxy.suite.matchers.variables import VariableScope
    from llmproxy.suite.reading.load import SuiteCase


def asked_mocks(case: SuiteCase, scope: VariableScope, *, proxy: bool) -> Mapping[str, Any] | None:
    """Return what `mock:` asks for as a session takes it.

    Raises:
        SuiteError: there is no proxy that could swap anything.
        StepError: a reference has no value.
        OverrideError: what a reference stands for is no result of a tool.

    """
    mock = case.scenario.mock
    if mock is None:
        return None
    if not proxy or case.scenario.observe == "none":
        why = "this scenario has no proxy" if not proxy else "with `observe: none` the agent's traffic passes no proxy"
        raise SuiteError(f"mock: {why}, so nothing that the model reads can be swapped.")
    from llmproxy.core.forks.mocks import read_mocks

    resolved: Mapping[str, Any] = scope.resolve(mock)
    read_mocks(resolved)
    return resolved
