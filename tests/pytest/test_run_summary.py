"""The end of a pytest run."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmproxy.calls_and_totals import UnusedRecording, UsageSums
from llmproxy.client.session_reports import SessionReport
from llmproxy.errors import Exit
from llmproxy.pytest.per_test_sessions import PytestPluginState
from llmproxy.pytest.run_summary import RunSummaryPlugin

RECORD = "Record what is missing, with your keys: pytest --llmproxy-cassette-dir 'my dir' a --llmproxy-mode auto"


class Terminal:
    config = SimpleNamespace(
        known_args_namespace=SimpleNamespace(llmproxy_cassette_dir="my dir", file_or_dir=["a"]), rootpath=Path("x")
    )

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        self.lines: list[str] = []

    def ensure_newline(self) -> None:
        """A line is always over here."""

    def section(self, title: str, sep: str) -> None:
        self.lines.append(sep + title)

    def write_line(self, text: str) -> None:
        self.lines.append(text)


def heard(collector: RunSummaryPlugin, test: str, outcome: str, report: SessionReport) -> None:
    for when, result in (("call", outcome), ("teardown", "passed")):
        sent = pytest.TestReport(test, ("", 0, ""), {}, outcome=result, longrepr=None, when=when)  # type: ignore[arg-type]
        if when == "teardown":
            sent.llmproxy = report.to_json()  # type: ignore[attr-defined]
        collector.pytest_runtest_logreport(sent)


def summary(collector: RunSummaryPlugin, verbosity: int = 0) -> list[str]:
    terminal = Terminal(verbosity)
    collector.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    return terminal.lines


def test_nothing_is_written_where_nobody_used_us() -> None:
    """Other people's suites look as before."""
    assert summary(RunSummaryPlugin()) == []


def test_the_last_line_adds_everything_up() -> None:
    """Hits, misses, recorded, and the cost that was not spent."""
    collector = RunSummaryPlugin()
    heard(collector, "a", "passed", SessionReport("a", "a", hits=2, saved=UsageSums(cost=Decimal("0.5"))))
    heard(collector, "b", "failed", SessionReport("b", "b", misses=1, miss_texts=["no"]))
    assert summary(collector) == ["-llmproxy", "2 tests: 2 hits, 1 miss, 0 recorded; $0.5000 not spent", RECORD]


def test_what_a_green_test_hides_is_said() -> None:
    """Swallowed misses, recordings that nobody asks for any more, lost answers."""
    collector = RunSummaryPlugin()
    unused = tuple(UnusedRecording(n, "messages", "claude", "x" * 99) for n in range(5))
    heard(collector, "a", "passed", SessionReport("a", "a", misses=1, miss_texts=["no such"], unused=unused, failed=2))
    assert summary(collector)[1:-2] == [
        "a: 2 answers could not be recorded: its cassette is incomplete",
        "a: passed with 1 miss: no such",
        f"a: 5 recorded but not asked for: {', '.join(f'#{n} claude {chr(39)}{40 * chr(120)}{chr(39)}' for n in range(3))}, ...",
    ]


@pytest.mark.parametrize(("sample", "name"), [(0, "a"), (1, "a"), (2, "'a~2'")])
def test_a_failed_test_names_its_recording(sample: int, name: str) -> None:
    """A proxy that says no sample (0) has but the first one."""
    collector = RunSummaryPlugin(run=PytestPluginState(Terminal.config))  # type: ignore[arg-type]
    heard(collector, "t", "failed", SessionReport("a", "a", sample, hits=1))
    assert summary(collector)[1].startswith(f"t: look at its recording: llmproxy ui {name} ")


@pytest.mark.parametrize(
    ("forbids", "before", "code", "said"),
    [("stale", 0, Exit.STALE, True), ("carried", 0, Exit.OK, False), ("stale", 1, Exit.FAILED, False)],
)
def test_recordings_above_their_age_have_a_code(
    forbids: str, before: int, code: Exit, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where --fail-on-stale was set, and nothing else failed."""
    monkeypatch.setenv(f"LLMPROXY_FAIL_ON_{forbids.upper()}", "true")
    run = PytestPluginState(Terminal.config)  # type: ignore[arg-type]
    collector, session = RunSummaryPlugin(run=run), SimpleNamespace(exitstatus=before)
    heard(collector, "a", "passed", SessionReport("a", "a", hits=2, stale=1))
    collector.pytest_sessionfinish(session, before)  # type: ignore[arg-type]
    written = summary(collector)
    assert "2 hits (1 older than its max age)" in written[1]
    assert session.exitstatus == code
    assert written[-1].startswith("exit code 10 because of --fail-on-stale: 2 hits (1 ") is said


def test_a_long_list_is_for_those_who_ask() -> None:
    collector = RunSummaryPlugin()
    for n in range(9):
        heard(collector, f"t{n}", "passed", SessionReport("a", "a", failed=1))
    assert summary(collector)[-2] == "... and 4 more: -v"
    assert len(summary(collector, verbosity=1)) == 11
