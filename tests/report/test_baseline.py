"""What got worse since an earlier test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SettingsError
from llmproxy.report.events import Completed
from llmproxy.report.scenario_rows import (
    BaselineComparisonHandler,
    format_baseline_comparison,
    format_rows_comparison,
    read_baseline,
)


def row(name: str, passed: int = 1, runs: int = 1, status: str = "", interval: Any = (0.1, 0.9)) -> dict[str, Any]:
    status = status or ("passed" if passed == runs else "failed")
    counts = {"runs": runs, "passed": passed, "rate": passed / runs}
    return {"scenario": name, "status": status, **counts, "interval": interval}


def test_worse_comes_first() -> None:
    """Then what is gone, what is new, what got better; the rest is counted."""
    before = {each["scenario"]: each for each in (row("a"), row("b", 0), row("same"), row("gone"))}
    assert format_rows_comparison(before, [row("new"), row("b"), row("a", 0), row("same")]) == [
        "against the baseline: 1 worse, 1 better, 1 as before",
        "  worse    a: passed -> failed",
        "  missing  gone: was passed",
        "  new      new: passed",
        "  better   b: failed -> passed",
    ]


def test_a_change_that_may_be_chance_says_so() -> None:
    (_, line) = format_rows_comparison(
        {"a": row("a", 9, 10, interval=(0.6, 0.98))}, [row("a", 7, 10, interval=(0.4, 0.9))]
    )
    assert (
        line
        == "  worse    a: failed, 9 of 10 (60% to 98%) -> failed, 7 of 10 (40% to 90%); the intervals overlap: this may be chance"
    )
    (_, line) = format_rows_comparison(
        {"a": row("a", 10, 10, interval=(0.7, 1.0))}, [row("a", 0, 10, interval=(0.0, 0.3))]
    )
    assert "chance" not in line


def test_what_could_not_be_judged_is_worse() -> None:
    """An error of the environment is no pass, whatever its rate."""
    assert "worse" in format_rows_comparison({"a": row("a")}, [row("a", status="environment_error")])[1]


def test_what_is_no_baseline_is_said_before_anything_runs(tmp_path: Path) -> None:
    """No file, no report, a report of other suites."""
    path = tmp_path / "last.json"
    with pytest.raises(SettingsError, match="cannot be read"):
        read_baseline(path, ["a"])
    path.write_text("[]")
    with pytest.raises(SettingsError, match="no JSON report"):
        read_baseline(path, ["a"])
    path.write_text(json.dumps({"summary": [row("x")]}))
    with pytest.raises(SettingsError, match="is of other suites: it has x"):
        read_baseline(path, ["a"])
    lines: list[str] = []
    shown = BaselineComparisonHandler(read_baseline(path, ["x"]), lines.append, ["x"])
    shown.handle(Completed(exit_code=0, seconds=1.0, scenarios=(row("x", 0),)))
    assert lines == ["against the baseline: 1 worse, 0 better, 0 as before\n", "  worse    x: passed -> failed\n"]


def test_what_is_no_more_in_the_suites_is_counted() -> None:
    """A scenario that was taken out, or renamed, is not as it was before."""
    lines: list[str] = []
    shown = BaselineComparisonHandler({"x": row("x"), "gone": row("gone")}, lines.append, ["x"])
    shown.handle(Completed(exit_code=0, seconds=1.0, scenarios=(row("x"),)))
    assert lines == ["against the baseline: 0 worse, 0 better, 1 as before\n", "  1 of the baseline did not run\n"]


def test_what_is_known_only_when_it_ran_is_compared_then(tmp_path: Path) -> None:
    """Scenarios that were left out are counted, not called missing; a baseline of others is refused by its flag's name."""
    before = {each["scenario"]: each for each in (row("a"), row("b"), row("left"))}
    assert format_baseline_comparison(before, [row("a", 0), row("b")], tmp_path / "x.json", "--scenario-baseline") == [
        "against the baseline: 1 worse, 0 better, 1 as before",
        "  worse    a: passed -> failed",
        "  1 of the baseline did not run",
    ]
    with pytest.raises(
        SettingsError, match=r"--scenario-baseline x.json is of other suites: it has a, b, left, and none"
    ):
        format_baseline_comparison(before, [row("c")], Path("x.json"), "--scenario-baseline")
