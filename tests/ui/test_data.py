"""The questions of the page, asked of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteNotFound
from llmproxy.ui.queries import (
    CallFilter,
    InvalidViewerQuery,
    UnknownViewerQueryError,
    answer_viewer_query,
    compute_totals_of_filtered_calls,
    count_calls_before_in_list,
    list_calls_for_timeline,
    read_window_of_call_rows,
)
from tests.support.recordings import reopened
from tests.ui import samples

ASKED = {
    "cassettes": {},
    "calls": {"cassette": "agent", "sums": "1"},
    "place": {"id": "3"},
    "steps": {"cassette": "agent"},
    "call": {"id": "3"},
    "bodies": {"id": "3"},
}


def test_a_call_is_opened_with_what_came_before_and_after(store: Store) -> None:
    """What is new in it, and what its tools answered later, without reading the whole recording."""
    found = answer_viewer_query(store, "call", {"id": "3"})
    assert (found["previous"], found["known"], found["retry"]) == (2, 4, True)
    told = found["results"]
    assert told == {"toolu_2": {"text": "written", "in": 5}, "toolu_3": {"text": "14 passed in 0.3 s", "in": 5}}


@pytest.mark.parametrize(("question", "query"), [
    ("calls", {}),
    ("calls", {"cassette": "agent", "offset": "-1"}),
    ("calls", {"cassette": "agent", "limit": "1e9"}),
    ("calls", {"cassette": "agent", "sample": "x"}),
    ("call", {}),
    ("call", {"id": "٣"}),
    ("bodies", {"id": "1;drop"}),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(store: Store, question: str, query: dict[str, str]) -> None:
    """With what it can be; nothing is guessed."""
    with pytest.raises(InvalidViewerQuery, match="llmproxy: "):
        answer_viewer_query(store, question, query)


def test_what_is_not_there_is_said(store: Store) -> None:
    """A call that is gone, and a question that nobody knows."""
    with pytest.raises(CassetteNotFound):
        answer_viewer_query(store, "call", {"id": "999"})
    with pytest.raises(UnknownViewerQueryError):
        answer_viewer_query(store, "../../etc/passwd", {})


def test_looking_changes_nothing(tmp_path: Path) -> None:
    path = samples.store(tmp_path / "x.db")
    before = path.read_bytes()
    with reopened(path) as store:
        for question, query in ASKED.items():
            answer_viewer_query(store, question, query)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["x.db"]


def test_a_window_gives_its_part_in_order(store: Store) -> None:
    assert [row["id"] for row in read_window_of_call_rows(store, CallFilter("agent"), 1, 3)] == [2, 3, 4]
    assert read_window_of_call_rows(store, CallFilter("agent"), 5, 10) == []
    assert read_window_of_call_rows(store, CallFilter("nothing"), 0, 10) == []


@pytest.mark.parametrize(
    ("find", "ids"),
    [("READ_FILE", []), ("look at the FILE", [1]), ("review", [4]), ("%", []), ("claude", [1, 2, 3, 4, 5])],
)
def test_finding_looks_into_prompts_answers_and_models(store: Store, find: str, ids: list[int]) -> None:
    """Case does not count, and what SQL takes for a wildcard is a letter."""
    assert [row["id"] for row in read_window_of_call_rows(store, CallFilter("agent", find=find), 0, 10)] == ids


def test_only_what_failed(store: Store) -> None:
    only = CallFilter("agent", failed=True)
    assert [row["status"] for row in read_window_of_call_rows(store, only, 0, 10)] == [529]
    assert compute_totals_of_filtered_calls(store, only)["calls"] == 1


def test_sums_say_what_is_unknown(store: Store) -> None:
    """A failed call has no tokens and so no price to miss; nothing recorded has no sum at all."""
    found = compute_totals_of_filtered_calls(store, CallFilter("agent"))
    assert (found["calls"], found["failed"], found["unpriced"]) == (5, 1, 0)
    assert found["to"] - found["from"] > 40
    nothing = compute_totals_of_filtered_calls(store, CallFilter("nothing"))
    assert (nothing["calls"], nothing["in"], nothing["cost"]) == (0, None, None)


def test_a_call_knows_its_place(store: Store) -> None:
    """So that the list can be opened where it stands."""
    for place, row in enumerate(read_window_of_call_rows(store, CallFilter("agent"), 0, 10)):
        assert count_calls_before_in_list(store, CallFilter("agent"), row["at"], row["id"]) == place


def test_the_strip_holds_what_is_drawn(store: Store) -> None:
    assert [each[0] for each in list_calls_for_timeline(store, CallFilter("agent"))] == [1, 2, 3, 4, 5]
    assert [each[4] for each in list_calls_for_timeline(store, CallFilter("agent"))] == [0, 1, 0, 0, 0]
