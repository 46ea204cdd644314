"""Options of the pytest plugin, without those that another plugin already defines: there is no config yet when they are
added, so `TAKEN` remembers them.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llmproxy.errors import LLMProxyError, SettingsError, ensure_program_prefix
from llmproxy.parsers import join_with_and
from llmproxy.protocol import UPDATE_VARIABLE, Mode, UpdateMode
from llmproxy.report.events import Handler
from llmproxy.report.report_kinds import CHOICES, create_report_event_handler
from llmproxy.report.scenario_rows import read_baseline

if TYPE_CHECKING:
    from llmproxy.report.sharding import Shard

MODE, CASSETTE_DIR = "--llmproxy-mode", "--llmproxy-cassette-dir"
LIVE, UPDATE, CHANGES = "--llmproxy-live", "--llmproxy-update", "--llmproxy-changes"
DEBUG, REPORT, HEADLESS = "--scenario-debug", "--scenario-report", "--headless"
REJUDGE, BASELINE = "--scenario-rejudge", "--scenario-baseline"
SHARD, SHARD_TIMES = "--llmproxy-shard", "--llmproxy-shard-times"
TAKEN: set[str] = set()
"""Options that another plugin has defined first."""
_AGAIN = {
    "llmproxy_cassette_dir": CASSETTE_DIR,
    "llmproxy_live": LIVE,
    "inifilename": "-c",
    "rootdir": "--rootdir",
    "override_ini": "-o",
}
_RECORDING = join_with_and([mode for mode in Mode if mode.policy.writes])
_MODES = f"mode of tests with the fixture `llmproxy`; default {Mode.REPLAY} ({_RECORDING} need keys)"
_TEXTS = {
    MODE: ("|".join(Mode), _MODES),
    CASSETTE_DIR: ("DIR", "folder of cassette files; default: only the store, llmproxy.db"),
}


def add_pytest_options(parser: pytest.Parser) -> None:
    TAKEN.clear()
    group = parser.getgroup("llmproxy", "record and replay of LLM calls")

    def add(flag: str, **how: Any) -> None:
        try:
            group.addoption(flag, **how)
        except ValueError:
            TAKEN.add(flag)

    for flag, (metavar, text) in _TEXTS.items():
        add(flag, metavar=metavar, default=None, help=text)
        parser.addini(flag.removeprefix("--").replace("-", "_"), text, default="")
    real = "channels with real providers or tools in mode replay, like `llmproxy run --live`"
    add(LIVE, metavar="llm|mcp|http", default=None, help=f"with the fixture `llmproxy`: {real}")
    renew = "record the selected tests again (all), or only their changed requests (changed), and replace recordings"
    add(UPDATE, choices=["all", "changed"], default=None, help=renew)
    trial = "list, offline, what changed since the recording, like `llmproxy changes`"
    add(CHANGES, action="store_true", default=False, help=trial)
    if not _is_langwatch_plugin_installed():
        debug = "scenarios stop before each turn of the simulated user, and let you type instead"
        add(DEBUG, action="store_true", default=False, help=debug)
    # Either has this option, and would fail if we had it first.
    if not (_is_langwatch_plugin_installed() or find_spec("seleniumbase") is not None):
        add(HEADLESS, action="store_true", default=False, help="accepted and ignored: scenarios open no browser")
    report = f"write a report of all scenarios: {CHOICES}; may be repeated"
    add(REPORT, action="append", default=[], metavar="KIND=FILE", help=report)
    again = "judge the suites' runs of a JSON report again (--scenario-report json=FILE); no agent of a suite is run"
    add(REJUDGE, metavar="REPORT", default=None, help=again)
    before = "compare with a JSON report of an earlier run (--scenario-report json=FILE), worse results first"
    add(BASELINE, metavar="REPORT", default=None, help=before)
    part = "run only this part of the tests, such as 3/10; `llmproxy merge` merges the parts' reports"
    add(SHARD, metavar="N/OF", default=None, help=part)
    even = "balance parts by the times in a JSON report of an earlier run (--scenario-report json=FILE)"
    add(SHARD_TIMES, metavar="REPORT", default=None, help=even)
    parser.addini("llmproxy_autouse", "every test uses the fixture `llmproxy`", type="bool", default=False)


def _is_langwatch_plugin_installed() -> bool:
    """Return whether the original is installed: its plugin has ``--scenario-debug``, and fails if defined twice."""
    try:
        spec = find_spec("scenario")
    except (ImportError, ValueError):
        return False
    return bool(spec and spec.origin and Path(spec.origin).with_name("pytest_plugin.py").is_file())


def build_rerun_command(config: pytest.Config, test: str = "", more: str = "", others: Sequence[str] = ()) -> str:
    """Return the command for this run, or for tests, without mode: options selecting recordings, `more`, tests."""
    options, words = config.known_args_namespace, ["pytest"]
    for name, flag in _AGAIN.items():
        given = getattr(options, name, None) or ()
        for each in [given] if isinstance(given, str) else given:
            if flag != "-o" or each.startswith("llmproxy"):  # pytest says its own switches so, too
                words += [flag, str(each)]
    if test:
        parts = (each.partition("::") for each in (test, *others))
        here = config.invocation_params.dir
        places = (f'"{os.path.relpath(config.rootpath / file, here)}::{name}"' for file, _, name in parts)
        return f"{shlex.join(words)}{more} {' '.join(places)}"
    return shlex.join([*words, *(getattr(options, "file_or_dir", None) or ())])


def read_update_option(config: pytest.Config) -> str:
    """Return the update of recordings: ``all``, ``changed``, ``trial`` or empty. Raises ValueError."""
    options = config.known_args_namespace
    trial = "" if CHANGES in TAKEN or not getattr(options, "llmproxy_changes", False) else UpdateMode.TRIAL.value
    update = "" if UPDATE in TAKEN else getattr(options, "llmproxy_update", None) or ""
    typed = [
        f"{UPDATE} {update}" if update else "", CHANGES if trial else "",
        MODE if getattr(options, "llmproxy_mode", None) else "",
    ]  # fmt: skip
    if len(both := list(filter(None, typed))) > 1:
        raise ValueError(f"{' and '.join(both)} exclude each other: give either")
    asked = update or trial or ("" if typed[2] else os.environ.get(UPDATE_VARIABLE, ""))
    if asked and asked not in set(UpdateMode):
        raise ValueError(f"{UPDATE_VARIABLE} is {asked!r}; it can be {', '.join(UpdateMode)}")
    return "" if asked == UpdateMode.NONE else asked


def runs_tests_in_workers(config: pytest.Config) -> bool:
    options = config.known_args_namespace
    asked = bool(getattr(options, "numprocesses", None) or getattr(options, "tx", None))
    return asked and "PYTEST_XDIST_WORKER" not in os.environ


def make_scenario_report_writers(config: pytest.Config, store: Callable[[], Path | None]) -> list[Handler]:
    """Return handlers for scenario reports on `store`; none in xdist's workers. Raises pytest.UsageError."""
    asked = config.getoption(REPORT, default=[])
    if not asked or config.getoption("collectonly", default=False) or hasattr(config, "workerinput"):
        return []
    try:
        return [create_report_event_handler(text, store) for text in asked]
    except LLMProxyError as error:
        raise pytest.UsageError(str(error).replace("--report", REPORT)) from error


