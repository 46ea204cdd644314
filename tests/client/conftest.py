"""One real proxy for the tests that only ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmproxy.client.control.client import Control
from tests.support.proxy import Proxy, proxy


@pytest.fixture(scope="module")
def px(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Run a proxy in replay, on an empty store."""
    with proxy("replay", tmp_path_factory.mktemp("proxy") / "x.db") as running:
        yield running


@pytest.fixture
def control(px: Proxy) -> Control:
    """Return its control API."""
    return Control(px.url)
