"""The questions of the page, asked of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteNotFound
from llmproxy.ui.queries import QUESTIONS, BadQuestion, NoSuchQuestion, answer_question
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


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_has_an_answer(store: Store, question: str) -> None:
    """Each is asked once here as the page asks it."""
    assert answer_question(store, question, ASKED[question])


def test_a_call_is_opened_with_what_came_before_and_after(store: Store) -> None:
    """What is new in it, and what its tools answered later, without reading the whole recording."""
    found = answer_question(store, "call", {"id": "3"})
    assert (found["previous"], found["known"], found["retry"]) == (2, 4, True)
    told = found["results"]
    assert told == {"toolu_2": {"text": "written", "in": 5}, "toolu_3": {"text": "14 passed in 0.3 s", "in": 5}}


@pytest.mark.parametrize(
    ("question", "query"),
    [
        ("calls", {}),
        ("calls", {"cassette": "agent", "offset": "-1"}),
        ("calls", {"cassette": "agent", "limit": "1e9"}),
        ("calls", {"cassette": "agent", "sample": "x"}),
        ("call", {}),
        ("call", {"id": "٣"}),
        ("bodies", {"id": "1;drop"}),
    ],
)
def test_what_makes_no_sense_is_refused(store: Store, question: str, query: dict[str, str]) -> None:
    """With what it can be; nothing is guessed."""
    with pytest.raises(BadQuestion, match="llmproxy: "):
        answer_question(store, question, query)


def test_what_is_not_there_is_said(store: Store) -> None:
    """A call that is gone, and a question that nobody knows."""
    with pytest.raises(CassetteNotFound):
        answer_question(store, "call", {"id": "999"})
    with pytest.raises(NoSuchQuestion):
        answer_question(store, "../../etc/passwd", {})


def test_looking_changes_nothing(tmp_path: Path) -> None:
    path = samples.store(tmp_path / "x.db")
    before = path.read_bytes()
    with reopened(path) as store:
        for question, query in ASKED.items():
            answer_question(store, question, query)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["x.db"]
