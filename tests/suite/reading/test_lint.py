"""What is allowed and probably not meant."""

from __future__ import annotations

import pytest

from llmproxy.suite.reading.lint import doubtful
from llmproxy.yaml_reader import Map, Problems, read


def doubts(text: str) -> list[str]:
    found, problems = Problems(), Problems()
    root = read(text, "f", problems)[0][0]
    assert isinstance(root, Map)
    doubtful(root, found)
    return [str(each) for each in found]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps: [{chat: hi}]", "f:1:1: nothing is asserted"),
        ("steps: [{chat: hi}, {wait: {ms: 5}}]", "nothing is asserted"),
        ("steps: [{chat: hi, onlyTools: false}]", "nothing is asserted"),
        ("steps: [{chat: hi, tools: {count: 0}}]", "f:1:28: `count` is taken for the name of a tool here"),
        ("steps: [{chat: hi, tools: {gte: 1}}]", "`totalToolCalls` counts all calls"),
        ("steps: [{chat: hi, created: [{entity: t, as: $x}]}]", "$x is captured and never used"),
        ("steps: [{chat: hi, created: [{entity: t, as: $x, count: 2}]}, {chat: $x.id}]", "`as` names one row"),
        ("steps: [{chat: hi, totalToolCalls: {gt: 5, lt: 3}}]", "no number is gt 5 and lt 3"),
        ("steps: [{chat: hi, totalToolCalls: {gt: 5, lte: 5}}]", "no number is gt 5 and lte 5"),
        ("steps: [{chat: hi, response: {regex: '.*'}}]", "is found in every text"),
        ("parametrize: [{a: 1}, {b: 1, id: x}]\nsteps: [{chat: hi, totalToolCalls: 1}]", "do not have the same names"),
    ],
)
def test_what_is_doubtful_is_told(text: str, words: str) -> None:
    """One warning for one doubt."""
    (doubt,) = doubts(text)
    assert words in doubt


@pytest.mark.parametrize(
    "text",
    [
        "steps: [{chat: hi}, {verify: {entity: t, count: 1}}]",
        "steps: [{simulate: {goal: x, criteria: [y]}}]",
        "steps: [{simulate: {goal: x, maxTurns: 2}}]",
        "steps: [{chat: hi}]\nusage: {callCount: 1}",
        "steps: [{chat: hi, created: [{entity: t, as: $x}]}, {verify: {entity: t, id: $x}}]",
        "steps: [{chat: hi, totalToolCalls: {gte: 5, lte: 5}, response: {regex: [a, '^$', '(']}}]",
        "parametrize: [{a: 1, id: y}, {a: 2}]\nsteps: [{chat: hi, totalToolCalls: 1}]",
        "steps: 5",
    ],
)
def test_what_is_clear_is_left_alone(text: str) -> None:
    """A warning without a reason teaches people to read none."""
    assert doubts(text) == []
