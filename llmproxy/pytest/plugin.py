"""The pytest plugin: each test with the fixture `llmproxy` has a cassette of its own, on one shared proxy.

Every pytest run imports it: only the standard library and our light modules. Many clients read their base URL at
import, so the environment is set before conftests and test modules are imported, where files mention the fixture or the
marker (or a mode is set). The proxy is started after collection, if tests need it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llmproxy.client.child_env import build_path_run_variable, in_ci
from llmproxy.client.proxy_process import read_llmproxy_url
from llmproxy.errors import LLMProxyError, ensure_program_prefix
from llmproxy.protocol import OFFLINE, RUN_VARIABLE as RUN_SESSION, UpdateMode
from llmproxy.pytest import options, per_test_sessions, run_summary
from llmproxy.pytest.per_test_sessions import FAULTS, FIXTURE, ProxySessionOfTest, PytestPluginState, choose_test_mode
from llmproxy.pytest.run_proxies import RUN_VARIABLE, XdistControllerProxyLauncher, XdistWorkerProxyUrlRequester
from llmproxy.pytest.scenario_run_listener import LISTENER, MARKER as AGENT_TEST, ScenarioRunListenerPlugin
from llmproxy.report.events import HOST

if TYPE_CHECKING:
    from llmproxy.pytest.scenario_report import ScenarioReporter
    from llmproxy.pytest.suite_items import SuiteFileCollector

_USE = re.compile(rb"\bmark\.llmproxy\b|[\"']llmproxy[\"']|[(,]\s*llmproxy\s*[,:)=]")
"""Uses of the plugin: the marker, the name as text (usefixtures, getfixturevalue), or a parameter."""
_CONFTEST = "conftest.py"
_SUITE_NAMES = ("suite.yaml", "suite.yml", "*.suite.yaml", "*.suite.yml")
SUITE_KEYS = frozenset(
    {
        "version", "name", "baseDir", "scenarios", "vars", "include", "agent", "store",
        "proxy", "defaults", "defaultTags", "hooks", "id", "description", "tags", "userId",
        "setup", "steps", "teardown", "runs", "minPassRate", "timeout", "settle", "observe",
        "skip", "xfail", "parametrize", "matrix", "faults", "mock", "usage",
        "resources",
    }
)  # fmt: skip
_KEY = re.compile(rb"""^\{?[ ]?["']?([A-Za-z_][\w-]*)["']?[ ]*:(?=\s|$)""", re.MULTILINE)
_SCHEMA = b"suite.schema.json"
_PEEK = 200_000


def does_test_file_use_llmproxy(path: Path) -> bool:
    with suppress(OSError):
        return _USE.search(path.read_bytes()) is not None
    return False


def list_files_pytest_imports(
    places: Iterable[Path], root: Path, files: Sequence[str], norecurse: Sequence[str]
) -> Iterator[Path]:
    """Yield the files pytest would import, each once: named files, files of named folders, conftests above them."""
    seen: set[Path] = set()
    for place in places:
        folder = place if place.is_dir() else place.parent
        above = [each / _CONFTEST for each in (folder, *folder.parents) if each == root or root in each.parents]
        found = _walk_python_test_files(place, files, norecurse) if place.is_dir() else iter([place])
        for path in (*above, *found):
            if path not in seen:
                seen.add(path)
                yield path


def _walk_python_test_files(folder: Path, files: Sequence[str], norecurse: Sequence[str]) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not any(fnmatchcase(name, pattern) for pattern in norecurse))
        for name in sorted(names):
            if name == _CONFTEST or any(fnmatchcase(name, pattern) for pattern in files):
                yield Path(here, name)


def is_suite_file_name(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _SUITE_NAMES)


def has_suite_file_content(path: Path) -> bool:
    """Return whether a file looks like a suite by its top-level keys, unparsed: it may be invalid."""
    try:
        with path.open("rb") as file:
            text = file.read(_PEEK)
    except OSError:
        return False
    keys = {key.decode("ascii", "replace") for key in _KEY.findall(text)}
    if not keys & {"scenarios", "steps"}:
        return False
    return _SCHEMA in text[:1000] or len(keys & SUITE_KEYS) * 2 > len(keys)


__all__ = ["ProxySessionOfTest", "choose_test_mode", "llmproxy", "scenario_reporter"]

MARKER = (
    "llmproxy(cassette=None, mode=None, speed=None, exhausted=None, sample=None, live=None): "
    "replay or record this test's LLM calls; the cassette is named from the test unless it is given"
)
FAULTS_MARKER = (
    "faults(*rules, seed=0): let this test's LLM calls meet injected faults: a preset, http-429@2, {'kind': "
    "'reset', 'call': 2}"
)


_RUN = pytest.StashKey[PytestPluginState]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_pytest_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Set the environment before the first conftest is imported."""
    _set_up_run(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.addinivalue_line("markers", FAULTS_MARKER)
    config.addinivalue_line("markers", f"{AGENT_TEST}: a test that runs scenarios; it may be async")
    config.addinivalue_line("markers", "asyncio: pytest-asyncio's; a test marked agent_test runs without it")
    _set_up_run(config)
    debug = bool(config.getoption(options.DEBUG, default=False))
    if debug and (options.runs_tests_in_workers(config) or hasattr(config, "workerinput")):
        raise pytest.UsageError(f"{options.DEBUG} needs the terminal, which workers of xdist do not have: leave -n out")
    run, keep = config.stash[_RUN], bool(config.getoption(options.REPORT, default=[]))
    if debug:
        from llmproxy.scenario.config import ScenarioConfig

        ScenarioConfig.configure(verbose=True, debug=True)
    config.stash[LISTENER] = ScenarioRunListenerPlugin(run, keep_events=keep, debug=debug)
    config.pluginmanager.register(config.stash[LISTENER], "llmproxy-scenarios")
    sharding = None
    if config.getoption(options.SHARD, default=None) or config.getoption(options.SHARD_TIMES, default=None):
        sharding = options.make_shard_plugin(config)
        config.pluginmanager.register(sharding, "llmproxy-sharding")
    handlers = options.make_scenario_report_writers(config, lambda: run.find_store(suites=bool(collector.rows)))
    keeps_results = not (hasattr(config, "workerinput") or config.getoption(options.REJUDGE, default=None))
    collector = run_summary.RunSummaryPlugin(handlers, run if keeps_results else None)
    collector.baseline, collector.sharding = options.read_baseline_path_option(config), sharding
    config.pluginmanager.register(collector, "llmproxy-summary")


def _set_up_run(config: pytest.Config) -> None:
    if _RUN in config.stash:
        return
    run = config.stash[_RUN] = PytestPluginState(config, taken=set(options.TAKEN))
    why = "belongs to another plugin; use the ini setting or LLMPROXY_*"
    run.notes += [f"the option {flag} {why}" for flag in sorted(options.TAKEN)]
    run.within_run = bool(read_llmproxy_url(os.environ)) and bool(os.environ.get(RUN_SESSION))
    try:
        mode = run.choose_mode()
    except ValueError as error:
        raise pytest.UsageError(ensure_program_prefix(f"mode {error}")) from error
    run.asked = XdistWorkerProxyUrlRequester.from_variable(os.environ.pop(RUN_VARIABLE, None), config.rootpath)
    wanted = _is_plugin_used(config, run)
    if not options.runs_tests_in_workers(config):
        if wanted:
            run.prepare_proxy(mode)
    elif not read_llmproxy_url(os.environ):
        run.proxies = XdistControllerProxyLauncher(os.environ, config.rootpath)
        os.environ[RUN_VARIABLE] = run.proxies.address
        run.notes += filter(None, [run.proxies.reserved.notice if wanted else ""])


def _is_plugin_used(config: pytest.Config, run: PytestPluginState) -> bool:
    if run.has_recording_options() or config.getini("llmproxy_autouse"):
        return True
    here = config.invocation_params.dir
    named = [str(each).partition("::")[0] for each in getattr(config.known_args_namespace, "file_or_dir", None) or ()]
    testpaths = [config.rootpath / path for path in config.getini("testpaths")] if here == config.rootpath else []
    places = [here / path for path in named] or testpaths or [here]
    there = [place for place in places if place.exists()]
    files, norecurse = config.getini("python_files"), config.getini("norecursedirs")
    return any(map(does_test_file_use_llmproxy, list_files_pytest_imports(there, config.rootpath, files, norecurse)))


def pytest_unconfigure(config: pytest.Config) -> None:
    if (run := config.stash.get(_RUN, None)) is None:
        return
    run.late.close()
    HOST.listener = HOST.ready = HOST.place = None
    if run.bench is not None:
        run.bench.close()
    if run.shared is not None:
        run.shared.end()
        run.shared = None
    if run.proxies is not None:
        run.proxies.end()
        os.environ.pop(RUN_VARIABLE, None)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SuiteFileCollector | None:
    """Collect a suite; a file that only has such a name is ignored, unless named by the user."""
    if not is_suite_file_name(file_path.name):
        return None
    if not has_suite_file_content(file_path) and not parent.session.isinitpath(file_path):
        with suppress(Warning):  # where warnings are errors, somebody else's file must not become one
            parent.warn(pytest.PytestCollectionWarning(f"{file_path} is no suite of llmproxy; it is left alone"))
        return None
    from llmproxy.pytest.suite_items import SuiteFileCollector

    config, run = parent.config, parent.config.stash[_RUN]
    if run.bench is None:
        run.bench = run.make_resources()
        run.bench.rejudge = str(config.getoption(options.REJUDGE, default=None) or "")
        run.bench.asked = run.asked
        run.bench.restored_env = run.shared.restored_env if run.shared is not None else nullcontext
    return SuiteFileCollector.from_parent(parent, path=file_path, bench=run.bench)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the fixture for the marker, and set it up before fixtures that may call a model."""
    always = config.getini("llmproxy_autouse")
    for item in items:
        names: list[str] | None = getattr(item, "fixturenames", None)
        marked = item.get_closest_marker(FIXTURE) or (
            item.get_closest_marker(FAULTS) and not item.get_closest_marker(AGENT_TEST)  # whose runs have own sessions
        )
        if names is not None and (FIXTURE in names or always or marked):
            names[:] = [name for name in names if name != FIXTURE]
            known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
            wide = [at for at, name in enumerate(names) if known.get(name) and known[name][-1].scope != "function"]
            names.insert(max(wide, default=-1) + 1, FIXTURE)  # fixtures of a wider scope belong to no single test


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    config, run = session.config, session.config.stash[_RUN]
    wanted = AGENT_TEST if run.has_recording_options() else FIXTURE
    users = [
        each
        for each in session.items
        if FIXTURE in getattr(each, "fixturenames", ()) or each.get_closest_marker(wanted)
    ]
    if not users:
        if run.shared is not None:
            run.shared.restore_environment()
        typed = getattr(config.known_args_namespace, "llmproxy_mode", None)
        if session.items and run.bench is None and typed:
            run.found.append(
                f"{options.MODE} {typed}: none of these tests uses the fixture `{FIXTURE}` or has the marker "
                f"`{AGENT_TEST}`, so nothing is recorded or replayed, and a client made at import reaches nobody; mark "
                "them, or give the fixture to every test: -o llmproxy_autouse=true"
            )
        return
    if run.shared is None:
        run.prepare_proxy(run.choose_mode())
        run.found.append(
            "the environment was set late: set llmproxy_mode in the ini file, so that clients made at import find us"
        )
    if not config.getoption("collectonly", default=False) and run.shared is not None:
        try:
            asked = [config.stash[LISTENER].read_options(item) for item in users]
            live = any(each.mode not in OFFLINE or each.live for each in asked)
            run.shared.start(live=live or options.read_update_option(config) == UpdateMode.CHANGED)
            HOST.ready = run.shared.wait_ready
        except (LLMProxyError, ValueError):
            return  # the first test that needs it says why


@pytest.fixture
def llmproxy(request: pytest.FixtureRequest) -> Iterator[ProxySessionOfTest]:
    """Record or replay this test's LLM calls in its own cassette; gives the session (`report()`, `misses`, `url`)."""
    run = request.config.stash[_RUN]
    shared, late = run.shared, run.late
    if shared is None:
        pytest.fail("llmproxy: no proxy was prepared for this run", pytrace=False)
    try:
        asked = request.config.stash[LISTENER].read_options(request.node)
        if "tmp_path" in request.fixturenames:
            asked = replace(asked, run_variables=(build_path_run_variable("tmp", request.getfixturevalue("tmp_path")),))
        test_session = shared.begin_test(asked)
        HOST.session = test_session.name
    except (LLMProxyError, ValueError) as error:
        raise pytest.fail.Exception(ensure_program_prefix(error), pytrace=False) from None  # it says all, once
    run.unreported[request.node.nodeid] = test_session
    late.on_test_start()
    yield test_session
    late.watch_leftover_threads_and_tasks(request.node.nodeid, shared.address)
    passed, interrupted = test_session.passed is True, test_session.passed is None
    try:
        HOST.session = ""
        unfiled = shared.describe_replayed_but_unfiled_answers(test_session)
        ended = shared.finish_test(test_session, complete=passed, interrupted=interrupted)
        ended.unfiled = "" if in_ci(os.environ) else unfiled
        request.config.stash[LISTENER].track_failed_recording_attempt(request.node.nodeid, [ended], passed=passed)
    except LLMProxyError as error:
        raise pytest.fail.Exception(ensure_program_prefix(error), pytrace=False) from None  # it says all, once
    if passed and unfiled and in_ci(os.environ):
        pytest.fail(ensure_program_prefix(unfiled), pytrace=False)
    if passed and ended.unused_faults:
        told = "llmproxy: the test passed without the faults that it asks for:"
        pytest.fail("\n".join([told, *ended.unused_faults]), pytrace=False)


@pytest.fixture(scope="session")
def scenario_reporter(request: pytest.FixtureRequest) -> ScenarioReporter:
    """Results of this process's scenarios so far: `results`, `get_summary()`, `print_report()`."""
    reporter: ScenarioReporter = request.config.stash[LISTENER].get_reporter()
    return reporter


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    run, missed = item.config.stash[_RUN], None
    test_session = run.unreported.get(item.nodeid)
    if test_session is not None and call.excinfo is not None and call.when == "call":
        missed = run_summary.read_reported_misses(test_session)
        if missed and not any(item.config.getoption(name, default=False) for name in ("fulltrace", "usepdb")):
            run_summary.hide_third_party_frames(call.excinfo.value)
    report = yield
    if test_session is None:
        return report
    if report.when == "teardown":
        if test_session.closed is not None:
            setattr(report, run_summary.ATTRIBUTE, test_session.closed.to_json())
        del run.unreported[item.nodeid]
        return report
    if report.when == "call":
        test_session.passed = report.passed
    if report.failed:
        others, more = per_test_sessions.list_tests_of_same_cassette(item), f" {options.UPDATE}=all"
        anew = "" if run.within_run else options.build_rerun_command(item.config, item.nodeid, more, others)
        missed = run_summary.read_reported_misses(test_session) if missed is None else missed
        run_summary.unfold_one_line_misses_in_report(report, missed)
        report.sections += run_summary.build_failed_test_miss_sections(test_session, missed, report.longreprtext, anew)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[_RUN].late.refused if _RUN in config.stash else ():
        terminalreporter.write_line(f"llmproxy: {line}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [ensure_program_prefix(note) for note in config.stash[_RUN].notes] if _RUN in config.stash else []


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return [ensure_program_prefix(note) for note in config.stash[_RUN].found] if _RUN in config.stash else []
