"""The figures of the house only fall: `scripts/measure-layout` measures them, and holds the ceilings and what is wanted."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYOUT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/measure-layout"))
REASONS = {name: LAYOUT[name] for name in ("SHORT_FOR_A_REASON", "LONG_FOR_A_REASON", "SMALL_FOR_A_REASON")}


@pytest.mark.parametrize("name", LAYOUT["BUDGETS"])
def test_a_figure_keeps_below_its_ceiling(name: str) -> None:
    """What the house weighs may fall, and never rises; who gets below a ceiling lowers it."""
    now, budget = LAYOUT["measure"]()[name], LAYOUT["BUDGETS"][name]
    assert now <= budget.ceiling, (
        f"{name}: {now}, and it was {budget.ceiling}; uv run scripts/measure-layout says where"
    )


def test_every_figure_has_a_ceiling() -> None:
    """What is measured has a budget, and what has a budget is measured."""
    assert set(LAYOUT["measure"]()) == set(LAYOUT["BUDGETS"])


@pytest.mark.parametrize("name", REASONS)
def test_an_exception_is_still_there(name: str) -> None:
    """A list of exceptions shrinks with what it names, and each has its reason."""
    assert [path for path in REASONS[name] if not (ROOT / "llmproxy" / path).exists()] == []
    assert all(REASONS[name].values())


def test_a_module_with_an_excuse_needs_it() -> None:
    lines = {each.name: each.code for each in LAYOUT["count_modules"]()}
    assert [name for name in REASONS["SHORT_FOR_A_REASON"] if lines[name] >= LAYOUT["SHORT_FILE"]] == []
    assert [name for name in REASONS["LONG_FOR_A_REASON"] if lines[name] <= LAYOUT["LONG_FILE"]] == []