def read_baseline_path_option(config: pytest.Config) -> Path | None:
    """Return the baseline report; None without, and in xdist's workers. Raises pytest.UsageError."""
    given = config.getoption(BASELINE, default=None)
    if not given or config.getoption("collectonly", default=False) or hasattr(config, "workerinput"):
        return None
    path = config.invocation_params.dir / str(given)
    try:
        read_baseline(path, flag=BASELINE)
    except LLMProxyError as error:
        raise pytest.UsageError(ensure_program_prefix(error)) from error
    return path


_OUTPUT = "llmproxy_shard"


def make_shard_plugin(config: pytest.Config) -> ShardPlugin:
    """Return the sharding of a run with one of its options. Raises pytest.UsageError."""
    text, times = config.getoption(SHARD, default=None), config.getoption(SHARD_TIMES, default=None)
    if text is None:
        raise pytest.UsageError(f"llmproxy: {SHARD_TIMES} balances parts of a run: it goes with {SHARD} 1/10")
    from llmproxy.report.sharding import parse_shard, read_test_times_from_report  # late: mostly unused

    try:
        known = {} if times is None else read_test_times_from_report(config.invocation_params.dir / times, SHARD_TIMES)
        return ShardPlugin(parse_shard(text, SHARD), known)
    except SettingsError as error:
        raise pytest.UsageError(f"llmproxy: {error}") from error


class ShardPlugin:
    def __init__(self, shard: Shard, times: Mapping[str, int]) -> None:
        """Parse `text`; `times`: known durations of tests in milliseconds. Raises SettingsError."""
        self.shard, self._times = shard, times
        self.told: Mapping[str, Any] | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        from llmproxy.report.sharding import assign_items_to_shards, shard_split_to_json, weigh_tests_for_shards

        runs = {item.nodeid: _count_runs_of_item(item) for item in items}
        parts = assign_items_to_shards(weigh_tests_for_shards(runs, self._times), self.shard.of)
        self.told = shard_split_to_json(self.shard, parts, "pytest")
        if others := [item for item in items if parts[item.nodeid] != self.shard.number]:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if parts[item.nodeid] == self.shard.number]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report to the controller of xdist; an empty shard is no failure."""
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output[_OUTPUT] = json.dumps(self.told)
        nothing = self.told is not None and bool(self.told["items"]) and self.shard.number not in self.told["parts"]
        if nothing and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        text = getattr(node, "workeroutput", {}).get(_OUTPUT)
        self.told = self.told or (json.loads(text) if text else None)

    def pytest_report_header(self) -> str:
        return f"llmproxy: part {self.shard} of the tests"


def _count_runs_of_item(item: pytest.Item) -> int:
    case = getattr(item, "case", None)
    return int(case.scenario.runs) if case is not None and hasattr(case, "scenario") else 1
