"""Expectations about rows, usage and message processing."""

from __future__ import annotations

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.reading.fragment import load_fragment


def test_usage_gives_its_numbers_by_their_names() -> None:
    """Branches apart; a number given as null or not at all is none."""
    made = load_fragment(
        "usage",
        "{inputTokens: {gt: 0}, costUsd: {lt: 0.01}, estimate: true, anyOf: [{callCount: 1}, {reasoningTokens: 0}]}",
    )
    assert made.numbers == {"inputTokens": {"gt": 0}, "costUsd": {"lt": 0.01}}
    assert [branch.numbers for branch in made.any_of] == [{"callCount": 1}, {"reasoningTokens": 0}]
    assert made.estimate


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("usage", "{tokens: 5}", "unknown key `tokens`"),
        ("usage", "{inputTokens: '5'}", "mind the quotes"),
        ("usage", "{anyOf: [{}]}", "nothing is asserted here"),
        ("usage", "{allOf: {callCount: 1}}", "takes a list"),
        ("created", "[{fields: {a: 1}}]", "`entity` is missing"),
        ("created", "[{entity: t, fields: {}}]", "asserts nothing"),
        ("created", "[{entity: t, as: '1x'}]", "takes a name such as $task"),
        ("created", "[{entity: t, within: soon}]", "takes milliseconds"),
        ("messageProcessing", "{}", "nothing is asserted here"),
        ("messageProcessing", "{minEvidence: proven}", "nothing is asserted here"),
        ("messageProcessing", "{condenser: {activated: yes}}", "only true and false"),
        ("messageProcessing", "{pruner: {summaryContains: x}}", "unknown key `summaryContains`"),
        (
            "messageProcessing",
            "{pruner: {activated: true}, minEvidence: sure}",
            "takes one of 'declared', 'proven' or 'inferred'",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(kind: str, text: str, words: str) -> None:
    """Each with its reason."""
    with pytest.raises(SuiteError) as caught:
        load_fragment(kind, text)
    assert words in str(caught.value)


def test_rows_may_be_named_counted_and_waited_for() -> None:
    """All that an item may say."""
    (made,) = load_fragment(
        "created", "[{entity: t, fields: {a: {gt: 1}}, count: {lte: 2}, as: $x, within: 2s, overwrite: true}]"
    )
    assert (made.entity, made.fields, made.count, made.as_, made.within, made.overwrite) == (
        "t",
        {"a": {"gt": 1}},
        {"lte": 2},
        "x",
        2000.0,
        True,
    )


def test_processors_keep_their_words() -> None:
    """One text or several."""
    made = load_fragment(
        "messageProcessing",
        "{condenser: {summaryContains: x, condensedMessages: 4}, tokenLimiter: {droppedMessages: {gt: 1}}}",
    )
    assert made.condenser.summary_contains == ("x",)
    assert made.condenser.activated is None
    assert made.token_limiter.dropped_messages == {"gt": 1}
    assert made.min_evidence == "proven"
