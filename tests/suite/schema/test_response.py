"""ExpectedMessages about tools and answers: short forms, and the part that matchers evaluate."""

from __future__ import annotations

import pytest

from llmproxy.errors import SuiteError
from llmproxy.report.events import Status
from llmproxy.suite.matchers.apply import check_value
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import _TEXT_MATCHERS
from tests.suite.fragment import load_fragment


def test_short_forms_of_tools_are_counts() -> None:
    """A number, comparisons and a reference mean the same as `count`."""
    made = load_fragment(
        "tools",
        "{a: 1, b: {gte: 1}, c: {count: 0, input: {x: 1}}, d: {input: {q: {contains: x}}}, e: $n.count}",
        declared=["n"],
    )
    assert [made[name].count for name in "abcde"] == [1, {"gte": 1}, 0, None, "$n.count"]
    assert made["d"].input == {"q": {"contains": "x"}}
    assert made["a"].status == "requested"


def test_a_response_gives_its_matcher() -> None:
    """As `matchers.check` takes it; JSON by paths, judges and snapshots are apart."""
    made = load_fragment(
        "response",
        "{contains: [a], regex: '^x', flags: s, ignoreCase: true, json: {a.b: 1}, judge: it is polite, snapshot: true, anyOf: [{contains: y}]}",
    )
    assert made.matcher == {
        "contains": ["a"], "regex": "^x", "flags": "s", "ignoreCase": True, "anyOf": [{"contains": "y"}],
    }  # fmt: skip
    assert made.json_ == {"a.b": 1}
    assert made.judge.criteria == ("it is polite",)
    assert made.snapshot
    assert load_fragment("response", "{snapshot: true}").matcher == {}


OPERANDS = {
    "contains": "[a]", "containsAny": "[a]", "notContains": "[b]", "regex": "a", "eq": "'{\"a\": 1}'", "not": "{contains: b}",
    "jsonSchema": "{type: object, required: [a], properties: {a: {type: integer}, eq: {type: string}}}",
    "anyOf": "[{jsonSchema: {type: object}}]", "allOf": "[{contains: a}]",
}  # fmt: skip


@pytest.mark.parametrize("key", _TEXT_MATCHERS)
def test_every_matcher_of_a_response_can_be_written_and_holds(key: str) -> None:
    """A JSON Schema, too: it is no matcher itself."""
    made = load_fragment("response", f"{{{key}: {OPERANDS[key]}}}")
    assert [each.status for each in check_value("response", '{"a": 1}', made.matcher, CaseVariables({}))] == [
        Status.PASSED
    ]


def test_a_json_schema_is_checked_as_one() -> None:
    """What does not keep to it fails, what is no schema is refused with its place."""
    made = load_fragment("response", "{jsonSchema: {type: object, required: [b]}}")
    found = check_value("response", '{"a": 1}', made.matcher, CaseVariables({}))
    assert [each.status for each in found] == [Status.FAILED]
    assert "'b' is a required property" in found[0].message
    with pytest.raises(SuiteError, match=r"fragment:1:14: .*this is no JSON Schema"):
        load_fragment("response", "{jsonSchema: {type: 7}}")


def test_judging_takes_short_forms() -> None:
    for text in ("{judge: a}", "{judge: [a]}", "{judge: {criteria: [a], judges: 1}}"):
        assert load_fragment("response", text).judge.criteria == ("a",)


def test_usage_gives_its_numbers_by_their_names() -> None:
    """Branches apart; a number given as null or not at all is none."""
    made = load_fragment(
        "usage",
        "{inputTokens: {gt: 0}, costUsd: {lt: 0.01}, estimate: true, anyOf: [{callCount: 1}, {reasoningTokens: 0}]}",
    )
    assert made.numbers == {"inputTokens": {"gt": 0}, "costUsd": {"lt": 0.01}}
    assert [branch.numbers for branch in made.any_of] == [{"callCount": 1}, {"reasoningTokens": 0}]
    assert made.estimate


def test_rows_may_be_named_counted_and_waited_for() -> None:
    (made,) = load_fragment(
        "created", "[{entity: t, fields: {a: {gt: 1}}, count: {lte: 2}, as: $x, within: 2s, overwrite: true}]"
    )
    assert (made.entity, made.fields, made.count, made.as_, made.within, made.overwrite) == (
        "t", {"a": {"gt": 1}}, {"lte": 2}, "x", 2000.0, True,
    )  # fmt: skip


def test_processors_keep_their_words() -> None:
    made = load_fragment(
        "messageProcessing",
        "{condenser: {summaryContains: x, condensedMessages: 4}, tokenLimiter: {droppedMessages: {gt: 1}}}",
    )
    assert made.condenser.summary_contains == ("x",)
    assert made.condenser.activated is None
    assert made.token_limiter.dropped_messages == {"gt": 1}
    assert made.min_evidence == "proven"
