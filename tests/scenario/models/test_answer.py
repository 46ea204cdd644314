"""What a model said, and that it survives keeping."""

from __future__ import annotations

import pytest

from llmproxy.scenario.models.answer import Answer, Called, spoken_text


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("hello", "hello"),
        ("<think>he wants a refund</think>\n\nI want a refund", "I want a refund"),
        ("<Thinking>a</Thinking>b<think>c</think>d", "bd"),
        ("he wants a refund</think>I want a refund", "I want a refund"),
        ("<think>never ends", ""),
        ("i think <b>so</b>", "i think <b>so</b>"),
        (None, ""),
        (7, ""),
        ([{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"}], "a"),
        ([{"type": "text", "text": None}, "x", {"type": "text", "text": "c"}], "c"),
    ],
)
def test_reasoning_is_stripped(said: object, heard: str) -> None:
    """Row 32: what a model thought aloud is not what it said."""
    assert spoken_text(said) == heard


def test_an_answer_survives_keeping() -> None:
    """What is kept in cache.db comes back as it was."""
    answer = Answer("größe", (Called("f", '{"a": 1}'),), "stop", {"prompt": 3})
    assert Answer.of(answer.to_text()) == answer
