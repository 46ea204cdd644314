"""The conversation and who has heard what."""

from __future__ import annotations

from llmproxy.scenario.running.conversing.dialogue import Dialogue
from llmproxy.scenario.types import Message


def test_everybody_but_the_author_hears() -> None:
    """Without an author, all."""
    kept: list[Message] = []
    dialogue = Dialogue(2, kept)
    dialogue.add({"role": "user", "content": "1"}, 0)
    dialogue.add({"role": "user", "content": "2"})
    assert [each["content"] for each in kept] == ["1", "2"]
    assert [len(dialogue.list_unheard(index)) for index in (0, 1)] == [1, 2]


def test_what_was_heard_is_not_new_any_more() -> None:
    """For that agent alone."""
    dialogue = Dialogue(2, [])
    dialogue.add({"role": "user", "content": "1"})
    dialogue.note_heard(0)
    assert [len(dialogue.list_unheard(index)) for index in (0, 1)] == [0, 1]


def test_what_is_heard_is_a_copy() -> None:
    """Nobody can change what others hear."""
    kept: list[Message] = []
    dialogue = Dialogue(1, kept)
    dialogue.add({"role": "user", "content": ["1"]})
    dialogue.list_unheard(0)[0]["content"].append("2")
    assert kept == [{"role": "user", "content": ["1"]}]
    assert dialogue.list_unheard(0) == kept
