"""Ids that are the same in every run."""

from __future__ import annotations

from uuid import UUID

from llmproxy.suite.checks.entities.ids import agent_environment, row_id, user_of
from llmproxy.suite.stores import Kind


def test_an_id_depends_on_scenario_run_and_name_alone() -> None:
    """Golden values: changing them changes every prompt that an id was in, and recordings are lost."""
    assert row_id("task-001", 1, "setupTask") == "e984f7dd-b1ef-571a-a0e4-b9673da43319"
    assert row_id("task-001", 1, "setupTask", Kind.INTEGER) == 1506406169
    others = {
        row_id("task-001", 1, "a"),
        row_id("task-001", 2, "a"),
        row_id("task-002", 1, "a"),
        row_id("task-001", 1, "b"),
    }
    assert len(others) == 4


def test_an_id_fits_its_column() -> None:
    """A UUID's text, or a number that 32 bits hold and no counter has reached."""
    assert UUID(str(row_id("s", 1, "a"))).version == 5
    number = row_id("s", 1, "a", Kind.INTEGER)
    assert isinstance(number, int)
    assert 1_000_000_000 <= number < 2**31


def test_the_first_run_needs_no_suffix() -> None:
    """One run is recorded as the first of five is."""
    assert [user_of("anna", sample) for sample in (1, 2, 3)] == ["anna", "anna~2", "anna~3"]


def test_a_spawned_agent_is_told_time_and_seed() -> None:
    """The same in every run of the same number."""
    assert agent_environment("task-001", 2) == {"LLMPROXY_NOW": "2027-01-04T09:00:00Z", "LLMPROXY_SEED": "task-001~2"}
    assert agent_environment("s", 1, "2030-01-01T00:00:00Z")["LLMPROXY_NOW"] == "2030-01-01T00:00:00Z"
