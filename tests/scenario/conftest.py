"""What tests of the API of scenarios share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmproxy.scenario.config import ConfigDefaults, ScenarioConfig


@pytest.fixture
def untouched() -> Iterator[None]:
    """Give a test the defaults of a fresh process, and leave none behind."""
    before = ScenarioConfig.default_config, ScenarioConfig.defaults
    ScenarioConfig.default_config, ScenarioConfig.defaults = None, ConfigDefaults()
    yield
    ScenarioConfig.default_config, ScenarioConfig.defaults = before
