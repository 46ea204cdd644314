"""The end of a pytest run: what the sessions of all its tests came to. A plugin object, registered by `llmproxy.pytest_plugin`.

Reports of tests travel from xdist's workers to whoever writes the summary; ours travel on them, as plain values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmproxy.client.control import Report
from llmproxy.client.summary import add, brief, one_line

if TYPE_CHECKING:
    import pytest

__all__ = ["ATTRIBUTE", "Collector"]

ATTRIBUTE = "llmproxy"
"""Attribute of a test report (that of its teardown) with what the test's session came to."""
_LISTED = 5
"""Remarks that are written without -v."""


class Collector:
    """Hears what sessions came to, wherever they ran, and sums it up."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.done: list[tuple[str, Report]] = []
        self.passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the report of one test."""
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        if value := getattr(report, ATTRIBUTE, None):
            self.done.append((report.nodeid, Report.of(value)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write what all sessions came to, and what somebody should look at although the test passed."""
        if not self.done:
            return
        tests = len({test for test, _ in self.done})
        lines = list(self._remarks())
        shown = lines if terminalreporter.verbosity > 0 else lines[:_LISTED]
        if len(shown) < len(lines):
            shown.append(f"... and {len(lines) - len(shown)} more: -v")
        terminalreporter.section("llmproxy", sep="-")
        for line in shown:
            terminalreporter.write_line(line)
        total = add(report for _, report in self.done)
        terminalreporter.write_line(f"{tests} {'test' if tests == 1 else 'tests'}: {one_line(total)}")

    def _remarks(self) -> Iterator[str]:
        for test, report in self.done:
            if report.failed:
                yield f"{test}: {report.failed} answers could not be recorded: its cassette is incomplete"
            if report.misses and test in self.passed:
                yield f"{test}: passed, but was refused {report.misses}: {brief(report.miss_texts[0]) if report.miss_texts else ''}"
            if report.unused and test in self.passed:
                rows = ", ".join(
                    f"#{row.id} {row.model or row.operation} {brief(row.text or '')[:40]!r}"
                    for row in report.unused[:3]
                )
                more = ", ..." if len(report.unused) > 3 else ""
                yield f"{test}: {len(report.unused)} recorded but not asked for: {rows}{more}"
