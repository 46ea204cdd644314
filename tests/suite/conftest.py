"""A PostgreSQL for the tests that ask for one, started once in each process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.postgres import Postgres, postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A running PostgreSQL that no test stops."""
    with postgres() as running:
        yield running


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Make a new empty database and return its URL; the server is started when the first one is asked for."""
    return lambda: request.getfixturevalue("server").url()
