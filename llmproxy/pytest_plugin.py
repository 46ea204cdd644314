"""The pytest plugin: each test that asks for `llmproxy` has a cassette of its own, on one proxy that they share.

It costs nothing where nobody uses it: importing it imports no more than the standard library, and a proxy is started when tests that
need it have been collected. Many clients read their base URL at import, so the environment is set before conftests and test modules
are imported, in suites whose files name the fixture or the marker (or where a mode is set), and given back at the end.

With xdist each worker has its own proxy; the store is safe for several.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llmproxy.client.collector import ATTRIBUTE, Collector
from llmproxy.client.control import ControlError
from llmproxy.client.detect import suite_uses
from llmproxy.client.shared import Asked, Shared, Walk, cassette_name, choose_mode
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import Mode

__all__ = ["Walk", "choose_mode", "llmproxy"]

FIXTURE = "llmproxy"
MODE, CASSETTE_DIR = "--llmproxy-mode", "--llmproxy-cassette-dir"
MARKER = (
    "llmproxy(cassette=None, mode=None, speed=None, exhausted=None, sample=None): "
    "replay or record this test's LLM calls; the cassette is named from the test unless it is given"
)
_ARGUMENTS = ("cassette", "mode", "speed", "exhausted", "sample")


@dataclass(slots=True)
class _Run:
    """What this plugin knows of one pytest run."""

    taken: set[str] = field(default_factory=set)
    """Options that another plugin had first."""
    shared: Shared | None = None
    notes: list[str] = field(default_factory=list)

    def option(self, config: pytest.Config, flag: str) -> str:
        """Return what the flag, or else the ini file, says; empty if neither does."""
        name = flag.removeprefix("--").replace("-", "_")
        typed = None if flag in self.taken else getattr(config.known_args_namespace, name, None)
        return str(typed or config.getini(name) or "")


_RUN = pytest.StashKey[_Run]()
_WALK = pytest.StashKey[Walk]()
_TAKEN: set[str] = set()
"""Options that another plugin had first: when they are added there is no config yet to remember it in."""


# -- options -----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options; one that another plugin has already is left to it."""
    _TAKEN.clear()
    group = parser.getgroup("llmproxy", "record and replay of LLM calls")
    modes = "replay|auto|record|once|passthrough"
    flags = {
        MODE: (modes, "what tests with the fixture `llmproxy` do; default replay (auto, record and once need keys)"),
        CASSETTE_DIR: ("DIR", "folder of the recordings; default is the store, llmproxy.db"),
    }
    for flag, (metavar, text) in flags.items():
        try:
            group.addoption(flag, metavar=metavar, default=None, help=text)
        except ValueError:
            _TAKEN.add(flag)
        name = flag.removeprefix("--").replace("-", "_")
        parser.addini(name, text, default="")
    parser.addini("llmproxy_autouse", "every test uses the fixture `llmproxy`", type="bool", default=False)


def _in_ci(env: Mapping[str, str]) -> bool:
    return env.get("CI", "").strip().lower() not in ("", "0", "false", "no")


def _mode(config: pytest.Config, marker: str = "") -> str:
    option = (
        "" if MODE in config.stash[_RUN].taken else getattr(config.known_args_namespace, "llmproxy_mode", None) or ""
    )
    variable, ini = os.environ.get("LLMPROXY_MODE", ""), str(config.getini("llmproxy_mode") or "")
    return choose_mode(option=option, marker=marker, variable=variable, ini=ini, ci=_in_ci(os.environ))


