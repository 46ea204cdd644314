"""Sub-reports of an item; how a terminal shows them is tested with the items."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmproxy.pytest.subtests import sub_report
from llmproxy.report.events import Status


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (Status.PASSED, "passed"),
        (Status.FAILED, "failed"),
        (Status.AGENT_ERROR, "failed"),
        (Status.ENVIRONMENT_ERROR, "failed"),
        (Status.SKIPPED, "skipped"),
    ],
)
def test_a_run_is_a_report_of_its_item(status: Status, outcome: str) -> None:
    """What says nothing about the agent is no pass either."""
    pytest.importorskip("_pytest.subtests", reason="this pytest has no subtests")
    sent: list[pytest.TestReport] = []
    item: Any = SimpleNamespace(
        nodeid="s.yaml::one",
        location=("s.yaml", 1, "one"),
        path="s.yaml",
        config=SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda name: None)),
        ihook=SimpleNamespace(pytest_runtest_logreport=lambda *, report: sent.append(report)),
    )
    assert sub_report(item, "run 1/2", status, "why")
    assert [(each.nodeid, each.outcome) for each in sent] == [("s.yaml::one", outcome)]
