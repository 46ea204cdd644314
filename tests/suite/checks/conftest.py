"""A run of the user anna, and what its store held when it began."""

from __future__ import annotations

import pytest

from llmproxy.suite.checks.row_checks import RowSnapshotBeforeStep, take_row_snapshot_before_step
from tests.suite.runs import Run, run


@pytest.fixture
def made() -> Run:
    return run()


@pytest.fixture
def before(made: Run) -> RowSnapshotBeforeStep:
    found = take_row_snapshot_before_step(made.look, ["tasks"])
    assert isinstance(found, RowSnapshotBeforeStep)
    return found
