"""What-if features, alone, in pairs and in the triples that can be typed, do what they did: `feature_matrix`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.core.engine.engine import Engine, EngineComponentClasses
from llmproxy.core.engine.recording_and_accounting import CallJournalAndUsageRecorder
from tests.core.engine.feature_matrix import DIALECTS, SITUATIONS, Bases, Cell, combinations, compare, expected, observe

AGAIN = (
    "\nAs wanted? uv run python -m tests.core.engine.feature_matrix"
    "\nWhy? the same with --show CELL --dialect DIALECT, here and in the commit before"
)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_features_do_together_what_they_did(tmp_path: Path, dialect: str) -> None:
    """Each of some 310 combinations and situations, triples in one dialect each: statuses, bytes, what is stored, counted and told."""
    lines, bases, turn = expected(), Bases(tmp_path), list(DIALECTS).index(dialect)
    cells = [Cell(features, situation, dialect) for features, situation in product(combinations(), SITUATIONS)]
    assert list(lines) == [cell.name for cell in cells]
    cells = [cell for n, cell in enumerate(cells) if len(cell.features) < 3 or n % len(DIALECTS) == turn]
    found = [f"{cell.name}: {each}" for cell in cells for each in compare(lines[cell.name], cell, observe(cell, bases))]
    assert not found, "\n".join(found[:40]) + f"\n{len(found)} differences" + AGAIN


class _OtherStatus(CallJournalAndUsageRecorder):
    def record_end(self, exchange: Any, status: int, **told: Any) -> Call:
        return super().record_end(exchange, status + 1, **told)


class _OtherEngine(Engine):
    parts = EngineComponentClasses(accounting=_OtherStatus)


def test_a_change_is_seen(tmp_path: Path) -> None:
    """Where an engine counts another status, the comparison says what was and what is."""
    cell = Cell(("bind", "mcp"), "hit", "messages")
    found = compare(expected()[cell.name], cell, observe(cell, Bases(tmp_path), _OtherEngine))
    assert "1:hit200" in found[0]
    assert "1:hit201" in found[1]
