"""``pytest --llmproxy-shard 3/10``: of all tests that were selected only those of one part, on every machine the same.

A plugin object, registered where a part is asked for. The tests are known by their ids, after `-k`, `-m` and other plugins have chosen.
With xdist the workers cut, each in the same way, and one of them tells the controller how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SettingsError
from llmproxy.pytest.options import SHARD, SHARD_TIMES
from llmproxy.report.sharding import describe_cut, read_shard, read_times, split, weights

_OUTPUT = "llmproxy_shard"


def sharding_for(config: pytest.Config) -> Sharding | None:
    """Return who cuts, None where no part is asked for. Raises pytest.UsageError."""
    text, times = config.getoption(SHARD, default=None), config.getoption(SHARD_TIMES, default=None)
    if text is None:
        if times is not None:
            raise pytest.UsageError(f"llmproxy: {SHARD_TIMES} balances parts of a run: it goes with {SHARD} 1/10")
        return None
    try:
        path = None if times is None else config.invocation_params.dir / times
        return Sharding(text, {} if path is None else read_times(Path(path), SHARD_TIMES))
    except SettingsError as error:
        raise pytest.UsageError(f"llmproxy: {error}") from error


class Sharding:
    """Leaves the tests of one part."""

    def __init__(self, text: str, times: Mapping[str, int]) -> None:
        """Cut as `text` says; `times`: milliseconds of each test, as far as they are known. Raises SettingsError."""
        self.shard, self._times = read_shard(text, SHARD), times
        self.told: Mapping[str, Any] | None = None
        """How it was cut, once tests were collected."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the tests of the other parts."""
        parts = split(weights({item.nodeid: _runs(item) for item in items}, self._times), self.shard.of)
        self.told = describe_cut(self.shard, parts, "pytest")
        others = [item for item in items if parts[item.nodeid] != self.shard.number]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if parts[item.nodeid] == self.shard.number]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the controller of xdist; a part that has none of the tests there are is no failure."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = json.dumps(self.told)
        nothing = self.told is not None and bool(self.told["items"]) and self.shard.number not in self.told["parts"]
        if nothing and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 - xdist's
        """Take from a worker how it was cut."""
        text = getattr(node, "workeroutput", {}).get(_OUTPUT)
        self.told = self.told or (json.loads(text) if text else None)

    def pytest_report_header(self) -> str:
        return f"llmproxy: part {self.shard} of the tests"


def _runs(item: pytest.Item) -> int:
    """Return how often a scenario of a suite runs; a test in Python counts as one."""
    case = getattr(item, "case", None)
    return int(case.scenario.runs) if case is not None and hasattr(case, "scenario") else 1
