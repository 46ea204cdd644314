"""The table of cases at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SettingsError
from llmproxy.report.events import Completed
from llmproxy.report.scenario_rows import (
    BaselineChangePrinter,
    format_baseline_changes,
    format_baseline_comparison,
    format_case_table,
    read_baseline,
)


def row(name: str, status: str = "passed", runs: int = 1, passed: int = 1) -> dict[str, Any]:
    return {"scenario": name, "status": status, "runs": runs, "passed": passed}


def test_what_did_not_pass_comes_first() -> None:
    rows = [row("w[paris]", runs=2, passed=2), row("w[rome]", "agent_error", 2, 1), row("alone"), row("one[x]")]
    assert format_case_table(rows) == [
        "w: 2 cases, 1 not passed",
        "  agent error  rome   1 of 2 runs passed",
        "  passed       paris  2 of 2 runs passed",
    ]


def test_ten_thousand_cases_are_not_ten_thousand_lines() -> None:
    lines = format_case_table([row(f"w[{n}]") for n in range(10_000)])
    assert (lines[0], len(lines), lines[-1]) == ("w: 10,000 cases, 0 not passed", 32, "  ... and 9,970 more cases")


def test_several_runs_show_how_sure_the_rate_is() -> None:
    """Two cells differ only where their intervals do."""
    cells = [
        row("w[a]", runs=5, passed=5) | {"interval": (0.57, 1.0)},
        row("w[b]", "failed", 5, 1) | {"interval": (0.04, 0.62)},
    ]
    assert format_case_table(cells)[1:] == [
        "  failed  b  1 of 5 runs passed (95 % interval 4% to 62%)",
        "  passed  a  5 of 5 runs passed (95 % interval 57% to 100%)",
    ]


def test_cells_are_side_by_side_with_cost_and_latency() -> None:
    """What ended otherwise than most is marked; what nobody knows is left out."""
    cells = [
        row("w[a,short]") | {"cost_usd": "0.00210", "latency_ms": 840.0},
        row("w[a,long]") | {"cost_usd": "0.0014", "latency_ms": None},
        row("w[b,short]", "failed", passed=0) | {"cost_usd": None, "latency_ms": 1200.0},
    ]
    assert format_case_table(cells) == [
        "w: 3 cases, 1 not passed; * not as most are (passed)",
        "* failed  b,short           1.2 s",
        "  passed  a,short  $0.0021  840 ms",
        "  passed  a,long   $0.0014",
    ]


def test_each_value_of_an_axis_is_summed_up() -> None:
    """The share of cells that passed with its interval, mean cost and latency where all are known; runs of different cells are not pooled."""
    cells = [
        row("w[a,x]") | {"axes": {"model": "a", "prompt": "x"}, "cost_usd": "0.002", "latency_ms": 1000.0},
        row("w[a,y]", "failed", passed=0)
        | {"axes": {"model": "a", "prompt": "y"}, "cost_usd": "0.004", "latency_ms": 2000.0},
        row("w[b,x]") | {"axes": {"model": "b", "prompt": "x"}, "cost_usd": None, "latency_ms": 500.0},
        row("w[b,y]") | {"axes": {"model": "b", "prompt": "y"}, "cost_usd": None, "latency_ms": 700.0},
    ]
    assert format_case_table(cells)[5:] == [
        "  model=a   1 of 2 cells passed (95 % interval 9% to 91%)    $0.0030  1.5 s",
        "  model=b   2 of 2 cells passed (95 % interval 34% to 100%)           600 ms",
        "  prompt=x  2 of 2 cells passed (95 % interval 34% to 100%)           750 ms",
        "  prompt=y  1 of 2 cells passed (95 % interval 9% to 91%)             1.4 s",
    ]


def test_one_axis_alone_is_the_cells() -> None:
    assert len(format_case_table([row(f"w[{value}]") | {"axes": {"model": value}} for value in "ab"])) == 3


def test_a_cell_that_says_nothing_about_the_agent_is_in_no_interval() -> None:
    """Neither one whose environment failed nor one that was left out; one cell alone has no interval."""
    ended = {"a": ["passed", "environment_error"], "b": ["passed", "skipped", "flaky"]}
    cells = [
        row(f"w[{axis},{n}]", status) | {"axes": {"model": axis}}
        for axis, statuses in ended.items()
        for n, status in enumerate(statuses)
    ]
    found = format_case_table(cells)[6:]
    assert found == ["  model=a  1 of 2 cells passed", "  model=b  2 of 3 cells passed (95 % interval 9% to 91%)"]


def row_with_rate(
    name: str, passed: int = 1, runs: int = 1, status: str = "", interval: Any = (0.1, 0.9)
) -> dict[str, Any]:
    status = status or ("passed" if passed == runs else "failed")
    counts = {"runs": runs, "passed": passed, "rate": passed / runs}
    return {"scenario": name, "status": status, **counts, "interval": interval}


def changes(before: Sequence[dict[str, Any]], *now: dict[str, Any]) -> list[str]:
    return list(format_baseline_changes({each["scenario"]: each for each in before}, now))


def test_worse_comes_first() -> None:
    """Then what is gone, what is new, what got better; the rest is counted."""
    before = [row_with_rate("a"), row_with_rate("b", 0), row_with_rate("same"), row_with_rate("gone")]
    now = [row_with_rate("new"), row_with_rate("b"), row_with_rate("a", 0), row_with_rate("same")]
    assert changes(before, *now) == [
        "against the baseline: 1 worse, 1 better, 1 as before",
        "  worse    a: passed -> failed",
        "  missing  gone: was passed",
        "  new      new: passed",
        "  better   b: failed -> passed",
    ]


def test_a_change_that_may_be_chance_says_so() -> None:
    nine, seven = row_with_rate("a", 9, 10, interval=(0.6, 0.98)), row_with_rate("a", 7, 10, interval=(0.4, 0.9))
    chance = "9 of 10 (60% to 98%) -> failed, 7 of 10 (40% to 90%); the intervals overlap: this may be chance"
    assert changes([nine], seven)[1:] == [f"  worse    a: failed, {chance}"]
    all_of_them, none = (row_with_rate("a", n, 10, interval=(n * 0.07, n * 0.07 + 0.3)) for n in (10, 0))
    (_, line) = changes([all_of_them], none)
    assert "chance" not in line


def test_what_could_not_be_judged_is_worse() -> None:
    """An error of the environment is no pass, whatever its rate."""
    assert "worse" in changes([row_with_rate("a")], row_with_rate("a", status="environment_error"))[1]


def test_rates_and_statuses_are_two_scales() -> None:
    """Runs that ended early have no rate; what is skipped is neither better nor worse."""
    early = {**row_with_rate("a", 1, 10, status="flaky"), "rate": None}
    (head, line) = changes([early], row_with_rate("a", 0, 10, interval=(0.0, 0.3)))
    assert ("1 worse, 0 better" in head, line.split()[0]) == (True, "worse")
    for old, new, kind in (("failed", "skipped", "missing"), ("skipped", "failed", "new")):
        rates = {"failed": 0.0, "skipped": None}
        one, other = ({**row_with_rate("a", status=each), "rate": rates[each]} for each in (old, new))
        assert changes([one], other)[1].split() == [kind, "a:", old, "->", new]


def test_what_is_no_baseline_is_said_before_anything_runs(tmp_path: Path) -> None:
    """No file, no report, a report of other suites."""
    path = tmp_path / "last.json"
    with pytest.raises(SettingsError, match="cannot be read"):
        read_baseline(path, ["a"])
    path.write_text("[]")
    with pytest.raises(SettingsError, match="no JSON report"):
        read_baseline(path, ["a"])
    path.write_text(json.dumps({"summary": [row_with_rate("x")]}))
    with pytest.raises(SettingsError, match="is of other suites: it has x"):
        read_baseline(path, ["a"])
    lines: list[str] = []
    shown = BaselineChangePrinter(read_baseline(path, ["x"]), lines.append, ["x"])
    shown.handle(Completed(exit_code=0, seconds=1.0, scenarios=(row_with_rate("x", 0),)))
    assert lines == ["against the baseline: 1 worse, 0 better, 0 as before\n", "  worse    x: passed -> failed\n"]


def test_what_is_no_more_in_the_suites_is_counted() -> None:
    """A scenario that was taken out, or renamed, is not as it was before."""
    lines: list[str] = []
    shown = BaselineChangePrinter({"x": row_with_rate("x"), "gone": row_with_rate("gone")}, lines.append, ["x"])
    shown.handle(Completed(exit_code=0, seconds=1.0, scenarios=(row_with_rate("x"),)))
    assert lines == ["against the baseline: 0 worse, 0 better, 1 as before\n", "  1 of the baseline did not run\n"]


def test_what_is_known_only_when_it_ran_is_compared_then(tmp_path: Path) -> None:
    """Scenarios that were left out are counted, not called missing; a baseline of others is refused by its flag's name."""
    before = {each["scenario"]: each for each in (row_with_rate("a"), row_with_rate("b"), row_with_rate("left"))}
    assert format_baseline_comparison(
        before, [row_with_rate("a", 0), row_with_rate("b")], tmp_path / "x.json", "--scenario-baseline"
    ) == [
        "against the baseline: 1 worse, 0 better, 1 as before",
        "  worse    a: passed -> failed",
        "  1 of the baseline did not run",
    ]
    with pytest.raises(
        SettingsError, match=r"--scenario-baseline x.json is of other suites: it has a, b, left, and none"
    ):
        format_baseline_comparison(before, [row_with_rate("c")], Path("x.json"), "--scenario-baseline")
