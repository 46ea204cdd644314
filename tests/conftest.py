"""What all tests share: an environment without keys, real traffic where it is at hand, and strictness where asked for."""

from __future__ import annotations

import gc
import itertools
import os
import re
import shlex
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.forked import is_forking, program, shared
from tests.support.process import required

if TYPE_CHECKING:
    from llmproxy.client.control import ControlApiClient
    from tests.support.postgres import Postgres
    from tests.support.proxy import Proxy

TRAFFIC = Path(__file__).resolve().parents[1] / "../shared/traffic"
"""Recorded answers of real providers, which may not be published: no machine can install them, so no setting requires them."""
_NO_TRAFFIC = "NOT RUN: real traffic is not part of this repository (../shared/traffic)"
_PERSONAL = re.compile(
    r"^LLMPROXY_(?!TEST_)|_(API_KEY|BASE_URL|API_BASE)$|^(OLLAMA_HOST|NO_COLOR|FORCE_COLOR|COLUMNS)$"
)
_NUMBERS = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Leave no setting, key or base URL of the developer's in the environment; loopback never takes a proxy."""
    gc.disable()  # until everything is collected
    for name in [name for name in os.environ if _PERSONAL.search(name)]:
        del os.environ[name]
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"
    # A shell ignores interrupts for what it runs in the background, and children would inherit it: ending one would take for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
    if config.getoption("numprocesses", None):  # for its workers
        os.environ["LLMPROXY_TEST_FORK"] = str(shared())
    if is_forking():  # hundreds of proxies are started, each for a second of processor time
        os.environ["LLMPROXY_COMMAND"] = shlex.join(program("llmproxy"))
    # A busy machine is no fault of an example; in CI hypothesis says the same. Each run draws other examples.
    settings.register_profile("patient", settings(), deadline=None, max_examples=30)
    settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Put thousands of collected tests aside: the garbage collector would go through them again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a skipped SDK test a failure in CI (but for real traffic, which a fresh checkout cannot have)."""
    report = yield
    sdk = "sdk" in item.path.parts or item.get_closest_marker("sdk") is not None
    wanted = sdk and "all" in required()
    if wanted and report.skipped and not hasattr(report, "wasxfail") and _NO_TRAFFIC not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped, but LLMPROXY_TEST_REQUIRE=all: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def traffic() -> Path:
    """Return the folder of recorded real traffic, which is not part of this repository."""
    if not TRAFFIC.is_dir():
        pytest.skip(_NO_TRAFFIC)
    return TRAFFIC.resolve()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder, as pytest's own; that one reads for each the names of all, and makes a link to it."""
    return tmp_path_factory.mktemp(f"{re.sub(r'\W', '_', request.node.name)[:30]}_{next(_NUMBERS)}", numbered=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return where a test's store will be; there is none yet."""
    return tmp_path / "x.db"


@pytest.fixture(scope="module")
def px(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """One real proxy in replay, on an empty store, for the tests that only ask it."""
    from tests.support.proxy import proxy

    with proxy("replay", tmp_path_factory.mktemp("proxy") / "x.db") as running:
        yield running


@pytest.fixture
def control(px: Proxy) -> ControlApiClient:
    """Return its control API."""
    from llmproxy.client.control import ControlApiClient

    return ControlApiClient(px.url)


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A running PostgreSQL that no test stops, started once in each process that asks for one."""
    from tests.support.postgres import postgres

    with postgres() as running:
        yield running


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Make a new empty database and return its URL; the server is started when the first one is asked for."""
    return lambda: request.getfixturevalue("server").url()


@pytest.fixture(scope="session")
def _team_database(server: Postgres) -> str:
    return server.url("team")


@pytest.fixture
def team_url(_team_database: str) -> str:
    """Return the URL of a server without a store."""
    import psycopg

    with psycopg.connect(_team_database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS llmproxy CASCADE")
    return _team_database
