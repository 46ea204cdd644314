"""The list of a recording, a window at a time."""

from __future__ import annotations

import pytest

from llmproxy.core.store.store import Store
from llmproxy.ui.queries import CallFilter, count_rows_before, list_timeline_marks, read_row_window, sum_calls


def test_a_window_gives_its_part_in_order(store: Store) -> None:
    assert [row["id"] for row in read_row_window(store, CallFilter("agent"), 1, 3)] == [2, 3, 4]
    assert read_row_window(store, CallFilter("agent"), 5, 10) == []
    assert read_row_window(store, CallFilter("nothing"), 0, 10) == []


@pytest.mark.parametrize(
    ("find", "ids"),
    [("READ_FILE", []), ("look at the FILE", [1]), ("review", [4]), ("%", []), ("claude", [1, 2, 3, 4, 5])],
)
def test_finding_looks_into_prompts_answers_and_models(store: Store, find: str, ids: list[int]) -> None:
    """Case does not count, and what SQL takes for a wildcard is a letter."""
    assert [row["id"] for row in read_row_window(store, CallFilter("agent", find=find), 0, 10)] == ids


def test_only_what_failed(store: Store) -> None:
    only = CallFilter("agent", failed=True)
    assert [row["status"] for row in read_row_window(store, only, 0, 10)] == [529]
    assert sum_calls(store, only)["calls"] == 1


def test_sums_say_what_is_unknown(store: Store) -> None:
    """A failed call has no tokens and so no price to miss; nothing recorded has no sum at all."""
    found = sum_calls(store, CallFilter("agent"))
    assert (found["calls"], found["failed"], found["unpriced"]) == (5, 1, 0)
    assert found["to"] - found["from"] > 40
    nothing = sum_calls(store, CallFilter("nothing"))
    assert (nothing["calls"], nothing["in"], nothing["cost"]) == (0, None, None)


def test_a_call_knows_its_place(store: Store) -> None:
    """So that the list can be opened where it stands."""
    for place, row in enumerate(read_row_window(store, CallFilter("agent"), 0, 10)):
        assert count_rows_before(store, CallFilter("agent"), row["at"], row["id"]) == place


def test_the_strip_holds_what_is_drawn(store: Store) -> None:
    assert [each[0] for each in list_timeline_marks(store, CallFilter("agent"))] == [1, 2, 3, 4, 5]
    assert [each[4] for each in list_timeline_marks(store, CallFilter("agent"))] == [0, 1, 0, 0, 0]
