"""The table of cases at the end."""

from __future__ import annotations

from typing import Any

from llmproxy.report.scenario_rows import format_case_table


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