# -- the environment, before anything is imported ----------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Set the environment before the first conftest is imported."""
    _begin(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register marker and summary; set the environment if we came too late to do it before the conftests."""
    config.addinivalue_line("markers", MARKER)
    config.pluginmanager.register(Collector(), "llmproxy-summary")
    _begin(config)


def _begin(config: pytest.Config) -> None:
    """Set up once for each run."""
    if _RUN in config.stash:
        return
    run = config.stash[_RUN] = _Run(taken=set(_TAKEN))
    run.notes += [
        f"the option {flag} belongs to another plugin; use the ini setting or LLMPROXY_*" for flag in sorted(_TAKEN)
    ]
    try:
        mode = _mode(config)
    except ValueError as error:
        raise pytest.UsageError(f"llmproxy: {error}") from error
    if not _distributes(config) and _wanted(config, run):
        _prepare(config, run, mode)


def _distributes(config: pytest.Config) -> bool:
    """Tell whether xdist runs the tests in other processes, each of which comes here itself."""
    options = config.known_args_namespace
    return (
        bool(getattr(options, "numprocesses", None) or getattr(options, "tx", None))
        and "PYTEST_XDIST_WORKER" not in os.environ
    )


def _wanted(config: pytest.Config, run: _Run) -> bool:
    """Tell whether this suite uses us, before anything of it is imported."""
    if run.option(config, MODE) or os.environ.get("LLMPROXY_MODE") or config.getini("llmproxy_autouse"):
        return True
    here = config.invocation_params.dir
    named = [str(each).partition("::")[0] for each in getattr(config.known_args_namespace, "file_or_dir", None) or ()]
    testpaths = [config.rootpath / path for path in config.getini("testpaths")] if here == config.rootpath else []
    places = [here / path for path in named] or testpaths or [here]
    there = [place for place in places if place.exists()]
    return suite_uses(there, config.rootpath, config.getini("python_files"), config.getini("norecursedirs"))


def _prepare(config: pytest.Config, run: _Run, mode: str) -> None:
    run.shared = Shared(
        os.environ,
        config.rootpath,
        replay=mode == Mode.REPLAY,
        options=_storage(run.option(config, CASSETTE_DIR), config),
    )
    run.notes += run.shared.prepare().notes


def _storage(folder: str, config: pytest.Config) -> Sequence[str]:
    """Return where recordings are kept, as options of ``llmproxy start``."""
    return ("--cassette-dir", str(config.rootpath / Path(folder))) if folder else ()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the proxy and give the environment back."""
    run = config.stash.get(_RUN, None)
    if run is not None and run.shared is not None:
        run.shared.end()
        run.shared = None


# -- collection --------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the marker ask for the fixture, and set it up before fixtures that may talk to a model."""
    always = config.getini("llmproxy_autouse")
    for item in items:
        names: list[str] | None = getattr(item, "fixturenames", None)
        if names is not None and (FIXTURE in names or always or item.get_closest_marker(FIXTURE)):
            names[:] = [name for name in names if name != FIXTURE]
            names.insert(_first_of_functions(item, names), FIXTURE)


def _first_of_functions(item: pytest.Item, names: Sequence[str]) -> int:
    """Return where the fixtures of function scope begin; those of wider scope belong to no single test."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    wide = [at for at, name in enumerate(names) if known.get(name) and known[name][-1].scope != "function"]
    return max(wide) + 1 if wide else 0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the proxy if a test needs it (it gets ready while others run), else give the environment back."""
    config, run = session.config, session.config.stash[_RUN]
    users = [item for item in session.items if FIXTURE in getattr(item, "fixturenames", ())]
    if not users:
        if run.shared is not None:
            run.shared.restore()
        return
    if run.shared is None:
        _prepare(config, run, _mode(config))
        run.notes.append(
            "the environment was set late: set llmproxy_mode in the ini file, so that clients made at import find us"
        )
    if not config.getoption("collectonly", default=False) and run.shared is not None:
        try:
            run.shared.start(live=any(_asked(item).mode != Mode.REPLAY for item in users))
        except (LLMProxyError, ValueError):
            return  # the first test that needs it says why


# -- one test ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def llmproxy(request: pytest.FixtureRequest) -> Iterator[Walk]:
    """Record or replay this test's LLM calls in a cassette of its own; gives the session (`report()`, `misses`, `url`)."""
    shared = request.config.stash[_RUN].shared
    if shared is None:
        pytest.fail("llmproxy: no proxy was prepared for this run", pytrace=False)
    try:
        walk = shared.begin(_asked(request.node))
    except (LLMProxyError, ValueError) as error:
        pytest.fail(f"llmproxy: {error}", pytrace=False)
    request.node.stash[_WALK] = walk
    yield walk
    try:
        shared.finish(walk)
    except LLMProxyError as error:
        pytest.fail(f"llmproxy: {error}", pytrace=False)


def _asked(item: pytest.Item) -> Asked:
    """Return what marker and options ask for. Raises ValueError."""
    marker = item.get_closest_marker(FIXTURE)
    given: dict[str, Any] = dict(marker.kwargs) if marker else {}
    if marker and marker.args:
        raise ValueError(f"the marker llmproxy takes names only, as cassette={marker.args[0]!r}")
    if unknown := sorted(set(given) - set(_ARGUMENTS)):
        raise ValueError(f"the marker llmproxy has no {', '.join(unknown)}; it has {', '.join(_ARGUMENTS)}")
    mode = _mode(item.config, str(given.pop("mode", None) or ""))
    cassette = str(given.pop("cassette", None) or cassette_name(item.nodeid))
    return Asked(cassette, mode, **given)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a failed test's misses, and send what its session came to along with the last report."""
    report = yield
    walk = item.stash.get(_WALK, None)
    if walk is None:
        return report
    if report.when == "teardown":
        if walk.closed is not None:
            setattr(report, ATTRIBUTE, walk.closed.to_json())
        del item.stash[_WALK]
    elif report.failed:
        report.sections += _sections(walk, item.nodeid)
    return report


def _sections(walk: Walk, test: str) -> list[tuple[str, str]]:
    try:
        misses = walk.misses
    except ControlError as error:
        return [("llmproxy", str(error))]
    title = f'llmproxy: {len(misses)} of its requests not in cassette "{walk.cassette}" (mode {walk.mode})'
    how = f'Under pytest, to record what is missing: pytest --llmproxy-mode auto "{test}"'
    return [(title, "\n\n".join([*misses, how]))] if misses else []


# -- the end -----------------------------------------------------------------------------------------------------------


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what the user should know before the first test."""
    run = config.stash.get(_RUN, None)
    return [f"llmproxy: {note}" for note in run.notes] if run else []
