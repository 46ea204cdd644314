"""A run of the user anna, and what its store held when it began."""

from __future__ import annotations

import pytest

from llmproxy.suite.checks.row_checks import StoreBaseline, take_baseline
from tests.suite.runs import Run, run


@pytest.fixture
def made() -> Run:
    return run()


@pytest.fixture
def before(made: Run) -> StoreBaseline:
    found = take_baseline(made.look, ["tasks"])
    assert isinstance(found, StoreBaseline)
    return found
