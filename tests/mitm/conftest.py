"""Import mitmproxy once, its own deprecation warnings (pyparsing's) put aside: here every warning is an error."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mitmproxy.addons
    import mitmproxy.master  # noqa: F401

import os
from collections.abc import Iterator

import pytest

from tests.support.services import CountingService


@pytest.fixture(scope="session", autouse=True)
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the proxy's own certificate authority out of the user's home."""
    before = os.environ.get("XDG_DATA_HOME")
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))
    yield
    os.environ.pop("XDG_DATA_HOME")
    if before is not None:
        os.environ["XDG_DATA_HOME"] = before


@pytest.fixture
def service() -> Iterator[CountingService]:
    with CountingService() as running:
        yield running
