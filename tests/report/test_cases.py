"""The table of cases at the end."""

from __future__ import annotations

from typing import Any

from llmproxy.report.cases import table


def row(name: str, status: str = "passed", runs: int = 1, passed: int = 1) -> dict[str, Any]:
    """Return what a scenario came to."""
    return {"scenario": name, "status": status, "runs": runs, "passed": passed}


def test_what_did_not_pass_comes_first() -> None:
    """Of scenarios with several cases only."""
    rows = [row("w[paris]", runs=2, passed=2), row("w[rome]", "agent_error", 2, 1), row("alone"), row("one[x]")]
    assert table(rows) == [
        "w: 2 cases, 1 not passed",
        "  agent error  rome   1 of 2 runs passed",
        "  passed       paris  2 of 2 runs passed",
    ]


def test_ten_thousand_cases_are_not_ten_thousand_lines() -> None:
    """Reports in files have them all."""
    lines = table([row(f"w[{n}]") for n in range(10_000)])
    assert (lines[0], len(lines), lines[-1]) == ("w: 10,000 cases, 0 not passed", 32, "  ... and 9,970 more cases")


def test_several_runs_show_how_sure_the_rate_is() -> None:
    """Two cells differ only where their intervals do."""
    cells = [
        row("w[a]", runs=5, passed=5) | {"interval": (0.57, 1.0)},
        row("w[b]", "failed", 5, 1) | {"interval": (0.04, 0.62)},
    ]
    assert table(cells)[1:] == [
        "  failed  b  1 of 5 runs passed (95 % interval 4% to 62%)",
        "  passed  a  5 of 5 runs passed (95 % interval 57% to 100%)",
    ]
