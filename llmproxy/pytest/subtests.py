"""A run of a scenario as a sub-report of its item, where the installed pytest has subtests (9.0 and later)."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Literal

import pytest

from llmproxy.report.events import Status

_OUTCOMES: dict[Status, Literal["passed", "skipped"]] = {Status.PASSED: "passed", Status.SKIPPED: "skipped"}


def sub_report(item: pytest.Item, name: str, status: Status, text: str) -> bool:
    """Report one run of an item; tells whether this pytest can, for else the item itself has to say it."""
    try:
        from _pytest.subtests import SubtestContext, SubtestReport
    except ImportError:
        return False
    outcome: Literal["passed", "failed", "skipped"] = _OUTCOMES.get(status, "failed")
    now = time.time()
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome=outcome,
        longrepr=text if outcome == "failed" else (str(item.path), 0, text) if outcome == "skipped" else None,
        when="call",
        start=now,
        stop=now,
    )
    made = SubtestReport._new(report, SubtestContext(msg=name, kwargs={}), None, None)  # noqa: SLF001 - nothing public makes one
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with nullcontext() if capture is None else capture.global_and_fixture_disabled():
        item.ihook.pytest_runtest_logreport(report=made)
    return True
