"""What holds for an answer whatever its words are."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from llmproxy.core.traffic.interaction import Chunk
from llmproxy.trace.comparing.answer_drift_statistics import (
    AnswerDriftProperties,
    compare_old_and_new_answer_formats,
    detect_text_language,
    extract_answer_drift_properties,
    measure_answer_behavior_distance,
)
from tests.support.chats import chat


def answer(value: object, kind: str = "application/json", status: int = 200) -> AnswerDriftProperties:
    made = chat()
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    response = dataclasses.replace(
        made.response, status=status, headers=(("content-type", kind),), chunks=(Chunk(0, data),)
    )
    return extract_answer_drift_properties(dataclasses.replace(made, response=response))


def said(text: str | None = "Fine, thank you.", finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}],
        "usage": {"total_tokens": 3, "details": {"cached": 0}},
    }


CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
STREAM = (
    "data: "
    + json.dumps({"choices": [{"delta": {"content": "Fine."}, "finish_reason": "stop"}]})
    + "\n\ndata: [DONE]\n\n"
)


@pytest.mark.parametrize(("new", "broken"), [
    (said(), []),
    (said("Other words, many more of them than there were."), []),
    (said(service_tier="default"), []),
    (said(None, "tool_calls", tool_calls=[CALL]), []),
    ({**said(), "usage": {"total_tokens": 3}}, ["usage.details is gone"]),
    ({**said(), "usage": {"total_tokens": "3", "details": {"cached": 0}}}, ["usage.total_tokens was a number, and is a string"]),
    ({"choices": [{"note": {"words": "Fine"}}]}, ["nothing in the answer is understood; new in it: choices[].note, choices[].note.words"]),
])  # fmt: skip
def test_what_is_gone_is_told_and_nothing_else(new: dict[str, Any], broken: list[str]) -> None:
    """A member that is gone or another kind of content is; other words, a call instead of words, a member more are not."""
    assert compare_old_and_new_answer_formats([answer(said())], [answer(new)]) == broken


def test_another_framing_is_told() -> None:
    """A client that reads a stream reads no document."""
    assert compare_old_and_new_answer_formats([answer(STREAM, "text/event-stream")], [answer(said())]) == [
        "the answer was framed as sse, and is json"
    ]


def test_one_answer_that_has_it_is_enough() -> None:
    """A member that comes now and then is not gone."""
    without = {**said(), "usage": {"total_tokens": 3}}
    assert compare_old_and_new_answer_formats([answer(said())], [answer(without), answer(said())]) == []


@pytest.mark.parametrize(("text", "language"), [
    ("The order is on its way to you, and it will be there.", "en"),
    ("Die Lieferung ist auf dem Weg und wird mit der Post sein.", "de"),
    ("La commande est en route et vous la recevrez dans la semaine.", "fr"),
    ("El pedido de usted es para una entrega en la semana.", "es"),
    ("ご注文の商品は発送されました。", "ja"),
    ("Заказ уже в пути.", "ru"),
    ("42", ""),
    ("", ""),
])  # fmt: skip
def test_a_language_is_known_or_not_told(text: str, language: str) -> None:
    """By script and function words; a short text has none."""
    assert detect_text_language(text) == language


@pytest.mark.parametrize(("new", "far"), [
    (said("Quite well, thanks."), 0.0),
    (said("Fine, thank you." * 2), 0.49),
    (said("Fine, thank you." * 40), 1.0),
    (said(finish="length"), 1.0),
    (said("Fine, thank you.", "tool_calls", tool_calls=[CALL]), 2.0),
])  # fmt: skip
def test_how_far_two_answers_are_apart(new: dict[str, Any], far: float) -> None:
    """Tools, finish, language and length count; words do not."""
    assert measure_answer_behavior_distance(answer(said()), answer(new)) == pytest.approx(far, abs=0.02)
