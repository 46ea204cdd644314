"""One recording in the words of another's run: what is named differs no more, what is not named still does."""

from __future__ import annotations

from dataclasses import replace

from llmproxy.core.bindings import RunVariable, write_run_variables
from llmproxy.core.engine.learning import align
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.traffic.interaction import Interaction
from tests.support.chats import chat


def run_in(folder: str, question: str) -> Interaction:
    """Return what a run in this folder asked, and the answer that names it."""
    words = write_run_variables([RunVariable("cwd", folder)])
    return chat(f"{question} {folder}/a.txt", f"It is in {folder}/a.txt.", run_variables=words)


def test_only_the_folder_differs_and_is_exchanged() -> None:
    """Request, answer and key are those of the newer run, and the name is told."""
    old, new = run_in("/home/ann/shop", "Read"), run_in("/srv/build/7", "Read")
    told = align([old], [new], (), Rules(), {})
    assert told.names == ("cwd",)
    (one,) = told.interactions
    assert (one.key, one.request) == (new.key, new.request)
    assert [chunk.data for chunk in one.response.chunks] == [chunk.data for chunk in new.response.chunks]


def test_another_question_stays_another() -> None:
    """It has the newer run's folder, and its own words and key."""
    old, new = run_in("/home/ann/shop", "Delete"), run_in("/srv/build/7", "Read")
    (one,) = align([old], [new], (), Rules(), {}).interactions
    assert one.key == old.key != new.key
    assert b"Delete /srv/build/7/a.txt" in one.request.body


def test_nothing_declared_nothing_exchanged() -> None:
    """A recording without run variables comes back as it is."""
    old, new = (replace(run_in(folder, "Read"), run_variables="") for folder in ("/home/ann/shop", "/srv/build/7"))
    assert align([old], [new], (), Rules(), {}) == ([old], ())
