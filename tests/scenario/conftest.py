"""What tests of the API of scenarios share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from llmproxy.scenario.config import ScenarioConfig


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture
def untouched() -> Iterator[None]:
    """Return a test the defaults of a fresh process, and leave none behind."""
    before = ScenarioConfig.default_config, ScenarioConfig.defaults
    ScenarioConfig.default_config, ScenarioConfig.defaults = None, (None, ())
    yield
    ScenarioConfig.default_config, ScenarioConfig.defaults = before


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call that failed be tried again at once."""
    monkeypatch.setattr("llmproxy.scenario.models.model_calls.PAUSES", (0.0, 0.0))
