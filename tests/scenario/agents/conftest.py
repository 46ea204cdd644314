"""One HTTP agent for the tests that need no model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenario.agents_fixtures import Served, http_agent


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with http_agent(tmp_path_factory.mktemp("agent")) as running:
        yield running
